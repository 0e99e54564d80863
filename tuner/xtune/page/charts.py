# SPDX-License-Identifier: Apache-2.0
"""The page's charts, as plotly's figures.

Plotly reads some HTML in text, so every text that a user may have written goes through `text`.
"""

from __future__ import annotations

import html
import json
import math
import re
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from plotly import graph_objects as go

from xtune.evidence.fronts import front_of
from xtune.evidence.importance import Importance
from xtune.evidence.pareto import Estimate, Place
from xtune.measurement.launches import Launch, Outcome
from xtune.measurement.objectives import WALL
from xtune.measurement.summaries import name_of
from xtune.page.findings import Contestant, Findings, best_so_far
from xtune.screen.quantities import number, objective_quantity, percent, quantity_of
from xtune.screen.words import STAGES, settings_of
from xtune.search.records import Record, Stage
from xtune.space.parameters import BARE, Configuration, Parameter

GREY, ORANGE, BLUE, GREEN, PINK, YELLOW, RED = (
    "#808790", "#d55e00", "#3490c8", "#009e73", "#cc79a7", "#c9a400", "#dc4a41",
)  # fmt: skip
"""Readable on white and on black; after Okabe and Ito (2008), whose colours colour-blind people
tell apart."""

CONTESTANT_COLOURS = (GREY, ORANGE, BLUE, GREEN, PINK, YELLOW)

MAX_LINEAR_RANGE = 12.0
"""Ratio of the largest to the smallest value above which an axis is logarithmic."""

MIN_SAMPLES = 8
"""Raw samples of a launch from which on their distribution is drawn."""

MAX_BOXES = 48
MAX_DIMENSIONS = 8
MAX_LINES = 300
MAX_BANDS = 5
"""Groups of configurations, by rank, in the chart of configurations."""

MAX_TEXT = 90
"""Characters of a setting that are shown when pointing at a launch."""

_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class Chart(NamedTuple):
    """A chart of the page."""

    name: str
    label: str
    """What it shows, for screen readers."""
    figure: go.Figure
    min_width_px: int = 0
    """In a narrower window the chart scrolls sideways."""

    def to_plain(self) -> dict[str, Any]:
        plain = json.loads(self.figure.to_json())
        plain["layout"].pop("template", None)  # the page's script has a light and a dark one
        return {"name": self.name, "data": plain["data"], "layout": plain["layout"]}


def charts_of(
    findings: Findings, people: Sequence[Contestant], found: Importance
) -> dict[str, Chart | None]:
    """The charts by name; None for those without data."""
    return {
        "ratios": ratio_chart(findings, people),
        "pairs": pair_chart(findings, people),
        "distributions": distribution_chart(findings, people),
        "samples": sample_chart(findings, people),
        "history": history_chart(findings),
        "configurations": configuration_chart(findings, [row.name for row in found.settings]),
        "importance": importance_chart(found),
        "front": front_chart(findings),
    }


def text(*lines: str) -> str:
    """Lines for plotly, with markup escaped."""
    return "<br>".join([html.escape(printable(line), quote=False) for line in lines if line])


def printable(told: str) -> str:
    """Text with what HTML or UTF-8 cannot hold written as escapes. **Ex.:** ``\\x1b[31m``."""
    return _FORBIDDEN.sub(lambda found: repr(found[0])[1:-1], told)


