# SPDX-License-Identifier: Apache-2.0
"""Secondary readings of all launches: the main effects of settings, and the front of two goals.

A search varies several settings at once and prefers good regions, so the mean of all launches with a
value also depends on the other settings. An additive model of the levels (see `Objective.level`) separates them. Values
that always came together cannot be told apart: a small ridge penalty (Hoerl and Kennard 1970) divides
the effect among them. Interactions add to the residuals and so to the intervals. Each configuration is
one observation, because repeated launches say nothing about others.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from xlaunch.text import counted
from xtune.evidence.ratios import student_quantile
from xtune.launches.launch import WALL, Launch, Objective, Outcome
from xtune.launches.summaries import compared, name_of
from xtune.space.parameters import Configuration, Parameter, Value

MIN_OF_A_VALUE = 2
"""Minimum number of configurations with a value for an estimate of its effect."""

RIDGE = 0.03
"""The penalty, in configurations: an effect seen in two configurations shrinks by 3 %."""

MISS = 0.025
"""One-sided error of the intervals."""


class ValueEffect(NamedTuple):
    """The effect of a value relative to the parameter's default, with a 95 % confidence interval."""

    value: Value
    ratio: float
    """1.05 is 5 % better than the default."""
    low: float
    high: float
    configurations: int
    """Number of different configurations with it."""


class SettingImportance(NamedTuple):
    name: str
    share: float
    """Share of the variance between configurations, 0 to 1."""
    effects: tuple[ValueEffect, ...]
    """Effects of values other than the default with enough configurations, the best first."""
    matters: bool
    """Some value's interval, corrected for the number of values, excludes 1."""


class Importance(NamedTuple):
    """The importance of all settings, the largest share first."""

    settings: tuple[SettingImportance, ...] = ()
    explained: float = 0.0
    """Share of the variance between configurations that the model predicts by leave-one-out."""
    configurations: int = 0
    launches: int = 0
    note: str = ""
    """Why there are no estimates; empty otherwise."""


def importance_of(
    launches: Sequence[Launch], parameters: Sequence[Parameter], objective: Objective
) -> Importance:
    """The effect of each value of each parameter on the objective.

    Launches without a value and those of the bare command are left out. With fewer configurations than
    5 + half the varied values, there is only a `note`.
    """
    objective = compared(objective, launches)
    usable: dict[Configuration, list[float]] = {}
    for launch in launches:
        given, level = launch.configuration, objective.level(launch.value)
        is_complete = given.keys() <= {row.name for row in parameters}
        if is_complete and launch.outcome is Outcome.MEASURED and level is not None:
            values = {row.name: given.get(row.name, row.default) for row in parameters}
            usable.setdefault(Configuration(values), []).append(level)
    counts = {
        (row.name, value): sum(configuration[row.name] == value for configuration in usable)
        for row in parameters
        for value in row.values
        if value != row.default
    }
    columns = [pair for pair, n in counts.items() if MIN_OF_A_VALUE <= n < len(usable)]
    needed = 5 + math.ceil(len(columns) / 2)
    importance = Importance(configurations=len(usable), launches=sum(map(len, usable.values())))
    if not columns:
        note = "no setting was varied often enough to estimate its effect"
        return importance._replace(note=note)
    if len(usable) < needed:
        needing = counted(len(columns), "value")
        note = f"{len(usable)} configurations are too few to estimate the effects of {needing}"
        return importance._replace(note=f"{note}; that takes {needed} or more")

    design = np.array([[float(used[name] == value) for name, value in columns] for used in usable])
    target = np.array([sum(logs) / len(logs) for logs in usable.values()])
    fit = _fit(design - design.mean(axis=0), target - target.mean())
    mine = {r.name: [at for at, one in enumerate(columns) if one[0] == r.name] for r in parameters}
    variances = {name: float(np.append(fit.effects[at], 0.0).var()) for name, at in mine.items()}
    whole = sum(variances.values()) + fit.missed
    settings = []
    for row in (parameter for parameter in parameters if len(parameter.values) > 1):
        each = []
        for at in mine[row.name]:
            ratio, low, high = (
                math.exp(fit.effects[at] + way * fit.reach[at]) for way in (0, -1, 1)
            )
            each.append(ValueEffect(columns[at][1], ratio, low, high, counts[columns[at]]))
        each.sort(key=lambda effect: -effect.ratio)
        share = variances[row.name] / whole
        matters = bool(fit.sure[mine[row.name]].any())
        settings.append(SettingImportance(row.name, share, tuple(each), matters))
    settings.sort(key=lambda row: -row.share)
    explained = max(0.0, 1.0 - fit.missed / max(float(target.var()), 1e-12))
    return importance._replace(settings=tuple(settings), explained=explained)


class _Fit(NamedTuple):
    """A ridge regression. The arrays have an entry for each column."""

    effects: NDArray[np.float64]
    reach: NDArray[np.float64]
    """Half the width of the confidence intervals of `effects`."""
    sure: NDArray[np.bool_]
    """Whether the effect differs from 0, all columns considered."""
    missed: float
    """Mean square of what the model does not predict by leave-one-out."""


def _fit(design: NDArray[np.float64], target: NDArray[np.float64]) -> _Fit:
    """Fit a centered `target` by the centered columns of `design`."""
    squares, identity = design.T @ design, np.eye(design.shape[1])
    inverse = np.linalg.inv(squares + RIDGE * identity)
    effects = inverse @ design.T @ target
    residuals = target - design @ effects
    leverages = np.einsum("ij,jk,ik->i", design, inverse, design) + 1.0 / len(target)
    degrees = max(2.0, len(target) - float(leverages.sum()))
    noise = max(float((residuals**2).sum()) / degrees, 1e-12)
    # What the launches leave open may be as large as all that was seen.
    prior = noise / max(float(np.ptp(target)) ** 2, 1e-12)
    errors = np.sqrt(noise * np.diag(np.linalg.inv(squares + min(RIDGE, prior) * identity)))
    reach = student_quantile(MISS, degrees) * errors
    sure = np.abs(effects) > student_quantile(MISS / len(effects), degrees) * errors
    missed = float(((residuals / np.maximum(1.0 - leverages, 1e-3)) ** 2).mean())
    return _Fit(effects, reach, sure, missed)


class Point(NamedTuple):
    """A configuration's medians of both goals."""

    configuration: Configuration
    first: float
    other: float
    is_beaten: bool = False
    """Another one is better in one goal and as good in the other."""


def front_of(
    launches: Sequence[Launch], objective: Objective, second: Objective
) -> tuple[Point, ...]:
    """Every configuration that has both values, the bare command too, the best by the objective first."""
    name = None if second.metric == WALL else name_of(second.metric)
    rows: dict[Configuration, list[tuple[float, float]]] = {}
    for launch in launches:
        mine, theirs = launch.value, dict(launch.metrics).get(name or "")
        theirs = launch.secondary.wall_s if name is None else theirs
        if objective.is_feasible(launch) and mine is not None and theirs is not None:
            rows.setdefault(launch.configuration, []).append((mine, theirs))
    points = []
    for configuration, pairs in rows.items():
        points.append(Point(configuration, *map(statistics.median, zip(*pairs, strict=True))))
    ways = objective.sign, second.sign
    points.sort(key=lambda point: -ways[0] * point.first)
    gains = [(ways[0] * point.first, ways[1] * point.other) for point in points]
    return tuple(
        point._replace(is_beaten=any(a >= x and b >= y and (a, b) != (x, y) for a, b in gains))
        for point, (x, y) in zip(points, gains, strict=True)
    )
