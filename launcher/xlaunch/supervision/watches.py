# SPDX-License-Identifier: Apache-2.0
"""The parts of the supervisor; those that watch GPUs, compile caches, and other work on its CPUs.

Other work is that of other processes, and of other virtual machines of the host. An instance that shares a
core is slow, and a parallel region is as slow as its slowest thread. Only a supervised run is sampled, and
only if another process was runnable before. Nothing is delayed.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from xlaunch.cache import store
from xlaunch.cache.use import CacheSettings
from xlaunch.environment import Environment
from xlaunch.errors import RunWarning, WarningKind
from xlaunch.files import names_in
from xlaunch.machine.processes import TICKS_PER_SECOND, descendants, process_name, read_status
from xlaunch.machine.tree import read_file
from xlaunch.output.relay import Chunk
from xlaunch.report import CacheReport, Report, TorchCompilation
from xlaunch.supervision.run_state import Job, Part, Replacements, RunState
from xlaunch.supervision.states import State
from xlaunch.text import format_cpu_list, name_numbers

SAMPLE_S = 0.25
MIN_SAMPLE_S = 0.1
"""Length of a sample: ten ticks of most kernels. Shorter runs get no warning."""

BUSY_SHARE = 0.3
"""Minimum share of a CPU used by others; one competing thread gets about half."""
OCCUPANT_SHARE = 0.2
"""Minimum share of a CPU for a process to be named."""

MAX_NAMED = 3

STOLEN_SHARE = 0.05
MIN_STOLEN_TICKS = 10
"""Minimum stolen time for a warning: as a share of the time that a run wanted, and in all."""


def make_parts(job: Job, run: RunState, replacements: Replacements) -> list[Part]:
    """The parts that `job` needs from its start, with `replacements`."""
    parts: list[Part] = [CompilationWatch(job.environment.caches), StolenTimeWatch(run)]
    if job.others_run:
        parts.append(OtherWorkWatch(run))
    if job.run.metric or job.live is not None:
        from xlaunch.supervision.metrics_watch import MetricsWatch

        parts.append(MetricsWatch(run, job.fifo_directory, job.live))
    if job.run.verify_device:
        parts.append(DevicesWatch(run, job.environment, live_line=job.live_line))
    parts.append(replacements)
    if job.run.health is not None:
        from xlaunch.supervision.health import Health

        parts.append(Health(run, replacements, job.run.health))
    return parts


def make_late_parts(run: RunState, replacements: Replacements) -> list[Part]:
    """The parts that no instance needs, for a run that goes on."""
    from xlaunch.supervision.exporter_process import start_exporter
    from xlaunch.supervision.state_socket import open_state_socket

    return [*open_state_socket(run, replacements), *start_exporter(run)]


class DevicesWatch(Part):
    """Samples GPUs (`--verify-device`)."""

    reads_output = True

    def __init__(self, run: RunState, environment: Environment, *, live_line: bool) -> None:
        """`live_line`: show on a terminal what the devices do."""
        from xlaunch.report.device_watch import DeviceWatch

        self._run, self._live_line = run, live_line
        variables = dict(next(iter(environment.variables), {}))
        if own := [gpu for instance in run.plan.instances for gpu in instance.gpus]:
            variables[own[0].variable] = ",".join([gpu.name for gpu in own])
        self._devices = DeviceWatch(run.started, len(run.plan.used_cpus), variables)
        self.due = self._devices.due

    def feed(self, chunk: Chunk) -> None:
        if chunk.stream == "err":
            self._devices.messages.feed(chunk.index, chunk.data)

    def look(self, now: float) -> None:
        # While the run is suspended nothing counts, and the shell has the terminal.
        if self._run.state is State.STOPPED or not self._run.running:
            self._devices.skip(now)
        else:
            self._devices.look(now, descendants(os.getpid()))
            if self._live_line:
                self._run.relay.show_live(f"xlaunch: {self._devices.live_line()}")
        self.due = self._devices.due

    def add_to(self, report: Report) -> Report:
        return report._replace(devices=self._devices.report())


COUNTERS = "XLAUNCH_COMPILE_COUNTERS"
"""Directory in which each process that imports xruntime writes torch's counters when it ends."""


