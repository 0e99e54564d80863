# SPDX-License-Identifier: Apache-2.0
"""Ablations: the effect of each change of a configuration, measured by leaving it out.

A search that finds a fast configuration launches mostly its neighbours, so a model of all launches
cannot tell which change made it fast. An ablation resets one changed setting to its default and
compares the result with the configuration itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from xtune.evidence.ratios import student_quantile
from xtune.search.records import ScoreScale
from xtune.space.parameters import BARE, Configuration, Value
from xtune.space.spaces import Space

CONFIDENCE = 0.95


class Ablation(NamedTuple):
    """A configuration without one of its changes."""

    name: str
    value: Value
    """In the configuration."""
    default: Value
    """In the ablation."""
    ratio: float
    """To the configuration itself; 0.8 means that a fifth is lost without the change."""
    low: float
    high: float
    launches: int
    """Launches without the change."""


def without_each(space: Space, configuration: Configuration) -> list[tuple[str, Configuration]]:
    """The configuration without one of its changes, for each that can be left out alone."""
    changes = space.changes(configuration)
    if len(changes) < 2:
        return []
    others = {
        name: space.complete({**configuration, name: space.parameter(name).default})
        for name in changes
    }
    return [(name, other) for name, other in others.items() if other in space]


def ablations_of(
    configuration: Configuration,
    space: Space,
    plan_hash: Callable[[Configuration], str | None],
    scale: ScoreScale,
) -> tuple[Ablation, ...]:
    """The ablations that were launched in any stage, the greatest loss first.

    Empty for the bare command, which has no changes. The confidence intervals hold jointly with 95 %
    (Bonferroni); they use Student's t and the noise between launches of one plan.
    """
    if configuration == BARE:
        return ()
    scores: dict[str, list[float]] = {}
    plans: dict[Configuration, str | None] = {}
    for rating in scale.ratings:
        plans[rating.configuration] = rating.plan_hash
        if rating.score is not None and not rating.is_cut:
            scores.setdefault(rating.plan_hash, []).append(rating.score)

    def plan_of(one: Configuration) -> str:
        return (plans[one] if one in plans else plan_hash(one)) or ""

    # The winner may be the best that was checked without changes that turned out to do nothing.
    changes = space.changes(configuration).items()
    larger = [
        plan for plan in plans if plan != configuration and changes <= space.changes(plan).items()
    ]
    compared: list[tuple[str, list[float]]] = []
    whole: list[float] = []
    for base in (configuration, *larger):
        others = [
            (name, scores[plan_of(other)])
            for name, other in without_each(space, base)
            if plan_of(other) in scores
            and plan_of(other) != plan_of(base)
            and name in dict(changes)
        ]
        if len(others) > len(compared) and plan_of(base) in scores:
            compared, whole = others, scores[plan_of(base)]
    ablations = []
    for name, without in compared:
        lost = sum(without) / len(without) - sum(whole) / len(whole)
        error = scale.spread * math.sqrt(1.0 / len(without) + 1.0 / len(whole))
        reach = student_quantile(0.5 * (1.0 - CONFIDENCE) / len(compared), scale.degrees) * error
        ratio, low, high = (math.exp(lost + way * reach) for way in (0, -1, 1))
        value, default = space.complete(configuration)[name], space.parameter(name).default
        ablations.append(Ablation(name, value, default, ratio, low, high, len(without)))
    return tuple(sorted(ablations, key=lambda one: one.ratio))
