# SPDX-License-Identifier: Apache-2.0
"""The page's charts by name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from plotly import graph_objects as go

from xlaunch.text import number
from xtune.evidence.fronts import front_of
from xtune.evidence.importance import Importance
from xtune.evidence.pareto import Estimate, Place
from xtune.page.contestants import Contestant
from xtune.page.figures import (
    CONTESTANT_COLOURS,
    GREY,
    ORANGE,
    Chart,
    axis_for,
    error_bars,
    new_figure,
    shortened,
    text,
)
from xtune.page.launch_charts import distribution_chart, history_chart, sample_chart
from xtune.screen.conclusion import Conclusion
from xtune.screen.quantities import objective_quantity, percent, quantity_of
from xtune.screen.words import settings_of
from xtune.space.parameters import Configuration, Parameter

MAX_DIMENSIONS = 8
MAX_CONFIGURATIONS = 300
MAX_BANDS = 5
"""Groups of configurations, by rank, in the chart of configurations."""


def charts_of(
    conclusion: Conclusion, people: Sequence[Contestant], found: Importance
) -> dict[str, Chart | None]:
    """The charts by name; None for those without data."""
    return {
        "ratios": ratio_chart(conclusion, people),
        "pairs": pair_chart(conclusion, people),
        "distributions": distribution_chart(conclusion, people),
        "samples": sample_chart(conclusion, people),
        "history": history_chart(conclusion),
        "configurations": configuration_chart(conclusion, [row.name for row in found.settings]),
        "importance": importance_chart(found),
        "front": front_chart(conclusion),
    }


def ratio_chart(conclusion: Conclusion, people: Sequence[Contestant]) -> Chart | None:
    """The finalists' ratios with their confidence intervals."""
    rows = [
        (person.name, interval)
        for person in people
        for row in conclusion.verdict.standings
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
        error_x=error_bars([Estimate(one.estimate, one.low, one.high) for _, one in rows]),
        hovertext=[
            f"{name}: {number(one.estimate)}, {number(one.low)} to {number(one.high)}"
            for name, one in rows
        ],
        hoverinfo="text",
    )
    ends = [end for _, one in rows for end in (one.low, one.high)] + [1.0]
    figure = new_figure(
        [trace],
        height=110 + 34 * len(rows),
        xaxis={"title": "times as good as the bare command", **axis_for(ends)},
        yaxis={"type": "category", "autorange": "reversed"},
    )
    figure.add_vline(1.0, line={"width": 1, "color": GREY, "dash": "dash"})
    return Chart("ratios", "The ratio of each finalist with its interval", figure)


def pair_chart(conclusion: Conclusion, people: Sequence[Contestant]) -> Chart | None:
    """The ratio of each pair of launches in the final, block by block."""
    names = {one.configuration: one.name for one in people}
    colours = {
        one.configuration: colour for one, colour in zip(people, CONTESTANT_COLOURS, strict=False)
    }
    data = []
    seen = [1.0]
    for row in conclusion.verdict.standings:
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
    figure = new_figure(
        data,
        height=320,
        xaxis={"title": "block of the final", "dtick": 1},
        yaxis={"title": "times the bare command", **axis_for(seen)},
    )
    figure.add_hline(1.0, line={"width": 1, "color": GREY, "dash": "dash"})
    return Chart("pairs", "The ratio of each finalist to the bare command, block by block", figure)


def configuration_chart(conclusion: Conclusion, ranking: Sequence[str]) -> Chart | None:
    """The configurations from setting to setting to their median; None for fewer than two.

    Parallel categories, because plotly's parallel coordinates need WebGL and compile JavaScript,
    which the page's policy forbids.

    ranking
        Names of settings, the most important one first.
    """
    medians = conclusion.medians
    if len(medians) < 2:
        return None
    best = sorted(medians, key=lambda one: -conclusion.objective.sign * medians[one])[
        :MAX_CONFIGURATIONS
    ]
    bands = [rank * MAX_BANDS // len(best) for rank in range(len(best))]
    varied = [
        one for one in conclusion.space.parameters if len({each[one.name] for each in best}) > 1
    ]
    places = {name: at for at, name in enumerate(ranking)}
    varied.sort(key=lambda one: places.get(one.name, len(places)))
    dimensions = [_dimension(one, best) for one in varied[:MAX_DIMENSIONS]]
    dimensions.append(
        {
            "label": text(shortened(objective_quantity(conclusion.objective).axis)),
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
    figure = new_figure([trace], height=460, margin={"l": 60, "r": 150, "t": 40, "b": 20})
    label = "The configurations from setting to setting to their median"
    return Chart("configurations", label, figure, min_width_px=200 + 110 * len(dimensions))


def _band_name(band: int, bands: Sequence[int], values: Sequence[float]) -> str:
    mine = [value for value, its in zip(values, bands, strict=True) if its == band]
    ends = list(dict.fromkeys([number(min(mine)), number(max(mine))]))
    return " to ".join(ends)


def _dimension(parameter: Parameter, shown: Sequence[Configuration]) -> dict[str, Any]:
    """A setting in the chart of configurations; an asterisk marks the default."""
    seen = [one[parameter.name] for one in shown]
    found = [at for at, value in enumerate(parameter.values) if value in seen]
    return {
        "label": text(shortened(parameter.name)),
        "values": [parameter.values.index(value) for value in seen],
        "categoryarray": found,
        "ticktext": [
            text(shortened(str(parameter.values[at])))
            + (" *" if parameter.values[at] == parameter.default else "")
            for at in found
        ],
    }


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
            error_x=error_bars([Estimate(row.share, row.share_low, row.share_high) for row in mine]),
            hovertext=[
                text(f"{row.name}: {percent(row.share)}, {percent(row.share_low)} to {percent(row.share_high)}")
                for row in mine
            ],
            hoverinfo="text",
        )
        for name, colour, matters in (("matters", ORANGE, True), ("may be chance", GREY, False))
        if (mine := [row for row in rows if row.matters is matters])
    ]  # fmt: skip
    figure = new_figure(
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


def front_chart(conclusion: Conclusion) -> Chart | None:
    """The configurations by both goals; None without a second goal or without values of both."""
    if conclusion.second is None:
        return None
    first = objective_quantity(conclusion.objective)
    other = quantity_of(conclusion.second.metric, conclusion.second.goal)
    points = front_of(conclusion.launches, conclusion.objective, conclusion.second)
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
                    error_x=error_bars([row.first for row in rows]),
                    error_y=error_bars([row.other for row in rows]),
                    hovertext=[
                        text(
                            f"{first.of(row.first.value)}, {other.of(row.other.value)}",
                            *settings_of(row.configuration, conclusion.space),
                        )
                        for row in rows
                    ],
                    hoverinfo="text",
                )
            )
    figure = new_figure(
        data,
        height=400,
        xaxis={
            "title": text(f"{first.axis}, {first.better}"),
            **axis_for([row.first.value for row in points]),
        },
        yaxis={
            "title": text(f"{other.axis}, {other.better}"),
            **axis_for([row.other.value for row in points]),
        },
    )
    return Chart("front", "The configurations by both goals", figure)
