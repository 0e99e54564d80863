# SPDX-License-Identifier: Apache-2.0
"""Detection of launches that failed for lack of memory, from kernel counters and standard error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from xlaunch.machine.cgroups import ControlGroups
from xlaunch.machine.files import Tree, number

_WORDS = re.compile(
    r"\bMemoryError\b|\bstd::bad_alloc\b|\bcan(?:no|')t allocate memory\b|\bout of memory\b"
    r"|\bKilled\b|\bENOMEM\b|\bnot enough memory\b",
    re.IGNORECASE,
)
"""Messages of interpreters, allocators and shells about it."""


class _Counts(NamedTuple):
    """Counters of the system and of every enclosing control group."""

    kills: tuple[int, ...]
    """Kills by the kernel's out-of-memory killer."""
    full: tuple[int, ...]
    """How often a control group reached its limit."""


class MemoryWatch:
    """Watches the kernel's out-of-memory counters from its creation on."""

    def __init__(self, root: str = "/") -> None:
        """`root`: root of the file tree to read."""
        self._tree = Tree(root)
        self._directories = [
            (group.version, group.directory)
            for levels in ControlGroups(self._tree).enclosing("memory")
            for group in levels
        ]
        self._before = self._count()

    def explain(self, *, killed: bool, stderr: str) -> str | None:
        """Why a failed launch seems to have lacked memory; None without evidence.

        killed
            SIGKILL ended one of its processes, and was not sent by the tuner.
        stderr
            The end of its standard error.
        """
        now = self._count()
        kills = _most_moved(self._before.kills, now.kills)
        full = _most_moved(self._before.full, now.full)
        if kills > 0 and (killed or _WORDS.search(stderr)):
            return f"the kernel's out-of-memory killer ran {_times(kills)} meanwhile"
        if killed and full > 0:
            return f"it was killed, and its control group reached its memory limit {_times(full)}"
        said = _WORDS.search(stderr)
        if said is not None:
            line = next(line for line in stderr.splitlines() if said[0] in line)
            return f"it printed {line.strip()[:200]!r}"
        return None

    def _count(self) -> _Counts:
        kills = [self._counted("/proc/vmstat", "oom_kill")]
        full = []
        for version, directory in self._directories:
            if version == 2:
                kills.append(self._counted(f"{directory}/memory.events", "oom_kill"))
                full.append(self._counted(f"{directory}/memory.events", "max"))
            else:
                kills.append(self._counted(f"{directory}/memory.oom_control", "oom_kill"))
                full.append(self._tree.read_int(f"{directory}/memory.failcnt") or 0)
        return _Counts(tuple(kills), tuple(full))

    def _counted(self, path: str, name: str) -> int:
        for line in (self._tree.read(path) or "").splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return number(value) or 0
        return 0


def _most_moved(before: Sequence[int], now: Sequence[int]) -> int:
    return max([late - early for early, late in zip(before, now, strict=True)], default=0)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
