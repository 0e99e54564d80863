# SPDX-License-Identifier: Apache-2.0
"""Charts as plotly has them, in plain values: what is drawn, in colours that the page names.

A colour is a name behind an @, which the page's style gives a value, light or dark. Plotly reads some
HTML in text; so all text that is anybody's own goes through `text`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from xtune.evidence.fronts import Point
from xtune.evidence.importance import Importance
from xtune.evidence.pareto import Place
from xtune.measurement.launches import Launch, Outcome
from xtune.page.findings import Contestant, Findings, best_so_far
from xtune.page.markup import escape
from xtune.page.quantities import Quantity, objective_quantity, percent, ratio
from xtune.screen.words import STAGES, settings
from xtune.search.records import Stage
from xtune.space.parameters import BARE

Trace = dict[str, Any]

WIDE_RANGE = 12.0
"""Values further apart than this are shown on a logarithmic axis."""

COLOURS = ("@bare", "@one", "@two", "@three", "@four", "@five")
SYMBOLS = ("square", "diamond", "circle", "triangle-up", "triangle-down", "star")
"""Of the contestants, the bare command first."""


class Chart(NamedTuple):
    """One chart and what it is called where it cannot be seen."""

    name: str
    label: str
    """What it shows, in a sentence."""
    data: list[Trace]
    layout: dict[str, Any]
    height: int
    """In CSS pixels."""
    width: int = 0
    """Least, in CSS pixels; where the window has less, the chart scrolls within its frame."""

    def to_plain(self) -> dict[str, Any]:
        return {"name": self.name, "data": self.data, "layout": self.layout}


class Mark(NamedTuple):
    """How a kind of launch is drawn."""

    words: str
    symbol: str
    colour: str


BARE_MARK = Mark("the bare command", "square", "@bare")
BARE_FINAL_MARK = Mark("the bare command in the final", "square-open", "@bare")
MARKS = {
    Stage.BASELINE: BARE_MARK,
    Stage.CONTROL: Mark("again, as a control", "cross", "@bare"),
    Stage.SEED: Mark("worth trying first", "triangle-up", "@three"),
    Stage.RACE: Mark("raced", "circle", "@two"),
    Stage.SEARCH: Mark("searched", "circle", "@two"),
    Stage.ABLATION: Mark("the best without some of its changes", "triangle-down", "@two"),
    Stage.FINAL: Mark("a finalist in the final", "diamond", "@one"),
}
FAILED_MARK = Mark("failed", "x", "@bad")
CUT_MARK = Mark("ended early, being behind", "line-ns-open", "@muted")


def text(*lines: str) -> str:
    """Lines for plotly, which takes markup for what it is."""
    return "<br>".join([str(escape(line)) for line in lines if line])


def mark_of(stage: Stage, launch: Launch) -> Mark:
    """How a launch is drawn."""
    if launch.outcome is Outcome.CUT:
        return CUT_MARK
    if launch.value is None:
        return FAILED_MARK
    if stage is Stage.FINAL and launch.configuration == BARE:
        return BARE_FINAL_MARK
    return MARKS[stage]


def history(findings: Findings) -> tuple[Chart, tuple[Mark, ...]]:
    """Every launch in order, and the kinds of launches that there are."""
    quantity = objective_quantity(findings.objective)
    groups: dict[Mark, list[tuple[int, float | None, str]]] = {}
    for at, record in enumerate(findings.records, start=1):
        launch = record.launch
        assert launch is not None
        mark = mark_of(record.step.stage, launch)
        value = launch.value if mark not in (CUT_MARK, FAILED_MARK) else None
        told = _told(findings, at, record.step.stage, launch, record.step.origin)
        groups.setdefault(mark, []).append((at, value, told))
    data: list[Trace] = [_bare_line(findings), _best_line(findings)]
    for mark in (*dict.fromkeys(MARKS.values()), BARE_FINAL_MARK, CUT_MARK, FAILED_MARK):
        rows = groups.get(mark, [])
        if not rows:
            continue
        without = mark in (CUT_MARK, FAILED_MARK)
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [row[0] for row in rows],
                "y": [0.5 if without else row[1] for row in rows],
                "yaxis": "y2" if without else "y",
                "hovertext": [row[2] for row in rows],
                "hoverinfo": "text",
                "marker": marker(mark.symbol, mark.colour, 8 if without else 9),
            }
        )
    has_strip = CUT_MARK in groups or FAILED_MARK in groups
    seen = [launch.value for launch in findings.launches]
    layout = {
        "xaxis": {"title": {"text": "launch"}, "rangemode": "tozero", "anchor": "y2"},
        "yaxis": {
            "title": {"text": text(quantity.axis)},
            "domain": [0.1 if has_strip else 0, 1],
            **scale(seen),
        },
        "yaxis2": {
            "domain": [0, 0.06 if has_strip else 0.001],
            "range": [0, 1],
            "fixedrange": True,
            "showgrid": False,
            "zeroline": False,
            "showticklabels": has_strip,
            "tickvals": [0.5],
            "ticktext": ["no value"],
        },
        "hovermode": "closest",
    }
    label = f"Every launch in order, and the best so far; {quantity.better}"
    chart = Chart("history", label, data, layout, 400)
    return chart, tuple([mark for mark in (*MARKS.values(), BARE_FINAL_MARK, CUT_MARK, FAILED_MARK)
                         if mark in groups])  # fmt: skip


def _told(findings: Findings, at: int, stage: Stage, launch: Launch, origin: str) -> str:
    quantity = objective_quantity(findings.objective)
    head = f"launch {at}: {quantity.of(launch.value)}" if launch.value is not None else (
        f"launch {at}: {launch.outcome.value}"
    )  # fmt: skip
    why = STAGES[stage] + (f" ({origin})" if origin and launch.configuration != BARE else "")
    broken = ""
    if launch.value is not None and not findings.objective.is_feasible(launch):
        broken = "breaks what is required"
    return text(head, why, *_settings_lines(findings, launch), broken)


def _settings_lines(findings: Findings, launch: Launch) -> list[str]:
    told = settings(launch.configuration, findings.space)
    return [line if len(line) <= 90 else f"{line[:89]}…" for line in told.split(", ")[:16]]


def _bare_line(findings: Findings) -> Trace:
    rows = [
        (at, launch.value)
        for at, launch in enumerate(findings.launches, start=1)
        if launch.configuration == BARE and launch.value is not None
    ]
    return _line(rows, {"color": "@bare", "width": 1, "dash": "dot"})


def _best_line(findings: Findings) -> Trace:
    rows = [(at, best) for at, best in enumerate(best_so_far(findings), 1) if best is not None]
    return _line(rows, {"color": "@best", "width": 1.5, "shape": "hv"})


def _line(rows: Sequence[tuple[int, float]], look: dict[str, Any]) -> Trace:
    """Through values by the number of their launch."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [row[0] for row in rows],
        "y": [row[1] for row in rows],
        "hoverinfo": "skip",
        "line": look,
    }


