# SPDX-License-Identifier: Apache-2.0
"""What a supervised run was: for the table at its end, for `--report`, for `xlaunch.launch`."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from xlaunch.errors import UsageError, XLaunchError
from xlaunch.machine.cpu_list import format_cpu_list
from xlaunch.machine.topology import CPUs

if TYPE_CHECKING:
    from xlaunch.run.metrics import InstanceMetric, MetricSeries, MetricTotal

SCHEMA_VERSION = 1

COLUMNS = {
    "index": "the instance's number",
    "cpus_asked": "affinity mask that the plan gave",
    "cpus_observed": "CPUs on which a thread of any of its processes was seen to have run (sampled)",
    "numa_nodes": "NUMA nodes of the mask",
    "exit_code": "128 + n when signal n ended it; null when it was not started",
    "wall_s": "from start to end of its own process",
    "cpu_s": "user and system time: its process, children that it waited for, and what it left behind",
    "utilisation": "cpu_s / (wall_s x CPUs asked)",
    "peak_rss_bytes": "largest sampled sum over its processes, at least its process's own peak",
    "context_switches": "voluntary and involuntary, of what cpu_s covers",
    "minor_faults": "page faults without reading a disk, of what cpu_s covers",
    "major_faults": "page faults that read a disk, of what cpu_s covers",
    "started": "false when it never became its program: no interpreter, too many arguments",
    "metrics": "of each --metric: values in all, the last, and the mean over the window of its total",
    "restarts": "times it was started anew after a failure; all that is summed is of all its runs",
    "migrations": "moves from CPU to CPU, all its threads that were seen; null where not counted",
}
"""Each column of the table and each key of an instance, and what it sums."""


FOOTNOTE = (
    "CPU s, switches: its process, children that it waited for, processes that it left behind.",
    "used: CPU s / (wall s x CPUs asked). peak RSS: all its processes together. moves: of all threads",
    "from CPU to CPU. CPUs observed, peak RSS and moves are sampled.",
)


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
    cpu_s: float | None
    utilisation: float | None
    peak_rss_bytes: int | None
    context_switches: int | None
    """The four are None where the system is not Linux."""
    migrations: int | None
    leftover_processes: int
    """Processes that it left behind and that were ended."""
    metrics: tuple[InstanceMetric, ...] = ()
    restarts: int = 0
    """Times it was started anew. Exit code and PID are the last run's, the rest is of all."""
    minor_faults: int | None = None
    major_faults: int | None = None
    """Both are None where the system is not Linux."""
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


class Measured(NamedTuple):
    """What a run's measuring comes to."""

    by_instance: Mapping[int, tuple[InstanceMetric, ...]] = {}
    totals: tuple[MetricTotal, ...] = ()
    series: tuple[MetricSeries, ...] = ()
    lines_seen: tuple[str, ...] = ()


def report_to_dict(report: Report) -> dict[str, Any]:
    """Plain values with the keys of `--report`."""
    instances = []
    for instance in report.instances:
        values = instance._asdict()
        values |= {name: list(v) for name, v in values.items() if isinstance(v, tuple)}
        values["metrics"] = [metric._asdict() for metric in instance.metrics]
        instances.append(values)
    return {
        "schema_version": SCHEMA_VERSION,
        "argv": [argument.encode(errors="backslashreplace").decode() for argument in report.argv],
        "exit_code": report.exit_code,
        "reason": report.reason,
        "wall_s": report.wall_s,
        "count": report.count,
        "instances": instances,
        "metrics": [{**total._asdict(), "notes": list(total.notes)} for total in report.metrics],
        "warnings": list(report.warnings),
        "columns": COLUMNS,
    }


def check_report_path(path: str, *, log_folder: str | None) -> None:
    """Raise `UsageError` when no report could be written to `path`; better now than after the run.

    `log_folder` is about to be made, with the folders that it lies in.
    """
    folder = os.path.dirname(path) or "."
    if not path:
        raise UsageError("--report: the file's name is empty")
    if os.path.isdir(path):
        raise UsageError(f"--report: {path!r} is a folder; name a file")
    if not os.path.isdir(folder):
        if log_folder is not None and _lies_in(log_folder, folder):
            return
        raise UsageError(f"--report: the folder {folder!r} does not exist")
    writable = path if os.path.exists(path) else folder
    if not os.access(writable, os.W_OK):
        raise UsageError(f"--report: no permission to write {writable!r}")


def _lies_in(path: str, folder: str) -> bool:
    folder = os.path.abspath(folder)
    return os.path.commonpath((os.path.abspath(path), folder)) == folder


