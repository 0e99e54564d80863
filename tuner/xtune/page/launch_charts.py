# SPDX-License-Identifier: Apache-2.0
"""Charts of launches: those of the contestants, their samples, and the history."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from plotly import graph_objects as go

from xtune.launches.launch import Launch, Outcome
from xtune.launches.objectives import WALL
from xtune.launches.summaries import name_of
from xtune.page.contestants import Contestant, best_so_far
from xtune.page.figures import (
    BLUE,
    CONTESTANT_COLOURS,
    GREEN,
    GREY,
    ORANGE,
    RED,
    Chart,
    axis_for,
    new_figure,
    shortened,
    text,
)
from xtune.screen.conclusion import Conclusion
from xtune.screen.quantities import objective_quantity
from xtune.screen.words import STAGES, settings_of
from xtune.search.records import Record, Stage
from xtune.space.parameters import BARE

MIN_SAMPLES = 8
"""Raw samples of a launch from which on their distribution is drawn."""

MAX_BOXES = 48
MAX_TEXT = 90
"""Characters of a setting that are shown when pointing at a launch."""


def distribution_chart(conclusion: Conclusion, people: Sequence[Contestant]) -> Chart:
    """The values of each contestant's launches."""
    quantity = objective_quantity(conclusion.objective)
    names = {one.configuration: one.name for one in people}
    rows = [
        (at, names[record.launch.configuration], record.step.stage is Stage.FINAL, record.launch.value)
        for at, record in enumerate(conclusion.records, start=1)
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
    figure = new_figure(
        data,
        height=360,
        boxmode="group",
        xaxis={"type": "category"},
        yaxis={"title": text(quantity.axis), **axis_for([row[3] for row in rows])},
    )
    return Chart("distributions", f"The launches of each contestant; {quantity.better}", figure)


def sample_chart(conclusion: Conclusion, people: Sequence[Contestant]) -> Chart | None:
    """The quartiles and extremes of the samples in each launch of the contestants."""
    if conclusion.objective.metric == WALL:
        return None
    quantity, name = objective_quantity(conclusion.objective), name_of(conclusion.objective.metric)
    places = {person.configuration: place for place, person in enumerate(people)}
    rows = [
        (places[launch.configuration], at, values)
        for at, launch in enumerate(conclusion.launches, start=1)
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
    figure = new_figure(
        data,
        height=360,
        xaxis={"title": "launch", "type": "category", "tickangle": 0},
        yaxis={
            "title": text(quantity.axis),
            **axis_for([value for _, _, values in rows for value in values]),
        },
    )
    label = "The raw samples of each launch: median, quartiles and extremes"
    return Chart("samples", label, figure, min_width_px=min(1800, 110 + 34 * len(rows)))


def history_chart(conclusion: Conclusion) -> Chart:
    """Every launch in order, and the best value so far."""
    quantity = objective_quantity(conclusion.objective)
    groups: dict[tuple[str, str, str], list[tuple[int, float | None, str]]] = {}
    for at, record in enumerate(conclusion.records, start=1):
        assert record.launch is not None
        row = at, record.launch.value, _history_hover(conclusion, at, record, record.launch)
        groups.setdefault(_look(record.step.stage, record.launch), []).append(row)
    best = [(at, value) for at, value in enumerate(best_so_far(conclusion), 1) if value is not None]
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
    figure = new_figure(
        data,
        height=430,
        xaxis={"title": "launch", "rangemode": "tozero"},
        yaxis={
            "title": text(quantity.axis),
            **axis_for([launch.value for launch in conclusion.launches]),
        },
    )
    if any(launch.value is None for launch in conclusion.launches):
        strip = {"showgrid": False, "zeroline": False, "tickvals": [0.5], "ticktext": ["no value"]}
        figure.update_layout(
            xaxis={"anchor": "y2"},
            yaxis={"domain": [0.1, 1]},
            yaxis2={"domain": [0, 0.06], "range": [0, 1], "fixedrange": True, **strip},
        )
    return Chart("history", f"Every launch in order; {quantity.better}", figure)


_LOOKS: dict[Stage, tuple[str, str]] = {
    Stage.BASELINE: ("square", GREY),
    Stage.CONTROL: ("cross", GREY),
    Stage.SEED: ("triangle-up", GREEN),
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


def _history_hover(conclusion: Conclusion, at: int, record: Record, launch: Launch) -> str:
    quantity = objective_quantity(conclusion.objective)
    value = launch.outcome.value if launch.value is None else quantity.of(launch.value)
    lines = settings_of(launch.configuration, conclusion.space)[:16]
    is_broken = launch.value is not None and not conclusion.objective.is_feasible(launch)
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
