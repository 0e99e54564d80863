# SPDX-License-Identifier: Apache-2.0
"""The page's charts: data and layout as plotly's script reads them.

Plotly reads some HTML in text, so every text that a user may have written goes through `text`.
"""

from __future__ import annotations

import html
import math
import re
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from xlaunch.text import number
from xtune.evidence.ratios import RatioInterval
from xtune.evidence.readings import Importance, front_of
from xtune.launches.launch import WALL, Launch, Outcome
from xtune.launches.summaries import name_of
from xtune.search.records import Record, Stage
from xtune.show.result_text import describe_interval
from xtune.show.results import SearchResult
from xtune.show.words import STAGES, objective_quantity, percent, ratios, settings_of
from xtune.space.parameters import BARE, Configuration, Parameter

GREY, ORANGE, BLUE, GREEN, PINK, YELLOW, RED = (
    "#808790", "#d55e00", "#3490c8", "#009e73", "#cc79a7", "#c9a400", "#dc4a41",
)  # fmt: skip
"""Readable on white and on black; after Okabe and Ito (2008), whose colours colour-blind people
tell apart."""

CONTESTANT_COLOURS = (GREY, ORANGE, BLUE, GREEN, PINK, YELLOW)

MAX_LINEAR_RANGE = 12.0
"""Ratio of the largest to the smallest value above which an axis is logarithmic."""

MAX_DIMENSIONS = 8
MAX_CONFIGURATIONS = 300
MAX_BANDS = 5
"""Groups of configurations, by rank, in the chart of configurations."""

MIN_SAMPLES = 8
"""Raw samples of a launch from which on their distribution is drawn."""

MAX_BOXES = 48
MAX_TEXT = 90
"""Characters of a setting that are shown when pointing at a launch."""

_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")

_LOOKS: dict[Stage, tuple[str, str]] = {
    Stage.BASELINE: ("square", GREY),
    Stage.CONTROL: ("cross", GREY),
    Stage.SEED: ("triangle-up", GREEN),
    Stage.SEARCH: ("circle", BLUE),
    Stage.ABLATION: ("triangle-down", BLUE),
    Stage.FINAL: ("diamond", ORANGE),
}


class Chart(NamedTuple):
    """A chart of the page."""

    label: str
    """What it shows, for screen readers."""
    data: Sequence[dict[str, Any]]
    layout: dict[str, Any]
    min_width_px: int = 0
    """In a narrower window the chart scrolls sideways."""

    def to_plain(self, name: str) -> dict[str, Any]:
        """The chart as plain values for the page's script."""
        plain: dict[str, Any] = _plain({"name": name, "data": self.data, "layout": self.layout})
        return plain


def charts_of(result: SearchResult, importance: Importance) -> dict[str, Chart | None]:
    """The charts by name; None for those without data."""
    return {
        "ratios": ratio_chart(result),
        "pairs": pair_chart(result),
        "distributions": distribution_chart(result),
        "samples": sample_chart(result),
        "history": history_chart(result),
        "configurations": configuration_chart(result, [row.name for row in importance.settings]),
        "importance": importance_chart(importance),
        "front": front_chart(result),
    }


def text(*lines: str) -> str:
    """Lines for plotly, with markup escaped."""
    return "<br>".join([html.escape(printable(line), quote=False) for line in lines if line])


def printable(value: str) -> str:
    """Text with what HTML or UTF-8 cannot hold written as escapes. **Ex.:** ``\\x1b[31m``."""
    return _FORBIDDEN.sub(lambda found: repr(found[0])[1:-1], value)


def shortened(value: str, limit: int = 18) -> str:
    """Text with at most `limit` characters."""
    return value if len(value) <= limit else f"{value[: limit - 1]}…"


def ratio_chart(result: SearchResult) -> Chart | None:
    """The finalists' ratios with their confidence intervals."""
    intervals = {row.contender.configuration: row.interval for row in result.verdict.standings}
    named = [(name, intervals.get(one)) for one, name in result.contestants.items()]
    rows = [(name, one, describe_interval(one)) for name, one in named if one is not None]
    if not rows:
        return None
    trace = _points(
        [(one.estimate, name, f"{name}: {ratios(one.estimate)[0]}, {shown}") for name, one, shown in rows],
        marker={"size": 11, "color": ORANGE},
        error_x=_bars([one for _, one, _ in rows]),
    )  # fmt: skip
    ends = [1.0, *(end for _, one, _ in rows for end in (one.low or one.estimate, one.high))]
    names = {"type": "category", "autorange": "reversed"}
    axis = _axis("times as good as the bare command", ends)
    layout = _layout(110 + 34 * len(rows), axis, names, shapes=[_line_at_one("x")])
    return Chart("The ratio of each finalist with its interval", [trace], layout)