def write_report_or_tell(report: Report, path: str | None) -> int:
    """Write `report` where it was asked for; the exit code of the run.

    When that fails it is said on standard error, and a run that ended well is at fault (125).
    """
    if path is None:
        return report.exit_code
    try:
        write_report(report, path)
    except OSError as error:
        print(f"xlaunch: --report: {error}", file=sys.stderr)
        return report.exit_code or XLaunchError.exit_code
    return report.exit_code


def write_report(report: Report, path: str) -> None:
    """Write `report` as JSON. A regular file appears whole or not at all."""
    text = json.dumps(report_to_dict(report), indent=1) + "\n"
    if leads_elsewhere(path):
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(text)
        return
    folder, name = os.path.split(os.path.realpath(path))
    descriptor, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
    try:
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        with open(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(temporary, os.path.join(folder, name))
    except BaseException:
        os.unlink(temporary)
        raise


def leads_elsewhere(path: str) -> bool:
    """Whether `path` is a pipe, a terminal, or a name such as /dev/stdout: nothing to be replaced."""
    if os.path.exists(path) and not os.path.isfile(path):
        return True
    folder, name = os.path.split(path)
    place = os.path.join(os.path.realpath(folder), name)
    return re.fullmatch("/dev/std(out|err)|/proc/[0-9]+/fd/[0-9]+", place) is not None


def render_report(report: Report) -> str:
    """The table for the terminal, with a line that says what its columns sum."""
    headings: tuple[str, ...] = (
        "instance", "CPUs asked", "CPUs observed", "node", "exit", "wall s", "CPU s",
        "used", "peak RSS MiB", "switches", "moves",
    )  # fmt: skip
    rows: list[tuple[str, ...]] = [
        (
            str(instance.index),
            format_cpu_list(instance.cpus_asked),
            format_cpu_list(instance.cpus_observed) or "-",
            format_cpu_list(instance.numa_nodes) or "-",
            instance.signal or str(instance.exit_code),
            f"{instance.wall_s:.2f}",
            _cell(instance.cpu_s, ".2f"),
            _cell(instance.utilisation, ".0%"),
            _cell(instance.peak_rss_bytes and instance.peak_rss_bytes / 2**20, ".0f"),
            _cell(instance.context_switches, "d"),
            _cell(instance.migrations, "d"),
        )
        for instance in report.instances
    ]
    lines = [f"xlaunch: {report.reason}; {report.wall_s:.2f} s"]
    if any(instance.restarts for instance in report.instances):
        headings = (*headings, "restarts")
        rows = [
            (*row, str(instance.restarts))
            for row, instance in zip(rows, report.instances, strict=True)
        ]
    if rows:
        lines += align(headings, rows)
        lines += FOOTNOTE
    if report.metrics:
        lines += ["", *render_metrics(report)]
    return "\n".join(lines)


def signal_name(number: int) -> str:
    """**Ex.:** ``"SIGSEGV"``; real-time signals by number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def render_metrics(report: Report) -> list[str]:
    """A table of the metrics of each instance, and a line for each metric over all."""
    rows = [
        (
            metric.name,
            str(instance.index),
            str(metric.count),
            _cell(metric.last, ".4g"),
            _cell(metric.mean, ".4g"),
        )
        for position in range(len(report.metrics))
        for instance in report.instances
        for metric in instance.metrics[position : position + 1]
    ]
    lines = align(("metric", "instance", "values", "last", "mean"), rows) if rows else []
    return [*lines, *map(describe_total, report.metrics)]


def describe_total(total: MetricTotal) -> str:
    """One metric over all instances. **Ex.:** ``sentences/s: 246.1 in total, over 9.8 s``."""
    if not total.count:
        return f"{total.name}: no value"
    unit = f" {total.unit}" if total.unit is not None and total.unit != total.name else ""
    parts = [
        f"{label}{value:.4g}{unit}{rest}"
        for label, value, rest in (
            ("", total.sum, " in total"),
            ("mean ", total.mean, ""),
            ("p50 ", total.p50, ""),
            ("p90 ", total.p90, ""),
            ("p99 ", total.p99, ""),
        )
        if value is not None
    ]
    if total.window_s is not None:
        parts.append(f"over the {total.window_s:.2f} s in which all ran")
    return f"{total.name}: {', '.join(parts)}" + "".join(f"; {note}" for note in total.notes)


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def align(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table, each column as wide as its widest cell, to the right but for lists of CPUs."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    left = [heading.startswith(("CPUs", "metric")) for heading in headings]
    return [
        "  ".join(
            cell.ljust(width) if is_left else cell.rjust(width)
            for cell, width, is_left in zip(row, widths, left, strict=True)
        ).rstrip()
        for row in (headings, *rows)
    ]
