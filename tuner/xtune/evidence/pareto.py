# SPDX-License-Identifier: Apache-2.0
"""Which configurations are worth choosing from when two goals pull apart.

A configuration is dominated if another one is at least as good in both and better in one. With noisy
values that is sure only where the intervals say so: the worst that the other one may be, in both, is
no worse than the best that this one may be. What lies between is called so, not hidden.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from xtune.measurement.objectives import Goal


class Estimate(NamedTuple):
    """A value with its interval. **Ex.:** ``Estimate(120.0, 115.0, 125.0)``"""

    value: float
    low: float
    high: float

    def as_gain(self, goal: Goal) -> Estimate:
        """The same with larger being better."""
        if goal is Goal.MAXIMIZE:
            return self
        return Estimate(-self.value, -self.high, -self.low)


class Place(enum.Enum):
    """Where a configuration lies."""

    FRONT = "front"
    """Nothing measured is better in one and as good in the other."""
    MAYBE_DOMINATED = "maybe dominated"
    """By the estimates something is, by the intervals not surely."""
    DOMINATED = "dominated"
    """Surely: something is better in both, even at the unlucky ends of the intervals."""


def pareto_places(
    points: Sequence[tuple[Estimate, ...]], goals: Sequence[Goal]
) -> tuple[Place, ...]:
    """Where each point lies, in the order given.

    points
        Each with one estimate a goal, in the goals' order and unit.

    Points with equal estimates do not dominate each other. Raises ValueError where a point has not
    one estimate a goal, or an interval does not hold its value.
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
