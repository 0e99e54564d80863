# SPDX-License-Identifier: Apache-2.0
"""Ratios with their intervals as small pictures, all of a table on one axis."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from xtune.page.markup import Markup, element, join
from xtune.page.quantities import TIMES, ratio, reach

WIDEST = math.log(64.0)
"""An axis reaches no further than 64 times."""

STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)


class Axis(NamedTuple):
    """A logarithmic axis of ratios that holds 1."""

    low: float
    high: float

    def place(self, value: float) -> float:
        """Per cent from the left, within the axis."""
        if value <= self.low:
            return 0.0
        if value >= self.high:
            return 100.0
        part = math.log(value / self.low) / math.log(self.high / self.low)
        return round(100.0 * part, 3)

    @property
    def ticks(self) -> tuple[float, ...]:
        """Four to seven round ratios, 1 among them where that goes."""
        for step in STEPS:
            first = math.ceil(self.low / step)
            found = [step * at for at in range(first, math.floor(self.high / step) + 1)]
            shown = [tick for tick in found if tick > 0]
            if len(shown) <= 6:
                if self.low <= 1.0 <= self.high and not any(abs(t - 1.0) < 1e-9 for t in shown):
                    shown = sorted([1.0, *[t for t in shown if abs(t - 1.0) > 0.6 * step]])
                return tuple(shown)
        return (1.0,)


def axis_for(values: Iterable[float]) -> Axis:
    """An axis that holds 1 and all that is finite of these, with some room."""
    logs = [math.log(value) for value in values if value > 0 and math.isfinite(value)]
    low = max(min([0.0, *logs]), -WIDEST)
    high = min(max([0.0, *logs]), WIDEST)
    room = max(0.08 * (high - low), 0.01)
    return Axis(math.exp(low - room), math.exp(high + room))


def interval_picture(
    axis: Axis,
    estimate: float,
    low: float,
    high: float,
    *,
    strong: bool,
    least: float | None = None,
    tall: bool = False,
) -> Markup:
    """An interval and its estimate on an axis, with a line at 1.

    strong
        It is claimed: filled, where others are hollow.
    least
        A ratio below which nothing matters: the part between 1 and it is shaded.
    """
    shade = None
    if least is not None and least > 1.0:
        left, right = axis.place(1.0), axis.place(least)
        width = f"{max(right - left, 0.0):g}%"
        shade = element("rect", x=f"{left:g}%", y="0", width=width, height="100%", klass="least")
    one, middle = f"{axis.place(1.0):g}%", f"{axis.place(estimate):g}%"
    told = f"{ratio(estimate, low, high)}, {reach(low, high)}"
    return element(
        "svg",
        shade,
        element("line", x1=one, x2=one, y1="0", y2="100%", klass="unit"),
        element(
            "line",
            x1=f"{axis.place(low):g}%",
            x2=f"{axis.place(high):g}%",
            y1="50%",
            y2="50%",
            klass="reach",
        ),
        element("circle", cx=middle, cy="50%", r="7" if tall else "4.5", klass="dot"),
        klass=f"interval{' strong' if strong else ''}{' tall' if tall else ''}",
        role="img",
        aria_label=told,
    )


def axis_picture(axis: Axis) -> Markup:
    """The axis' ticks as text, below what `interval_picture` draws."""
    ticks = []
    for tick in axis.ticks:
        place = axis.place(tick)
        if 2.0 <= place <= 98.0:
            ticks.append(element("span", f"{tick:g}{TIMES}", style=f"left:{place:g}%"))
    return element("div", join(*ticks), klass="ticks", aria_hidden="true")
