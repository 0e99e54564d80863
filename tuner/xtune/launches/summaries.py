# SPDX-License-Identifier: Apache-2.0
"""Summary of a metric of one launch over its instances and steady time.

xlaunch reports when all instances were running. The time that counts begins when the last of them is
steady, so that only simultaneous throughputs are added, and latencies are pooled.

A rate covers the time since the value before it, so rates are weighted by time: 50 and 150 images/s
over equally many images take 3 and 1 seconds, and average 75 images/s. A rate far above all others, as
after a step that a clock saw take no time, counts as the usual work in the time that it took.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from xlaunch.metrics.collector import MIN_FOR_P99, MetricTotal, durations, last_tenth, percentile
from xlaunch.metrics.metric_lines import (
    SECONDS_AFTER_NUMBER,
    SECONDS_PER_UNIT,
    MetricKind,
    conversion,
    kind_of,
    parse_metric,
)
from xlaunch.report import Report
from xtune.errors import ObjectiveError
from xtune.launches.announcements import MARK, LaunchAnnouncements
from xtune.launches.launch import (
    MAX_LEVEL,
    WALL,
    Goal,
    Launch,
    Objective,
    Outcome,
    Series,
    Steadiness,
)

if TYPE_CHECKING:
    from xtune.launches.steadiness import Judgement

INSTANCES_NAMED = 3
"""Maximum number of instances that notes name one by one."""

MAX_RATE = 10.0
"""Rates above so many times the median are limited if they are few, see `_limited`."""
MAX_LIMITED = 0.1
"""Share of the values."""

_WORST_FIRST = (
    Steadiness.NOT_STEADY,
    Steadiness.SLOW_DOWN,
    Steadiness.WARM_UP,
    Steadiness.TOO_FEW,
    Steadiness.FLAT,
)


class Summary(NamedTuple):
    """One metric of one launch."""

    metric: str
    kind: MetricKind
    unit: str | None
    """Unit of a time, if printed or in the metric's name. **Ex.:** ``"ms"``."""
    value: float
    """Rates: the sum of the instances' means, weighted by time. Times: the median of all values.
    Others: the mean of the instances' last tenths, see `last_tenth`."""
    steadiness: Steadiness = Steadiness.TOO_FEW
    """That of the least steady instance."""
    count: int = 1  # type: ignore[assignment]  # hides tuple.count
    """Number of values used."""
    mean: float = math.nan
    """Mean of all values."""
    p90: float | None = None
    p99: float | None = None
    """Of times; p99 only from `MIN_FOR_P99` values."""
    notes: tuple[str, ...] = ()
    """What was dropped, and caveats."""
    printed_in: str = ""
    """The unit with which it was first printed in this launch; empty: without one."""
    values: tuple[tuple[float, ...], ...] = ()
    """Those of each instance that count, in order; of one that is neither rate nor time, also while it
    was not steady."""
    printed: Mapping[float, float] = {}
    """The percentiles that a load generator printed."""

    def times(self, factor: float, unit: str | None) -> Summary:
        """The summary in another unit."""
        p90, p99 = (None if value is None else value * factor for value in (self.p90, self.p99))
        return self._replace(
            value=self.value * factor,
            mean=self.mean * factor,
            p90=p90,
            p99=p99,
            unit=unit,
            values=tuple([tuple([value * factor for value in samples]) for samples in self.values]),
            printed={percent: value * factor for percent, value in self.printed.items()},
        )

    @property
    def is_finite(self) -> bool:
        numbers = (self.value, self.mean, self.p90, self.p99)
        return all(number is None or math.isfinite(number) for number in numbers)


class Window(NamedTuple):
    """The time in which values count, in seconds since the launch began."""

    after_s: float = -math.inf
    until_s: float = math.inf

    def within(self, other: Window) -> Window:
        """The intersection."""
        return Window(max(self.after_s, other.after_s), min(self.until_s, other.until_s))

    def of(self, series: Series) -> Series:
        """The part of a series within the window."""
        # As in xlaunch: of values read exactly at the start, all but the first count.
        kept = [
            (at, value)
            for place, (at, value) in enumerate(zip(series.times_s, series.values, strict=True))
            if (at > self.after_s or (at == self.after_s and place > 0)) and at <= self.until_s
        ]
        times, values = zip(*kept, strict=True) if kept else ((), ())
        return series._replace(times_s=tuple(times), values=tuple(values))


