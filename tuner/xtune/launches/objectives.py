# SPDX-License-Identifier: Apache-2.0
"""Objectives: the metric to improve, and requirements."""

from __future__ import annotations

import enum
from typing import NamedTuple

from xtune.launches.launch import Launch, Outcome

WALL = "wall"
"""The metric for wall time."""


class Goal(enum.Enum):
    """Which direction is better."""

    MAXIMIZE = "maximize"
    MINIMIZE = "minimize"


class Requirement(NamedTuple):
    """A bound that a configuration must meet. **Ex.:** ``p99<=20ms``, ``rss<=8GiB``."""

    text: str
    """As the user wrote it; used as its name."""
    quantity: str
    """``p50``, ``p90`` or ``p99`` of the latency metric, or of another as in ``p99(step_ms)``; ``rss``,
    ``energy``, ``cpu``, ``wall``; or a metric, as xlaunch's --metric takes it."""
    at_most: bool
    """False: at least."""
    limit: float
    """In base units: seconds, bytes, joules; for a metric without a unit, as printed."""
    as_printed: bool = False
    """Limit and value are in the unit in which the metric is printed."""

    def holds(self, seen: float | None) -> bool:
        """Whether a measured value meets it; False without a value."""
        if seen is None:
            return False
        return seen <= self.limit if self.at_most else seen >= self.limit


class Objective(NamedTuple):
    """What a search compares launches by."""

    metric: str
    """As for xlaunch's --metric; `WALL` for wall time; ``@hypertune NAME`` for an announced value."""
    goal: Goal
    requirements: tuple[Requirement, ...] = ()

    @property
    def sign(self) -> float:
        """1 if larger is better, -1 if smaller is."""
        return 1.0 if self.goal is Goal.MAXIMIZE else -1.0

    def is_feasible(self, launch: Launch) -> bool:
        """Whether a launch was measured and met every requirement."""
        seen = dict(launch.requirements)
        return launch.outcome is Outcome.MEASURED and all(
            requirement.holds(seen.get(requirement.text)) for requirement in self.requirements
        )
