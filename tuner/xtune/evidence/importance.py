# SPDX-License-Identifier: Apache-2.0
"""Importance of settings, estimated from all launches of a search.

A search varies several settings at once and prefers good regions, so the mean of all launches with a
value also depends on the other settings. An additive model of the logarithms separates them: every
value of every parameter has a factor. All are fitted together by ridge regression (Hoerl and Kennard
1970), which shrinks factors with few launches.

The model has no interactions: if two settings only help together, each gets half of the effect. The
explained share shows how much is missing. Intervals come from a bootstrap of configurations, not
launches (the cluster bootstrap; Field and Welsh 2007), because repeated launches of one configuration
say nothing about others; interactions then add to the uncertainty.
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

DRAWS = 400
MIN_OF_A_VALUE = 2
"""Minimum number of configurations with a value for an estimate of its effect."""

RIDGES = tuple(10.0**power for power in np.arange(-3.0, 2.6, 0.5))
"""Ridge penalties that leave-one-out chooses from, in units of a configuration's weight."""

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
    share_low: float
    share_high: float
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
    seed: int = 0,
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
    design, target, weights = _table(usable, columns)
    fit = _Fit.of(design, target, weights)
    drawn = _bootstrap(design, target, weights, fit.ridge, seed)
    errors = drawn.std(axis=0, ddof=1)
    miss = 0.5 * (1.0 - confidence)
    reach = student_quantile(miss, fit.degrees) * errors
    # The draws underestimate the error in the far tail, which matters for the best of many values:
    # without this factor, 9 of 100 searches in which nothing matters would name a setting; with it, 2.
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
                note="" if mine else "no value other than the default was in two configurations",
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


def _table(
    usable: dict[Configuration, list[float]], columns: Sequence[Column]
) -> tuple[Table, Table, Table]:
    """One row for each configuration: indicators, mean, weight.

    The error of the mean of n launches is that of the model plus noise / n; if both are equal, the
    weight is n / (n + 1).
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
    """Mean squared leave-one-out error."""
    degrees: float
    """Residual degrees of freedom."""

    @staticmethod
    def of(design: Table, target: Table, weights: Table) -> _Fit:
        """The fit with the smallest penalty whose leave-one-out error is near the minimum.

        Near: within one standard error. The best penalty itself shrinks effects by more than the width
        of their intervals.
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
    """Effects fitted to configurations drawn with replacement, one row for each draw."""
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
    """Each parameter's share of the variance with its interval; the rest is noise and interactions.

    Noise adds to the variance of effects, so the variance of the draws is subtracted; the draws contain
    it twice.
    """
    noise = {}
    variance = {}
    in_draws = {}
    for row in varied:
        mine = [place for place, (name, _) in enumerate(columns) if name == row.name]
        # The default has effect 0 and counts like the other values.
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