def ratio_chart(findings: Findings, people: Sequence[Contestant]) -> Chart | None:
    """The finalists' ratios with their confidence intervals."""
    rows = [
        (person.name, interval)
        for person in people
        for row in findings.verdict.standings
        if row.contender.configuration == person.configuration
        and (interval := row.interval) is not None
    ]
    if not rows:
        return None
    trace = go.Scatter(
        x=[interval.estimate for _, interval in rows],
        y=[name for name, _ in rows],
        mode="markers",
        marker={"size": 11, "color": ORANGE},
        error_x=_error_bars([Estimate(one.estimate, one.low, one.high) for _, one in rows]),
        hovertext=[
            f"{name}: {number(one.estimate)}, {number(one.low)} to {number(one.high)}"
            for name, one in rows
        ],
        hoverinfo="text",
    )
    ends = [end for _, one in rows for end in (one.low, one.high)] + [1.0]
    figure = _figure(
        [trace],
        height=110 + 34 * len(rows),
        xaxis={"title": "times as good as the bare command", **scale(ends)},
        yaxis={"type": "category", "autorange": "reversed"},
    )
    figure.add_vline(1.0, line={"width": 1, "color": GREY, "dash": "dash"})
    return Chart("ratios", "The ratio of each finalist with its interval", figure)


def pair_chart(findings: Findings, people: Sequence[Contestant]) -> Chart | None:
    """The ratio of each pair of launches in the final, block by block."""
    names = {one.configuration: one.name for one in people}
    colours = {
        one.configuration: colour for one, colour in zip(people, CONTESTANT_COLOURS, strict=False)
    }
    data = []
    seen = [1.0]
    for row in findings.verdict.standings:
        contender = row.contender
        points = [
            (block, math.exp(log))
            for block, log in enumerate(contender.log_ratios, start=1)
            if log is not None
        ]
        if contender.configuration in names and points:
            name, colour = names[contender.configuration], colours[contender.configuration]
            ratios = [value for _, value in points]
            seen += ratios
            data.append(
                go.Scatter(
                    x=[block for block, _ in points],
                    y=ratios,
                    name=name,
                    mode="lines+markers",
                    line={"color": colour, "width": 1, "dash": "dot"},
                    marker={"size": 9},
                    hovertext=[f"{name}, block {at}: {number(value)}" for at, value in points],
                    hoverinfo="text",
                )
            )
    if not data:
        return None
    figure = _figure(
        data,
        height=320,
        xaxis={"title": "block of the final", "dtick": 1},
        yaxis={"title": "times the bare command", **scale(seen)},
    )
    figure.add_hline(1.0, line={"width": 1, "color": GREY, "dash": "dash"})
    return Chart("pairs", "The ratio of each finalist to the bare command, block by block", figure)


def distribution_chart(findings: Findings, people: Sequence[Contestant]) -> Chart:
    """The values of each contestant's launches."""
    quantity = objective_quantity(findings.objective)
    names = {one.configuration: one.name for one in people}
    rows = [
        (at, names[record.launch.configuration], record.step.stage is Stage.FINAL, record.launch.value)
        for at, record in enumerate(findings.records, start=1)
        if record.launch is not None
        and record.launch.configuration in names
        and record.launch.value is not None
    ]  # fmt: skip
    data = []
    for name, in_final, colour in (("before the final", False, GREY), ("final", True, ORANGE)):
        mine = [row for row in rows if row[2] is in_final]
        if mine:
            data.append(
                go.Box(
                    x=[row[1] for row in mine],
                    y=[row[3] for row in mine],
                    name=name,
                    boxpoints="all",
                    jitter=0.4,
                    pointpos=0,
                    marker={"color": colour, "size": 7},
                    line={"width": 1},
                    hovertext=[
                        text(f"launch {at}: {quantity.of(value)}") for at, _, _, value in mine
                    ],
                    hoverinfo="text",
                )
            )
    figure = _figure(
        data,
        height=360,
        boxmode="group",
        xaxis={"type": "category"},
        yaxis={"title": text(quantity.axis), **scale([row[3] for row in rows])},
    )
    return Chart("distributions", f"The launches of each contestant; {quantity.better}", figure)


