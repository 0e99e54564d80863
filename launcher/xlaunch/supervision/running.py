# SPDX-License-Identifier: Apache-2.0
"""An instance from its start to its end, and what all its runs together come to."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from resource import RUSAGE_SELF, getrusage, struct_rusage
from typing import TYPE_CHECKING

from xlaunch.machine.processes import TICKS_PER_SECOND
from xlaunch.planning.plans import Instance
from xlaunch.report import InstanceReport
from xlaunch.report.observation import Observer
from xlaunch.supervision.signalling import signal_name

if TYPE_CHECKING:
    from xlaunch.measurement.metrics import InstanceMetric


class Running:
    """One process of an instance, from its start on."""

    def __init__(
        self,
        instance: Instance,
        position: int,
        pid: int,
        exec_result: int,
        started: float,
        observer: Observer,
    ) -> None:
        """`position`: of the instance in its plan."""
        self.instance = instance
        self.position = position
        self.pid = pid
        self.exec_result = exec_result
        self.started = started
        self.observation = observer.add(pid)
        self.ended: float | None = None
        self.status = 0
        self.cpu_s = 0.0
        self.context_switches = 0
        self.minor_faults = 0
        self.major_faults = 0
        self.never_ran = False
        """Its program could not be executed."""
        self.peak_rss_bytes = 0
        self.leftovers: set[int] = set()

    @property
    def exit_code(self) -> int:
        code = os.waitstatus_to_exitcode(self.status)
        return code if code >= 0 else 128 - code

    @property
    def wall_s(self) -> float:
        assert self.ended is not None
        return self.ended - self.started

    def add_usage(self, usage: struct_rusage) -> None:
        self.cpu_s += usage.ru_utime + usage.ru_stime
        self.context_switches += usage.ru_nvcsw + usage.ru_nivcsw
        self.minor_faults += usage.ru_minflt
        self.major_faults += usage.ru_majflt

    def ticks_on(self, cpu: int) -> int:
        """CPU time that it may have used on `cpu`, in ticks, with all that cannot be placed."""
        seen = self.observation
        total = max(seen.ticks, round(self.cpu_s * TICKS_PER_SECOND))
        unplaced = max(0, total - seen.placed_ticks) if cpu in self.instance.cpus else 0
        return seen.ticks_by_cpu[cpu] + unplaced

    def note_peak_rss(self, own_bytes: int) -> None:
        """Take the sampled peak, or its process's own (`ru_maxrss`) where that is larger.

        The kernel counts the moment between fork and exec too, when the process was a copy of
        this one: a value no larger than that says nothing, and counts only if nothing was sampled.
        """
        sampled = self.observation.peak_rss_bytes
        copy_bytes = getrusage(RUSAGE_SELF).ru_maxrss * 1024
        self.peak_rss_bytes = max(sampled, own_bytes) if own_bytes > copy_bytes else sampled
        self.peak_rss_bytes = self.peak_rss_bytes or own_bytes

    def describe_failure(self) -> str:
        """**Ex.:** ``"instance 1 failed with exit code 3"``."""
        index = self.instance.index
        if os.WIFSIGNALED(self.status):
            return f"instance {index} was ended by {signal_name(os.WTERMSIG(self.status))}"
        return f"instance {index} failed with exit code {self.exit_code}"


def reports_of(
    ended: Iterable[Running], metrics: Mapping[int, tuple[InstanceMetric, ...]]
) -> tuple[InstanceReport, ...]:
    """What each instance did, in the order of their numbers. `metrics`: by those numbers."""
    runs: dict[int, list[Running]] = {}
    for running in ended:
        runs.setdefault(running.instance.index, []).append(running)
    return tuple([_report_of(runs[index], metrics.get(index, ())) for index in sorted(runs)])


def _report_of(runs: Sequence[Running], metrics: tuple[InstanceMetric, ...]) -> InstanceReport:
    """What one instance did: all its runs together; exit code and PID of the last."""
    last = runs[-1]
    wall_s = sum(run.wall_s for run in runs)
    cpu_s = sum(run.cpu_s for run in runs)
    moved = [n for run in runs if (n := run.observation.migrations) is not None]
    ncpus = len(last.instance.cpus)
    ended_by = signal_name(os.WTERMSIG(last.status)) if os.WIFSIGNALED(last.status) else None
    return InstanceReport(
        index=last.instance.index,
        pid=last.pid,
        cpus_asked=last.instance.cpus,
        cpus_observed=tuple(sorted(set().union(*(run.observation.cpus for run in runs)))),
        numa_nodes=last.instance.nodes,
        exit_code=last.exit_code,
        signal=ended_by,
        wall_s=wall_s,
        cpu_s=cpu_s,
        utilisation=cpu_s / (wall_s * ncpus) if wall_s > 0 else 0.0,
        peak_rss_bytes=max(run.peak_rss_bytes for run in runs),
        context_switches=sum(run.context_switches for run in runs),
        migrations=sum(moved) if moved else None,
        leftover_processes=sum(len(run.leftovers) for run in runs),
        metrics=metrics,
        restarts=len(runs) - 1,
        minor_faults=sum(run.minor_faults for run in runs),
        major_faults=sum(run.major_faults for run in runs),
        started=not last.never_ran,
    )
