# SPDX-License-Identifier: Apache-2.0
"""Values with their units, as the page writes them."""

from __future__ import annotations

import math
import time
from typing import NamedTuple

from xtune.measurement.announcements import MARK
from xtune.measurement.objectives import WALL, Goal, Objective
from xtune.measurement.summaries import name_of
from xtune.screen.words import unit_of

NOTHING = "\N{EN DASH}"
"""In place of a value that there is none of."""

TIMES = "\N{MULTIPLICATION SIGN}"
INFINITE = "\N{INFINITY}"
THIN = "\N{NARROW NO-BREAK SPACE}"
"""Between thousands, and before a percent sign, as SI has it."""

MIB = 1 << 20
GIB = 1 << 30


class Quantity(NamedTuple):
    """What a number of a metric is, in words."""

    name: str
    """**Ex.:** ``wall time``, ``images/s``."""
    unit: str
    """Behind a number. **Ex.:** ``s``, ``ms``, ``images/s``; empty where nobody knows."""
    goal: Goal

    @property
    def axis(self) -> str:
        """A chart's axis. **Ex.:** ``wall time (s)``, ``images/s``; a goal beside it."""
        unit = f" ({self.unit})" if self.unit and self.unit != self.name else ""
        return f"{self.name}{unit}"

    @property
    def better(self) -> str:
        return "more is better" if self.goal is Goal.MAXIMIZE else "less is better"

    def of(self, value: float | None) -> str:
        """**Ex.:** ``123.4 images/s``, ``1.5 s``; a dash for None."""
        if value is None:
            return NOTHING
        return f"{number(value)} {self.unit}".rstrip()


def quantity_of(metric: str, goal: Goal) -> Quantity:
    """The quantity that a metric's text asks for."""
    if metric == WALL:
        return Quantity("wall time", "s", goal)
    if metric.startswith(MARK):
        return Quantity(metric.removeprefix(MARK).strip() or "what it announces", "", goal)
    return Quantity(name_of(metric), unit_of(metric), goal)


def objective_quantity(objective: Objective) -> Quantity:
    return quantity_of(objective.metric, objective.goal)


def number(value: float) -> str:
    """Four digits that matter, thousands apart. **Ex.:** ``0.0123``, ``12.34``, ``12 340``."""
    if not math.isfinite(value):
        return INFINITE if value > 0 else "no number"
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e9:
        return f"{value:.4g}"
    places = max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:,.{places}f}".replace(",", THIN)


def ratio(value: float, low: float = 0.0, high: float = math.inf) -> str:
    """A ratio with a times sign, to as many places as its interval makes sense of, if it has one.

    **Ex.:** 2.0637 is ``2.064`` of the interval 1.974 to 2.070, and ``2.06`` of 1.9 to 2.3.
    """
    if not math.isfinite(value):
        return INFINITE
    width = high - low
    if math.isfinite(width) and width > 0:
        # How far an end is from 1 matters, too: two places where that may be little.
        places = min(max(1 - math.floor(math.log10(width)), 2 if low < 5 else 0), 3)
    else:
        places = 3 if value < 2 else 2 if value < 10 else 1
    return f"{value:.{places}f}{TIMES}"


def reach(low: float, high: float) -> str:
    """An interval of ratios. **Ex.:** ``1.974 to 2.070``, each with its times sign."""
    return f"{ratio(low, low, high)} to {ratio(high, low, high)}"


def percent(share: float) -> str:
    """**Ex.:** ``42 %``, ``<1 %``."""
    if 0 < share < 0.01:
        return f"<1{THIN}%"
    return f"{share:.0%}".replace("%", f"{THIN}%")


def size(size_bytes: float | None) -> str:
    """**Ex.:** ``512 MiB``, ``7.8 GiB``; a dash for None."""
    if size_bytes is None:
        return NOTHING
    if size_bytes < GIB:
        return f"{size_bytes / MIB:.0f} MiB"
    return f"{size_bytes / GIB:.1f} GiB"


def period(from_s: float, to_s: float) -> str:
    """**Ex.:** ``20 Nov 2026, 19:20 to 19:45 UTC``; the date again where it is another."""
    first, last = time.gmtime(from_s), time.gmtime(to_s)
    began = time.strftime("%-d %b %Y, %H:%M", first)
    ended = time.strftime("%H:%M" if first[:3] == last[:3] else "%-d %b %Y, %H:%M", last)
    return f"{began} to {ended} UTC"