def sample_chart(findings: Findings, people: Sequence[Contestant]) -> Chart | None:
    """The quartiles and extremes of the samples in each launch of the contestants."""
    if findings.objective.metric == WALL:
        return None
    quantity, name = objective_quantity(findings.objective), name_of(findings.objective.metric)
    places = {person.configuration: place for place, person in enumerate(people)}
    rows = [
        (places[launch.configuration], at, values)
        for at, launch in enumerate(findings.launches, start=1)
        if launch.configuration in places and len(values := _samples(launch, name)) >= MIN_SAMPLES
    ]
    # Of many launches, those of the first contestants, and of these the latest.
    limit = len(people)
    while len(rows) > MAX_BOXES and limit > 2:
        limit -= 1
        rows = [row for row in rows if row[0] < limit]
    rows = sorted(rows[-MAX_BOXES:], key=lambda row: row[:2])
    if not rows:
        return None
    data = []
    for place in dict.fromkeys(row[0] for row in rows):
        mine = [row for row in rows if row[0] == place]
        quartiles = [statistics.quantiles(values, method="inclusive") for _, _, values in mine]
        data.append(
            go.Box(
                x=[f"{people[place].name}<br>{at}" for _, at, _ in mine],
                q1=[one[0] for one in quartiles],
                median=[one[1] for one in quartiles],
                q3=[one[2] for one in quartiles],
                lowerfence=[min(values) for _, _, values in mine],
                upperfence=[max(values) for _, _, values in mine],
                line={"color": CONTESTANT_COLOURS[place], "width": 1},
                showlegend=False,
            )
        )
    figure = _figure(
        data,
        height=360,
        xaxis={"title": "launch", "type": "category", "tickangle": 0},
        yaxis={
            "title": text(quantity.axis),
            **scale([value for _, _, values in rows for value in values]),
        },
    )
    label = "The raw samples of each launch: median, quartiles and extremes"
    return Chart("samples", label, figure, min_width_px=min(1800, 110 + 34 * len(rows)))


def history_chart(findings: Findings) -> Chart:
    """Every launch in order, and the best value so far."""
    quantity = objective_quantity(findings.objective)
    groups: dict[tuple[str, str, str], list[tuple[int, float | None, str]]] = {}
    for at, record in enumerate(findings.records, start=1):
        assert record.launch is not None
        row = at, record.launch.value, _history_hover(findings, at, record, record.launch)
        groups.setdefault(_look(record.step.stage, record.launch), []).append(row)
    best = [(at, value) for at, value in enumerate(best_so_far(findings), 1) if value is not None]
    data = [
        go.Scatter(
            x=[at for at, _ in best],
            y=[value for _, value in best],
            name="best so far",
            mode="lines",
            line={"color": GREY, "width": 1.5, "shape": "hv"},
            hoverinfo="skip",
        )
    ]
    for (name, symbol, colour), rows in groups.items():
        has_value = rows[0][1] is not None
        data.append(
            go.Scatter(
                x=[row[0] for row in rows],
                y=[row[1] if has_value else 0.5 for row in rows],
                yaxis="y" if has_value else "y2",
                name=name,
                mode="markers",
                marker={"symbol": symbol, "color": colour, "size": 9},
                hovertext=[row[2] for row in rows],
                hoverinfo="text",
            )
        )
    figure = _figure(
        data,
        height=430,
        xaxis={"title": "launch", "rangemode": "tozero"},
        yaxis={
            "title": text(quantity.axis),
            **scale([launch.value for launch in findings.launches]),
        },
    )
    if any(launch.value is None for launch in findings.launches):
        strip = {"showgrid": False, "zeroline": False, "tickvals": [0.5], "ticktext": ["no value"]}
        figure.update_layout(
            xaxis={"anchor": "y2"},
            yaxis={"domain": [0.1, 1]},
            yaxis2={"domain": [0, 0.06], "range": [0, 1], "fixedrange": True, **strip},
        )
    return Chart("history", f"Every launch in order; {quantity.better}", figure)