ALWAYS = Window()


def name_of(text: str) -> str:
    """The name of a metric as written. Raises `UsageError` if it is invalid."""
    return text if text.startswith(MARK) else parse_metric(text).name


def kind_in(text: str) -> MetricKind:
    """The kind of a metric as written. Raises `UsageError` if it is invalid."""
    return kind_of(text) if text.startswith(MARK) else parse_metric(text).kind


def window_of(total: MetricTotal) -> Window:
    """The time in which all instances were running, as reported by xlaunch."""
    if total.window_from_s is None:
        return ALWAYS
    after_s = total.window_from_s
    return Window(after_s, math.inf if total.window_s is None else after_s + total.window_s)


def series_of(report: Report) -> tuple[Series, ...]:
    """The raw values of a run; series without values are left out."""
    return tuple(
        Series(series.instance, series.metric, tuple(series.times_s), tuple(series.values))
        for series in report.series
        if series.values
    )


def summaries_of_run(
    report: Report, announced: LaunchAnnouncements, objective: Objective, window: Window
) -> dict[str, Summary]:
    """Every metric with values in the window, by name."""
    summaries = dict[str, Summary]()
    better = objective.goal is Goal.MAXIMIZE
    by_metric: dict[str, list[Series]] = {}
    for series in (*series_of(report), *announced.series):
        by_metric.setdefault(series.metric, []).append(series)
    for total in report.metrics:
        summary = summarise(
            total.name,
            by_metric.get(total.name, ()),
            kind=MetricKind(total.kind),
            unit=total.unit,
            window=window_of(total).within(window),
            larger_is_better=better if total.name == name_of(objective.metric) else None,
            known=total.notes,
        )
        if summary is not None:
            summaries[total.name] = summary
    for announcement in announced.announcements:
        summary = summarise(
            announcement.metric,
            by_metric[announcement.metric],
            window=window,
            larger_is_better=announcement.higher_is_better,
        )
        if summary is not None:
            summaries[announcement.metric] = summary
    return summaries


def summarise(
    metric: str,
    series: Sequence[Series],
    *,
    kind: MetricKind | None = None,
    unit: str | None = None,
    window: Window = ALWAYS,
    larger_is_better: bool | None = None,
    known: Sequence[str] = (),
) -> Summary | None:
    """Summarize the series of one metric, at most one for each instance; None without values.

    kind, unit
        None: from the metric's name.
    window
        When all instances were running.
    larger_is_better
        None: from the kind of metric.
    known
        Earlier notes, which come first.
    """
    from xtune.launches.steadiness import judge  # which imports numpy

    kind, printed_in = kind or kind_of(metric), unit or ""
    if larger_is_better is None and kind is not MetricKind.VALUE:
        larger_is_better = kind is MetricKind.RATE
    inside = {own.instance: window.of(own) for own in series}
    with_values = {index: own for index, own in inside.items() if own.values}
    every_value = {index: own.values for index, own in with_values.items()}
    if not with_values:
        return None
    judgements = {
        index: judge(values, larger_is_better=larger_is_better)
        for index, values in every_value.items()
    }
    steady, kept = _steady_part(window, with_values, judgements)
    told = [*known, *_describe(judgements, of_several=len(with_values) > 1)]
    if not all(kept.values()):
        steady, kept = window, every_value
        told.append("the instances were never steady at the same time: all values count")
    pooled = sorted(value for values in kept.values() for value in values)
    if kind is MetricKind.RATE:
        after_s = None if steady.after_s == -math.inf else steady.after_s
        value = 0.0
        for own in series:
            if values := kept.get(own.instance):
                kept_s = inside[own.instance].times_s[-len(values) :]
                rate, notes = _rate(values, durations(own.times_s, kept_s, after_s, values))
                value += rate
                told += notes
    elif kind is MetricKind.TIME:
        value = percentile(pooled, 50)
    else:
        kept = every_value
        value = _mean([last_tenth(values) for values in kept.values()])
    is_time = kind is MetricKind.TIME
    return Summary(
        metric=metric,
        kind=kind,
        unit=(unit or unit_in(metric)) if is_time else None,
        value=value,
        steadiness=worst(judgement.steadiness for judgement in judgements.values()),
        count=len(pooled),
        mean=_mean(pooled),
        p90=percentile(pooled, 90) if is_time else None,
        p99=percentile(pooled, 99) if is_time and len(pooled) >= MIN_FOR_P99 else None,
        notes=tuple(dict.fromkeys(told)),
        printed_in=printed_in,
        values=tuple(kept.values()),
    )


