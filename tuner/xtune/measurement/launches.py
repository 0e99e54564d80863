# SPDX-License-Identifier: Apache-2.0
"""What was seen of one launch of the workload: every raw sample, and how it ended."""

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
    """Killed by the kernel for memory, or it said that it had none."""
    TIMED_OUT = "timed out"
    NO_METRIC = "no metric"
    """It ended well and printed none of what was to be measured."""
    CUT = "cut"
    """Ended by the tuner, since it could not win any more."""
    NOT_STARTED = "not started"
    """The plan could not be carried out (a library refused, an argument list too long)."""


class Steadiness(enum.Enum):
    """What the values of a launch did over time (Barrett et al. 2017, who name them so)."""

    FLAT = "flat"
    """The same from the first value on."""
    WARM_UP = "warm-up"
    """Slower at first; that part was dropped."""
    SLOW_DOWN = "slow-down"
    """Faster at first: it heats up, throttles or leaks."""
    NOT_STEADY = "no steady state"
    """It never settled. Its mean hides that, so it is said wherever the value is shown."""
    TOO_FEW = "too few values"
    """A single value, or too few to tell."""


class Series(NamedTuple):
    """The values that one instance gave of one metric, in the order given."""

    instance: int
    metric: str
    times_s: tuple[float, ...]
    """Seconds since the launch began."""
    values: tuple[float, ...]


class Secondary(NamedTuple):
    """What is recorded of every launch besides; None where this system does not tell."""

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
    """The objective's metric, summed up over steady time and instances; None unless measured."""
    began_s: float
    """Seconds since the epoch."""
    steadiness: Steadiness = Steadiness.TOO_FEW
    requirements: tuple[tuple[str, float | None], ...] = ()
    """What each --require named came to, under the text that it was named by."""
    metrics: tuple[tuple[str, float], ...] = ()
    """Every other metric that was seen, summed up likewise."""
    secondary: Secondary = Secondary(0.0)
    series: tuple[Series, ...] = ()
    exit_code: int | None = None
    stderr_tail: str = ""
    """The last lines of standard error, where it did not end well."""
    shared_cpus: tuple[str, ...] = ()
    """What else used its CPUs, in xlaunch's words."""
    notes: tuple[str, ...] = ()
    """What to know before believing it, and a cut or failure's reason."""