def configuration_chart(findings: Findings, ranking: Sequence[str]) -> Chart | None:
    """The configurations from setting to setting to their median; None for fewer than two.

    Parallel categories, because plotly's parallel coordinates need WebGL and compile JavaScript,
    which the page's policy forbids.

    ranking
        Names of settings, the most important one first.
    """
    medians = median_values(findings)
    if len(medians) < 2:
        return None
    best = sorted(medians, key=lambda one: -findings.objective.sign * medians[one])[:MAX_LINES]
    bands = [rank * MAX_BANDS // len(best) for rank in range(len(best))]
    varied = [
        one for one in findings.space.parameters if len({each[one.name] for each in best}) > 1
    ]
    places = {name: at for at, name in enumerate(ranking)}
    varied.sort(key=lambda one: places.get(one.name, len(places)))
    dimensions = [_dimension(one, best) for one in varied[:MAX_DIMENSIONS]]
    dimensions.append(
        {
            "label": text(_short(objective_quantity(findings.objective).axis)),
            "values": bands,
            "categoryarray": sorted(set(bands)),
            "ticktext": [_band_name(band, bands, [medians[one] for one in best]) for band in sorted(set(bands))],
        }
    )  # fmt: skip
    trace = go.Parcats(
        dimensions=dimensions,
        line={
            "color": bands,
            "colorscale": [[0.0, ORANGE], [1.0, "#c9cdd2"]],
            "shape": "hspline",
        },
        hoveron="color",
        hoverinfo="count",
    )
    figure = _figure([trace], height=460, margin={"l": 60, "r": 150, "t": 40, "b": 20})
    label = "The configurations from setting to setting to their median"
    return Chart("configurations", label, figure, min_width_px=200 + 110 * len(dimensions))


def _band_name(band: int, bands: Sequence[int], values: Sequence[float]) -> str:
    mine = [value for value, its in zip(values, bands, strict=True) if its == band]
    ends = list(dict.fromkeys([number(min(mine)), number(max(mine))]))
    return " to ".join(ends)


def median_values(findings: Findings) -> dict[Configuration, float]:
    """The median of each configuration with a finite value; the bare command is left out."""
    groups: dict[Configuration, list[float]] = {}
    for launch in findings.launches:
        value = launch.value
        if launch.configuration != BARE and value is not None and math.isfinite(value):
            groups.setdefault(findings.space.complete(launch.configuration), []).append(value)
    return {one: statistics.median(values) for one, values in groups.items()}


def importance_chart(found: Importance) -> Chart | None:
    """The share of each setting with its confidence interval; None if nothing is known."""
    rows = [row for row in found.settings if row.effects]
    if not rows:
        return None
    data = [
        go.Bar(
            x=[row.share for row in mine],
            y=[text(row.name) for row in mine],
            name=name,
            orientation="h",
            marker={"color": colour},
            error_x=_error_bars([Estimate(row.share, row.share_low, row.share_high) for row in mine]),
            hovertext=[
                text(f"{row.name}: {percent(row.share)}, {percent(row.share_low)} to {percent(row.share_high)}")
                for row in mine
            ],
            hoverinfo="text",
        )
        for name, colour, matters in (("matters", ORANGE, True), ("may be chance", GREY, False))
        if (mine := [row for row in rows if row.matters is matters])
    ]  # fmt: skip
    figure = _figure(
        data,
        height=130 + 34 * len(rows),
        xaxis={"title": "share of the differences between configurations", "tickformat": ".0%"},
        yaxis={
            "type": "category",
            "autorange": "reversed",
            "categoryarray": [text(row.name) for row in rows],
        },
    )
    return Chart("importance", "The share of the differences that each setting explains", figure)


def front_chart(findings: Findings) -> Chart | None:
    """The configurations by both goals; None without a second goal or without values of both."""
    if findings.second is None:
        return None
    first = objective_quantity(findings.objective)
    other = quantity_of(findings.second.metric, findings.second.goal)
    points = front_of(findings.launches, findings.objective, findings.second)
    if not points:
        return None
    data = []
    for place, name, symbol, colour in (
        (Place.DOMINATED, "surely behind", "circle-open", GREY),
        (Place.MAYBE_DOMINATED, "probably behind", "circle", GREY),
        (Place.FRONT, "front", "diamond", ORANGE),
    ):
        rows = [point for point in points if point.place is place]
        if rows:
            data.append(
                go.Scatter(
                    x=[row.first.value for row in rows],
                    y=[row.other.value for row in rows],
                    name=name,
                    mode="lines+markers" if place is Place.FRONT else "markers",
                    line={"width": 1, "dash": "dot"},
                    marker={"symbol": symbol, "color": colour, "size": 10},
                    error_x=_error_bars([row.first for row in rows]),
                    error_y=_error_bars([row.other for row in rows]),
                    hovertext=[
                        text(
                            f"{first.of(row.first.value)}, {other.of(row.other.value)}",
                            *settings_of(row.configuration, findings.space),
                        )
                        for row in rows
                    ],
                    hoverinfo="text",
                )
            )
    figure = _figure(
        data,
        height=400,
        xaxis={
            "title": text(f"{first.axis}, {first.better}"),
            **scale([row.first.value for row in points]),
        },
        yaxis={
            "title": text(f"{other.axis}, {other.better}"),
            **scale([row.other.value for row in points]),
        },
    )
    return Chart("front", "The configurations by both goals", figure)


def scale(values: Sequence[float | None]) -> dict[str, Any]:
    """The axis for these values: logarithmic if they lie far apart."""
    found = [value for value in values if value is not None and math.isfinite(value)]
    if found and min(found) > 0 and max(found) / min(found) > MAX_LINEAR_RANGE:
        return {"type": "log"}
    return {"tickformat": ","}


def _figure(data: Sequence[Any], *, height: int, **layout: Any) -> go.Figure:
    common = {
        "hovermode": "closest",
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        "margin": {"l": 60, "r": 16, "t": 36, "b": 48},
    }
    return go.Figure(data, {**common, "height": height, **layout})


def _error_bars(rows: Sequence[Estimate]) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": [one.high - one.value for one in rows],
        "arrayminus": [one.value - one.low for one in rows],
        "thickness": 1.5,
        "width": 4,
    }


