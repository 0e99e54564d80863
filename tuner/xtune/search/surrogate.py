# SPDX-License-Identifier: Apache-2.0
"""A Gaussian process that predicts the values of configurations from all launches so far.

The logarithm of a value is modelled as a sum of effects of parameters, of pairs, triples and so on (the
product kernel of Duvenaud et al. 2011, "Additive Gaussian Processes"), plus an effect of the single
configuration, plus noise. The weights of parameters, the strength of interactions and the noise are
learnt. A few dozen launches leave them uncertain, so several fits from different starts are averaged.

All arrays have the axes (fits, configurations); all candidates are evaluated at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from xtune.space.parameters import Configuration
from xtune.space.spaces import Space

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]
"""One row for each configuration: the index of each varied parameter's value."""

FITS = 2
STEPS = 30
"""Steps of the ascent to the most likely hyperparameters."""

LEVEL_VARIANCE = 4.0
"""Prior variance of the mean over the space, in units of the variance of the values."""

MIN_SPREAD = 0.02
"""Minimum assumed spread of values: 2 %."""

# Prior medians of the hyperparameters, in units of the variance of the values, and the standard
# deviations of their logarithms.
IMPORTANCE = (0.15, 1.5)
TANGLE = (0.7, 1.0)
OWN = (0.03, 1.0)
NOISE = (0.03, 1.3)

STEP_BOUNDS = (1e-3, 0.7)


class Belief(NamedTuple):
    """Predictions: one row for each fit, one column for each configuration."""

    means: Floats
    variances: Floats
    """Variances of the configurations' mean values, without the noise of a launch."""
    noise: Floats
    """Noise variance of one launch, for each fit."""


class Encoder:
    """Turns configurations of a space into rows of numbers."""

    def __init__(self, space: Space) -> None:
        self.parameters = tuple(p for p in space.parameters if len(p.values) > 1)
        self._positions = [
            {value: at for at, value in enumerate(parameter.values)}
            for parameter in self.parameters
        ]
        self.alike = [_alike(space, parameter.name) for parameter in self.parameters]

    def rows(self, configurations: Sequence[Configuration]) -> Rows:
        """(configurations, parameters)"""
        found = [
            [
                positions[configuration.get(parameter.name, parameter.default)]
                for parameter, positions in zip(self.parameters, self._positions, strict=True)
            ]
            for configuration in configurations
        ]
        return np.array(found, dtype=np.intp).reshape(len(configurations), len(self.parameters))


def _alike(space: Space, name: str) -> Floats:
    """(values, values): the assumed correlation of a parameter's values, 1 for equal ones.

    0 for values without an order; with one, it decreases with the distance.
    """
    parameter = space.parameter(name)
    count = len(parameter.values)
    columns = [at for at, column in enumerate(space.columns) if column.split(".")[0] == name]
    if count == 2 or not columns:
        return np.eye(count)
    default = space.default
    points = np.array(
        [space.encode(default.with_value(name, value)) for value in parameter.values]
    )[:, columns]
    distances = np.sqrt(((points[:, None] - points[None]) ** 2).sum(axis=2))
    alike: Floats = np.exp(-2.0 * distances)
    return alike


