# SPDX-License-Identifier: Apache-2.0
"""Numbers, ratios, durations, sizes and counts as users read them."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from typing import NamedTuple

from xlaunch import text
from xlaunch.metrics.metric_lines import Kind
from xlaunch.text import number
from xtune.launches.announcements import MARK
from xtune.launches.objectives import WALL, Goal, Objective
from xtune.launches.summaries import kind_in, name_of, unit_in

NOTHING = "\N{EN DASH}"
"""Shown where there is no value."""

MAX_PLACES = 4
"""Decimal places of a ratio."""


class Quantity(NamedTuple):
    """A metric's name, unit and goal."""

    name: str
    """**Ex.:** ``wall time``, ``images/s``."""
    unit: str
    """**Ex.:** ``s``, ``ms``, ``images/s``; empty where unknown."""
    goal: Goal

    @property
    def axis(self) -> str:
        """Title of a chart's axis. **Ex.:** ``wall time (s)``, ``images/s``."""
        unit = f" ({self.unit})" if self.unit and self.unit not in self.name else ""
        return f"{self.name}{unit}"

    @property
    def better(self) -> str:
        return "more is better" if self.goal is Goal.MAXIMIZE else "less is better"

    def of(self, value: float | None) -> str:
        """A value with its unit. **Ex.:** ``126,800 images/s``, ``1.5 s``, ``0.9 (accuracy)``."""
        return NOTHING if value is None else f"{number(value)} {self.unit or f'({self.name})'}"


def quantity_of(metric: str, goal: Goal) -> Quantity:
    """The quantity that a metric measures.

    **Ex.:** the unit is ``s`` for ``wall``, ``ms`` for ``step_ms``, ``images/s`` for itself.
    """
    if metric == WALL:
        return Quantity("wall time", "s", goal)
    name = name_of(metric)
    unit = unit_in(name) if kind_in(metric) is Kind.TIME else None
    if unit is None and "/" in name and " " not in name:
        unit = name
    if metric.startswith(MARK):
        name = metric.removeprefix(MARK).strip() or "announced value"
    return Quantity(name, unit or "", goal)


def objective_quantity(objective: Objective) -> Quantity:
    return quantity_of(objective.metric, objective.goal)


def amount(value: float, objective: Objective) -> str:
    """A value of the objective with its unit."""
    return objective_quantity(objective).of(value)


def ratios(*values: float) -> list[str]:
    """Ratios with digits enough to tell them from each other and from 1.

    **Ex.:** ``1.0436``, ``1.0004``, ``1.0886``; ``3.98``, ``3.90``, ``4.06``.
    """
    known = [value for value in values if math.isfinite(value)] or [1.0]
    apart = [abs(value - 1.0) for value in known] + [max(known) - min(known)]
    smallest = min([one for one in apart if one > 1e-6], default=1.0)
    places = min(max(2, 1 - math.floor(math.log10(smallest))), MAX_PLACES)
    return [f"{value:.{places}f}" if value < 10.0 else number(value) for value in values]


def percent(share: float) -> str:
    """A share in percent. **Ex.:** ``42 %``, ``<1 %``."""
    return "<1 %" if 0 < share < 0.01 else f"{100 * share:.0f} %"


def size(size_bytes: float | None) -> str:
    """A size in memory. **Ex.:** ``512 MiB``, ``7.8 GiB``."""
    return NOTHING if size_bytes is None else text.size(int(size_bytes))


def duration(time_s: float) -> str:
    """A length of time. **Ex.:** ``20 ms``, ``0.3 s``, ``48 s``, ``3 min 20 s``, ``1 h 5 min``."""
    if time_s < 0.0995:
        return f"{1000 * time_s:.0f} ms"
    if time_s < 9.95:
        return f"{time_s:.1f} s"
    seconds = round(time_s)
    if seconds < 120:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min"


def period(from_s: float, to_s: float) -> str:
    """Two Unix times. **Ex.:** ``20 Nov 2026, 19:20 to 19:45 UTC``."""
    first, last = time.gmtime(from_s), time.gmtime(to_s)
    began = time.strftime("%-d %b %Y, %H:%M", first)
    ended = time.strftime("%H:%M" if first[:3] == last[:3] else "%-d %b %Y, %H:%M", last)
    return f"{began} to {ended} UTC"


def counted(count: float, noun: str, plural: str = "") -> str:
    """A count with its noun. **Ex.:** ``1 launch``, ``1,200 pairs``."""
    return f"{count:,.0f} {noun if round(count) == 1 else plural or noun + 's'}"


def launches(count: float) -> str:
    return counted(count, "launch", "launches")


def spans(numbers: Sequence[int]) -> str:
    """Ascending numbers, runs shortened. **Ex.:** ``3, 7 to 9``."""
    found = []
    for _, group in itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in group]
        if len(members) > 2:
            found.append(f"{members[0]} to {members[-1]}")
        else:
            found += [str(number) for number in members]
    return ", ".join(found)
