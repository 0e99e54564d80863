# SPDX-License-Identifier: Apache-2.0
"""Sampling of what instances do: the CPUs they run on, their memory, migrations; and kills by the kernel.

A plan says where an instance should run; samples of /proc show where it ran. They are taken rarely
enough to cost at most half a percent of one CPU.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import NamedTuple

from xlaunch.machine.limits import ControlGroup, ControlGroups, read_counters
from xlaunch.machine.processes import descendants, migrations, read_process, read_status, threads
from xlaunch.machine.tree import Tree
from xlaunch.text import size

FIRST_INTERVAL_S = 0.02
MAX_INTERVAL_S = 2.0
SHARE_OF_ONE_CPU = 0.005
"""Maximum share of a CPU for sampling; exceeded if the pause would be longer than `MAX_PAUSE_S`."""
MAX_PAUSE_S = 10.0


class Samples:
    """What was sampled of one instance: its process and all descendants."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.cpus: set[int] = set()
        """CPUs on which a thread has run."""
        self.peak_rss_bytes = 0
        """Largest sum over the processes of the instance."""
        self.samples = 0
        self.ticks = 0
        """CPU time of its processes and of children that they waited for, at the last sample."""
        self.ticks_by_cpu: Counter[int] = Counter()
        """CPU time by the CPU on which the thread was seen; if it has moved, it counts on both
        CPUs."""
        self.placed_ticks = 0
        """CPU time that `ticks_by_cpu` covers."""
        self._ticks: dict[int, int] = {}
        self._last_cpus: dict[int, int] = {}
        self._migrations: dict[int, int] = {}

    @property
    def migrations(self) -> int | None:
        """Migrations between CPUs, of all sampled threads; None if the kernel does not count them."""
        return sum(self._migrations.values()) if self._migrations else None

    def look(self) -> None:
        """Sample every thread of every process once."""
        rss = ticks = 0
        for pid in [self.pid, *descendants(self.pid)]:
            process = read_process(pid)
            if process is None:
                continue
            rss += process.rss_bytes
            ticks += process.cpu_ticks + process.children_ticks
            for thread in threads(pid):
                self._look_at_thread(pid, thread)
        self.peak_rss_bytes = max(self.peak_rss_bytes, rss)
        self.samples += 1
        self.ticks = ticks

    def look_at_zombie(self) -> None:
        """Note the last CPU of an instance that has ended and is not yet reaped.

        So even an instance that was too short for a sample has one CPU.
        """
        process = read_process(self.pid)
        if process is not None:
            self.cpus.add(process.last_cpu)

    def _look_at_thread(self, pid: int, thread: int) -> None:
        status = read_status(f"/proc/{pid}/task/{thread}")
        if status is None:
            return
        # Only a thread that has run since the last sample says something new.
        if status.state == "R" or status.cpu_ticks > self._ticks.get(thread, 0):
            used = status.cpu_ticks - self._ticks.get(thread, 0)
            self._ticks[thread] = status.cpu_ticks
            for cpu in {status.last_cpu, self._last_cpus.get(thread, status.last_cpu)}:
                self.ticks_by_cpu[cpu] += used
            self.placed_ticks += used
            self._last_cpus[thread] = status.last_cpu
            self.cpus.add(status.last_cpu)
            moved = migrations(pid, thread)
            if moved is not None:
                self._migrations[thread] = moved


class Sampler:
    """Samples all instances; call `look` at the time `due`."""

    def __init__(self) -> None:
        self._instances: dict[int, Samples] = {}
        self._interval = FIRST_INTERVAL_S
        self.due = time.monotonic() + self._interval

    def add(self, pid: int) -> Samples:
        """Start to sample the instance whose process is `pid`."""
        samples = self._instances[pid] = Samples(pid)
        return samples

    def remove(self, pid: int) -> None:
        """Stop sampling a process that has ended: its number may be reused."""
        del self._instances[pid]

    def look(self) -> None:
        """Sample every instance, and set the next time."""
        started = time.monotonic()
        spent = time.thread_time()
        for samples in self._instances.values():
            samples.look()
        cost = time.thread_time() - spent
        self._interval = min(1.5 * self._interval, MAX_INTERVAL_S)
        self.due = started + min(max(self._interval, cost / SHARE_OF_ONE_CPU), MAX_PAUSE_S)


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
    """Attributes the kernel's kills for lack of memory, from its creation on, each to one process.

    The counters are those of the control groups that enclose the launch, and of the whole machine: see
    ``memory.events`` in admin-guide/cgroup-v2.rst, ``memory.oom_control`` in cgroup-v1/memory.rst.
    """

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
