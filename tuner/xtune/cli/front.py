# SPDX-License-Identifier: Apache-2.0
"""Where two goals pull apart: the configurations that are worth choosing from.

The search itself follows the first goal; the front is of what it happened to launch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from xtune.evidence.noise import pooled_spread
from xtune.evidence.pareto import Estimate, Place, pareto_places
from xtune.evidence.ratios import has_ratio
from xtune.measurement.launches import Launch
from xtune.measurement.objectives import WALL, Goal, Objective
from xtune.measurement.summaries import name_of
from xtune.screen.words import settings
from xtune.space.parameters import Configuration
from xtune.space.spaces import Space

MOST_SHOWN = 12


class SecondGoal(NamedTuple):
    """What is wanted besides the objective."""

    metric: str
    """As xlaunch's --metric takes it, or `WALL`."""
    goal: Goal

    def of(self, launch: Launch) -> float | None:
        """What a launch came to."""
        if self.metric == WALL:
            return launch.secondary.wall_s
        return dict(launch.metrics).get(name_of(self.metric))


def front_lines(
    launches: Sequence[Launch], space: Space, objective: Objective, second: SecondGoal
) -> Iterator[str]:
    """The front in lines, the best by the objective first, the bare command among the others.

    Intervals are of 95 %, by the noise of all that was launched more than once. What lies behind by
    the estimates but not surely is not shown.
    """
    pairs: dict[Configuration, list[tuple[float, float]]] = {}
    for launch in launches:
        mine, theirs = launch.value, second.of(launch)
        if objective.is_feasible(launch) and has_ratio(mine) and has_ratio(theirs):
            assert mine is not None
            assert theirs is not None
            pairs.setdefault(launch.configuration, []).append((mine, theirs))
    columns = [
        {configuration: [row[at] for row in rows] for configuration, rows in pairs.items()}
        for at in (0, 1)
    ]
    spreads = [pooled_spread(column.values()) for column in columns]
    if len(pairs) < 2 or None in spreads:
        yield f"  front of {objective.metric} and {second.metric}: too few launches have both"
        return
    points = {
        configuration: tuple(
            [
                Estimate(*spread.interval(column[configuration]))
                for spread, column in zip(spreads, columns, strict=True)
                if spread is not None
            ]
        )
        for configuration in pairs
    }
    goals = (objective.goal, second.goal)
    places = pareto_places(list(points.values()), goals)
    front = [
        configuration
        for configuration, place in zip(points, places, strict=True)
        if place is Place.FRONT
    ]
    front.sort(key=lambda one: -points[one][0].as_gain(objective.goal).value)
    yield f"  front of {objective.metric} and {second.metric} ({len(front)} of {len(points)}):"
    for configuration in front[:MOST_SHOWN]:
        first, other = points[configuration]
        yield (
            f"    {settings(configuration, space)}: {first.value:.4g} ({first.low:.4g} to"
            f" {first.high:.4g}), {other.value:.4g} ({other.low:.4g} to {other.high:.4g})"
        )
    if len(front) > MOST_SHOWN:
        yield f"    and {len(front) - MOST_SHOWN} more"
