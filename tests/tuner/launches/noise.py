# SPDX-License-Identifier: Apache-2.0
"""Series of values as programs print them: a level that changes, and noise of several kinds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEVEL = 100.0


def _correlated(rng: np.random.Generator, count: int, coefficient: float) -> Floats:
    noise = rng.normal(0, 1, count)
    for at in range(1, count):
        noise[at] = coefficient * noise[at - 1] + noise[at] * (1 - coefficient**2) ** 0.5
    return noise


NOISES: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "gaussian": lambda rng, count: rng.normal(0, 1, count),
    "skewed": lambda rng, count: rng.lognormal(0, 0.5, count) - np.exp(0.125),
    "heavy tails": lambda rng, count: rng.standard_t(3, count),
    "pauses": lambda rng, count: rng.normal(0, 1, count) - 15 * (rng.random(count) < 0.03),
    "coarse": lambda rng, count: np.round(rng.normal(0, 0.4, count)) * 2.5,
    "correlated": lambda rng, count: _correlated(rng, count, 0.5),
}
"""Of about one standard deviation."""

SHAPES: dict[str, Callable[[Floats], Floats]] = {
    # Of positions from 0 to 1, as shares of the level.
    "flat": np.ones_like,
    "slow start": lambda at: 1 - 0.6 * np.exp(-at / 0.04),
    "two speeds": lambda at: np.where(at < 0.3, 0.8, 1.0),
    "heats up": lambda at: np.where(at < 0.3, 1.2, 1.0),
    "cools off": lambda at: 1 + 0.4 * np.exp(-at / 0.05),
    "late change": lambda at: np.where(at < 0.88, 1.0, 0.8),
    "throttles in turns": lambda at: np.where((at * 8).astype(int) % 2, 0.8, 1.0),
    "drifts": lambda at: 1 - 0.3 * at,
    "dip": lambda at: np.where((at > 0.5) & (at < 0.53), 0.6, 1.0),
}


def made_series(shape: str, noise: str, count: int, *, share: float, seed: int) -> list[float]:
    """`count` values of a shape. `share`: the noise's standard deviation, of the level."""
    rng = np.random.default_rng(seed)
    at = np.arange(count) / count
    values = LEVEL * SHAPES[shape](at) * (1 + share * NOISES[noise](rng, count))
    return [float(value) for value in values]
