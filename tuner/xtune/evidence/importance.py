# SPDX-License-Identifier: Apache-2.0
"""Importance of settings: the main effects of their values, from all launches of a search.

A search varies several settings at once and prefers good regions, so the mean of all launches with a
value also depends on the other settings. An additive model of the logarithms separates them: every
value of every parameter has a factor, and all are fitted together by least squares. Values that
always came together cannot be told apart; a small ridge penalty (Hoerl and Kennard 1970) divides the
effect among them and makes their intervals wide.

The model has no interactions: if two settings only help together, each gets half of the effect, and
the rest adds to the residuals and so to the intervals. The explained share shows how much is missing.
Each configuration is one observation, because repeated launches say nothing about others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from xtune.evidence.distributions import student_quantile
from xtune.evidence.ratios import has_ratio
from xtune.launches.launch import Launch, Outcome
from xtune.launches.objectives import Objective
from xtune.space.parameters import Configuration, Parameter, Value

MIN_OF_A_VALUE = 2
"""Minimum number of configurations with a value for an estimate of its effect."""

RIDGE = 0.03
"""The penalty, in units of a configuration's weight: an effect in two configurations shrinks by 3 %."""

TINY = 1e-12

Table = NDArray[np.float64]


class ValueEffect(NamedTuple):
    """The effect of a value relative to the parameter's default, all else being equal."""

    value: Value
    ratio: float
    """1.05 is 5 % better than the default."""
    low: float
    high: float
    configurations: int
    """Number of different configurations with it."""


class SettingImportance(NamedTuple):
    """The importance of one parameter."""

    name: str
    share: float
    """Share of the variance between random configurations of the space, 0 to 1."""
    effects: tuple[ValueEffect, ...]
    """Effects of values other than the default with enough configurations, the best first."""
    matters: bool
    """Some value's interval, corrected for the number of values, excludes 1."""
    note: str
    """Why there is no estimate; empty otherwise."""

    @property
    def best(self) -> ValueEffect | None:
        return self.effects[0] if self.effects else None


class Importance(NamedTuple):
    """The importance of all settings, the largest share first."""

    settings: tuple[SettingImportance, ...]
    explained: float
    """Share of the variance between configurations that the model predicts by leave-one-out."""
    configurations: int
    launches: int
    left_out: int
    """Launches without a value: crashed, cut, timed out."""
    note: str
    """Why there are no estimates; empty otherwise."""


def importance_of(
    launches: Sequence[Launch],
    parameters: Sequence[Parameter],
    objective: Objective,
    *,
    confidence: float = 0.95,
) -> Importance:
    """The effect of each parameter and of each of its values on the objective, with intervals.

    launches
        All of the search. Those without a value are counted and left out, and so are those of the
        bare command.

    With fewer configurations than 5 + half the varied values, there is only a `note`.
    """
    varied = [row for row in parameters if len(row.values) > 1]
    names = {row.name for row in parameters}
    usable: dict[Configuration, list[float]] = {}
    for launch in launches:
        value = launch.value if launch.outcome is Outcome.MEASURED else None
        if value is not None and has_ratio(value) and set(launch.configuration) <= names:
            whole = _with_defaults(launch.configuration, parameters)
            usable.setdefault(whole, []).append(objective.sign * math.log(value))
    used = sum(map(len, usable.values()))
    columns = _columns(list(usable), varied)
    needed = 5 + math.ceil(len(columns) / 2)
    if len(usable) < needed or not columns:
        return Importance(
            settings=(),
            explained=0.0,
            configurations=len(usable),
            launches=used,
            left_out=len(launches) - used,
            note=f"{len(usable)} configurations are too few to estimate the effects of {len(columns)}"
            f" values; that takes {needed} or more"
            if columns
            else "no setting was varied often enough to estimate its effect",
        )
    fit = _fit(usable, columns)
    miss = 0.5 * (1.0 - confidence)
    errors = np.sqrt(np.diag(fit.covariance))
    reach, sure = (
        student_quantile(one, fit.degrees) * errors for one in (miss, miss / len(columns))
    )
    settings = []
    for row in varied:
        mine = [place for place, (name, _) in enumerate(columns) if name == row.name]
        effects = [
            ValueEffect(
                value=columns[place][1],
                ratio=math.exp(fit.effects[place]),
                low=math.exp(fit.effects[place] - reach[place]),
                high=math.exp(fit.effects[place] + reach[place]),
                configurations=sum(c[row.name] == columns[place][1] for c in usable),
            )
            for place in mine
        ]
        settings.append(
            SettingImportance(
                name=row.name,
                share=_variance(fit, mine),
                effects=tuple(sorted(effects, key=lambda effect: -effect.ratio)),
                matters=any(abs(fit.effects[place]) > sure[place] for place in mine),
                note="" if mine else "no value other than the default was in two configurations",
            )
        )
    # The rest of the variance is noise and interactions.
    variance = sum(row.share for row in settings) + fit.missed
    shared = [row._replace(share=row.share / variance if variance else 0.0) for row in settings]
    return Importance(
        settings=tuple(sorted(shared, key=lambda row: -row.share)),
        explained=fit.explained,
        configurations=len(usable),
        launches=used,
        left_out=len(launches) - used,
        note="",
    )


