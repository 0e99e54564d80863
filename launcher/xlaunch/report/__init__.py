# SPDX-License-Identifier: Apache-2.0
"""The report of a run: as a value for `xlaunch.launch`, as a table, and as JSON for `--report`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from xlaunch.machine.topology import CPUs

if TYPE_CHECKING:
    from xlaunch.metrics.collector import InstanceMetric, MetricSeries, MetricTotal
    from xlaunch.report.device_use import DevicesReport


class InstanceReport(NamedTuple):
    """One instance that has ended. `json_file.COLUMNS` says what each value means."""

    index: int  # type: ignore[assignment]  # hides tuple.index
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
    """Processes that it left running and that were ended."""
    metrics: tuple[InstanceMetric, ...] = ()
    restarts: int = 0
    """Number of restarts. Exit code and PID are those of the last run, the rest is of all runs."""
    minor_faults: int = 0
    major_faults: int = 0
    started: bool = True
    gpus: tuple[str, ...] = ()


class CacheReport(NamedTuple):
    """One cache that the program may have used."""

    cache: str
    directory: str
    warmth: str
    """At the start: ``cold`` (empty) or ``used``."""
    new_files: int
    """Files written during the run, also by other launches; without locks and unfinished files."""
    new_bytes: int


class TorchCompilation(NamedTuple):
    """Counters of torch, summed over the processes that imported xruntime."""

    processes: int
    backend_compile_s: float
    """Seconds in Inductor, loading from its caches included."""
    graph_hits: int
    """Graphs that Inductor found in its cache."""
    graph_misses: int


class Report(NamedTuple):
    """A run that has ended."""

    exit_code: int
    reason: str
    """Why it ended, in a few words. **Ex.:** ``"instance 1 failed with exit code 3"``."""
    wall_s: float
    count: int  # type: ignore[assignment]  # hides tuple.count
    instances: tuple[InstanceReport, ...]
    warnings: tuple[str, ...]
    argv: tuple[str, ...]
    metrics: tuple[MetricTotal, ...] = ()
    """Each `--metric` over all instances."""
    series: tuple[MetricSeries, ...] = ()
    """Every value of each `--metric` and instance; not written to `--report`."""
    caches: tuple[CacheReport, ...] = ()
    compilation: TorchCompilation | None = None
    """None unless a process of the program imported xruntime and compiled something."""
    lines_seen: tuple[str, ...] = ()
    """If some metric was never seen: the last lines of output with numbers."""
    devices: DevicesReport | None = None
    """Where the program worked; None without `--verify-device`."""
