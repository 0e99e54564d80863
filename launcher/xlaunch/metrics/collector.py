# SPDX-License-Identifier: Apache-2.0
"""Metric values of instances: collected while they run, summed up at the end.

Means are taken over the *common steady window*: from when every instance was past its first value
(or past the start barrier) to when the first instance ended. Outside it some instance was not at
work yet, or no longer, and the others had the machine to themselves.

A rate holds for the time since the value before it, so rates are weighted by that time: 50 and 150
images/s over the same number of images take 3 and 1 seconds, and make 75 images/s.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from xlaunch.errors import RunWarning, WarningKind
from xlaunch.metrics.live import LiveLine, LiveValue, LiveWriter
from xlaunch.metrics.metric_lines import LineSplitter, Metric, MetricKind, convert
from xlaunch.text import plural

PERCENTILES = (50, 90, 99)
MIN_FOR_P99 = 100
"""Minimum number of values for a p99: with fewer it would be little more than the maximum."""

AT_ONCE_S = 0.005
"""Values that arrive within this time of each other were printed together."""

MAX_KEPT = 1 << 17
"""Maximum number of values kept of a metric and instance; above it, every second one is dropped."""

LINES_TO_SHOW = 3
SHOWN_WIDTH = 80
MAX_NOT_FINITE = 64
"""Maximum number of lines kept with values that are not finite, of one metric of one instance."""


class InstanceMetric(NamedTuple):
    name: str
    count: int  # type: ignore[assignment]  # hides tuple.count
    """Values over the whole run."""
    last: float | None
    mean: float | None
    """Mean over the window of its `MetricTotal`; for a rate it is weighted by time."""


class MetricTotal(NamedTuple):
    """One metric over all instances."""

    name: str
    kind: str
    """``rate``, ``latency`` or ``value``; which of the following are not None depends on it."""
    unit: str | None
    """The unit that was first printed after a number. **Ex.:** ``"ms"``, ``"MB/s"``."""
    window_s: float | None
    """Length of the common steady window; None where not every instance had a value in it."""
    count: int  # type: ignore[assignment]  # hides tuple.count
    """Number of values that the following fields summarize."""
    sum: float | None = None
    """Of a rate: the sum of the instances' means."""
    mean: float | None = None
    """Of a value: the mean of the instances' means; of a time: of all values."""
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    """Of a time: over the values of all instances together."""
    notes: tuple[str, ...] = ()
    """Reservations about the result."""
    window_from_s: float | None = None
    """Values before this do not count, in seconds since the run began; None: all count."""
    last_tenth: float | None = None
    """Of a value: the mean of the instances' last tenths, see `last_tenth`."""
    not_finite: str | None = None
    """A line of the window with a value that is NaN or infinite, and is left out."""


class MetricSeries(NamedTuple):
    """Every value of one metric of one instance, in order."""

    metric: str
    instance: int
    times_s: Sequence[float]
    """Arrival times, in seconds since the run began."""
    values: Sequence[float]
    kept_one_in: int
    """1, or if there were more than `MAX_KEPT`: one of this many values was kept."""


class Values(NamedTuple):
    """The values of one metric of one instance that count."""

    values: list[float]
    durations_s: list[float] | None
    """The time that each value stands for; None where that is unknown, or the same for all."""

    def mean(self, kind: MetricKind) -> float | None:
        """The mean; of a rate, weighted by time."""
        if kind is not MetricKind.RATE or self.durations_s is None:
            return _mean(self.values)
        weighted = zip(self.values, self.durations_s, strict=True)
        return sum(value * weight for value, weight in weighted) / sum(self.durations_s)


