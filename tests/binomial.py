# SPDX-License-Identifier: Apache-2.0
"""Confidence bounds of a rate that was counted (Clopper and Pearson 1934)."""

from __future__ import annotations

from scipy.stats import beta


def binomial_upper_bound(successes: int, trials: int, confidence: float = 0.95) -> float:
    """The one-sided upper bound."""
    return (
        1.0
        if successes >= trials
        else float(beta.ppf(confidence, successes + 1, trials - successes))
    )


def binomial_lower_bound(successes: int, trials: int, confidence: float = 0.95) -> float:
    """The one-sided lower bound."""
    return 1.0 - binomial_upper_bound(trials - successes, trials, confidence)