class CompilationWatch(Part):
    """Finds what was compiled: new files in the caches of a run, and torch's counters of its processes."""

    def __init__(self, caches: CacheSettings) -> None:
        """Record the time, and make the directory for counters."""
        self._used = caches.used
        self._directory: str | None = None
        # A file's time stamp is that of the kernel's last tick, up to 10 ms before the true time.
        self._since_s = time.time() - 0.01
        if caches.base is not None and self._used:
            name = f"{store.COUNTERS}{os.getpid()}-{os.urandom(4).hex()}"
            path = os.path.join(caches.base, name)
            with contextlib.suppress(OSError):
                os.mkdir(path, 0o700)
                self._directory = path

    def variables(self, index: int) -> dict[str, str]:
        """The variable that makes every instance write its counters."""
        return {} if self._directory is None else {COUNTERS: self._directory}

    def add_to(self, report: Report) -> Report:
        """The report with the caches of the run, and the counters if a process wrote some."""
        from xlaunch.cache import contents

        cache_reports = []
        for directory, warmth in self._used:
            files = [file for _, file in contents.compiled_files(directory)]
            new = contents.total([file for file in files if file.changed_s >= self._since_s])
            cache_reports.append(CacheReport(directory.cache, directory.path, warmth, *new))
        return report._replace(caches=tuple(cache_reports), compilation=self._read_counters())

    def _read_counters(self) -> TorchCompilation | None:
        """The counters of all processes; the directory is removed."""
        if self._directory is None:
            return None
        with contextlib.suppress(OSError):
            os.rmdir(self._directory)
            return None  # no process wrote any
        import json
        import shutil

        counters = []
        for name in names_in(self._directory):
            path = os.path.join(self._directory, name)
            # A process that is killed while it writes leaves half a file.
            with (
                contextlib.suppress(OSError, ValueError, TypeError),
                open(path, encoding="utf-8") as stream,
            ):
                counters.append(TorchCompilation(1, **json.load(stream)))
        shutil.rmtree(self._directory, ignore_errors=True)
        return TorchCompilation(*map(sum, zip(*counters, strict=True))) if counters else None


class StolenTimeWatch(Part):
    """Warns about time that the host of a virtual machine gave to other machines."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._stolen = StolenTime(run.plan.used_cpus)

    def finish(self) -> None:
        self._run.messages.warn(self._stolen.describe())


class OtherWorkWatch(Part):
    """Warns about CPUs that other processes keep busy: what the run did not use itself."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        plan = run.plan
        self._occupancy = Occupancy(
            plan.used_cpus, run.started, bound=plan.bound, others=plan.idle_cpus
        )
        self.due = self._occupancy.due

    def look(self, now: float, *, at_end: bool = False) -> None:
        self._run.sampler.look()
        # Where the supervisor ran is not known: count it on every CPU.
        supervisor = round(time.process_time() * TICKS_PER_SECOND)
        runs, cpus = self._run.all_runs(), self._occupancy.cpus
        own = {cpu: supervisor + sum(run.ticks_on(cpu) for run in runs) for cpu in cpus}
        pids = {os.getppid(), os.getpid(), *descendants(os.getpid())}
        self._run.messages.warn(self._occupancy.look(now, own, pids, at_end=at_end))
        self.due = self._occupancy.due

    def finish(self) -> None:
        self.look(time.monotonic(), at_end=True)


class _Ticks(NamedTuple):
    """Ticks of one CPU since boot (see proc_stat(5))."""

    work: int
    """Non-idle ticks, including steal."""
    stolen: int
    total: int


