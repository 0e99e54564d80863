# SPDX-License-Identifier: Apache-2.0
"""The launches of a search, finished and under way, each with its purpose."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from xtune.launches.launch import Launch
from xtune.launches.objectives import Objective
from xtune.search.provenance import Provenance
from xtune.space.parameters import Configuration


class Stage(enum.Enum):
    """The purpose of a launch."""

    BASELINE = "baseline"
    """The bare command, before anything else."""
    SEED = "seed"
    """A configuration worth trying first: xlaunch's default, presets, earlier winners."""
    SEARCH = "search"
    """A configuration that the model proposed."""
    CONTROL = "control"
    """The bare command again, to detect drift of the machine."""
    ABLATION = "ablation"
    """The best configuration without some of its changes, before a final."""
    FINAL = "final"
    """The finalists and the bare command, interleaved."""


class Step(NamedTuple):
    """A launch to make."""

    stage: Stage
    configuration: Configuration
    plan_hash: str
    key: str
    """Its place in the search; unique among the launches that count."""
    origin: str = ""
    """Where the configuration came from. **Ex.:** ``xlaunch``, ``preset throughput``."""
    cut_at: float | None = None
    """The launch is ended early once it cannot reach this value."""
    details: Mapping[str, Any] = {}
    """Further data needed to continue the search, as plain values."""


class Record(NamedTuple):
    """A launch, finished or under way."""

    number: int
    step: Step
    host: str
    """The host that made it; launches of one host share its drift."""
    launch: Launch | None
    """None: under way."""
    made: Provenance = Provenance()


class Rating(NamedTuple):
    """The score of a launch of a configuration of the space."""

    configuration: Configuration
    plan_hash: str
    score: float | None
    """The logarithm of the value, larger is better; None without a usable value."""
    is_cut: bool = False
    """The launch was cut: the score is the one it missed."""

    @property
    def is_failure(self) -> bool:
        """It failed or broke a requirement, so it is never chosen."""
        return self.score is None


def score(value: float, objective: Objective) -> float:
    """The logarithm of a value, larger is better."""
    return objective.sign * math.log(value)


def unscore(scored: float, objective: Objective) -> float:
    """The value that has this score."""
    return math.exp(objective.sign * scored)
