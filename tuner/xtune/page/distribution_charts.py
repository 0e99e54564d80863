# SPDX-License-Identifier: Apache-2.0
"""Charts of how launches of the best differ: one point a launch, one box of raw samples a launch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xtune.measurement.launches import Launch
from xtune.measurement.objectives import WALL
from xtune.measurement.summaries import name_of
from xtune.page.charts import COLOURS, SYMBOLS, Chart, Trace, brief, marker, scale, text
from xtune.page.findings import Contestant, Findings
from xtune.page.quantities import objective_quantity
from xtune.search.records import Stage

FEWEST_SAMPLES = 8
"""Raw samples of a launch from which on their distribution is worth a look."""

MOST_SAMPLES = 150
"""Of a launch that are drawn: evenly spaced order statistics, which keep its quartiles and ends."""

MOST_BOXES = 48


def distributions(findings: Findings, people: Sequence[Contestant]) -> Chart:
    """What the launches of each contestant came to."""
    quantity = objective_quantity(findings.objective)
    data: list[Trace] = []
    seen: list[float] = []
    for place, person in enumerate(people):
        rows = [
            (at, record.step.stage, record.launch.value)
            for at, record in enumerate(findings.records, start=1)
            if record.launch is not None
            and record.launch.configuration == person.configuration
            and record.launch.value is not None
        ]
        if not rows:
            continue
        values = [row[2] for row in rows]
        seen += values
        if len(values) > 2:
            data.append(
                {
                    "type": "box",
                    "x0": place,
                    "y": values,
                    "boxpoints": False,
                    "hoverinfo": "skip",
                    "width": 0.5,
                    "line": {"color": COLOURS[place], "width": 1},
                    "fillcolor": "@wash",
                }
            )
        final = [row[1] is Stage.FINAL for row in rows]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [round(place + _jitter(n), 3) for n in range(len(rows))],
                "y": values,
                "hovertext": [
                    text(
                        f"{person.name}: {quantity.of(value)}",
                        f"launch {at}, {'in' if in_final else 'before'} the final",
                    )
                    for (at, _, value), in_final in zip(rows, final, strict=True)
                ],
                "hoverinfo": "text",
                "marker": {
                    **marker(SYMBOLS[place], COLOURS[place], 9),
                    "symbol": [
                        SYMBOLS[place] if in_final else f"{SYMBOLS[place]}-open"
                        for in_final in final
                    ],
                },
            }
        )
    layout = {
        "xaxis": {
            "tickvals": list(range(len(people))),
            "ticktext": [person.name for person in people],
            "range": [-0.6, len(people) - 0.4],
            "zeroline": False,
            "fixedrange": True,
            "showgrid": False,
        },
        "yaxis": {"title": {"text": text(quantity.axis)}, **scale(seen)},
        "hovermode": "closest",
    }
    label = f"What the launches of each contestant came to; {quantity.better}"
    return Chart("distributions", label, data, layout, 360)


def samples(findings: Findings, people: Sequence[Contestant]) -> Chart | None:
    """The raw samples of each launch of the contestants; None where launches have few."""
    if findings.objective.metric == WALL:
        return None
    quantity = objective_quantity(findings.objective)
    name = name_of(findings.objective.metric)
    places = {person.configuration: place for place, person in enumerate(people)}
    rows = [
        (at, places[launch.configuration], values)
        for at, launch in enumerate(findings.launches, start=1)
        if launch.configuration in places
        and len(values := _samples(launch, name)) >= FEWEST_SAMPLES
    ]
    # Where there are many, those of the bare command and of the first, and of these the last.
    limit = len(people)
    while len(rows) > MOST_BOXES and limit > 2:
        limit -= 1
        rows = [row for row in rows if row[1] < limit]
    rows = sorted(rows[-MOST_BOXES:], key=lambda row: (row[1], row[0]))
    if not rows:
        return None
    data: list[Trace] = [
        {
            "type": "box",
            "x0": order,
            "y": [brief(value) for value in thinned(values)],
            "boxpoints": "outliers",
            "hoverinfo": "y",
            "width": 0.7,
            "marker": {"color": COLOURS[place], "size": 3},
            "line": {"color": COLOURS[place], "width": 1},
            "fillcolor": "@wash",
        }
        for order, (_, place, values) in enumerate(rows)
    ]
    layout = {
        "xaxis": {
            "title": {"text": "launch"},
            "tickvals": list(range(len(rows))),
            "ticktext": [f"{people[place].name}<br>{at}" for at, place, _ in rows],
            "tickangle": 0,
            "range": [-0.8, len(rows) - 0.2],
            "zeroline": False,
            "showgrid": False,
        },
        "yaxis": {
            "title": {"text": text(quantity.axis)},
            **scale([value for row in rows for value in row[2]]),
        },
        "hovermode": "closest",
    }
    label = "The raw samples of each launch: median, quartiles, ends"
    return Chart("samples", label, data, layout, 360, width=min(1800, 110 + 34 * len(rows)))


def _samples(launch: Launch, name: str) -> list[float]:
    return [
        value
        for series in launch.series
        if series.metric == name
        for value in series.values
        if math.isfinite(value)
    ]


def thinned(values: Sequence[float]) -> list[float]:
    """At most `MOST_SAMPLES` of the values, evenly spaced by rank, the ends among them."""
    ordered = sorted(values)
    if len(ordered) <= MOST_SAMPLES:
        return ordered
    last = len(ordered) - 1
    return [ordered[round(at * last / (MOST_SAMPLES - 1))] for at in range(MOST_SAMPLES)]


def _jitter(place: int) -> float:
    """Points beside each other, always in the same way: the golden ratio's multiples."""
    return 0.36 * ((place * 0.6180339887498949) % 1.0 - 0.5)
