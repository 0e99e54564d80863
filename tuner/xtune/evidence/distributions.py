# SPDX-License-Identifier: Apache-2.0
"""The probability distributions of tests and intervals, by scipy.

`scipy.special` is imported at the first use, because it takes a tenth of the time of `scipy.stats`.
"""

from __future__ import annotations

import functools
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from xtune.errors import TunerError


@functools.cache
def _special() -> ModuleType:
    try:
        from scipy import special
    except ImportError as error:
        raise TunerError(f"xtune needs scipy ({error}): pip install 'xlaunch[tune]'") from error
    found: ModuleType = special
    return found


def normal_cdf(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The probabilities that a standard normal value is below each."""
    found: NDArray[np.float64] = _special().ndtr(values)
    return found


def student_tail(t: float, degrees: float) -> float:
    """The probability that Student's t with `degrees` degrees of freedom exceeds t."""
    return float(_special().stdtr(degrees, -t))


@functools.lru_cache(maxsize=4096)
def student_quantile(tail: float, degrees: float) -> float:
    """The t that Student's t exceeds with the probability `tail`, in (0, 1): ``(0.025, 9)`` is 2.262."""
    if not 0.0 < tail < 1.0:
        raise ValueError(f"student_quantile: the tail is {tail}; must be in (0, 1)")
    return -float(_special().stdtrit(degrees, tail))


def noncentral_quantile(tail: float, degrees: float, power: float) -> float:
    """The shift, in standard errors, at which a t test of level `tail` rejects with `power`."""
    return float(_special().nctdtrinc(degrees, 1.0 - power, student_quantile(tail, degrees)))


def chi_square_quantile(probability: float, degrees: float) -> float:
    """The quantile of the chi-square distribution."""
    return float(_special().chdtri(degrees, 1.0 - probability))


def binomial_at_least(successes: int, trials: int, probability: float) -> float:
    """The probability of at least `successes` in `trials`."""
    if successes <= 0:
        return 1.0
    return float(_special().bdtrc(successes - 1, trials, probability))
