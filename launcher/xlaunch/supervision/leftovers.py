# SPDX-License-Identifier: Apache-2.0
"""Processes that instances leave running: asked to end, and killed after the grace period.

Orphans of the run become the supervisor's children, because it is a child subreaper. An orphan of an
instance that still runs is its helper, and may go on. One of an unknown instance may go on until no
instance runs, because it may be a helper, too.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from xlaunch.machine.cpu_list import format_cpu_list
from xlaunch.machine.processes import (
    children,
    descendants,
    initial_environment,
    proc_is_ours,
    read_process,
)
from xlaunch.supervision.instance_run import InstanceRun
from xlaunch.supervision.signalling import kill as kill_processes
from xlaunch.supervision.signalling import send
from xlaunch.text import INSTANCE_PREFIX

LEFTOVER_INTERVAL_S = 0.05
"""Polling interval while leftovers may exist."""
UNKNOWN_S = 1.0
"""How long an orphan of an unknown instance is checked again: during execve it shows no
environment."""


class Leftovers:
    """The processes that were asked to end, with a deadline for all of one run.

    Methods take `known`: all runs of all instances so far, those that still run first.
    """

    def __init__(self, count: int, grace_s: float, spared: AbstractSet[int] = frozenset()) -> None:
        """`count`: instances of the plan. `grace_s`: between SIGTERM and SIGKILL. `spared`: children to
        leave alone.
        """
        self._count = count
        self._spared = spared
        self._grace_s = grace_s
        self._asked: set[int] = set()
        self._unknown: dict[int, float] = {}
        """When each orphan of an unknown instance was first seen, while it exists."""
        self._deadlines: dict[InstanceRun | None, float] = {}
        """One deadline for all leftovers of a run, because a process may fork others forever."""

    @property
    def waiting(self) -> bool:
        """Whether to check again soon: a process may be ending, or its instance may become
        known.
        """
        if self._asked:
            return True
        return any(time.monotonic() < seen + UNKNOWN_S for seen in self._unknown.values())

    def waiting_of(self, runs: Iterable[InstanceRun]) -> bool:
        """Whether a leftover of one of these runs still exists."""
        return any(not run.leftovers.isdisjoint(self._asked) for run in runs)

    def end(self, known: Sequence[InstanceRun], *, kill: bool) -> None:
        """Ask new leftovers to end; kill those past their deadline, or with `kill` all."""
        if not proc_is_ours():
            self._end_groups(known, kill=kill)
            return
        now = time.monotonic()
        overdue: list[int] = []
        unknown: dict[int, float] = {}
        instances = {run.pid for run in known if run.ended is None}
        for orphan in children(os.getpid()):
            status = read_process(orphan)
            if (
                orphan in instances
                or orphan in self._spared
                or status is None
                or status.state == "Z"
            ):
                continue
            owner = self._owner(orphan, known)
            if owner is None and instances and not kill:
                unknown[orphan] = self._unknown.get(orphan, now)
                continue
            if owner is not None and owner.ended is None:
                continue  # a helper of an instance that still runs
            for pid in (orphan, *descendants(orphan)):
                if owner is not None:
                    owner.leftovers.add(pid)
                if kill or now >= self._deadlines.setdefault(owner, now + self._grace_s):
                    overdue.append(pid)
                elif pid not in self._asked:
                    send(pid, signal.SIGTERM)
                    send(pid, signal.SIGCONT)
                self._asked.add(pid)
        self._unknown = unknown
        if overdue:
            kill_processes(overdue)
        self._asked = {pid for pid in self._asked if os.path.exists(f"/proc/{pid}")}

    def remain(self, known: Sequence[InstanceRun]) -> bool:
        """Whether a process of the run is left, as far as it can be found, after the last instance."""
        if proc_is_ours():
            return any(pid not in self._spared for pid in children(os.getpid()))
        return any(run.group_remains for run in known)

    def _end_groups(self, known: Sequence[InstanceRun], *, kill: bool) -> None:
        """`end` without a /proc: only the process groups of the instances are known."""
        now = time.monotonic()
        for run in known:
            if not kill and run.ended is None:
                continue
            if not run.group_remains:
                self._asked.discard(run.pid)
            elif kill or now >= self._deadlines.setdefault(run, now + self._grace_s):
                send(run.pid, signal.SIGKILL, group=True)
            elif run.pid not in self._asked:
                self._asked.add(run.pid)
                send(run.pid, signal.SIGTERM, group=True)
                send(run.pid, signal.SIGCONT, group=True)

    def reap(self, pid: int, known: Sequence[InstanceRun]) -> None:
        """Reap an orphan that has ended, and count its usage for its instance."""
        owner = self._owner(pid, known)
        _, _, usage = os.wait4(pid, 0)
        if proc_is_ours():
            self._asked.discard(pid)
        if owner is not None:
            owner.add_usage(usage)

    def _owner(self, pid: int, known: Sequence[InstanceRun]) -> InstanceRun | None:
        """The run that an orphan belongs to, by earlier calls, its process group or its
        environment.
        """
        status = read_process(pid)
        for run in known:
            if pid in run.leftovers or (status is not None and status.group == run.pid):
                return run
        if status is None or status.state == "Z":
            return None  # it has no environment any more
        # An xlaunch inside an instance sets an index of its own.
        variables = initial_environment(pid)
        place = [variables.get(f"{INSTANCE_PREFIX}{name}") for name in ("INDEX", "COUNT", "CPUS")]
        for run in known:
            cpus = format_cpu_list(run.instance.cpus)
            if place == [str(run.instance.index), str(self._count), cpus]:
                return run
        return None
