# SPDX-License-Identifier: Apache-2.0
"""The page's charts: positions in percent, which the style turns into marks. No script draws them."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from xlaunch.text import number
from xtune.evidence.readings import Importance, Point
from xtune.evidence.verdicts import FinalistResults
from xtune.launches.launch import WALL, Launch, Outcome
from xtune.launches.summaries import name_of
from xtune.search.records import Record, Stage
from xtune.show.results import SearchResult
from xtune.show.words import STAGES, effects, objective_quantity, settings_of
from xtune.space.parameters import BARE, Configuration

MAX_LINEAR_RANGE = 12.0
"""Ratio of the largest to the smallest value above which a scale is logarithmic."""

MAX_DECADE = 300
MAX_SHOWN = 10.0**MAX_DECADE
"""Larger values are at the end of a scale."""

TICKS = 5
"""About so many on a linear scale."""

MAX_SETTINGS = 8
MAX_CONFIGURATIONS = 300
"""Columns and rows of the table of configurations."""

MIN_SAMPLES = 8
"""Raw samples of a launch from which on their distribution is drawn."""

MAX_TEXT = 90
"""Characters of a setting that are shown when pointing at a launch."""

_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class Mark(NamedTuple):
    """A point of a chart."""

    left: float
    """Percent of the width, as `top` of the height."""
    top: float
    kind: str
    """Its class in the style."""
    text: str
    """Shown when pointing at it."""


class Chart(NamedTuple):
    """Points over two scales."""

    label: str
    """What it shows, for screen readers."""
    marks: Sequence[Mark]
    legend: dict[str, str]
    """The kinds of its marks, with their names."""
    across: Sequence[tuple[float, str]]
    """Ticks of the horizontal scale."""
    up: Sequence[tuple[float, str]]
    title: str
    """Of the horizontal scale."""
    steps: Sequence[tuple[float, float, float]] = ()
    """Horizontal lines: left, width and top in percent."""


class Scale:
    """Positions of values in percent of a length."""

    def __init__(self, values: Iterable[float | None], *, linear: bool = False) -> None:
        shown = [value for value in values if value is not None and abs(value) < MAX_SHOWN]
        low, high = min(shown, default=0.0), max(shown, default=1.0)
        self._is_log = not linear and low > 0 and high > MAX_LINEAR_RANGE * low
        if self._is_log:
            low, high = math.log10(low), math.log10(high)
        margin = 0.04 * (high - low) or 0.04 * abs(low) or 1.0
        self._low, self._width = low - margin, high - low + 2 * margin

    def at(self, value: float) -> float:
        """The position of a value; one outside is at the end."""
        if self._is_log:
            value = math.log10(value) if value > 0 else -math.inf
        return round(min(max(100 * (value - self._low) / self._width, 0.0), 100.0), 2)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Positions and texts of round values."""
        low, high = self._low, self._low + self._width
        if self._is_log:
            decades = range(math.floor(max(low, -MAX_DECADE)), math.ceil(min(high, MAX_DECADE)))
            values = [factor * 10.0**decade for decade in decades for factor in (1, 2, 5)]
            values = [value for value in values if low <= math.log10(value) <= high]
            values = values[:: 1 + len(values) // (2 * TICKS)]
        else:
            power = 10.0 ** math.floor(math.log10(self._width / TICKS))
            steps = [factor * power for factor in (1, 2, 5, 10)]
            step = next(step for step in steps if step * TICKS >= 0.999 * self._width)
            values = [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]
        return [(self.at(value), number(value)) for value in values]


def printable(value: str) -> str:
    """Text with what HTML or UTF-8 cannot hold written as escapes. **Ex.:** ``\\x1b[31m``."""
    return _FORBIDDEN.sub(lambda match: repr(match[0])[1:-1], value)


def ratio_scale(finalists: Sequence[FinalistResults]) -> Scale:
    """The scale of all intervals and pairs of a final, and of the bare command."""
    shown: list[float] = []
    for row in finalists:
        if row.interval is not None:
            ratios = [row.interval.low or 1.0, row.interval.estimate, row.interval.high, 1.0]
            ratios += [math.exp(log) for log in row.seen]
            shown += map(row.interval.in_values, ratios)
    return Scale(shown)


def pair_marks(row: FinalistResults, scale: Scale) -> list[Mark]:
    """The ratio of each pair of launches of a finalist, block by block from above."""
    logs, step = row.log_ratios, row.step
    marks = []
    for at, log in enumerate(logs, start=1):
        if log is not None:
            value = step * log if step else math.exp(log)
            told = f"block {at}: {effects(step, math.exp(log))[0]}"
            marks.append(Mark(scale.at(value), _line(at, len(logs)), "final", told))
    return marks


def launch_marks(result: SearchResult, configuration: Configuration, scale: Scale) -> list[Mark]:
    """The values of the launches of a configuration, in order from above."""
    quantity = objective_quantity(result.objective)
    mine = [
        (number, record.step.stage is Stage.FINAL, record.launch.value)
        for number, record in enumerate(result.records, start=1)
        if record.launch is not None and record.launch.configuration == configuration
    ]
    rows = [(number, final, value) for number, final, value in mine if value is not None]
    return [
        Mark(
            scale.at(value),
            _line(at, len(rows)),
            "final" if is_final else "early",
            f"launch {number}: {quantity.of(value)}",
        )
        for at, (number, is_final, value) in enumerate(rows, start=1)
    ]


def sample_rows(result: SearchResult) -> list[tuple[str, int, list[float]]]:
    """The label, number and extremes and quartiles of each launch with many samples."""
    name = name_of(result.objective.metric)
    rows = []
    for at, launch in enumerate(result.launches, start=1):
        label = result.labels.get(launch.configuration)
        series_values = [series.values for series in launch.series if series.metric == name]
        samples = [value for values in series_values for value in values if math.isfinite(value)]
        if label is None or result.objective.metric == WALL or len(samples) < MIN_SAMPLES:
            continue
        quartiles = statistics.quantiles(samples, method="inclusive")
        rows.append((label, at, [min(samples), *quartiles, max(samples)]))
    return sorted(rows, key=lambda row: (list(result.labels.values()).index(row[0]), row[1]))


def history_chart(result: SearchResult) -> Chart:
    """Every launch in order, and the best value so far."""
    count = len(result.launches)
    up = Scale(launch.value for launch in result.launches)
    across = Scale([1, count], linear=True)
    legend, marks, steps = {"best": "best so far"}, [], []
    for at, record in enumerate(result.records, start=1):
        assert record.launch is not None
        kind, legend[kind] = _look(record.step.stage, record.launch)
        value = record.launch.value
        top = 100.0 if value is None else 100 - up.at(value)
        marks.append(Mark(across.at(at), top, kind, "\n".join(_told(result, at, record))))
    best = [(at, one) for at, one in enumerate(result.best_so_far, start=1) if one is not None]
    starts = [one for n, one in enumerate(best) if n == 0 or best[n - 1][1] != one[1]]
    for (at, value), (end, _) in zip(starts, [*starts[1:], (count, 0.0)], strict=True):
        if at < end:
            start = across.at(at)
            steps.append((start, across.at(end) - start, 100 - up.at(value)))
    label = f"Every launch in order; {objective_quantity(result.objective).better}"
    ticks = [tick for tick in across.ticks if "." not in tick[1]]
    return Chart(label, marks, legend, ticks, up.ticks, "launch", steps)


def front_chart(result: SearchResult, points: Sequence[Point]) -> Chart:
    """The configurations by both goals."""
    assert result.other_objective is not None
    first, other = map(objective_quantity, (result.objective, result.other_objective))
    across, up = Scale(row.first for row in points), Scale(row.other for row in points)
    marks = []
    for row in points:
        values = f"{first.of(row.first)}, {other.of(row.other)}"
        told = "\n".join([values, *settings_of(row.configuration, result.space)])
        kind = "early" if row.is_beaten else "final"
        marks.append(Mark(across.at(row.first), 100 - up.at(row.other), kind, told))
    legend = {"early": "behind", "final": "front"}
    title = f"{first.axis}, {first.better}"
    return Chart("The configurations by both goals", marks, legend, across.ticks, up.ticks, title)


def varied_settings(result: SearchResult, importance: Importance) -> list[str]:
    """The settings with several values among the launched configurations, the most important first."""
    ranking = [row.name for row in importance.settings]
    names = [parameter.name for parameter in result.space.parameters]
    varied = [
        name for name in names if len({configuration[name] for configuration in result.medians}) > 1
    ]
    return sorted(varied, key=[*ranking, *names].index)[:MAX_SETTINGS]


def best_configurations(result: SearchResult) -> list[tuple[Configuration, float]]:
    """The configurations with their medians, the best first."""
    sign = result.objective.sign
    return sorted(result.medians.items(), key=lambda row: -sign * row[1])[:MAX_CONFIGURATIONS]


def _line(at: int, count: int) -> float:
    """The height of a row's mark, so that marks of the same value do not hide each other."""
    return round(100 * (at - 0.5) / count, 1)


def _look(stage: Stage, launch: Launch) -> tuple[str, str]:
    """The kind of a launch in the history, and its name."""
    if launch.outcome is Outcome.CUT:
        return "cut", "ended early, behind"
    if launch.value is None:
        return "failed", "failed"
    if stage is Stage.FINAL:
        is_bare = launch.configuration == BARE
        return ("bare", "final: the bare command") if is_bare else ("final", "final: a finalist")
    return stage.value, STAGES[stage]


def _told(result: SearchResult, at: int, record: Record) -> Iterator[str]:
    launch = record.launch
    assert launch is not None
    value = launch.outcome.value
    if launch.value is not None:
        value = objective_quantity(result.objective).of(launch.value)
    yield f"launch {at}: {value}"
    yield record.step.origin or STAGES[record.step.stage]
    for line in settings_of(launch.configuration, result.space)[:16]:
        yield line if len(line) <= MAX_TEXT else f"{line[: MAX_TEXT - 1]}…"
    if launch.value is not None and not result.objective.is_feasible(launch):
        yield "breaks a requirement"