def pairs(findings: Findings, people: Sequence[Contestant]) -> Chart | None:
    """The ratio of each pair of the final, block by block; None without one."""
    names = {one.configuration: one for one in people}
    standings = [row for row in findings.verdict.standings if row.contender.configuration in names]
    data: list[Trace] = []
    for row in standings:
        person = names[row.contender.configuration]
        place = people.index(person)
        points = [
            (block, math.exp(log))
            for block, log in enumerate(row.contender.log_ratios, start=1)
            if log is not None
        ]
        if not points:
            continue
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "x": [point[0] for point in points],
                "y": [brief(point[1]) for point in points],
                "hovertext": [
                    text(f"{person.name}, block {block}: {ratio(value)}", person.told)
                    for block, value in points
                ],
                "hoverinfo": "text",
                "line": {"color": COLOURS[place], "width": 1, "dash": "dot"},
                "marker": marker(SYMBOLS[place], COLOURS[place], 10),
            }
        )
    if not data:
        return None
    layout = {
        "xaxis": {"title": {"text": "block of the final"}, "dtick": 1, "zeroline": False},
        "yaxis": {
            "title": {"text": "times the bare command"},
            **scale([value for trace in data for value in trace["y"]] + [1.0]),
        },
        "shapes": [_level_line(1.0)],
        "hovermode": "closest",
    }
    label = "How many times as good as the bare command each finalist was, block by block"
    return Chart("pairs", label, data, layout, 320)


