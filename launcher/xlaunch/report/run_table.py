# SPDX-License-Identifier: Apache-2.0
"""The report of a run as text: the table at its end, and a line for each metric."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xlaunch.report import Report
from xlaunch.text import align, counted, fit, format_cpu_list, size

if TYPE_CHECKING:
    from xlaunch.metrics.collector import MetricTotal

EXPLANATION = (
    "CPU s and ctx-switches include children that the process waited for and processes it left behind.",
    "CPU %: CPU s / wall s; 100 is one CPU. peak RSS: sum over all processes of the instance.",
    "CPUs observed, peak RSS and migrations (of threads between CPUs) are sampled.",
)
"""What the columns mean, where their heads do not say it."""


OPTIONAL = ("migrations", "ctx-switches", "node", "CPU s", "CPU %")
"""Columns that a narrow terminal does not show."""


def render_report(report: Report, *, explain: bool = False, width: int | None = None) -> str:
    """The table for a terminal of `width` columns; None: for any width.

    `explain`: with all columns, and what they mean.
    """
    headings: tuple[str, ...] = (
        "instance", "CPUs asked", "CPUs observed", "node", "exit", "wall s", "CPU s",
        "CPU %", "peak RSS MiB", "ctx-switches", "migrations",
    )  # fmt: skip
    rows: list[tuple[str, ...]] = [
        (
            str(instance.index),
            format_cpu_list(instance.cpus_asked),
            format_cpu_list(instance.cpus_observed) or "-",
            format_cpu_list(instance.numa_nodes) or "-",
            instance.signal or str(instance.exit_code),
            f"{instance.wall_s:.2f}",
            f"{instance.cpu_s:.2f}",
            f"{100 * instance.cpu_s / instance.wall_s:.0f}" if instance.wall_s > 0 else "-",
            f"{instance.peak_rss_bytes / 2**20:.0f}",
            str(instance.context_switches),
            "-" if instance.migrations is None else str(instance.migrations),
        )
        for instance in report.instances
    ]
    lines = [f"xlaunch: {report.reason}; {report.wall_s:.2f} s"]
    for heading, cells, is_used in (
        ("GPUs", [",".join(instance.gpus) for instance in report.instances], any(instance.gpus for instance in report.instances)),
        ("restarts", [str(instance.restarts) for instance in report.instances], any(instance.restarts for instance in report.instances)),
    ):  # fmt: skip
        if is_used:
            headings = (*headings, heading)
            rows = [(*row, cell) for row, cell in zip(rows, cells, strict=True)]
    if rows:
        right = [heading for heading in headings if not heading.startswith("CPUs ")]
        optional = () if explain else OPTIONAL
        lines += fit([headings, *rows], right=right, width=width, optional=optional)
        lines += EXPLANATION if explain else ()
    lines += _caches(report)
    if report.devices is not None:
        lines += report.devices.lines()
    if report.metrics:
        lines += ["", *_render_metrics(report)]
    return "\n".join(lines)


def _caches(report: Report) -> list[str]:
    """A line for each cache that the run wrote to, and one for torch's counters."""
    lines = [
        f"cache {cache.cache}: {cache.warmth} at the start; {counted(cache.new_files, 'new file')}, "
        f"{size(cache.new_bytes)}"
        for cache in report.caches
        if cache.new_files
    ]
    counters = report.compilation
    if counters is not None:
        lines.append(
            f"torch.compile: {counters.backend_compile_s:.1f} s in the backend; "
            f"{counted(counters.graph_hits, 'graph')} from the cache, {counters.graph_misses} compiled"
        )
    return lines


def _render_metrics(report: Report) -> list[str]:
    """A table of the metrics of each instance, and a line per metric over all instances."""
    rows = [
        (
            metric.name,
            str(instance.index),
            str(metric.count),
            *("-" if value is None else f"{value:.4g}" for value in (metric.last, metric.mean)),
        )
        for position in range(len(report.metrics))
        for instance in report.instances
        for metric in instance.metrics[position : position + 1]
    ]
    headings = ("metric", "instance", "values", "last", "mean")
    lines = align([headings, *rows], right=range(1, len(headings)))
    if not any(metric.count for metric in report.metrics):
        lines = []
    return [*lines, *map(describe_total, report.metrics)]


def describe_total(total: MetricTotal) -> str:
    """One metric over all instances. **Ex.:** ``sentences/s: 246.1 in total, over 9.8 s``."""
    notes = "".join([f"; {note}" for note in total.notes])
    if not total.count:
        return f"{total.name}: no value{notes}"
    unit = f" {total.unit}" if total.unit is not None and total.unit != total.name else ""
    parts = [
        f"{label}{value:.4g}{unit}{rest}"
        for label, value, rest in (
            ("", total.sum, " in total"),
            ("last tenth ", total.last_tenth, ""),
            ("mean ", total.mean, ""),
            ("p50 ", total.p50, ""),
            ("p90 ", total.p90, ""),
            ("p99 ", total.p99, ""),
        )
        if value is not None
    ]
    if total.window_s is not None:
        parts.append(f"over the {total.window_s:.2f} s in which all ran")
    return f"{total.name}: {', '.join(parts)}{notes}"
