# SPDX-License-Identifier: Apache-2.0
"""The ratio of a candidate to the baseline with its confidence interval, from paired launches.

A pair is a launch of each in the same block, at most minutes apart, so slow changes of the machine
cancel (Kalibera and Jones 2013 recommend an interval of this ratio; Chen and Revels 2016 recommend
interleaving). All computations use logarithms: speed-ups and noise multiply, and 2x and 0.5x are
equally far from 1. A ratio above 1 is better for either goal.

Below 10 pairs it is the t interval, which keeps its level for any mixture of normals, also for heavy tails and
unequal noise, if the error is below 4 % a side (Bakirov and Szekely 2005; used from 2 values up by Ibragimov and
Mueller 2010). From 10 pairs on it is that of the 10 % trimmed mean (Tukey and McLaughlin 1963), which finds more
gains where a few launches are much slower; with fewer pairs, trimming costs more than outliers do.

Distribution-free intervals cost too much: the sign-flip test (Fisher 1935) has no level below 1/2**n with n
pairs, so every verdict gives its exact probability beside the interval.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from xtune.errors import ObjectiveError
from xtune.launches.launch import Objective

TRIMMED_FROM = 10
"""Minimum number of pairs for the trimmed mean."""

TRIMMED_SHARE = 10
"""One pair in this many is trimmed on each side."""

MAX_FLIPS = 1 << 16
"""Number of random sign flips for more than 16 pairs; for fewer pairs all are counted."""


class RatioInterval(NamedTuple):
    """Candidate to baseline: 1.05 is 5 % better. **Ex.:** ``1.052 [1.031, 1.074], 12 pairs``."""

    estimate: float
    low: float
    """0 if there are too few pairs."""
    high: float
    """Infinite if there are too few pairs."""
    mean: float
    """The geometric mean of all pairs; the estimate may have outliers trimmed."""
    error: float
    """Standard error of the estimate's logarithm; infinite if there are too few pairs."""
    level: float
    """The error on each side: 0.025 for a 95 % interval, less if corrected."""
    pairs: int
    step: float = 0.0
    """Other than 0: it is a difference of values, of which `in_values` computes it."""

    def in_values(self, ratio: float) -> float:
        """One of its ratios; with `step`, the difference of values that it stands for."""
        if not self.step:
            return ratio
        return self.step * math.log(ratio) if ratio > 0.0 else -math.inf

    @property
    def inverse(self) -> RatioInterval:
        """The interval of the baseline's ratio to the candidate."""
        low, high = (1.0 / bound if bound > 0.0 else math.inf for bound in (self.high, self.low))
        estimate, mean = 1.0 / self.estimate, 1.0 / self.mean
        return self._replace(estimate=estimate, low=low, high=high, mean=mean)


def log_ratio(candidate: float | None, baseline: float | None, objective: Objective) -> float:
    """The logarithm of how many times better the candidate's value is than the baseline's.

    For differences, their multiple of the objective's step. Raises `ObjectiveError` for a value that has no
    level.
    """
    levels = []
    for value in (candidate, baseline):
        level = objective.level(value)
        if level is None:
            raise ObjectiveError(
                f"a measured value is {value}, and ratios need values above 0: let a launch do more work, or"
                " choose another metric"
            )
        levels.append(level)
    return levels[0] - levels[1]


def ratio_interval(
    log_ratios: Sequence[float], *, level: float = 0.025, step: float = 0.0
) -> RatioInterval:
    """The confidence interval with an error of at most `level` on each side.

    log_ratios
        One for each pair, from `log_ratio`; at least one, and all finite.
    level
        For each side, below 0.5: 0.025 makes a 95 % interval.
    step
        See `Objective.step`.
    """
    values = np.asarray(log_ratios, dtype=np.float64)
    count = len(values)
    centre, error, reach = _student(values, level, _trimmed(count))
    return RatioInterval(
        estimate=math.exp(centre),
        low=_exp(centre - reach),
        high=_exp(centre + reach),
        mean=math.exp(float(values.mean())),
        error=error,
        level=level,
        pairs=count,
        step=step,
    )


def _trimmed(count: int) -> int:
    """Pairs trimmed on each side."""
    return 0 if count < TRIMMED_FROM else max(1, count // TRIMMED_SHARE)


def degrees_of_freedom(count: int) -> int:
    """Degrees of freedom of the interval of `count` pairs; below 1 there is no interval.

    A trimmed mean has two fewer than kept values, not one as in Tukey and McLaughlin: with one, normal
    samples of 10 are missed 1.1 times as often as nominal at a level of 0.025, and 1.4 times at 0.0008;
    with two, 0.99 and 0.89 times; samples of 30, 1.02 and 1.07 times (a million samples each).
    """
    cut = _trimmed(count)
    return count - 2 * cut - (2 if cut else 1)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def _student(values: NDArray[np.float64], level: float, cut: int) -> tuple[float, float, float]:
    """The mean without the `cut` lowest and highest values, its standard error, and the half-width
    of its interval.

    The standard error is that of the winsorized values.
    """
    count = len(values)
    degrees = degrees_of_freedom(count)
    if degrees < 1:
        return float(values.mean()), math.inf, math.inf
    ordered = np.sort(values)
    centre = float(ordered[cut : count - cut].mean())
    held = np.clip(ordered, ordered[cut], ordered[count - cut - 1])
    error = float(held.std(ddof=1)) / ((1.0 - 2.0 * cut / count) * math.sqrt(count))
    return centre, error, student_quantile(level, degrees) * error


@functools.lru_cache(maxsize=4096)
def student_quantile(tail: float, degrees: float) -> float:
    """The t that Student's t exceeds with the probability `tail`: 2.262 for ``(0.025, 9)``."""
    return -float(special.stdtrit(degrees, tail))


def sign_flip_probability(log_ratios: Sequence[float], *, seed: int = 0) -> float:
    """The exact p-value of the sign-flip test, for any noise.

    One-sided, at least 1/2**n. Up to 16 pairs, all flips are counted; above, 65,536 random ones and the
    observed one, which keeps the test valid (Phipson and Smyth 2010).
    """
    from scipy import stats

    if len(log_ratios) < 2:
        return 0.5 if log_ratios and log_ratios[0] > 0.0 else 1.0
    test = stats.permutation_test(
        (np.asarray(log_ratios),),
        np.sum,
        permutation_type="samples",
        vectorized=True,
        n_resamples=MAX_FLIPS,
        alternative="greater",
        random_state=seed,
    )
    return float(test.pvalue)
