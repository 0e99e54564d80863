# SPDX-License-Identifier: Apache-2.0
"""The numbers in the output of a load generator, such as wrk, hey or ``vllm bench serve``.

A metric is read by its name, whatever its case, or by a regular expression:

    Requests/sec:   1510.46                 requests/sec
    Request throughput (req/s):      2.32   request throughput
    P99 TTFT (ms):                 364.32   p99(TTFT), or P99 TTFT
    99%   10.24ms;  99% in 0.0102 secs      p99, or p99(latency)

With a generator for each instance, rates are added; of times and percentiles the largest counts, of
other numbers the mean.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from statistics import fmean

from xlaunch.metrics.metric_lines import (
    SECONDS_AFTER_NUMBER,
    MetricKind,
    Value,
    convert,
    parse_metric,
)
from xtune.launches.summaries import Summary, in_seconds, unit_in

LATENCY = "latency"
"""The name of percentiles that are printed without one."""

_NUMBER = r"([-+]?[0-9][0-9,]*(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)"
_UNIT = "|".join(sorted(SECONDS_AFTER_NUMBER, key=len, reverse=True))
_PERCENT = r"([0-9]{1,2}(?:\.[0-9]+)?)"
_PERCENTILE = re.compile(rf"\s*{_PERCENT}%+\s+(?:in\s+)?{_NUMBER}\s?({_UNIT})\s*")
_NAMED_PERCENTILE = re.compile(rf"\s*P{_PERCENT} ([\w /-]+?) \(({_UNIT})\):\s*{_NUMBER}\s*")


def summaries_of(outputs: Sequence[str], metrics: Sequence[str]) -> dict[str, Summary]:
    """The metrics with a value in every output, by name, and the percentiles of latencies.

    metrics
        As for xlaunch's --metric. The last value of an output counts.
    """
    found = dict[str, Summary]()
    for text in metrics:
        metric = parse_metric(text)
        values = [_last(text, output) for output in outputs]
        seen = [value for value in values if value is not None]
        if seen and len(seen) == len(values):
            printed = next((value.unit for value in seen if value.unit), None)
            unit = printed or unit_in(metric.name)
            numbers = [convert(value, unit) for value in seen]
            total = fmean(numbers)
            if metric.kind is not MetricKind.VALUE:
                total = max(numbers) if metric.kind is MetricKind.TIME else math.fsum(numbers)
            made = _summary(metric.name, metric.kind, unit, total)
            each = tuple([(number,) for number in numbers])
            found[metric.name] = made._replace(printed_in=printed or "", values=each)
    for name, (percentiles, printed) in _percentiles(outputs).items():
        half = percentiles.get(50.0, _median_printed(found.get(name)))
        made = _summary(name, MetricKind.TIME, "s", half)
        p90, p99 = percentiles.get(90.0), percentiles.get(99.0)
        found[name] = made._replace(p90=p90, p99=p99, printed_in=printed, printed=percentiles)
    return found


def _median_printed(summary: Summary | None) -> float:
    """A latency that was printed without percentiles, in seconds; NaN if there is none with a unit."""
    if summary is None or summary.unit is None:
        return math.nan
    return in_seconds(summary.value, summary.unit)


def _last(text: str, output: str) -> Value | None:
    metric = parse_metric(text)
    patterns = [re.compile(one.pattern, re.IGNORECASE) for one in metric.patterns]
    in_any_case = metric._replace(patterns=tuple(patterns), named=False)
    labelled = re.compile(
        rf"\s*{re.escape(metric.name)}\s*(?:\((\w+(?:/\w+)?)\))?\s*[:=]\s*{_NUMBER}(.*)",
        re.IGNORECASE,
    )
    for line in reversed(output.splitlines()):
        found = labelled.fullmatch(line) if metric.named else None
        unit = found and (metric.unit_after(found[3]) or metric.unit_after(found[1] or ""))
        if found is not None and (unit or not re.match(r"[\w.]|\s[kKMG]\b", found[3])):
            return Value(float(found[2].replace(",", "")), unit)
        value = metric.read(line) or (in_any_case.read(line) if metric.named else None)
        if value is not None:
            return value
    return None


def _percentiles(outputs: Sequence[str]) -> dict[str, tuple[dict[float, float], str]]:
    """In seconds, by metric and percentile, the largest of all outputs; and the unit of the last one."""
    rows = dict[str, tuple[dict[float, float], str]]()
    for line in "\n".join(outputs).splitlines():
        if found := _PERCENTILE.fullmatch(line):
            name, percentile, number, unit = LATENCY, found[1], found[2], found[3]
        elif found := _NAMED_PERCENTILE.fullmatch(line):
            percentile, name, unit, number = found.groups()
        else:
            continue
        seconds = float(number.replace(",", "")) * SECONDS_AFTER_NUMBER[unit]
        row, _ = rows.get(name, ({}, ""))
        percent = float(percentile)
        rows[name] = {**row, percent: max(row.get(percent, 0.0), seconds)}, unit
    return rows


def summary_of_share(name: str, percent: float) -> Summary:
    """The summary of a share of all requests."""
    return _summary(name, MetricKind.VALUE, None, percent)._replace(values=((percent,),))


def _summary(name: str, kind: MetricKind, unit: str | None, value: float) -> Summary:
    """The summary of a value that the generator has computed itself."""
    return Summary(name, kind, unit if kind is MetricKind.TIME else None, value, mean=value)
