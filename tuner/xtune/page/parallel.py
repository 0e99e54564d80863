# SPDX-License-Identifier: Apache-2.0
"""Parallel coordinates: every configuration a line across its settings, ending at what it came to.

Drawn by curves of plotly's scatter rather than its own kind of chart: that one needs WebGL, does not
print, and puts all configurations of a value on one point. Here lines of a value lie side by side in
the order of what they came to. The colour only repeats where a line ends.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from xtune.page.charts import Chart, text
from xtune.page.findings import Findings
from xtune.page.quantities import number, objective_quantity
from xtune.screen.words import settings
from xtune.space.parameters import BARE, Configuration, Parameter

MOST_AXES = 8
MOST_LINES = 300
BANDS = 5
"""Lines are of as many colours, by rank."""

BAND_HEIGHT = 0.5
"""Of the room of a value that its lines take."""

CURVE = tuple([at / 16 for at in range(1, 16)])
"""Where between two axes a curve has its points."""

LABEL = 14
"""Characters of a value beside an axis."""


class Lines(NamedTuple):
    """The chart, and what of the study it shows."""

    chart: Chart
    axes: tuple[str, ...]
    shown: int
    seen: int
    """Configurations with a value; the best of them are shown."""
    varied: int
    """Settings that differ between them."""


def parallel_lines(findings: Findings, ranking: Sequence[str]) -> Lines | None:
    """The chart; None where fewer than two configurations have a value.

    ranking
        Settings, the one that matters most first.
    """
    values = _medians(findings)
    if len(values) < 2:
        return None
    varied = [
        parameter
        for parameter in findings.space.parameters
        if len({configuration[parameter.name] for configuration in values}) > 1
    ]
    places = {name: at for at, name in enumerate(ranking)}
    order = {parameter.name: at for at, parameter in enumerate(findings.space.parameters)}
    varied.sort(key=lambda one: (places.get(one.name, len(places)), order[one.name]))
    axes = varied[:MOST_AXES]
    sign = findings.objective.sign
    ranked = sorted(values, key=lambda one: -sign * values[one])
    best = ranked[:MOST_LINES]
    heights = _heights(findings, [values[one] for one in best])
    rows = {
        configuration: [
            *[_height(axis, configuration, best) for axis in axes],
            heights.of(values[configuration]),
        ]
        for configuration in best
    }
    data = [
        _band(findings, [one for at, one in enumerate(best) if _band_of(at, len(best)) == band],
              rows, values, band)
        for band in reversed(range(BANDS))
    ]  # fmt: skip
    data = [trace for trace in data if trace["x"]]
    shown = findings.shown
    if shown in rows:
        data.append(_curve_of(findings, shown, rows[shown], values[shown]))
    bare = findings.median(BARE)
    layout: dict[str, Any] = {
        "xaxis": {
            "range": [-0.35, len(axes) + 0.45],
            "visible": False,
            "fixedrange": True,
        },
        "yaxis": {
            "range": [-0.04, 1.13],
            "visible": False,
            "fixedrange": True,
        },
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "hovermode": "closest",
        "shapes": [_axis(at) for at in range(len(axes) + 1)],
        "annotations": [
            *[note for at, axis in enumerate(axes) for note in _axis_notes(at, axis)],
            *_value_notes(findings, len(axes), heights, bare),
        ],
    }
    if bare is not None and 0.0 <= heights.of(bare) <= 1.0:
        layout["shapes"].append(_bare_tick(len(axes), heights.of(bare)))
    label = "Every configuration as a line across its settings, ending at what it came to"
    width = 120 + 118 * (len(axes) + 1)
    chart = Chart("configurations", label, data, layout, 460, width=width)
    return Lines(chart, tuple([a.name for a in axes]), len(best), len(values), len(varied))


def _medians(findings: Findings) -> dict[Configuration, float]:
    groups: dict[Configuration, list[float]] = {}
    for launch in findings.launches:
        if launch.configuration != BARE and launch.value is not None:
            if not math.isfinite(launch.value):
                continue
            whole = findings.space.complete(launch.configuration)
            groups.setdefault(whole, []).append(launch.value)
    return {one: statistics.median(found) for one, found in groups.items()}


class _Heights(NamedTuple):
    """Values as heights of the last axis, the better ones above."""

    low: float
    high: float
    is_log: bool
    is_down: bool
    """Less is better."""

    def of(self, value: float) -> float:
        place = self._scaled(value)
        return 1.0 - place if self.is_down else place

    def at(self, height: float) -> float:
        """The value of a height."""
        part = 1.0 - height if self.is_down else height
        if self.is_log:
            return float(self.low * (self.high / self.low) ** part)
        return self.low + (self.high - self.low) * part

    def _scaled(self, value: float) -> float:
        if self.high == self.low:
            return 0.5
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def _heights(findings: Findings, values: Sequence[float]) -> _Heights:
    bare = findings.median(BARE)
    seen = [*values, *([bare] if bare is not None else [])]
    low, high = min(seen), max(seen)
    is_log = low > 0 and high / low > 6.0
    return _Heights(low, high, is_log, is_down=findings.objective.sign < 0)


def _height(
    axis: Parameter, configuration: Configuration, ranked: Sequence[Configuration]
) -> float:
    """Where a line crosses an axis: beside the others of its value, the better ones above."""
    value = configuration[axis.name]
    peers = [one for one in ranked if one[axis.name] == value]
    room = 1.0 / len(axis.values)
    centre = (axis.values.index(value) + 0.5) * room
    if len(peers) < 2:
        return centre
    part = peers.index(configuration) / (len(peers) - 1)
    spread = min(BAND_HEIGHT, 0.06 * (len(peers) - 1)) * room
    return centre + (0.5 - part) * spread


def _band_of(rank: int, count: int) -> int:
    return min(BANDS - 1, rank * BANDS // max(count, 1))


def _band(
    findings: Findings,
    members: Sequence[Configuration],
    rows: dict[Configuration, list[float]],
    values: dict[Configuration, float],
    band: int,
) -> dict[str, Any]:
    """The lines of one colour, with gaps between them."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    for configuration in members:
        curve_x, curve_y = _curve(rows[configuration])
        xs += [*curve_x, None]
        ys += [*curve_y, None]
    told = [_hover(findings, one, values[one]) for one in members]
    return _trace(xs, ys, told, f"@band{band + 1}", 1.6 if band == 0 else 1.1)