def importance(found: Importance) -> Chart | None:
    """The share of each setting, with its interval; None where nothing can be said."""
    rows = [row for row in found.settings if row.effects][::-1]
    if not rows:
        return None
    data: list[Trace] = [
        {
            "type": "bar",
            "orientation": "h",
            "x": [round(row.share, 4) for row in rows],
            "y": [text(row.name) for row in rows],
            "hovertext": [
                text(
                    f"{row.name}: {percent(row.share)} of the differences",
                    f"{percent(row.share_low)} to {percent(row.share_high)} with 95 % confidence",
                )
                for row in rows
            ],
            "hoverinfo": "text",
            "width": 0.55,
            "marker": {
                "color": ["@one" if row.matters else "@faint" for row in rows],
                "line": {"color": "@one", "width": 1},
            },
            "error_x": {
                "type": "data",
                "symmetric": False,
                "array": [round(row.share_high - row.share, 4) for row in rows],
                "arrayminus": [round(row.share - row.share_low, 4) for row in rows],
                "color": "@ink",
                "thickness": 1.2,
                "width": 5,
            },
        }
    ]
    layout = {
        "xaxis": {
            "title": {"text": "share of the differences between configurations"},
            "tickformat": ".0%",
            "range": [0, min(1.0, max(row.share_high for row in rows) * 1.08 + 0.02)],
            "fixedrange": True,
        },
        "yaxis": {"automargin": True, "fixedrange": True, "type": "category", "showgrid": False},
        "hovermode": "closest",
    }
    label = "How much of the differences each setting accounts for"
    return Chart("importance", label, data, layout, 110 + 36 * len(rows))


def front(findings: Findings, points: Sequence[Point], other: Quantity) -> Chart:
    """Two goals against each other, what is on the front joined."""
    quantity = objective_quantity(findings.objective)
    kinds = (
        (Place.DOMINATED, "circle-open", "@muted"),
        (Place.MAYBE_DOMINATED, "circle", "@faint"),
        (Place.FRONT, "diamond", "@one"),
    )
    data: list[Trace] = []
    for place, symbol, colour in kinds:
        rows = [point for point in points if point.place is place]
        if not rows:
            continue
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers" if place is Place.FRONT else "markers",
                "x": [brief(row.first.value) for row in rows],
                "y": [brief(row.other.value) for row in rows],
                "hovertext": [
                    text(
                        f"{quantity.of(row.first.value)}, {other.of(row.other.value)}: {place.value}",
                        *settings(row.configuration, findings.space).split(", "),
                    )
                    for row in rows
                ],
                "hoverinfo": "text",
                "line": {"color": colour, "width": 1, "dash": "dot"},
                "marker": marker(symbol, colour, 10),
                **_errors(rows, colour),
            }
        )
    layout = {
        "xaxis": {
            "title": {"text": text(f"{quantity.axis}, {quantity.better}")},
            **scale([row.first.value for row in points]),
        },
        "yaxis": {
            "title": {"text": text(f"{other.axis}, {other.better}")},
            **scale([row.other.value for row in points]),
        },
        "hovermode": "closest",
    }
    return Chart("front", "The two goals against each other", data, layout, 380)


def _errors(rows: Sequence[Point], colour: str) -> Trace:
    def bars(which: str) -> Trace:
        estimates = [getattr(row, which) for row in rows]
        return {
            "type": "data",
            "symmetric": False,
            "array": [brief(one.high - one.value) for one in estimates],
            "arrayminus": [brief(one.value - one.low) for one in estimates],
            "color": colour,
            "thickness": 1,
            "width": 0,
        }

    return {"error_x": bars("first"), "error_y": bars("other")}


def scale(values: Sequence[float | None]) -> dict[str, Any]:
    """An axis for these values: logarithmic where they lie far apart."""
    found = [value for value in values if value is not None and math.isfinite(value)]
    positive = bool(found) and min(found) > 0
    if positive and max(found) / min(found) > WIDE_RANGE:
        ticks = list(_log_ticks(min(found), max(found)))
        return {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}
    return {"automargin": True, "zeroline": False}


def _log_ticks(low: float, high: float) -> Iterator[float]:
    """1, 2 and 5 of each power of ten in a range; 1 alone where that makes too many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for power in range(first, last + 1):
        for digit in (1, 2, 5) if last - first <= 4 else (1,):
            tick = float(f"{digit}e{power}")
            if 0.5 * low <= tick <= 2.0 * high:
                yield tick


def _level_line(at: float) -> dict[str, Any]:
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": at,
        "y1": at,
        "line": {"color": "@ink", "width": 1},
        "layer": "below",
    }


def marker(symbol: str, colour: str, size: int) -> Trace:
    """A point: filled with a thin edge, or hollow."""
    is_line = symbol.endswith("-open")
    outline = {"color": colour if is_line else "@surface", "width": 1.5 if is_line else 1}
    return {"symbol": symbol, "color": colour, "size": size, "line": outline}


def brief(value: float) -> float:
    """Six digits: more than anybody sees, and the page is shorter."""
    return float(f"{value:.6g}")
