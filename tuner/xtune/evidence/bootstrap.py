# SPDX-License-Identifier: Apache-2.0
"""Intervals for statistics that have no formula, by drawing from what was seen.

Everything is seeded: the same launches give the same interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from xtune.evidence.distributions import (
    STANDARD_NORMAL,
    binomial_at_least,
    normal_quantile,
)

RESAMPLES = 4000
FEWEST = 5
"""Values below which a bootstrap only repeats what it was given."""

Rows = NDArray[np.float64]
Statistic = Callable[[Rows], Rows]
"""From samples, one a row, to one number a row. **Ex.:** ``lambda rows: np.median(rows, axis=1)``."""


def bca_interval(
    values: Sequence[float],
    statistic: Statistic,
    *,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[float, float] | None:
    """The bias-corrected and accelerated bootstrap interval (Efron 1987); None below 5 values.

    For medians and the like of launch-level values. Not for high percentiles, which a resample can
    never exceed: `percentile_interval` has those.
    """
    sample = np.asarray(values, dtype=np.float64)
    count = len(sample)
    if count < FEWEST:
        return None
    observed = float(statistic(sample[None, :])[0])
    generator = np.random.default_rng(seed)
    drawn = np.sort(statistic(sample[generator.integers(0, count, (RESAMPLES, count))]))
    if drawn[0] == drawn[-1]:
        return observed, observed
    # Half of those that are equal count as below: statistics of few values have many ties.
    below = (float((drawn < observed).sum()) + 0.5 * float((drawn == observed).sum())) / RESAMPLES
    shift = normal_quantile(min(max(below, 1.0 / RESAMPLES), 1.0 - 1.0 / RESAMPLES))
    left_out = statistic(np.stack([np.delete(sample, place) for place in range(count)]))
    away = left_out.mean() - left_out
    square = float((away**2).sum())
    acceleration = float((away**3).sum()) / (6.0 * square**1.5) if square > 0 else 0.0
    ends = []
    for tail in (0.5 * (1.0 - confidence), 0.5 * (1.0 + confidence)):
        z = shift + normal_quantile(tail)
        adjusted = STANDARD_NORMAL.cdf(shift + z / (1.0 - acceleration * z))
        ends.append(float(np.quantile(drawn, adjusted)))
    return ends[0], ends[1]


def percentile_interval(
    values: Sequence[float], share: float, *, confidence: float = 0.95
) -> tuple[float, float] | None:
    """The values between which a percentile surely lies, whatever the distribution; None if too few.

    share
        0.99 for p99.

    Order statistics: how many of n values lie below the percentile is binomial. A p99 needs some 370
    values before any of them lies above it with 97.5 % probability.
    """
    ordered = sorted(values)
    count = len(ordered)
    miss = 0.5 * (1.0 - confidence)
    if share**count > miss or (1.0 - share) ** count > miss:
        return None
    # The most values of which it may be said that they are below it, and the fewest not above.
    low = _last(count, lambda rank: 1.0 - binomial_at_least(rank, count, share) <= miss)
    high = (
        count
        + 1
        - _last(count, lambda rank: 1.0 - binomial_at_least(rank, count, 1.0 - share) <= miss)
    )
    return ordered[low - 1], ordered[high - 1]


def _last(count: int, holds: Callable[[int], bool]) -> int:
    """The largest rank from 1 to `count` for which a condition holds that, once lost, stays lost."""
    low, high = 1, count
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def best_probabilities(
    log_ratios: Sequence[Sequence[float | None]], *, draws: int = 1000, seed: int = 0
) -> tuple[float, ...]:
    """How probably each is the best: the baseline first, then the candidates in their order.

    log_ratios
        For each candidate its log ratio to the baseline in each block, None where it has none; at
        least 2 blocks.

    Blocks are drawn, each with all that ran in it, so what candidates share stays shared. Their
    means are trimmed as the estimate is. A candidate without a value in a draw does not win it.
    """
    table = np.array(
        [[math.nan if value is None else value for value in row] for row in log_ratios],
        dtype=np.float64,
    )
    candidates, blocks = table.shape
    if blocks < 2:
        raise ValueError(f"best_probabilities: {blocks} blocks; need 2 or more")
    generator = np.random.default_rng(seed)
    places = generator.integers(0, blocks, (draws, blocks))
    means = np.full((draws, candidates + 1), -math.inf)
    means[:, 0] = 0.0
    for number in range(candidates):
        drawn = table[number][places]
        seen = ~np.isnan(drawn)
        if not seen.any():
            continue
        counts = seen.sum(axis=1)
        # Missing values sort to the end, so the cut from above starts at each row's own count.
        ordered = np.sort(drawn, axis=1)
        cut = np.where(counts >= 10, counts // 10, 0)
        rank = np.arange(blocks)
        kept = (rank >= cut[:, None]) & (rank < (counts - cut)[:, None])
        total = np.where(kept, np.nan_to_num(ordered), 0.0).sum(axis=1)
        has = counts > 0
        means[has, number + 1] = total[has] / kept.sum(axis=1)[has]
    wins = np.bincount(means.argmax(axis=1), minlength=candidates + 1)
    return tuple(float(share) for share in wins / draws)