def _curve_of(
    findings: Findings, configuration: Configuration, heights: list[float], value: float
) -> dict[str, Any]:
    xs, ys = _curve(heights)
    hover = _hover(findings, configuration, value)
    trace = _trace([*xs], [*ys], [hover], "@one", 3.5)
    axes = {float(at) for at in range(len(heights))}
    sizes = [9 if x in axes else 0 for x in xs]
    trace |= {
        "mode": "lines+markers",
        "marker": {"symbol": "diamond", "color": "@one", "size": sizes, "opacity": 1,
                   "line": {"color": "@surface", "width": 1}},
    }  # fmt: skip
    return trace


def _trace(
    xs: list[float | None], ys: list[float | None], told: list[str], colour: str, width: float
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": xs,
        "y": ys,
        "hoverinfo": "text",
        # Of all points of a line the same: the page's script repeats it, not the page.
        "hoverruns": {"texts": told, "length": len(xs) // max(1, len(told))},
        "line": {"color": colour, "width": width},
    }


def _curve(heights: Sequence[float]) -> tuple[list[float], list[float]]:
    """A line that leaves and meets each axis level."""
    xs, ys = [0.0], [round(heights[0], 4)]
    for at in range(1, len(heights)):
        before, after = heights[at - 1], heights[at]
        for part in CURVE:
            eased = 0.5 - 0.5 * math.cos(math.pi * part)
            xs.append(round(at - 1 + part, 3))
            ys.append(round(before + (after - before) * eased, 4))
        xs.append(float(at))
        ys.append(round(after, 4))
    return xs, ys


def _hover(findings: Findings, configuration: Configuration, value: float) -> str:
    quantity = objective_quantity(findings.objective)
    told = settings(configuration, findings.space).split(", ")
    return text(f"median {quantity.of(value)}", *told)


def _axis(at: int) -> dict[str, Any]:
    return {
        "type": "line",
        "x0": at,
        "x1": at,
        "y0": 0,
        "y1": 1,
        "line": {"color": "@line", "width": 1.5},
        "layer": "below",
    }


def _bare_tick(at: int, height: float) -> dict[str, Any]:
    return {
        "type": "line",
        "x0": at - 0.06,
        "x1": at + 0.06,
        "y0": height,
        "y1": height,
        "line": {"color": "@bare", "width": 3},
    }


def _axis_notes(at: int, axis: Parameter) -> list[dict[str, Any]]:
    room = 1.0 / len(axis.values)
    title = f"<b>{text(_short(axis.name, 18))}</b>"
    notes = [_note(at, 1.085, title, "center", "@ink")]
    for place, value in enumerate(axis.values):
        told = _short(str(value), LABEL) + (" *" if value == axis.default else "")
        notes.append(
            _note(at, (place + 0.5) * room, text(told), "left", "@ink")
            | {"xshift": 6, "bgcolor": "@veil", "borderpad": 1}
        )
    return notes


def _value_notes(
    findings: Findings, at: int, heights: _Heights, bare: float | None
) -> list[dict[str, Any]]:
    quantity = objective_quantity(findings.objective)
    notes = [_note(at, 1.085, f"<b>{text(_short(quantity.axis, 20))}</b>", "center", "@ink")]
    ends = (0.0, 1.0) if heights.high > heights.low else (0.5,)
    bare_height = None if bare is None else heights.of(bare)
    for height in (*ends, 0.5):
        if bare_height is not None and abs(height - bare_height) < 0.07:
            continue
        told = number(heights.at(height))
        notes.append(_note(at, height, text(told), "left", "@muted") | {"xshift": 8})
    if bare is not None and bare_height is not None:
        told = text(f"bare {number(bare)}")
        notes.append(_note(at, bare_height, told, "left", "@ink") | {"xshift": 8})
    return notes


def _note(x: float, y: float, told: str, anchor: str, colour: str) -> dict[str, Any]:
    return {
        "x": x,
        "y": round(y, 4),
        "text": told,
        "showarrow": False,
        "xanchor": anchor,
        "yanchor": "middle",
        "align": "left",
        "font": {"color": colour, "size": 11},
    }


def _short(told: str, most: int) -> str:
    return told if len(told) <= most else f"{told[: most - 1]}…"