def _steady_part(
    window: Window, series: Mapping[int, Series], judgements: Mapping[int, Judgement]
) -> tuple[Window, dict[int, tuple[float, ...]]]:
    """When all were steady, and the values of each since then; `series`: those in the window."""
    # The time of each last dropped value. Values from one piece of output have equal times; within
    # an instance their index distinguishes them.
    ends = {
        index: series[index].times_s[judgement.start - 1] if judgement.start else -math.inf
        for index, judgement in judgements.items()
    }
    latest = max(ends.values())
    kept = {}
    for index, own in series.items():
        start = judgements[index].start
        later = zip(own.times_s[start:], own.values[start:], strict=True)
        kept[index] = tuple(value for at, value in later if at > latest or ends[index] == latest)
    return window._replace(after_s=max(window.after_s, latest)), kept


def _rate(
    values: tuple[float, ...], durations_s: Sequence[float] | None
) -> tuple[float, list[str]]:
    """The mean rate of an instance, weighted by time, and a note on values that do not count in full."""
    limited = _limited(values, durations_s)
    rate = _mean(limited, durations_s)
    if limited == values:
        return rate, []
    changed = sum(a != b for a, b in zip(limited, values, strict=True))
    return rate, [
        f"{changed} of {len(values)} values are over {MAX_RATE:g} times their median: they count"
        " as the usual work"
    ]


def _limited(rates: tuple[float, ...], durations_s: Sequence[float] | None) -> tuple[float, ...]:
    """The rates, those above `MAX_RATE` times the median as the median work in the time they took."""
    limit = MAX_RATE * percentile(sorted(rates), 50)
    if not 0 < sum(rate > limit for rate in rates) <= MAX_LIMITED * len(rates):
        return rates
    spans = durations_s or [1.0] * len(rates)
    work = percentile(sorted(map(operator.mul, rates, spans)), 50)
    pairs = zip(rates, spans, strict=True)
    return tuple([min(rate, work / span) if rate > limit else rate for rate, span in pairs])


def _mean(values: Sequence[float], weights: Sequence[float] | None = None) -> float:
    try:
        mean = fmean(values, weights)
    except OverflowError:
        mean = math.fsum(value / len(values) for value in values)
    # Equal values have exactly that mean: a requirement may be the same number.
    return min(max(mean, min(values)), max(values))


def worst(steadinesses: Iterable[Steadiness]) -> Steadiness:
    """The worst of several, for a warning."""
    seen = set(steadinesses)
    return next(steadiness for steadiness in _WORST_FIRST if steadiness in seen)


def unit_in(name: str) -> str | None:
    """The unit of time in a metric's name. **Ex.:** ``step_ms``, ``latency (ms)``."""
    words = set(re.findall("[a-zµμ]+", name.lower())) & SECONDS_PER_UNIT.keys()
    return words.pop() if len(words) == 1 else None


def in_seconds(value: float, unit: str) -> float:
    """Convert a time in `unit` to seconds."""
    return value * SECONDS_AFTER_NUMBER[unit]


