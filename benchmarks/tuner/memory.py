# SPDX-License-Identifier: Apache-2.0
"""A store without a storage, for replays and tests."""

from __future__ import annotations

from collections.abc import Sequence

from xtune.launches.launch import Launch
from xtune.search.records import NextLaunch, Record


class MemoryStore:
    """Records of one worker, kept in memory: and gone with it."""

    def __init__(self, host: str = "here") -> None:
        self._host = host
        self._records: dict[int, Record] = {}
        self._made = 0

    @property
    def host(self) -> str:
        return self._host

    def records(self) -> Sequence[Record]:
        return tuple(self._records.values())

    def claim(self, step: NextLaunch) -> int | None:
        if any(record.step.key == step.key for record in self._records.values()):
            return None
        self._made += 1
        self._records[self._made] = Record(self._made, step, self._host, None)
        return self._made

    def finish(self, number: int, launch: Launch) -> bool:
        if number not in self._records:
            return False
        self._records[number] = self._records[number]._replace(launch=launch)
        return True

    def abandon(self, number: int, reason: str) -> None:
        self._records.pop(number, None)
