# SPDX-License-Identifier: Apache-2.0
"""Which settings mattered, from whatever launches a search happened to make.

A search does not vary one thing at a time, and it visits good regions more often. So the mean of all
launches with a value says as much about what it was combined with as about the value. An additive
model of the logarithms takes that apart: every value of every parameter has a factor, all fitted at
once, and ridge regression (Hoerl and Kennard 1970) keeps those small that few launches speak for.

What it cannot do is interactions: where two settings only help together, each gets half. The share
that the model explains tells how much of that there is. Configurations, not launches, are drawn for
the intervals (the cluster bootstrap; Field and Welsh 2007): ten launches of one configuration say
nothing about the others, and what is not additive is then part of the uncertainty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from xtune.evidence.distributions import student_quantile
from xtune.evidence.ratios import has_ratio
from xtune.measurement.launches import Launch, Outcome
from xtune.measurement.objectives import Objective
from xtune.space.parameters import Configuration, Parameter, Value

DRAWS = 400
MIN_OF_A_VALUE = 2
"""Configurations that must have had a value before anything is said of it."""

RIDGES = tuple(10.0**power for power in np.arange(-3.0, 2.6, 0.5))
"""Penalties that leave-one-out chooses from, in units of a configuration's weight."""

Table = NDArray[np.float64]


class ValueEffect(NamedTuple):
    """What a value did, compared with the parameter's default and all else being equal."""

    value: Value
    ratio: float
    """1.05: 5 % better than the default, whatever the goal."""
    low: float
    high: float
    configurations: int
    """So many different ones had it."""


class SettingImportance(NamedTuple):
    """What one parameter did."""

    name: str
    share: float
    """Of the variance between configurations that are drawn evenly from the space, 0 to 1."""
    share_low: float
    share_high: float
    effects: tuple[ValueEffect, ...]
    """Of the values other than the default that were seen often enough, the best first."""
    matters: bool
    """The interval of some value's effect, corrected for how many are looked at, leaves out 1."""
    note: str
    """Why nothing, or little, is said of it; empty otherwise."""

    @property
    def best(self) -> ValueEffect | None:
        return self.effects[0] if self.effects else None


class Importance(NamedTuple):
    """Which settings mattered, the one with the largest share first."""

    settings: tuple[SettingImportance, ...]
    explained: float
    """Of the variance between configurations, what the additive model predicts of one left out."""
    configurations: int
    launches: int
    left_out: int
    """Launches without a value: they crashed, were cut, timed out."""
    note: str
    """Why nothing can be said; empty where something can."""


def importance_of(
    launches: Sequence[Launch],
    parameters: Sequence[Parameter],
    objective: Objective,
    *,
    confidence: float = 0.95,
    seed: int = 0,
) -> Importance:
    """The effect of each parameter and of each of its values on the objective, with intervals.

    launches
        All of the search; those without a value are counted and left out, and so is one of a
        configuration that names what is no parameter (the bare command).

    With fewer configurations than 5 + half the values that vary, nothing is said, in `note`.
    """
    varied = [row for row in parameters if len(row.values) > 1]
    names = {row.name for row in parameters}
    usable: dict[Configuration, list[float]] = {}
    for launch in launches:
        value = launch.value if launch.outcome is Outcome.MEASURED else None
        if value is not None and has_ratio(value) and set(launch.configuration) <= names:
            whole = _whole(launch.configuration, parameters)
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
            note=f"{len(usable)} configurations with values are too few to tell {len(columns)} values"
            f" apart; that takes {needed} or more"
            if columns
            else "no setting was varied often enough to say what it did",
        )
    design, target, weights = _table(usable, columns)
    fit = _Fit.of(design, target, weights)
    drawn = _bootstrap(design, target, weights, fit.ridge, seed)
    errors = drawn.std(axis=0, ddof=1)
    miss = 0.5 * (1.0 - confidence)
    reach = student_quantile(miss, fit.degrees) * errors
    # A fit passes closer to its own configurations than to others. For an interval the draws make up
    # for that; far out in the tail, where the best of many values is judged, they do not: of searches
    # in which nothing matters, 9 in 100 would name something, and with this factor 2 do.
    strict = (len(usable) / fit.degrees) ** 0.25
    sure = student_quantile(miss / len(columns), fit.degrees) * errors * strict
    shares = _shares(varied, columns, fit, drawn, miss)
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
        share, low, high = shares[row.name]
        settings.append(
            SettingImportance(
                name=row.name,
                share=share,
                share_low=low,
                share_high=high,
                effects=tuple(sorted(effects, key=lambda effect: -effect.ratio)),
                matters=any(abs(fit.effects[place]) > sure[place] for place in mine),
                note="" if mine else "no value but the default was in two configurations",
            )
        )
    settings.sort(key=lambda row: -row.share)
    return Importance(
        settings=tuple(settings),
        explained=fit.explained,
        configurations=len(usable),
        launches=used,
        left_out=len(launches) - used,
        note="",
    )