class Surrogate:
    """Fits launches, and predicts any configuration."""

    def __init__(self, encoder: Encoder, generator: np.random.Generator, fits: int = FITS) -> None:
        self._alike = encoder.alike
        self._count = len(encoder.parameters)
        priors = [IMPORTANCE] * self._count + [TANGLE, OWN, NOISE]
        self._centre = np.array([math.log(median) for median, _ in priors])
        self._width = np.array([width for _, width in priors])
        starts = generator.standard_normal((fits, len(priors)))
        self._starts = self._centre + 0.7 * self._width * starts

    def fit(self, rows: Rows, values: Floats) -> None:
        """Fit launches: the row of each, and the logarithm of its value, larger is better.

        Earlier fits have no influence, so the same launches always give the same predictions.
        """
        distinct, places = np.unique(rows, axis=0, return_inverse=True)
        places = places.reshape(-1)
        counts = np.bincount(places).astype(np.float64)
        means = np.bincount(places, weights=values) / counts
        self._offset = float(means.mean())
        self._scale = max(float(means.std()), MIN_SPREAD)
        self._rows = distinct
        self._targets = (means - self._offset) / self._scale
        self._counts = counts
        self._squares = float((((values - means[places]) / self._scale) ** 2).sum())
        self._repeats = len(values) - len(distinct)
        self._pairs = self._correlations(distinct, distinct)
        self._learnt = self._starts
        self._climb(STEPS)
        self._condition()

    def believe(self, rows: Rows) -> Belief:
        """Predict configurations, in logarithms of values."""
        explained = self._whitened @ self._shared(self._rows, rows)
        means = (self._targets_white[:, None, :] @ explained)[:, 0]
        own, noise = np.exp(self._learnt[:, -2]), np.exp(self._learnt[:, -1])
        tangle = np.exp(self._learnt[:, self._count])
        prior = np.prod(1.0 + tangle[:, None] * np.exp(self._learnt[:, : self._count]), axis=1)
        variances = (prior - 1.0) / tangle + LEVEL_VARIANCE + own
        variances = variances[:, None] - (explained**2).sum(axis=1)
        squared = self._scale**2
        return Belief(
            self._offset + self._scale * means,
            np.maximum(variances, 1e-12) * squared,
            noise * squared,
        )

    def covariances(self, rows: Rows, others: Rows) -> Floats:
        """(fits, rows, others): posterior covariances of predictions."""
        explained = self._whitened @ self._shared(self._rows, rows)
        explained_others = self._whitened @ self._shared(self._rows, others)
        left: Floats = self._shared(rows, others) - explained.transpose(0, 2, 1) @ explained_others
        return left * self._scale**2

    def _shared(self, rows: Rows, others: Rows) -> Floats:
        """The kernel, including the effect of single configurations."""
        own = np.exp(self._learnt[:, -2])
        shared = self._kernel(self._correlations(rows, others))
        shared += own[:, None, None] * (rows[:, None] == others[None]).all(axis=2)
        return shared

    def _correlations(self, rows: Rows, others: Rows) -> list[Floats]:
        return [
            self._alike[at][rows[:, at][:, None], others[:, at][None]] for at in range(self._count)
        ]

    def _factors(self, correlations: Sequence[Floats]) -> list[Floats]:
        tangle = np.exp(self._learnt[:, self._count])
        weights = tangle[:, None] * np.exp(self._learnt[:, : self._count])
        return [1.0 + weights[:, at, None, None] * one for at, one in enumerate(correlations)]

    def _kernel(self, correlations: Sequence[Floats]) -> Floats:
        product = math.prod(self._factors(correlations), start=np.float64(1.0))
        tangle = np.exp(self._learnt[:, self._count])[:, None, None]
        kernel: Floats = (product - 1.0) / tangle + LEVEL_VARIANCE
        return kernel

    def _covariance(self, kernel: Floats) -> Floats:
        """The kernel of the launched configurations, with their own effects and noise."""
        diagonal = np.arange(len(self._targets))
        own, noise = np.exp(self._learnt[:, -2]), np.exp(self._learnt[:, -1])
        kernel[:, diagonal, diagonal] += own[:, None] + noise[:, None] / self._counts
        return kernel

    def _climb(self, steps: int) -> None:
        """Ascend to the most likely hyperparameters, each with its own step (Rprop, Riedmiller 1993)."""
        sizes = np.full(self._learnt.shape, 0.3)
        last = np.zeros_like(self._learnt)
        low, high = self._centre - 4.0 * self._width, self._centre + 4.0 * self._width
        for _ in range(steps):
            slope = self._slope()
            turned = np.sign(slope * last)
            sizes *= np.where(turned > 0, 1.3, np.where(turned < 0, 0.5, 1.0))
            sizes = np.clip(sizes, *STEP_BOUNDS)
            slope = np.where(turned < 0, 0.0, slope)
            self._learnt = np.clip(self._learnt + np.sign(slope) * sizes, low, high)
            last = slope

    def _slope(self) -> Floats:
        """(fits, learnt): the derivative of the log posterior by each log hyperparameter."""
        factors = self._factors(self._pairs)
        product = math.prod(factors, start=np.float64(1.0))
        tangle = np.exp(self._learnt[:, self._count])
        kernel = (product - 1.0) / tangle[:, None, None] + LEVEL_VARIANCE
        inverse = np.linalg.inv(self._covariance(kernel))
        weights = inverse @ self._targets
        pull = weights[:, :, None] * weights[:, None, :] - inverse
        slope = np.empty_like(self._learnt)
        pulled = pull * product
        total = pulled.sum(axis=(1, 2))
        for at, factor in enumerate(factors):
            slope[:, at] = 0.5 * (total - (pulled / factor).sum(axis=(1, 2))) / tangle
        main = 0.5 * (total - pull.sum(axis=(1, 2))) / tangle
        slope[:, self._count] = slope[:, : self._count].sum(axis=1) - main
        diagonal = np.einsum("fii->fi", pull)
        own, noise = np.exp(self._learnt[:, -2]), np.exp(self._learnt[:, -1])
        slope[:, -2] = 0.5 * diagonal.sum(axis=1) * own
        slope[:, -1] = 0.5 * (diagonal / self._counts).sum(axis=1) * noise
        slope[:, -1] += 0.5 * (self._squares / noise - self._repeats)
        slope -= (self._learnt - self._centre) / self._width**2
        return slope

    def _condition(self) -> None:
        kernel = self._covariance(self._kernel(self._pairs))
        self._whitened = np.linalg.inv(np.linalg.cholesky(kernel))
        self._targets_white = self._whitened @ self._targets