def pair_chart(result: SearchResult) -> Chart | None:
    """The ratio of each pair of launches in the final, block by block."""
    contestants = result.contestants
    colours = dict(zip(contestants, CONTESTANT_COLOURS, strict=False))
    data, seen = [], [1.0]
    for row in result.verdict.standings:
        name = contestants.get(row.contender.configuration)
        logs = enumerate(row.contender.log_ratios, start=1)
        pairs = [(block, math.exp(log)) for block, log in logs if log is not None]
        if name is None or not pairs:
            continue
        seen += [ratio for _, ratio in pairs]
        colour = colours[row.contender.configuration]
        data.append(
            _points(
                [(at, one, f"{name}, block {at}: {ratios(one)[0]}") for at, one in pairs],
                name=name,
                mode="lines+markers",
                line={"color": colour, "width": 1, "dash": "dot"},
                marker={"size": 9},
            )
        )
    blocks = {"title": {"text": "block of the final"}, "dtick": 1}
    axis = _axis("times the bare command", seen)
    layout = _layout(320, blocks, axis, shapes=[_line_at_one("y")])
    label = "The ratio of each finalist to the bare command, block by block"
    return Chart(label, data, layout) if data else None


def distribution_chart(result: SearchResult) -> Chart:
    """The values of each contestant's launches."""
    quantity = objective_quantity(result.objective)
    names = result.contestants
    rows: dict[bool, list[tuple[str, float, str]]] = {False: [], True: []}
    for at, record in enumerate(result.records, start=1):
        name = names.get(record.step.configuration)
        if record.launch is not None and record.launch.value is not None and name is not None:
            shown = text(f"launch {at}: {quantity.of(record.launch.value)}")
            row = name, record.launch.value, shown
            rows[record.step.stage is Stage.FINAL].append(row)
    box = {"type": "box", "boxpoints": "all", "jitter": 0.4, "pointpos": 0, "line": {"width": 1}}
    data = [
        _points(rows[in_final], name=name, marker={"color": colour, "size": 7}, **box)
        for name, in_final, colour in (("before the final", False, GREY), ("final", True, ORANGE))
        if rows[in_final]
    ]
    axis = _axis(quantity.axis, [value for some in rows.values() for _, value, _ in some])
    layout = _layout(360, {"type": "category"}, axis, boxmode="group")
    return Chart(f"The launches of each contestant; {quantity.better}", data, layout)


def sample_chart(result: SearchResult) -> Chart | None:
    """The quartiles and extremes of the samples in each launch of the contestants."""
    if result.objective.metric == WALL:
        return None
    quantity, name = objective_quantity(result.objective), name_of(result.objective.metric)
    contestants = result.contestants
    places = {configuration: place for place, configuration in enumerate(contestants)}
    names = list(contestants.values())
    rows = [
        (places[launch.configuration], at, values)
        for at, launch in enumerate(result.launches, start=1)
        if launch.configuration in places and len(values := _samples(launch, name)) >= MIN_SAMPLES
    ]
    rows = sorted(rows[-MAX_BOXES:], key=lambda row: row[:2])
    data = []
    for place in dict.fromkeys(row[0] for row in rows):
        mine = [row for row in rows if row[0] == place]
        quartiles = [statistics.quantiles(values, method="inclusive") for _, _, values in mine]
        trace = {
            "type": "box",
            "x": [f"{names[place]}<br>{at}" for _, at, _ in mine],
            "lowerfence": [min(values) for _, _, values in mine],
            "upperfence": [max(values) for _, _, values in mine],
            "line": {"color": CONTESTANT_COLOURS[place], "width": 1},
            "showlegend": False,
        }
        data.append(
            trace | {k: [q[n] for q in quartiles] for n, k in enumerate(("q1", "median", "q3"))}
        )
    axis = {"title": {"text": "launch"}, "type": "category", "tickangle": 0}
    seen = [value for _, _, values in rows for value in values]
    layout = _layout(360, axis, _axis(quantity.axis, seen))
    label = "The raw samples of each launch: median, quartiles and extremes"
    return Chart(label, data, layout, min(1800, 110 + 34 * len(rows))) if rows else None