def _whole(configuration: Configuration, parameters: Sequence[Parameter]) -> Configuration:
    return Configuration({row.name: configuration.get(row.name, row.default) for row in parameters})


Column = tuple[str, Value]


def _columns(seen: Sequence[Configuration], varied: Sequence[Parameter]) -> list[Column]:
    """One for each value other than the default that enough configurations had."""
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


def _table(
    usable: dict[Configuration, list[float]], columns: Sequence[Column]
) -> tuple[Table, Table, Table]:
    """One row a configuration: its indicators, its mean, its weight.

    The mean of n launches is off by what the model lacks and by noise / n; taken as equally large,
    its weight is n / (n + 1).
    """
    design = np.array(
        [[float(c[name] == value) for name, value in columns] for c in usable], dtype=np.float64
    )
    target = np.array([sum(values) / len(values) for values in usable.values()])
    counts = np.array([len(values) for values in usable.values()], dtype=np.float64)
    return design, target, counts / (counts + 1.0)


class _Fit(NamedTuple):
    effects: Table
    ridge: float
    explained: float
    missed: float
    """Mean squared error of predicting a configuration that was left out."""
    degrees: float
    """Configurations beyond those that the fit uses up."""

    @staticmethod
    def of(design: Table, target: Table, weights: Table) -> _Fit:
        """The fit with the least penalty that predicts configurations left out about as well as any.

        About: within one standard error of the best. The best penalty itself pulls effects towards 0
        by more than their intervals reach; less of it leaves noise, and noise the intervals have.
        """
        mean = float(np.average(target, weights=weights))
        total = float((weights * (target - mean) ** 2).sum())
        fits, losses = [], []
        for ridge in RIDGES:
            effects, hat = _solve(design, target, weights, ridge)
            intercept = float(np.average(target - design @ effects, weights=weights))
            errors = (target - intercept - design @ effects) / np.maximum(1.0 - hat, 1e-3)
            loss = weights * errors**2
            missed = float(loss.sum())
            share = 1.0 - missed / total if total > 0 else 0.0
            degrees = max(2.0, len(target) - float(hat.sum()))
            losses.append(loss)
            fits.append(
                _Fit(effects, ridge, max(0.0, share), missed / float(weights.sum()), degrees)
            )
        best = min(range(len(fits)), key=lambda place: fits[place].missed)
        slack = float(losses[best].std(ddof=1)) * math.sqrt(len(target)) / float(weights.sum())
        return next(fit for fit in fits if fit.missed <= fits[best].missed + slack)


def _solve(design: Table, target: Table, weights: Table, ridge: float) -> tuple[Table, Table]:
    """Effects of a weighted ridge regression with a free intercept, and the hat matrix' diagonal."""
    total = weights.sum()
    centred = design - (weights @ design) / total
    scaled = centred * np.sqrt(weights)[:, None]
    inverse = np.linalg.inv(scaled.T @ scaled + ridge * np.eye(design.shape[1]))
    effects = inverse @ (scaled.T @ (np.sqrt(weights) * (target - (weights @ target) / total)))
    hat = np.einsum("ij,jk,ik->i", scaled, inverse, scaled) + weights / total
    return effects, hat


def _bootstrap(design: Table, target: Table, weights: Table, ridge: float, seed: int) -> Table:
    """Effects of models fitted to configurations drawn with replacement, one draw a row."""
    generator = np.random.default_rng(seed)
    count = len(target)
    rows = []
    for _ in range(DRAWS):
        times = np.bincount(generator.integers(0, count, count), minlength=count)
        rows.append(_solve(design, target, weights * times, ridge)[0])
    return np.array(rows)


def _shares(
    varied: Sequence[Parameter],
    columns: Sequence[Column],
    fit: _Fit,
    drawn: Table,
    miss: float,
) -> dict[str, tuple[float, float, float]]:
    """Each parameter's share of the variance with its interval; what is left is noise and interactions.

    Noise makes effects that are none vary too: what the draws vary by is taken off, and off the
    draws, which have it twice, twice.
    """
    noise = {}
    variance = {}
    in_draws = {}
    for row in varied:
        mine = [place for place, (name, _) in enumerate(columns) if name == row.name]
        # The default's effect is 0, and it is as frequent as any.
        own = np.concatenate(([0.0], fit.effects[mine]))
        others = np.column_stack((np.zeros(len(drawn)), drawn[:, mine]))
        noise[row.name] = float((others - own).var(axis=1).mean())
        variance[row.name] = max(0.0, float(own.var()) - noise[row.name])
        in_draws[row.name] = np.maximum(0.0, others.var(axis=1) - 2.0 * noise[row.name])
    whole = sum(variance.values()) + fit.missed
    whole_in_draws = np.add.reduce(list(in_draws.values())) + fit.missed
    found = {}
    for row in varied:
        share = variance[row.name] / whole if whole > 0 else 0.0
        spread = in_draws[row.name] / np.where(whole_in_draws > 0, whole_in_draws, 1.0)
        low, high = np.quantile(spread, (miss, 1.0 - miss))
        found[row.name] = (share, min(share, float(low)), max(share, float(high)))
    return found