class Series:
    """The values of one metric of one instance, with their arrival times."""

    def __init__(self) -> None:
        self.count = 0
        self.first_at: float | None = None
        self.last: float | None = None
        self.stride = 1
        """One of this many values was kept."""
        self._times = array("d")
        self._values = array("d")

    def add(self, value: float, now: float) -> None:
        if self.first_at is None:
            self.first_at = now
        self.last = value
        if self.count % self.stride == 0:
            self._times.append(now)
            self._values.append(value)
        self.count += 1
        if len(self._values) > MAX_KEPT:
            self._times, self._values = self._times[::2], self._values[::2]
            self.stride *= 2

    def since(self, began: float) -> tuple[array[float], array[float]]:
        """Arrival times in seconds since `began`, and values."""
        return array("d", (at - began for at in self._times)), self._values

    def after(self, start: float | None, end: float | None = None) -> Values:
        """The values after `start`, until `end`; of several exactly at `start`, the first does not count."""
        kept = [
            (at, value)
            for place, (at, value) in enumerate(zip(self._times, self._values, strict=True))
            if (start is None or at > start or (at == start and place > 0))
            and (end is None or at <= end)
        ]
        times = [at for at, _ in kept]
        values = [value for _, value in kept]
        return Values(values, durations(self._times, times, start, values))


class Collector:
    """Collects metric values from the output of all instances."""

    def __init__(
        self,
        metrics: Sequence[Metric],
        indices: Iterable[int],
        *,
        began: float = 0.0,
        live: LiveWriter | None = None,
    ) -> None:
        """`began`: the start of the run, on the clock of all times here."""
        self._metrics = metrics
        self._began = began
        self._live = live
        self._indices = tuple(indices)
        self._series = {(m.name, index): Series() for m in metrics for index in self._indices}
        self._units: dict[str, str] = {}
        self._not_finite: dict[str, list[tuple[float, bool, str]]] = {m.name: [] for m in metrics}
        """Of the values that are NaN or infinite: time, whether its instance had a finite one, line."""
        self._splitters: dict[tuple[int, str], LineSplitter] = {}
        self._unseen = [metric.name for metric in metrics]
        self._lines: deque[str] = deque(maxlen=LINES_TO_SHOW)
        """The last lines with numbers, while some metric was not seen yet."""
        self.latest: dict[str, float] = {}
        """The last value of each metric that was seen, of any instance."""
        self.past_first: set[int] = set()
        """Instances that have printed or reported a value."""

    def feed(self, index: int, stream: str, data: bytes, now: float) -> None:
        """Process bytes that were read from a stream of an instance: out, err or metrics."""
        splitter = self._splitters.setdefault((index, stream), LineSplitter())
        for line in splitter.feed(data):
            self._read(index, stream, line, now)

    def finish(self, index: int, now: float) -> None:
        """Read the last line of an instance that has ended, if it has no line end."""
        for (owner, stream), splitter in self._splitters.items():
            for line in splitter.finish() if owner == index else ():
                self._read(index, stream, line, now)

    def _read(self, index: int, stream: str, line: str, now: float) -> None:
        if self._live is not None:
            self._live.write_marked(LiveLine(index, stream, now, line))
        for metric in self._metrics:
            value = metric.read_report(line) if stream == "metrics" else metric.read(line)
            if value is None:
                continue
            if metric.name in self._unseen:
                self._unseen.remove(metric.name)
            if value.unit is not None:
                self._units.setdefault(metric.name, value.unit)
            unit = self._units.get(metric.name)
            number, series = convert(value, unit), self._series[metric.name, index]
            self.latest[metric.name] = number
            self.past_first.add(index)
            if not math.isfinite(number):
                lines = self._not_finite[metric.name]
                lines[MAX_NOT_FINITE - 1 :] = []  # the last one shows how it ended
                lines.append((now, series.count > 0, line.strip()[:SHOWN_WIDTH]))
                continue
            series.add(number, now)
            if self._live is not None:
                self._live.write(LiveValue(index, metric.name, now, number, unit))
        if self._unseen and any(char.isdigit() for char in line):
            self._lines.append(line.strip())

    def raw(self) -> tuple[MetricSeries, ...]:
        """Every value, by metric, then by instance."""
        return tuple(
            MetricSeries(metric, index, *series.since(self._began), kept_one_in=series.stride)
            for (metric, index), series in self._series.items()
        )

    @property
    def lines_seen(self) -> tuple[str, ...]:
        """The last lines with numbers, if some metric was never seen."""
        shown = dict.fromkeys(line[:SHOWN_WIDTH] for line in self._lines)
        return tuple(shown) if self._unseen else ()

    def unseen(self) -> str | None:
        """A line about metrics that no instance printed, with the last lines that had numbers."""
        if not self._unseen:
            return None
        wanted = ", ".join(map(repr, self._unseen))
        text = "no line has it, nor any other number"
        if self._lines:
            text = f"no line has it; the last lines with numbers: {' | '.join(self.lines_seen)}"
        return RunWarning(f"--metric {wanted}: {text}", WarningKind.UNSEEN_METRIC)

    def sum_up(
        self, ends: Mapping[int, float], released_at: float | None
    ) -> tuple[dict[int, tuple[InstanceMetric, ...]], tuple[MetricTotal, ...]]:
        """The metrics of each instance, and over all.

        `ends`: when each instance ended; the first time, if it was restarted. `released_at`: when the
        start barrier opened, if instances waited there.
        """
        by_instance: dict[int, list[InstanceMetric]] = {index: [] for index in self._indices}
        totals = []
        for metric in self._metrics:
            series = {index: self._series[metric.name, index] for index in self._indices}
            window, values, notes = _steady(series, ends, released_at)
            means = {index: own.mean(metric.kind) for index, own in values.items()}
            for index, own in series.items():
                measured = InstanceMetric(metric.name, own.count, own.last, means[index])
                by_instance[index].append(measured)
            not_finite = self._first_not_finite(metric.name, window)
            if not_finite is not None:
                notes.append(f"left out values that are not finite, as in {not_finite!r}")
            total = MetricTotal(
                name=metric.name,
                kind=metric.kind.value,
                unit=self._units.get(metric.name),
                window_s=window.length_s,
                count=sum(len(own.values) for own in values.values()),
                **_summary(metric.kind, values.values(), means.values(), notes),
                notes=tuple(notes),
                window_from_s=None if window.start is None else window.start - self._began,
                not_finite=not_finite,
            )
            totals.append(total)
        return {index: tuple(metrics) for index, metrics in by_instance.items()}, tuple(totals)

    def _first_not_finite(self, name: str, window: _Window) -> str | None:
        start = -math.inf if window.start is None else window.start
        end = math.inf if window.length_s is None else start + window.length_s
        # As in `Series.after`: of values that were read exactly at the start, all but the first count.
        lines = [
            line
            for at, is_later, line in self._not_finite[name]
            if (at > start or (at == start and is_later)) and at <= end
        ]
        return lines[0] if lines else None


