# SPDX-License-Identifier: Apache-2.0
"""The runs of an instance: what is sampled of them, why the kernel killed one, what they leave running, and their
sums for the report.

A plan says where an instance should run; samples of /proc show where it ran. They are taken rarely
enough to cost at most half a percent of one CPU.

Leftovers are asked to end, and killed after the grace period. Orphans of the run become the supervisor's
children, because it is a child subreaper. An orphan of an instance that still runs is its helper, and may go
on. One of an unknown instance may go on until no instance runs, because it may be a helper, too.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from resource import RUSAGE_SELF, getrusage, struct_rusage

from xlaunch.machine.limits import UNLIMITED_BYTES, ControlGroup, ControlGroups, read_counters
from xlaunch.machine.processes import (
    TICKS_PER_SECOND,
    children,
    descendants,
    initial_environment,
    migrations,
    proc_is_ours,
    read_process,
    read_status,
    threads,
)
from xlaunch.machine.tree import Tree
from xlaunch.planning.plans import Instance
from xlaunch.report import InstanceReport
from xlaunch.supervision.instance_start import Child
from xlaunch.supervision.signalling import group_exists, kill_processes, send, signal_name
from xlaunch.text import INSTANCE_PREFIX, format_cpu_list, name_numbers, size

FIRST_INTERVAL_S = 0.02
MAX_INTERVAL_S = 2.0
SHARE_OF_ONE_CPU = 0.005
"""Maximum share of a CPU for sampling; exceeded if the pause would be longer than `MAX_PAUSE_S`."""
MAX_PAUSE_S = 10.0
MIN_AGE_S = 1.0
"""Samples are fresh for this time, or longer where a look costs too much."""


class Samples:
    """What was sampled of one instance: its process and all descendants."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.cpus: set[int] = set()
        """CPUs on which a thread has run."""
        self.peak_rss_bytes = 0
        """Largest sum over the processes of the instance."""
        self.rss_bytes = 0
        """The same sum at the last sample."""
        self.samples = 0
        self.ticks = 0
        """CPU time of its processes and of children that they waited for, at the last sample."""
        self.ticks_by_cpu: Counter[int] = Counter()
        """CPU time by the CPU on which the thread was seen; if it has moved, on both CPUs."""
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
        rss_bytes = ticks = 0
        for pid in [self.pid, *descendants(self.pid)]:
            process = read_process(pid)
            if process is None:
                continue
            rss_bytes += process.rss_bytes
            ticks += process.cpu_ticks + process.children_ticks
            for thread in threads(pid):
                self._look_at_thread(pid, thread)
        self.peak_rss_bytes = max(self.peak_rss_bytes, rss_bytes)
        self.samples += 1
        self.ticks, self.rss_bytes = ticks, rss_bytes

    def look_at_zombie(self) -> None:
        """Note the last CPU of an instance that has ended, which may have been too short for a sample."""
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
        self._fresh_until = 0.0

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
        pause = (time.thread_time() - spent) / SHARE_OF_ONE_CPU
        self._interval = min(1.5 * self._interval, MAX_INTERVAL_S)
        self.due = started + min(max(self._interval, pause), MAX_PAUSE_S)
        self._fresh_until = started + min(max(MIN_AGE_S, pause), MAX_PAUSE_S)

    def refresh(self) -> None:
        """Sample if the last samples are not fresh any more, or an instance has none."""
        are_there = all(samples.samples for samples in self._instances.values())
        if not are_there or time.monotonic() >= self._fresh_until:
            self.look()


KILLER = "the kernel's out-of-memory killer"
KILLS = "oom_kill"


