# SPDX-License-Identifier: Apache-2.0
"""The Pareto front of two goals as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xlaunch.text import number
from xtune.evidence.fronts import SecondGoal, front_of
from xtune.evidence.pareto import Place
from xtune.evidence.ratios import has_ratio
from xtune.launches.launch import Launch
from xtune.launches.objectives import Objective
from xtune.screen.words import settings
from xtune.space.spaces import Space

MAX_SHOWN = 12


def front_lines(
    launches: Sequence[Launch], space: Space, objective: Objective, second: SecondGoal
) -> Iterator[str]:
    """The front, best by the objective first; the bare command is a candidate like any other.

    The 95 % confidence intervals come from the noise of everything launched more than once.
    Configurations that are behind, but not surely, are left out.
    """
    points = front_of(launches, objective, second)
    if not points:
        why = _reason_for_none(launches, objective, second)
        yield f"  front of {objective.metric} and {second.metric}: none, because {why}"
        return
    front = [point for point in points if point.place is Place.FRONT]
    yield f"  front of {objective.metric} and {second.metric} ({len(front)} of {len(points)}):"
    for point in front[:MAX_SHOWN]:
        first, other = point.first, point.other
        yield (
            f"    {settings(point.configuration, space)}: {number(first.value)}"
            f" ({number(first.low)} to {number(first.high)}), {number(other.value)}"
            f" ({number(other.low)} to {number(other.high)})"
        )
    if len(front) > MAX_SHOWN:
        yield f"    and {len(front) - MAX_SHOWN} more"


def _reason_for_none(launches: Sequence[Launch], objective: Objective, second: SecondGoal) -> str:
    both = [one for one in launches if has_ratio(one.value) and has_ratio(second.of(one))]
    kept = {one.configuration for one in both if objective.is_feasible(one)}
    if not both:
        return "no launch has both values"
    if not kept:
        return "no launch with both values meets the requirements"
    if len(kept) == 1:
        meets = " and meets the requirements" if objective.requirements else ""
        return f"only one configuration has both values{meets}"
    return "no configuration was launched twice, so the noise is unknown"
