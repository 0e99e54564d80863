# SPDX-License-Identifier: Apache-2.0
"""Tells processes that the kernel killed for lack of memory from those that a user's SIGKILL ended.

The counters are those of the control groups that enclose the launch, and of the whole machine: see
``memory.events`` in admin-guide/cgroup-v2.rst, ``memory.oom_control`` in cgroup-v1/memory.rst.
"""

from __future__ import annotations

from typing import NamedTuple

from xlaunch.machine.limits import ControlGroup, ControlGroups, read_counters
from xlaunch.machine.tree import Tree
from xlaunch.text import size

KILLER = "the kernel's out-of-memory killer"
KILLS = "oom_kill"
NO_LIMIT_BYTES = 1 << 60
"""From here on a limit is none: version 1 has no word for that."""


class _Place(NamedTuple):
    """Something that counts kills."""

    path: str
    group: ControlGroup | None
    """None: the whole machine."""


class MemoryKills:
    """Attributes the kernel's kills, from its creation on, each to one process."""

    def __init__(self, root: str = "/") -> None:
        """`root`: root of the file tree to read."""
        self._tree = Tree(root)
        self._places = [
            _Place(group.file("memory", "events" if group.version == 2 else "oom_control"), group)
            for levels in ControlGroups(self._tree).enclosing("memory")
            for group in levels
        ]
        self._places.append(_Place("/proc/vmstat", None))
        self._before = [self._count(place) for place in self._places]
        self._attributed = 0

    def attribute(self) -> str | None:
        """Why a process that SIGKILL has just ended was killed; None if the kernel has killed no more
        processes than were attributed.

        **Ex.:** ``the kernel's out-of-memory killer (limit 512 MiB)``.
        """
        counts = zip(self._places, self._before, strict=True)
        moved = [
            place for place, before in counts if self._count(place) - before > self._attributed
        ]
        if not moved:
            return None
        self._attributed += 1
        groups = [place.group for place in moved if place.group is not None]
        limits = [limit for group in groups if (limit := self._limit_bytes(group)) is not None]
        limited = f" (limit {size(limits[0])})" if limits else ""
        return f"{KILLER}{limited}"

    def _count(self, place: _Place) -> int:
        return read_counters(self._tree, place.path).get(KILLS, 0)

    def _limit_bytes(self, group: ControlGroup) -> int | None:
        name = "max" if group.version == 2 else "limit_in_bytes"
        limit = self._tree.read_int(group.file("memory", name))
        return limit if limit is not None and limit < NO_LIMIT_BYTES else None
