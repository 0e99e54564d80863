# SPDX-License-Identifier: Apache-2.0
"""What each change of a configuration is worth to it: the same without that one change.

A search that finds something fast soon launches little else, so a model of all its launches cannot
tell which of the changes did it. The direct answer is an ablation: the configuration with one changed
setting as it is by default, held against the configuration itself.

What found something fast carries changes that only came along. Whoever uses it would keep them for
ever, so it is launched without all that seem to do nothing before anything is compared with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from xtune.evidence.distributions import student_quantile
from xtune.search.scale import Scale
from xtune.space.parameters import BARE, Configuration, Value
from xtune.space.spaces import Space

CONFIDENCE = 0.95


class Ablation(NamedTuple):
    """A configuration without one of its changes."""

    name: str
    """Of the setting."""
    value: Value
    """Which the configuration has."""
    default: Value
    """Which it had instead."""
    ratio: float
    """To the configuration itself, whatever the goal: at 0.8 a fifth is lost without the change."""
    low: float
    high: float
    launches: int
    """Without the change."""


def without_each(space: Space, configuration: Configuration) -> list[tuple[str, Configuration]]:
    """The configuration without one of its changes, for each that may be left out by itself.

    Of a single change there is nothing to tell: without it, it is the default.
    """
    if len(space.changes(configuration)) < 2:
        return []
    return list(_without_each(space, configuration))


def leaner(
    space: Space, configuration: Configuration, believed: Callable[[Configuration], float]
) -> Iterator[Configuration]:
    """The configuration without one of its changes, then without two, and so on.

    Of what is left that goes which costs least, as far as is `believed` of configurations, larger is
    better.
    """
    left = configuration
    while others := [other for _, other in _without_each(space, left)]:
        left = max(others, key=believed)
        yield left


def _without_each(
    space: Space, configuration: Configuration
) -> Iterator[tuple[str, Configuration]]:
    for name in space.changes(configuration):
        other = space.complete({**configuration, name: space.parameter(name).default})
        if other in space:
            yield name, other


def ablations_of(
    configuration: Configuration,
    space: Space,
    plan_hash: Callable[[Configuration], str | None],
    scale: Scale,
) -> tuple[Ablation, ...]:
    """Of what was launched, whatever for; what the configuration loses most without comes first.

    Nothing of the bare command, which has no changes.

    The intervals are of 95 % all together (Bonferroni), by Student's t and the noise between all
    launches of one plan.
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

    whole = scores.get(plan_of(configuration), [])
    known = [
        (name, scores[plan_of(other)])
        for name, other in without_each(space, configuration)
        if plan_of(other) in scores and plan_of(other) != plan_of(configuration)
    ]
    found = []
    for name, without in known if whole else []:
        lost = sum(without) / len(without) - sum(whole) / len(whole)
        error = scale.spread * math.sqrt(1.0 / len(without) + 1.0 / len(whole))
        reach = student_quantile(0.5 * (1.0 - CONFIDENCE) / len(known), scale.degrees) * error
        ratio, low, high = (math.exp(lost + way * reach) for way in (0, -1, 1))
        value, default = space.complete(configuration)[name], space.parameter(name).default
        found.append(Ablation(name, value, default, ratio, low, high, len(without)))
    return tuple(sorted(found, key=lambda one: one.ratio))


def not_launched(
    wanted: Sequence[tuple[str, Configuration]],
    plan_hash: Callable[[Configuration], str | None],
    known: Collection[str],
) -> list[tuple[str, Configuration]]:
    """Those that can be carried out and are no plan that is `known`; of equal plans the first."""
    found: dict[str, tuple[str, Configuration]] = {}
    for name, configuration in wanted:
        hashed = plan_hash(configuration)
        if hashed is not None and hashed not in known:
            found.setdefault(hashed, (name, configuration))
    return list(found.values())