def last_tenth(values: Sequence[float]) -> float:
    """The mean of the last tenth of some values, at least of one: where a loss or an accuracy ended."""
    last = values[-max(1, len(values) // 10) :]
    return min(max(sum(value / len(last) for value in last), min(last)), max(last))


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The percentile of values in ascending order, interpolated linearly."""
    position = (len(ordered) - 1) * percent / 100
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def durations(
    times_s: Sequence[float],
    kept_s: Sequence[float],
    after_s: float | None,
    rates: Sequence[float] = (),
) -> list[float] | None:
    """The time that each kept value of an instance stands for, in seconds.

    Values that came at once share the time since those before them. When the first values of all
    began is not known: they get the median of the other durations, or, if the values are rates over
    equal amounts of work, the time that such an amount takes. None where nothing is known, and where
    all are equal.

    times_s
        Of all values of the instance.
    kept_s
        Of the values that count, consecutive ones of `times_s`.
    after_s
        Time before this does not count; None: all counts.
    rates
        The values that count, if they are rates.
    """
    if not kept_s:
        return None
    first = bisect_left(times_s, kept_s[0])
    while first > 0 and times_s[first] - times_s[first - 1] <= AT_ONCE_S:
        first -= 1
    begins_s = [at for at in (after_s, times_s[first - 1] if first > 0 else None) if at is not None]
    before_s = max(begins_s, default=float("-inf"))
    groups: list[list[float]] = []
    for at_s in kept_s:
        if groups and at_s - groups[-1][-1] <= AT_ONCE_S:
            groups[-1].append(at_s)
        else:
            groups.append([at_s])
    spans_s: list[float] = []
    for group in groups:
        spans_s += [(group[-1] - before_s) / len(group)] * len(group)
        before_s = group[-1]
    if first == 0 and (after_s is None or after_s >= times_s[0]):
        if len(groups) == 1:
            return None
        size = len(groups[0])
        works = [length * rate for length, rate in zip(spans_s[size:], rates[size:], strict=False)]
        if rates and min(rates) > 0.0 and _spread(works) < _spread(spans_s[size:]):
            work = percentile(sorted(works), 50)
            spans_s[:size] = [work / rate for rate in rates[:size]]
        else:
            spans_s[:size] = [percentile(sorted(spans_s[size:]), 50)] * size
    return spans_s if min(spans_s) < max(spans_s) else None


def _spread(values: Sequence[float]) -> float:
    """The range relative to the largest value; 1 if there is none above 0."""
    return 1.0 - min(values) / max(values) if values and max(values) > 0.0 else 1.0


class _Window(NamedTuple):
    """The time in which values count."""

    start: float | None
    """None: from the start of the run."""
    length_s: float | None
    """None: until the end of the run."""


def _steady(
    series: Mapping[int, Series], ends: Mapping[int, float], released_at: float | None
) -> tuple[_Window, dict[int, Values], list[str]]:
    """The window, the values that count, and caveats about them."""
    notes = []
    printed = {index: own for index, own in series.items() if own.first_at is not None}
    missing = sorted(series.keys() - printed.keys())
    if missing and printed:
        notes.append(f"no value of {_instances(missing)}")
    strides = {metric.stride for metric in printed.values()} - {1}
    if strides:
        notes.append(f"only one in {max(strides)} values was kept")
    firsts = [metric.first_at for metric in printed.values() if metric.first_at is not None]
    start = released_at if released_at is not None else max(firsts, default=0.0)
    end = min(ends.values(), default=start)
    values = {index: own.after(start, end) for index, own in series.items()}
    without = [index for index in printed if not values[index].values]
    if printed and not missing and not without:
        return _Window(start, end - start), values, notes
    if without and len(series) > 1:
        notes.append(f"no further value of {_instances(without)} while all ran: all values count")
    values = {index: own.after(released_at) for index, own in series.items()}
    return _Window(released_at, None), values, notes


def _summary(
    kind: MetricKind,
    by_instance: Iterable[Values],
    means_or_none: Iterable[float | None],
    notes: list[str],
) -> dict[str, float | None]:
    """The fields of a `MetricTotal` that depend on its kind; `notes` gets reservations about them."""
    values = [own.values for own in by_instance if own.values]
    means = [mean for mean in means_or_none if mean is not None]
    pooled = sorted(value for own in values for value in own)
    if not pooled:
        return {}
    if kind is MetricKind.RATE:
        return {"sum": sum(means)}
    if kind is MetricKind.VALUE:
        return {"mean": _mean(means), "last_tenth": _mean([last_tenth(own) for own in values])}
    p50, p90, p99 = (percentile(pooled, percent) for percent in PERCENTILES)
    summary: dict[str, float | None] = {"mean": _mean(pooled), "p50": p50, "p90": p90, "p99": p99}
    if len(pooled) < MIN_FOR_P99:
        notes.append(f"no p99 of {len(pooled)} values: it takes {MIN_FOR_P99}")
        summary["p99"] = None
    return summary


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _instances(indices: Sequence[int]) -> str:
    listed = ", ".join(map(str, indices[:8])) + (", ..." if len(indices) > 8 else "")
    return f"{plural(len(indices), 'instance')} {listed}"
