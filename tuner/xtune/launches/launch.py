# SPDX-License-Identifier: Apache-2.0
"""The objective of a search, and the record of one launch: every raw sample, and its outcome."""

from __future__ import annotations

import enum
import math
import time
from typing import NamedTuple

from xtune.space.parameters import Configuration


class Outcome(enum.Enum):
    """How a launch ended. Only `MEASURED` has values that may be compared."""

    MEASURED = "measured"
    CRASHED = "crashed"
    """An exit code other than 0, or a signal."""
    OUT_OF_MEMORY = "out of memory"
    """Killed by the kernel for lack of memory, or failed with a message about memory."""
    TIMED_OUT = "timed out"
    NO_METRIC = "no metric"
    """It succeeded without printing the metric, or in a unit that cannot be compared."""
    SATURATED = "generator at its limit"
    """The load generator of a service used up its own CPUs: the service was not what was measured."""
    NOT_FINITE = "not finite"
    """A metric was NaN or infinite while it was measured."""
    CUT = "cut"
    """Ended by the tuner because it could not win any more."""
    NOT_STARTED = "not started"
    """The plan could not be carried out (a library refused, an argument list too long)."""


class Steadiness(enum.Enum):
    """The course of a launch's values over time, in the terms of Barrett et al. (2017)."""

    FLAT = "flat"
    """The same level from the first value on."""
    WARM_UP = "warm-up"
    """Slower at first: a warm-up, which was dropped."""
    SLOW_DOWN = "slow-down"
    """Faster at first: it heats up, throttles or leaks."""
    NOT_STEADY = "no steady state"
    """It never settled. Shown beside every such value, because a mean hides it."""
    TOO_FEW = "too few values"
    """One value, or too few to judge."""


class Series(NamedTuple):
    """The values of one metric from one instance, in order."""

    instance: int
    metric: str
    times_s: tuple[float, ...]
    """Seconds since the launch began."""
    values: tuple[float, ...]


class Secondary(NamedTuple):
    """Quantities recorded for every launch; None if the system does not provide them."""

    wall_s: float
    cpu_s: float | None = None
    peak_rss_bytes: int | None = None
    minor_faults: int | None = None
    major_faults: int | None = None
    energy_j: float | None = None
    waited: float | None = None
    """Share of the time in which a thread waited for a CPU that other programs used, 0 to 1."""


class Launch(NamedTuple):
    """One start of the workload under one configuration."""

    configuration: Configuration
    plan_hash: str
    """Configurations with equal hashes are started in exactly the same way."""
    outcome: Outcome
    value: float | None
    """The objective's metric, summarized over steady time and instances; None unless measured."""
    began_s: float
    """Seconds since the epoch."""
    steadiness: Steadiness = Steadiness.TOO_FEW
    requirements: tuple[tuple[str, float | None], ...] = ()
    """The measured value of each --require, by its text."""
    metrics: tuple[tuple[str, float], ...] = ()
    """All other metrics, summarized likewise."""
    units: tuple[tuple[str, str], ...] = ()
    """The printed unit of each metric without a unit of time in its name; empty: a time without one."""
    secondary: Secondary = Secondary(0.0)
    series: tuple[Series, ...] = ()
    exit_code: int | None = None
    stderr_tail: str = ""
    """The last lines of standard error, if it failed."""
    shared_cpus: tuple[str, ...] = ()
    """xlaunch's warnings about other work on its CPUs."""
    notes: tuple[str, ...] = ()
    """Caveats, and the reason of a cut or failure."""

    @classmethod
    def not_started(cls, configuration: Configuration, plan_hash: str | None) -> Launch:
        return cls(configuration, plan_hash or "", Outcome.NOT_STARTED, None, time.time())

    @property
    def last_words(self) -> str:
        """The last line that it wrote to standard error, if it failed; xlaunch's own do not count."""
        lines = self.stderr_tail.strip().splitlines()
        return next((line for line in reversed(lines) if not line.startswith("xlaunch: ")), "")


class Limits(NamedTuple):
    """When a launch is ended before its program ends."""

    cut_at: float | None = None
    """End it early, as Outcome.CUT, once it cannot reach this value any more."""
    limit_s: float | None = None
    """Time limit; it ends the launch as Outcome.TIMED_OUT."""


NO_LIMITS = Limits()

WALL = "wall"
"""The metric for wall time."""


MAX_LEVEL = 100.0
"""Maximum level of a difference, so that exponentials of levels are finite."""


class Goal(enum.Enum):
    """Which direction is better."""

    MAXIMIZE = "maximize"
    MINIMIZE = "minimize"


class Requirement(NamedTuple):
    """A bound that a configuration must meet. **Ex.:** ``p99<=20ms``, ``rss<=8GiB``."""

    text: str
    """As the user wrote it; used as its name."""
    quantity: str
    """``p50`` to ``p99.9`` of the latency metric, or of another as in ``p99(step_ms)``; ``last``, ``max``,
    ``min`` or ``mean`` of a metric, as in ``last(accuracy)``; ``rss``, ``energy``, ``cpu``, ``wall``; or a
    metric, as xlaunch's --metric takes it."""
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
    unit: str = ""
    """Of a time whose name has no unit: ``s`` once a launch printed it with one. For display only."""
    step: float = 0.0
    """0: launches are compared by the ratios of their values. Else by differences, in multiples of this
    value: see `xtune.launches.summaries.compared`."""

    @property
    def sign(self) -> float:
        """1 if larger is better, -1 if smaller is."""
        return 1.0 if self.goal is Goal.MAXIMIZE else -1.0

    def level(self, value: float | None) -> float | None:
        """What launches are compared by, larger is better: the logarithm of a value, or its multiple of
        `step`. None where there is none: for no value, and without `step` for 0 or less.
        """
        if value is None or not math.isfinite(value):
            return None
        if self.step:
            return self.sign * value / self.step
        return self.sign * math.log(value) if value > 0 else None

    def value_at(self, level: float) -> float:
        return self.sign * level * self.step if self.step else math.exp(self.sign * level)

    def has_level(self, launch: Launch) -> bool:
        """Whether a launch has a value that can be compared."""
        return launch.outcome is Outcome.MEASURED and self.level(launch.value) is not None

    def is_feasible(self, launch: Launch) -> bool:
        """Whether a launch was measured and met every requirement."""
        seen = dict(launch.requirements)
        return launch.outcome is Outcome.MEASURED and all(
            requirement.holds(seen.get(requirement.text)) for requirement in self.requirements
        )