def anything_runs(root: str = "/proc") -> bool:
    """Whether the kernel counts a runnable thread besides this one (see proc_loadavg(5))."""
    fields = (read_file(f"{root}/loadavg") or b"").split()
    runnable = fields[3].partition(b"/")[0] if len(fields) > 3 else b""
    return not runnable.isdigit() or int(runnable) > 1


class Occupancy:
    """Finds other processes on the CPUs of a run, in two samples: busy CPUs, then who uses them.

    The caller calls `look` when `due` has come, and at the end of the run.
    """

    def __init__(
        self,
        cpus: Iterable[int],
        now: float,
        *,
        bound: bool = True,
        others: Iterable[int] = (),
        root: str = "/proc",
    ) -> None:
        """Start sampling. `now`: on the clock of `time.monotonic()`, here and below.

        Not `bound`: the kernel moves instances away from single busy CPUs, so only a large share of
        all CPUs together gets a warning. `others`: CPUs that the instances could have instead.
        """
        self.cpus = sorted(set(cpus))
        self._bound = bound
        self._others = sorted(others) if bound else []
        """The idle CPUs, once the first sample was taken."""
        self._root = root
        self._before = _times(root)
        self._busy: dict[int, float] = {}
        self._processes: dict[int, int] = {}
        self._began = now
        self._scanned_at = now
        self.due = now + SAMPLE_S
        """When to call `look`; infinity once there is nothing more to report."""

    def look(
        self, now: float, own: Mapping[int, int], ours: Collection[int], *, at_end: bool = False
    ) -> str | None:
        """Take the next sample; after the second, return a warning about CPUs that others keep busy.

        `own`: ticks that the run itself may have used on each CPU since its start. `ours`: PIDs of
        the run, its launcher's among them. `at_end`: the run has ended, perhaps before both samples.
        """
        if not at_end and now < self.due:
            return None
        if not self._busy and now >= self._began + (MIN_SAMPLE_S if at_end else SAMPLE_S):
            self._find_busy(now, own)
            if not at_end:
                return None
        return self._describe(now, ours) if self._busy and self.due < float("inf") else None

    def _find_busy(self, now: float, own: Mapping[int, int]) -> None:
        shares = self._shares(own)
        self._busy = {cpu: shares[cpu] for cpu in self.cpus if shares.get(cpu, 0.0) >= BUSY_SHARE}
        of_run = [share for cpu, share in shares.items() if cpu in self.cpus]
        if not self._bound and sum(of_run) < BUSY_SHARE * len(of_run):
            self._busy = {}
        self._others = [cpu for cpu in self._others if shares.get(cpu, 1.0) < BUSY_SHARE]
        self.due = float("inf")
        if self._busy:
            self._processes = _process_ticks(self._root)
            self._scanned_at = now
            self.due = now + SAMPLE_S

    def _shares(self, own: Mapping[int, int]) -> dict[int, float]:
        """The share that others used of each CPU of the run, and of those that it could use instead."""
        shares = {}
        after = _times(self._root)
        for cpu in (*self.cpus, *self._others):
            then, now = self._before.get(cpu), after.get(cpu)
            if then is None or now is None or now.total <= then.total:
                continue
            worked = (now.work - now.stolen) - (then.work - then.stolen)
            shares[cpu] = max(0.0, (worked - own.get(cpu, 0)) / (now.total - then.total))
        return shares

    def _describe(self, now: float, ours: Collection[int]) -> str:
        self.due = float("inf")
        passed_s = now - self._scanned_at
        occupants = self._find_occupants(passed_s, ours)
        named = occupants[:MAX_NAMED]
        if len(occupants) > MAX_NAMED:
            named.append(f"{len(occupants) - MAX_NAMED} more")
        if not named and passed_s >= SAMPLE_S:
            named.append("processes that have ended, or cannot be seen from here")
        count = len(self._busy)
        share = sum(self._busy.values()) / len(self._busy)
        idle, remedy = self._others, ""
        if idle:
            are = "is" if len(idle) == 1 else "are"
            remedy = f"; {name_numbers('CPU', idle)} {are} idle: --cpus {format_cpu_list(idle)}"
        return RunWarning(
            f"{name_numbers('CPU', self._busy)} {'is' if count == 1 else 'are'} "
            f"busy with other work ({share:.0%}{'' if count == 1 else ' on average'})"
            f"{': ' if named else ''}{', '.join(named)}"
            f"{remedy}",
            WarningKind.SHARED_CPUS,
        )

    def _find_occupants(self, passed_s: float, ours: Collection[int]) -> list[str]:
        """The names and PIDs of the processes that use the busy CPUs, in descending order of CPU time."""
        least = max(1.0, OCCUPANT_SHARE * passed_s * TICKS_PER_SECOND)
        before = self._processes
        after = _process_ticks(self._root)
        used = {pid: ticks - before.get(pid, ticks) for pid, ticks in after.items()}
        occupants = []
        for pid in sorted(used.keys() - set(ours), key=lambda pid: (-used[pid], pid)):
            if used[pid] < least:
                break
            if not self._busy.keys().isdisjoint(_last_cpus(self._root, pid)):
                occupants.append(f"{process_name(pid, self._root) or '?'} (PID {pid})")
        return occupants


