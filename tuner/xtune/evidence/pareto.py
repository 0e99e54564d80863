# SPDX-License-Identifier: Apache-2.0
"""Pareto dominance of noisy values.

A configuration is dominated if another one is at least as good in both goals and better in one. With
noisy values this is certain only if, in both, the worst end of the other's interval is no worse than
the best end of its own. Cases in between have a name of their own.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from xtune.launches.objectives import Goal


class Estimate(NamedTuple):
    """A value with its interval. **Ex.:** ``Estimate(120.0, 115.0, 125.0)``"""

    value: float
    low: float
    high: float

    def as_gain(self, goal: Goal) -> Estimate:
        """The estimate with its sign changed so that larger is better."""
        if goal is Goal.MAXIMIZE:
            return self
        return Estimate(-self.value, -self.high, -self.low)


class Place(enum.Enum):
    """The place of a configuration relative to the front."""

    FRONT = "front"
    """No estimate is better in one goal and as good in the other."""
    MAYBE_DOMINATED = "maybe dominated"
    """Dominated by the estimates, but not by the intervals."""
    DOMINATED = "dominated"
    """Dominated even at the unfavourable ends of the intervals."""


def pareto_places(
    points: Sequence[tuple[Estimate, ...]], goals: Sequence[Goal]
) -> tuple[Place, ...]:
    """The place of each point, in the order given.

    points
        One estimate for each goal, in the order of goals.

    Points with equal estimates do not dominate each other. Raises ValueError for a wrong number
    of estimates, or an interval that does not contain its value.
    """
    for point in points:
        if len(point) != len(goals):
            raise ValueError(
                f"pareto_places: a point has {len(point)} estimates for {len(goals)} goals"
            )
        for estimate in point:
            if not estimate.low <= estimate.value <= estimate.high:
                raise ValueError(f"pareto_places: {estimate} is not within its own interval")
    gains = [
        tuple(estimate.as_gain(goal) for estimate, goal in zip(point, goals, strict=True))
        for point in points
    ]
    return tuple(_place(gains, number) for number in range(len(gains)))


def _place(gains: Sequence[tuple[Estimate, ...]], number: int) -> Place:
    mine = gains[number]
    place = Place.FRONT
    for other, theirs in enumerate(gains):
        if other == number:
            continue
        pairs = list(zip(theirs, mine, strict=True))
        if all(their.low >= own.high for their, own in pairs) and any(
            their.low > own.high for their, own in pairs
        ):
            return Place.DOMINATED
        if all(their.value >= own.value for their, own in pairs) and any(
            their.value > own.value for their, own in pairs
        ):
            place = Place.MAYBE_DOMINATED
    return place
