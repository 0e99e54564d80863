# SPDX-License-Identifier: Apache-2.0
"""The interface to the records of a search, which ensures that each launch is made once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from xtune.launches.launch import Launch
from xtune.search.records import Record, Step


class Store(Protocol):
    """Stores records; several workers may share the storage behind it."""

    @property
    def host(self) -> str:
        """The host of this worker."""
        ...

    def records(self) -> Sequence[Record]:
        """All records that count, by number: finished launches and those under way anywhere.

        Launches whose worker is dead are left out.
        """
        ...

    def claim(self, step: Step) -> int | None:
        """The number of the new record; None if another worker has its key."""
        ...

    def finish(self, number: int, launch: Launch) -> bool:
        """Store the result. False: another worker considered the launch lost; nothing is stored."""
        ...

    def abandon(self, number: int, reason: str) -> None:
        """Withdraw a launch that was not finished; it does not count."""
        ...
