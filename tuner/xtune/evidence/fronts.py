# SPDX-License-Identifier: Apache-2.0
"""The Pareto front of two goals: the launched configurations that no other one beats.

The search follows only the first goal; the front contains what it happened to launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from xtune.evidence.noise import pooled_spread
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


class Estimate(NamedTuple):
    """A value with its interval. **Ex.:** ``Estimate(120.0, 115.0, 125.0)``"""

    value: float
    low: float
    high: float


class Point(NamedTuple):
    """A configuration's values of both goals, with 95 % confidence intervals."""

    configuration: Configuration
    first: Estimate
    other: Estimate
    is_beaten: bool = False
    """Another estimate is better in one goal and as good in the other."""


def front_of(
    launches: Sequence[Launch], objective: Objective, second: SecondGoal
) -> tuple[Point, ...]:
    """Every configuration that has both values, the best by the objective first.

    The bare command is among them. The intervals use the noise of all configurations that were
    launched more than once. Empty without such, or for a single configuration.
    """
    rows: dict[Configuration, list[tuple[float, float]]] = {}
    for launch in launches:
        mine, theirs = launch.value, second.of(launch)
        if objective.is_feasible(launch) and has_ratio(mine) and has_ratio(theirs):
            assert mine is not None
            assert theirs is not None
            rows.setdefault(launch.configuration, []).append((mine, theirs))
    columns = {one: tuple(zip(*both, strict=True)) for one, both in rows.items()}
    first, other = (pooled_spread([both[at] for both in columns.values()]) for at in (0, 1))
    if len(rows) < 2 or first is None or other is None:
        return ()
    points = [
        Point(one, Estimate(*first.interval(mine)), Estimate(*other.interval(theirs)))
        for one, (mine, theirs) in columns.items()
    ]
    ways = (objective.sign, 1.0 if second.goal is Goal.MAXIMIZE else -1.0)
    points.sort(key=lambda one: -ways[0] * one.first.value)
    gains = [(ways[0] * one.first.value, ways[1] * one.other.value) for one in points]
    return tuple(
        point._replace(is_beaten=any(a >= x and b >= y and (a, b) != (x, y) for a, b in gains))
        for point, (x, y) in zip(points, gains, strict=True)
    )