class StolenTime:
    """Time that the host of a virtual machine gives to others while threads here could run (steal).

    A parallel region ends with its slowest thread, so even a little slows a run down.
    """

    def __init__(self, cpus: Iterable[int], *, root: str = "/proc") -> None:
        """Start counting."""
        self._cpus = frozenset(cpus)
        self._root = root
        self._before = _times(root)

    def describe(self) -> str | None:
        """A warning about the time since the start; None if it was negligible."""
        stolen, wanted = self._since()
        if stolen < max(MIN_STOLEN_TICKS, STOLEN_SHARE * wanted):
            return None
        return RunWarning(
            f"the host gave {stolen / wanted:.0%} of the time that was wanted of "
            f"{name_numbers('CPU', self._cpus)} to other machines (steal in /proc/stat): another run may be as much faster or "
            "slower",
            WarningKind.SHARED_CPUS,
        )

    def share(self) -> float:
        """The stolen share of the time wanted since the start, 0 to 1."""
        stolen, wanted = self._since()
        return stolen / wanted if wanted else 0.0

    def _since(self) -> tuple[int, int]:
        """Stolen ticks, and the sum of busy and stolen ticks."""
        now = _times(self._root)
        ours = [
            (self._before[cpu], now[cpu]) for cpu in self._cpus & self._before.keys() & now.keys()
        ]
        stolen = sum(after.stolen - before.stolen for before, after in ours)
        return stolen, sum(after.work - before.work for before, after in ours)


def _times(root: str) -> dict[int, _Ticks]:
    """The ticks of each CPU."""
    ticks_of = {}
    for line in (read_file(f"{root}/stat") or b"").split(b"\n"):
        name, *fields = line.split()[:9] or [b""]
        if not name.startswith(b"cpu") or not name[3:].isdigit():
            continue
        ticks = [int(field) for field in fields]
        idle = sum(ticks[3:5])  # idle, and idle with input or output pending
        ticks_of[int(name[3:])] = _Ticks(sum(ticks) - idle, sum(ticks[7:8]), sum(ticks))
    return ticks_of


def _process_ticks(root: str) -> dict[int, int]:
    ticks_of = {}
    for name in os.listdir(root):
        status = read_status(f"{root}/{name}") if name.isdigit() else None
        if status is not None:
            ticks_of[int(name)] = status.cpu_ticks
    return ticks_of


def _last_cpus(root: str, pid: int) -> set[int]:
    """The CPUs on which the threads of a process ran last."""
    tasks = f"{root}/{pid}/task"
    statuses = [read_status(f"{tasks}/{task}") for task in names_in(tasks)]
    return {status.last_cpu for status in statuses if status is not None}
