# SPDX-License-Identifier: Apache-2.0
"""The front of two goals in words: the configurations that are worth choosing from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xtune.evidence.fronts import SecondGoal, front_of
from xtune.evidence.pareto import Place
from xtune.evidence.ratios import has_ratio
from xtune.measurement.launches import Launch
from xtune.measurement.objectives import Objective
from xtune.screen.words import number, settings
from xtune.space.spaces import Space

MOST_SHOWN = 12


def front_lines(
    launches: Sequence[Launch], space: Space, objective: Objective, second: SecondGoal
) -> Iterator[str]:
    """The front in lines, the best by the objective first, the bare command among the others.

    Intervals are of 95 %, by the noise of all that was launched more than once. What lies behind by
    the estimates but not surely is not shown.
    """
    points = front_of(launches, objective, second)
    if not points:
        why = _why_none(launches, objective, second)
        yield f"  front of {objective.metric} and {second.metric}: none, since {why}"
        return
    front = [point for point in points if point.place is Place.FRONT]
    yield f"  front of {objective.metric} and {second.metric} ({len(front)} of {len(points)}):"
    for point in front[:MOST_SHOWN]:
        first, other = point.first, point.other
        yield (
            f"    {settings(point.configuration, space)}: {number(first.value)}"
            f" ({number(first.low)} to {number(first.high)}), {number(other.value)}"
            f" ({number(other.low)} to {number(other.high)})"
        )
    if len(front) > MOST_SHOWN:
        yield f"    and {len(front) - MOST_SHOWN} more"


def _why_none(launches: Sequence[Launch], objective: Objective, second: SecondGoal) -> str:
    both = [one for one in launches if has_ratio(one.value) and has_ratio(second.of(one))]
    kept = {one.configuration for one in both if objective.is_feasible(one)}
    if not both:
        return "no launch has both"
    if not kept:
        return "no launch that has both keeps what is required"
    if len(kept) == 1:
        keeps = " and keeps what is required" if objective.requirements else ""
        return f"only one configuration has both{keeps}"
    return "none of its configurations was launched twice, which shows what is noise"
