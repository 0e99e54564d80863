# SPDX-License-Identifier: Apache-2.0
"""What a run was: as a value for `xlaunch.launch`, as a table, and as JSON for `--report`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from xlaunch.machine.topology import CPUs

if TYPE_CHECKING:
    from xlaunch.measurement.metrics import InstanceMetric, MetricSeries, MetricTotal


class InstanceReport(NamedTuple):
    """One instance, once it has ended. See `COLUMNS` for what each value sums."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    pid: int
    cpus_asked: CPUs
    cpus_observed: CPUs
    numa_nodes: tuple[int, ...]
    exit_code: int
    signal: str | None
    wall_s: float
    cpu_s: float
    utilisation: float
    peak_rss_bytes: int
    context_switches: int
    migrations: int | None
    """None where the kernel keeps no count."""
    leftover_processes: int
    """Processes that it left behind and that were ended."""
    metrics: tuple[InstanceMetric, ...] = ()
    restarts: int = 0
    """Times it was started anew. Exit code and PID are the last run's, the rest is of all."""
    minor_faults: int = 0
    major_faults: int = 0
    started: bool = True


class Report(NamedTuple):
    """A whole run."""

    exit_code: int
    reason: str
    """Why it ended, in a few words. **Ex.:** ``"instance 1 failed with exit code 3"``."""
    wall_s: float
    count: int  # type: ignore[assignment]  # hides tuple.count
    instances: tuple[InstanceReport, ...]
    warnings: tuple[str, ...]
    argv: tuple[str, ...]
    metrics: tuple[MetricTotal, ...] = ()
    """Of each `--metric`, over all instances."""
    series: tuple[MetricSeries, ...] = ()
    """Every value of each `--metric` and instance; not written to `--report`."""
    lines_seen: tuple[str, ...] = ()
    """Where some metric was never seen: the last lines of output that held numbers."""
