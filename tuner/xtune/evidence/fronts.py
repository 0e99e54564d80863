# SPDX-License-Identifier: Apache-2.0
"""The Pareto front of two goals: the launched configurations that no other one beats.

The search follows only the first goal; the front contains what it happened to launch.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from xtune.evidence.ratios import has_ratio
from xtune.launches.launch import WALL, Goal, Launch, Objective
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
    """A configuration's medians of both goals."""

    configuration: Configuration
    first: float
    other: float
    is_beaten: bool = False
    """Another one is better in one goal and as good in the other."""


def front_of(
    launches: Sequence[Launch], objective: Objective, second: SecondGoal
) -> tuple[Point, ...]:
    """Every configuration that has both values, the bare command too, the best by the objective first."""
    rows: dict[Configuration, list[tuple[float, float]]] = {}
    for launch in launches:
        mine, theirs = launch.value, second.of(launch)
        if objective.is_feasible(launch) and has_ratio(mine) and has_ratio(theirs):
            assert mine is not None
            assert theirs is not None
            rows.setdefault(launch.configuration, []).append((mine, theirs))
    points = [
        Point(one, *map(statistics.median, zip(*both, strict=True))) for one, both in rows.items()
    ]
    ways = (objective.sign, 1.0 if second.goal is Goal.MAXIMIZE else -1.0)
    points.sort(key=lambda one: -ways[0] * one.first)
    gains = [(ways[0] * one.first, ways[1] * one.other) for one in points]
    return tuple(
        point._replace(is_beaten=any(a >= x and b >= y and (a, b) != (x, y) for a, b in gains))
        for point, (x, y) in zip(points, gains, strict=True)
    )
