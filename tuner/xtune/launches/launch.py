# SPDX-License-Identifier: Apache-2.0
"""The record of one launch of the workload: every raw sample, and its outcome."""

from __future__ import annotations

import enum
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
    """It succeeded without printing the metric."""
    CUT = "cut"
    """Ended by the tuner because it could not win any more."""
    NOT_STARTED = "not started"
    """The plan could not be carried out (a library refused, an argument list too long)."""


class Steadiness(enum.Enum):
    """The course of a launch's values over time, in the terms of Barrett et al. (2017)."""

    FLAT = "flat"
    """The same level from the first value on."""
    WARM_UP = "warm-up"
    """Slower at first; that part was dropped."""
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
    secondary: Secondary = Secondary(0.0)
    series: tuple[Series, ...] = ()
    exit_code: int | None = None
    stderr_tail: str = ""
    """The last lines of standard error, if it failed."""
    shared_cpus: tuple[str, ...] = ()
    """xlaunch's warnings about other work on its CPUs."""
    notes: tuple[str, ...] = ()
    """Caveats, and the reason of a cut or failure."""