_LOOKS: dict[Stage, tuple[str, str]] = {
    Stage.BASELINE: ("square", GREY),
    Stage.CONTROL: ("cross", GREY),
    Stage.SEED: ("triangle-up", GREEN),
    Stage.RACE: ("circle", BLUE),
    Stage.SEARCH: ("circle", BLUE),
    Stage.ABLATION: ("triangle-down", BLUE),
    Stage.FINAL: ("diamond", ORANGE),
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


def _history_hover(findings: Findings, at: int, record: Record, launch: Launch) -> str:
    quantity = objective_quantity(findings.objective)
    value = launch.outcome.value if launch.value is None else quantity.of(launch.value)
    told = settings_of(launch.configuration, findings.space)[:16]
    is_broken = launch.value is not None and not findings.objective.is_feasible(launch)
    return text(
        f"launch {at}: {value}",
        record.step.origin or STAGES[record.step.stage],
        *[line if len(line) <= MAX_TEXT else f"{line[: MAX_TEXT - 1]}…" for line in told],
        "breaks a requirement" if is_broken else "",
    )


def _dimension(parameter: Parameter, shown: Sequence[Configuration]) -> dict[str, Any]:
    """A setting in the chart of configurations; an asterisk marks the default."""
    seen = [one[parameter.name] for one in shown]
    found = [at for at, value in enumerate(parameter.values) if value in seen]
    return {
        "label": text(_short(parameter.name)),
        "values": [parameter.values.index(value) for value in seen],
        "categoryarray": found,
        "ticktext": [
            text(_short(str(parameter.values[at])))
            + (" *" if parameter.values[at] == parameter.default else "")
            for at in found
        ],
    }


def _short(told: str, limit: int = 18) -> str:
    return told if len(told) <= limit else f"{told[: limit - 1]}…"


def _samples(launch: Launch, name: str) -> list[float]:
    return [
        value
        for series in launch.series
        if series.metric == name
        for value in series.values
        if math.isfinite(value)
    ]