class MemoryKills:
    """Attributes the kernel's kills for lack of memory, from its creation on, each to one process.

    The counters are those of the control groups that enclose the launch, and of the whole machine: see
    ``memory.events`` in admin-guide/cgroup-v2.rst, ``memory.oom_control`` in cgroup-v1/memory.rst.
    """

    def __init__(self, root: str = "/") -> None:
        """`root`: root of the file tree to read."""
        self._tree = Tree(root)
        self._group_of: dict[str, ControlGroup | None] = {
            group.file("memory", "events"): group
            for group in ControlGroups(self._tree).all_enclosing("memory")
        }
        """By the file that counts kills; None: those of the whole machine."""
        self._group_of["/proc/vmstat"] = None
        self._before = {path: self._count(path) for path in self._group_of}
        self._attributed = 0

    def attribute(self) -> str | None:
        """Why SIGKILL ended a process just now; None if the kernel has killed no more than were attributed.

        **Ex.:** ``the kernel's out-of-memory killer (limit 512 MiB)``.
        """
        counts = [(self._count(path) - before, path) for path, before in self._before.items()]
        groups = [self._group_of[path] for kills, path in counts if kills > self._attributed]
        if not groups:
            return None
        self._attributed += 1
        maxima = [
            self._tree.read_int(group.file("memory", "max"))
            for group in groups
            if group is not None
        ]
        limits = [limit for limit in maxima if limit is not None and limit < UNLIMITED_BYTES]
        return f"{KILLER} (limit {size(limits[0])})" if limits else KILLER

    def _count(self, path: str) -> int:
        return read_counters(self._tree, path).get(KILLS, 0)


class InstanceRun:
    """One run of an instance: its process, from the start to the end."""

    def __init__(
        self, instance: Instance, position: int, child: Child, started: float, samples: Samples
    ) -> None:
        """`position`: of the instance in its plan."""
        self.instance = instance
        self.position = position
        self.pid = child.pid
        self.exec_result = child.exec_result
        self.started = started
        self.samples = samples
        self.ended: float | None = None
        self._group_remains = True
        self.status = 0
        self.cpu_s = 0.0
        self.context_switches = 0
        self.minor_faults = 0
        self.major_faults = 0
        self.never_ran = False
        """Whether its program could not be executed."""
        self.peak_rss_bytes = 0
        self.killer: str | None = None
        """What killed it, where that is known. **Ex.:** ``the kernel's out-of-memory killer``."""
        self.ended_for: str | None = None
        """Why the supervisor itself asks it to end. **Ex.:** ``a restart was requested``."""
        self.is_replaced = False
        """Whether it is then started again, uncounted and without a delay."""
        self.is_ready: bool | None = None
        """Whether it answered the last probe; None without `--health`."""
        self.was_ready = False
        """Whether it answered any."""
        self.failed_probes = 0
        """In a row."""
        self.probe_problem = ""
        """Why the last probe failed."""
        self.leftovers: set[int] = set()
        """Processes that it left running and that were ended."""

    @property
    def exit_code(self) -> int:
        code = os.waitstatus_to_exitcode(self.status)
        return code if code >= 0 else 128 - code

    @property
    def wall_s(self) -> float:
        assert self.ended is not None
        return self.ended - self.started

    @property
    def signal(self) -> int | None:
        """The signal that ended it."""
        return os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else None

    @property
    def group_remains(self) -> bool:
        """Whether its process group has a member. An empty group is not checked again."""
        self._group_remains = self._group_remains and group_exists(self.pid)
        return self._group_remains

    def end(self, status: int, usage: struct_rusage, now: float) -> None:
        """Record its wait status and resource usage."""
        self.status = status
        self.ended = now
        self.peak_rss_bytes = self._peak_rss_bytes(usage.ru_maxrss * 1024)
        self.add_usage(usage)

    def add_usage(self, usage: struct_rusage) -> None:
        self.cpu_s += usage.ru_utime + usage.ru_stime
        self.context_switches += usage.ru_nvcsw + usage.ru_nivcsw
        self.minor_faults += usage.ru_minflt
        self.major_faults += usage.ru_majflt

    def ticks_on(self, cpu: int) -> int:
        """Maximum CPU time on `cpu`, in ticks: what no sample assigns counts on every CPU of the instance."""
        seen = self.samples
        total = max(seen.ticks, round(self.cpu_s * TICKS_PER_SECOND))
        unplaced = max(0, total - seen.placed_ticks) if cpu in self.instance.cpus else 0
        return seen.ticks_by_cpu[cpu] + unplaced

    def _peak_rss_bytes(self, own_bytes: int) -> int:
        """The sampled peak, or that of its own process (`ru_maxrss`) if it is larger.

        Between fork and exec the process was a copy of this one, and `ru_maxrss` includes that time.
        So it is used only if it exceeds the memory of this process, or if nothing was sampled.
        """
        sampled = self.samples.peak_rss_bytes
        copy_bytes = getrusage(RUSAGE_SELF).ru_maxrss * 1024
        if own_bytes > copy_bytes:
            return max(sampled, own_bytes)
        return sampled or own_bytes

    def describe_failure(self) -> str:
        """**Ex.:** ``"instance 1 failed with exit code 3"``."""
        index = self.instance.index
        if self.ended_for is not None:
            return f"instance {index} was ended: {self.ended_for}"
        by = "" if self.killer is None else f": killed by {self.killer}"
        if self.signal is not None:
            return f"instance {index} was ended by {signal_name(self.signal)}{by}"
        return f"instance {index} failed with exit code {self.exit_code}{by}"


