# SPDX-License-Identifier: Apache-2.0
"""The Pareto front of two goals among all launched configurations.

The search follows only the first goal; the front contains what it happened to launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from xtune.evidence.noise import pooled_spread
from xtune.evidence.pareto import Estimate, Place, pareto_places
from xtune.evidence.ratios import has_ratio
from xtune.launches.launch import Launch
from xtune.launches.objectives import WALL, Goal, Objective
from xtune.launches.summaries import name_of
from xtune.space.parameters import Configuration


class SecondGoal(NamedTuple):
    """A second goal besides the objective."""

    metric: str
    """As for xlaunch's --metric, or `WALL`."""
    goal: Goal

    def of(self, launch: Launch) -> float | None:
        """The value of a launch."""
        if self.metric == WALL:
            return launch.secondary.wall_s
        return dict(launch.metrics).get(name_of(self.metric))


class Point(NamedTuple):
    """A configuration's values of both goals, with 95 % confidence intervals."""

    configuration: Configuration
    first: Estimate
    other: Estimate
    place: Place


def front_of(
    launches: Sequence[Launch], objective: Objective, second: SecondGoal
) -> tuple[Point, ...]:
    """Every configuration that has both values, the best by the objective first.

    The bare command is among them. The intervals use the noise of all configurations that were
    launched more than once. Empty without such, or for a single configuration.
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
        return ()
    estimates = {
        configuration: [
            Estimate(*spread.interval(column[configuration]))
            for spread, column in zip(spreads, columns, strict=True)
            if spread is not None
        ]
        for configuration in pairs
    }
    goals = (objective.goal, second.goal)
    places = pareto_places([tuple(both) for both in estimates.values()], goals)
    found = [
        Point(configuration, both[0], both[1], place)
        for (configuration, both), place in zip(estimates.items(), places, strict=True)
    ]
    return tuple(sorted(found, key=lambda one: -one.first.as_gain(objective.goal).value))