def history_chart(result: SearchResult) -> Chart:
    """Every launch in order, and the best value so far."""
    quantity = objective_quantity(result.objective)
    groups: dict[tuple[str, str, str, bool], list[tuple[int, float, str]]] = {}
    for at, record in enumerate(result.records, start=1):
        assert record.launch is not None
        value = record.launch.value
        row = at, 0.5 if value is None else value, _history_hover(result, at, record, record.launch)
        look = _look(record.step.stage, record.launch)
        groups.setdefault((*look, value is None), []).append(row)
    best = [(at, one, "") for at, one in enumerate(result.best_so_far, 1) if one is not None]
    line = {"color": GREY, "width": 1.5, "shape": "hv"}
    data = [_points(best, name="best so far", mode="lines", line=line, hoverinfo="skip")]
    for (name, symbol, colour, is_strip), rows in groups.items():
        marker = {"symbol": symbol, "color": colour, "size": 9}
        data.append(_points(rows, name=name, yaxis="y2" if is_strip else "y", marker=marker))
    xaxis: dict[str, Any] = {"title": {"text": "launch"}, "rangemode": "tozero"}
    seen = [launch.value for launch in result.launches]
    layout = _layout(430, xaxis, _axis(quantity.axis, seen))
    if None in seen:
        strip = {"showgrid": False, "zeroline": False, "tickvals": [0.5], "ticktext": ["no value"]}
        xaxis["anchor"] = "y2"
        layout["yaxis"]["domain"] = [0.1, 1]
        layout["yaxis2"] = {"domain": [0, 0.06], "range": [0, 1], "fixedrange": True, **strip}
    return Chart(f"Every launch in order; {quantity.better}", data, layout)


def configuration_chart(result: SearchResult, ranking: Sequence[str]) -> Chart | None:
    """The configurations from setting to setting to their median; None for fewer than two.

    Parallel categories, because plotly's parallel coordinates need WebGL and compile JavaScript,
    which the page's policy forbids.

    ranking
        Names of settings, in descending order of importance.
    """
    medians = result.medians
    if len(medians) < 2:
        return None
    best = sorted(medians, key=lambda one: -result.objective.sign * medians[one])
    best = best[:MAX_CONFIGURATIONS]
    bands = [rank * MAX_BANDS // len(best) for rank in range(len(best))]
    varied = [one for one in result.space.parameters if len({each[one.name] for each in best}) > 1]
    places = {name: at for at, name in enumerate(ranking)}
    varied.sort(key=lambda one: places.get(one.name, len(places)))
    dimensions = [_dimension(one, best) for one in varied[:MAX_DIMENSIONS]]
    members = {
        band: [medians[one] for one, its in zip(best, bands, strict=True) if its == band]
        for band in sorted(set(bands))
    }
    ends = [dict.fromkeys((number(min(some)), number(max(some)))) for some in members.values()]
    dimensions.append(
        {
            "label": text(shortened(objective_quantity(result.objective).axis)),
            "values": bands,
            "categoryarray": list(members),
            "ticktext": [" to ".join(both) for both in ends],
        }
    )
    colours = [[0.0, ORANGE], [1.0, "#c9cdd2"]]
    trace = {
        "type": "parcats",
        "dimensions": dimensions,
        "line": {"color": bands, "colorscale": colours, "shape": "hspline"},
        "hoveron": "color",
        "hoverinfo": "count",
    }
    layout = _layout(460, {}, {}, margin={"l": 60, "r": 150, "t": 40, "b": 20})
    label = "The configurations from setting to setting to their median"
    return Chart(label, [trace], layout, 200 + 110 * len(dimensions))


def importance_chart(importance: Importance) -> Chart | None:
    """The share of each setting; None if nothing is known."""
    rows = [row for row in importance.settings if row.effects]
    data = []
    for name, colour, matters in (("matters", ORANGE, True), ("may be chance", GREY, False)):
        mine = [row for row in rows if row.matters is matters]
        points = [
            (row.share, text(row.name), text(f"{row.name}: {percent(row.share)}")) for row in mine
        ]
        bar = {"type": "bar", "orientation": "h", "marker": {"color": colour}}
        data += [_points(points, name=name, **bar)] if mine else []
    names = [text(row.name) for row in rows]
    title = {"text": "share of the differences between configurations"}
    layout = _layout(
        130 + 34 * len(rows),
        {"title": title, "tickformat": ".0%"},
        {"type": "category", "autorange": "reversed", "categoryarray": names},
    )
    label = "The share of the differences that each setting explains"
    return Chart(label, data, layout) if rows else None


def front_chart(result: SearchResult) -> Chart | None:
    """The configurations by both goals; None without a second goal or without values of both."""
    if result.second is None or result.other_objective is None:
        return None
    first = objective_quantity(result.objective)
    other = objective_quantity(result.other_objective)
    points = front_of(result.launches, result.objective, result.second)
    data = []
    for is_beaten, name, symbol, colour in (
        (True, "behind", "circle", GREY),
        (False, "front", "diamond", ORANGE),
    ):
        rows = [
            (
                row.first,
                row.other,
                text(
                    f"{first.of(row.first)}, {other.of(row.other)}",
                    *settings_of(row.configuration, result.space),
                ),
            )
            for row in points
            if row.is_beaten is is_beaten
        ]
        mode = "markers" if is_beaten else "lines+markers"
        marker = {"symbol": symbol, "color": colour, "size": 10}
        line = {"width": 1, "dash": "dot"}
        data += [_points(rows, name=name, mode=mode, line=line, marker=marker)] if rows else []
    layout = _layout(
        400,
        _axis(f"{first.axis}, {first.better}", [row.first for row in points]),
        _axis(f"{other.axis}, {other.better}", [row.other for row in points]),
    )
    return Chart("The configurations by both goals", data, layout) if len(points) > 1 else None


def _points(rows: Sequence[tuple[Any, Any, str]], **style: Any) -> dict[str, Any]:
    """A trace of points: x, y, and the text that is shown when pointing at it."""
    x, y, hover = ([row[at] for row in rows] for at in range(3))
    trace = {"type": "scatter", "mode": "markers", "hoverinfo": "text", "hovertext": hover}
    return {**trace, "x": x, "y": y, **style}


def _layout(height: int, xaxis: Any, yaxis: Any, **more: Any) -> dict[str, Any]:
    """A layout with the legend above the chart."""
    legend = {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0}
    margin = {"l": 60, "r": 16, "t": 36, "b": 48}
    common = {"hovermode": "closest", "legend": legend, "margin": margin, "height": height}
    return {**common, "xaxis": xaxis, "yaxis": yaxis, **more}


def _axis(title: str, values: Iterable[float | None]) -> dict[str, Any]:
    """The axis for these values: logarithmic if they lie far apart."""
    found = [value for value in values if value is not None and math.isfinite(value)]
    is_wide = found and min(found) > 0 and max(found) / min(found) > MAX_LINEAR_RANGE
    return {"title": {"text": text(title)}} | ({"type": "log"} if is_wide else {"tickformat": ","})


def _bars(rows: Sequence[RatioInterval]) -> dict[str, Any]:
    """The intervals as error bars; none for too few pairs."""
    ends = [(one.high - one.estimate, one.estimate - one.low) for one in rows]
    up, down = zip(*[both if math.isfinite(both[0]) else (0.0, 0.0) for both in ends], strict=True)
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down}