def comparable(
    metric: str, kind: MetricKind, unit: str | None, first: str | None
) -> tuple[float, str | None]:
    """The factor that makes printed values comparable with those of other launches of a study, and the
    unit of the products; None: as printed.

    It converts a time to the unit in its name, else to seconds; anything else to the unit that was
    printed first.

    metric
        Its name.
    unit
        With which it was printed.
    first
        The unit with which the study's first launch printed it, which a number without one has, too;
        empty: that launch printed none. None: there was no other launch.

    Raises `ObjectiveError` for a unit where earlier launches have none, or one of something else.
    """
    if kind is not MetricKind.TIME:
        return _in_first_unit(metric, unit or "", first)
    named = unit_in(metric)
    if named is None and unit is not None and first == "":
        raise ObjectiveError(
            f"{metric!r} was printed in {unit}, and by earlier launches of this study without a unit;"
            " print the same unit always, or start a new study with --study NAME"
        )
    unit = unit or named or first
    if not unit:
        return 1.0, None
    target = named or "s"
    return SECONDS_AFTER_NUMBER[unit] / SECONDS_PER_UNIT[target], target


def _in_first_unit(metric: str, unit: str, first: str | None) -> tuple[float, str | None]:
    """The same for rates and values. Where % is left out, 0.93 may be 93 %."""
    if first is None or unit == first or (not unit and first != "%"):
        return 1.0, first or unit or None
    factor = conversion(unit, first) if first else None
    if factor is None:
        printed, before = (f"in {name}" if name else "without a unit" for name in (unit, first))
        raise ObjectiveError(
            f"{metric!r} was printed {printed}, and before {before}: they cannot be compared; print the"
            " same unit always"
        )
    return factor, first


def printed_units(launches: Iterable[Launch], metrics: Iterable[str]) -> dict[str, str]:
    """The unit with which the first of `launches` printed each metric; see `Launch.units`.

    Empty for one that was measured without a unit; older versions kept the units of times alone.
    `metrics`: as written.
    """
    units: dict[str, str] = {}
    kinds = {name_of(text): kind_in(text) for text in metrics if text != WALL}
    for launch in launches:
        printed_units = dict(launch.units)
        for name in kinds.keys() - units.keys():
            is_time = kinds[name] is MetricKind.TIME and unit_in(name) is None
            if name in printed_units or (launch.value is not None and is_time):
                units[name] = printed_units.get(name, "")
    return units


def with_unit(objective: Objective, launches: Iterable[Launch]) -> Objective:
    """The objective, with the unit of its values once a launch has printed a time with one."""
    if objective.metric != WALL and kind_in(objective.metric) is not MetricKind.TIME:
        return objective
    name = objective.metric if objective.metric == WALL else name_of(objective.metric)
    is_known = any(dict(launch.units).get(name) for launch in launches)
    return objective._replace(unit="s") if is_known else objective


def compared(objective: Objective, launches: Iterable[Launch]) -> Objective:
    """The objective with the `step` for the values of these launches.

    A loss or a score may be zero or negative, where a ratio says nothing. Once a launch has such a value,
    differences count, in multiples of the first value's size: the bare command's. Rates and durations keep
    their ratios.
    """
    if objective.metric == WALL or kind_in(objective.metric) is not MetricKind.VALUE:
        return objective
    measured = [launch.value for launch in launches if launch.outcome is Outcome.MEASURED]
    values = [value for value in measured if value is not None]
    if not objective.step and all(value > 0 for value in values):
        return objective
    sizes = [abs(value) for value in values if value != 0] or [1.0]
    return objective._replace(step=max(objective.step or sizes[0], max(sizes) / MAX_LEVEL))


def _describe(judgements: Mapping[int, Judgement], *, of_several: bool) -> list[str]:
    told = [(index, judgement.note) for index, judgement in judgements.items() if judgement.note]
    if not of_several:
        return [note for _, note in told]
    if len({note for _, note in told}) == 1 and len(told) == len(judgements):
        return [f"each instance: {told[0][1]}"]
    lines = [f"instance {index}: {note}" for index, note in told[:INSTANCES_NAMED]]
    if len(told) > INSTANCES_NAMED:
        lines.append(f"likewise {len(told) - INSTANCES_NAMED} more instances")
    return lines