def _with_defaults(configuration: Configuration, parameters: Sequence[Parameter]) -> Configuration:
    return Configuration({row.name: configuration.get(row.name, row.default) for row in parameters})


Column = tuple[str, Value]


def _columns(seen: Sequence[Configuration], varied: Sequence[Parameter]) -> list[Column]:
    """One column for each value other than the default with enough configurations."""
    found = []
    for row in varied:
        counts = {value: sum(c[row.name] == value for c in seen) for value in row.values}
        others = sum(counts.values())
        found += [
            (row.name, value)
            for value in row.values
            if value != row.default and MIN_OF_A_VALUE <= counts[value] < others
        ]
    return found


class _Fit(NamedTuple):
    effects: Table
    """(columns,): logarithms."""
    covariance: Table
    """(columns, columns): of the effects."""
    degrees: float
    """Residual degrees of freedom."""
    missed: float
    """Mean squared leave-one-out error."""
    explained: float


def _fit(usable: dict[Configuration, list[float]], columns: Sequence[Column]) -> _Fit:
    """Least squares with a free intercept and the penalty `RIDGE`.

    The error of the mean of n launches is that of the model plus noise / n; if both are equal, the
    weight of a configuration is n / (n + 1).
    """
    design = np.array([[float(c[name] == value) for name, value in columns] for c in usable])
    target = np.array([sum(values) / len(values) for values in usable.values()])
    weights = np.array([len(values) / (len(values) + 1.0) for values in usable.values()])
    total = weights.sum()
    root = np.sqrt(weights)
    scaled = root[:, None] * (design - weights @ design / total)
    centred = root * (target - weights @ target / total)
    squares = scaled.T @ scaled
    inverse = np.linalg.inv(squares + RIDGE * np.eye(len(columns)))
    effects = inverse @ scaled.T @ centred
    hat = np.einsum("ij,jk,ik->i", scaled, inverse, scaled) + weights / total
    residuals = centred - scaled @ effects
    degrees = max(2.0, len(target) - float(hat.sum()))
    noise = float((residuals**2).sum()) / degrees
    # What the launches leave open may be as large as all that was seen.
    prior = max(noise, TINY) / max(float(np.ptp(target)) ** 2, TINY)
    covariance = noise * np.linalg.inv(squares + min(RIDGE, prior) * np.eye(len(columns)))
    missed = float(((residuals / np.maximum(1.0 - hat, 1e-3)) ** 2).sum())
    whole = float((centred**2).sum())
    return _Fit(
        effects,
        covariance,
        degrees,
        missed / float(total),
        max(0.0, 1.0 - missed / whole) if whole > 0.0 else 0.0,
    )


def _variance(fit: _Fit, mine: Sequence[int]) -> float:
    """The variance of a parameter's effects, without what their errors add to it.

    The default has effect 0 and counts like the other values.
    """
    count = len(mine) + 1
    errors = fit.covariance[np.ix_(mine, mine)]
    noise = (np.trace(errors) - errors.sum() / count) / count
    return max(0.0, float(np.append(fit.effects[mine], 0.0).var() - noise))