def _line_at_one(axis: str) -> dict[str, Any]:
    """A dashed line across the chart where the bare command is."""
    other = "y" if axis == "x" else "x"
    place = {f"{axis}0": 1.0, f"{axis}1": 1.0, f"{other}0": 0, f"{other}1": 1}
    line = {"width": 1, "color": GREY, "dash": "dash"}
    return {"type": "line", f"{other}ref": f"{other} domain", "line": line, **place}


def _plain(value: Any) -> Any:
    """The value with null for every number that JSON does not have."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _dimension(parameter: Parameter, shown: Sequence[Configuration]) -> dict[str, Any]:
    """A setting in the chart of configurations; an asterisk marks the default."""
    seen = [one[parameter.name] for one in shown]
    found = [at for at, value in enumerate(parameter.values) if value in seen]
    named = [(parameter.values[at], shortened(str(parameter.values[at]))) for at in found]
    return {
        "label": text(shortened(parameter.name)),
        "values": [parameter.values.index(value) for value in seen],
        "categoryarray": found,
        "ticktext": [text(name) + " *" * (value == parameter.default) for value, name in named],
    }


def _look(stage: Stage, launch: Launch) -> tuple[str, str, str]:
    """The name, symbol and colour of a launch in the history."""
    if launch.outcome is Outcome.CUT:
        return "ended early, behind", "line-ns-open", GREY
    if launch.value is None:
        return "failed", "x", RED
    if stage is Stage.FINAL and launch.configuration == BARE:
        return "final: the bare command", "square-open", GREY
    if stage is Stage.FINAL:
        return "final: a finalist", *_LOOKS[stage]
    return STAGES[stage], *_LOOKS[stage]


def _history_hover(result: SearchResult, at: int, record: Record, launch: Launch) -> str:
    quantity = objective_quantity(result.objective)
    value = launch.outcome.value if launch.value is None else quantity.of(launch.value)
    lines = settings_of(launch.configuration, result.space)[:16]
    is_broken = launch.value is not None and not result.objective.is_feasible(launch)
    return text(
        f"launch {at}: {value}",
        record.step.origin or STAGES[record.step.stage],
        *[shortened(line, MAX_TEXT) for line in lines],
        "breaks a requirement" if is_broken else "",
    )


def _samples(launch: Launch, name: str) -> list[float]:
    return [
        value
        for series in launch.series
        if series.metric == name
        for value in series.values
        if math.isfinite(value)
    ]