def reports_of(ended: Iterable[InstanceRun]) -> tuple[InstanceReport, ...]:
    """The report of each instance, in the order of their numbers."""
    runs: dict[int, list[InstanceRun]] = {}
    for running in ended:
        runs.setdefault(running.instance.index, []).append(running)
    return tuple([_report_of(runs[index]) for index in sorted(runs)])


def _report_of(runs: Sequence[InstanceRun]) -> InstanceReport:
    """The report of one instance: sums over its runs; exit code and PID of the last."""
    last = runs[-1]
    wall_s = sum(run.wall_s for run in runs)
    cpu_s = sum(run.cpu_s for run in runs)
    moved = [n for run in runs if (n := run.samples.migrations) is not None]
    ncpus = len(last.instance.cpus)
    return InstanceReport(
        index=last.instance.index,
        pid=last.pid,
        cpus_asked=last.instance.cpus,
        cpus_observed=tuple(sorted(set().union(*(run.samples.cpus for run in runs)))),
        numa_nodes=last.instance.nodes,
        exit_code=last.exit_code,
        signal=None if last.signal is None else signal_name(last.signal),
        wall_s=wall_s,
        cpu_s=cpu_s,
        utilisation=cpu_s / (wall_s * ncpus) if wall_s > 0 else 0.0,
        peak_rss_bytes=max(run.peak_rss_bytes for run in runs),
        context_switches=sum(run.context_switches for run in runs),
        migrations=sum(moved) if moved else None,
        leftover_processes=sum(len(run.leftovers) for run in runs),
        restarts=len(runs) - 1,
        minor_faults=sum(run.minor_faults for run in runs),
        major_faults=sum(run.major_faults for run in runs),
        started=not last.never_ran,
        gpus=tuple([gpu.identity for gpu in last.instance.gpus]),
    )


def describe_escape(instance: InstanceReport) -> str | None:
    """A warning about an instance that ran outside its affinity mask."""
    outside = set(instance.cpus_observed).difference(instance.cpus_asked)
    if not outside:
        return None
    return (
        f"instance {instance.index} also ran on {name_numbers('CPU', outside)}: the program changed "
        "its own affinity"
    )


LEFTOVER_INTERVAL_S = 0.05
"""Polling interval while leftovers may exist."""
UNKNOWN_S = 1.0
"""How long an orphan of an unknown instance is checked again: during execve it has no environment."""


class Leftovers:
    """The processes that were asked to end, with a deadline for all of one run.

    Methods take `known`: all runs of all instances so far, those that still run first.
    """

    def __init__(self, count: int, grace_s: float, spared: AbstractSet[int] = frozenset()) -> None:
        """`grace_s`: between SIGTERM and SIGKILL. `spared`: children to leave alone."""
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
        """Whether to check again soon: a process may be ending, or its instance become known."""
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
        """The run that an orphan belongs to, by earlier calls, its process group or its environment."""
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
