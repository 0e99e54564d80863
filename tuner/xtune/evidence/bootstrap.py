# SPDX-License-Identifier: Apache-2.0
"""The probability that each finalist is the best, by bootstrap of the blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def best_probabilities(
    log_ratios: Sequence[Sequence[float | None]], *, draws: int = 1000, seed: int = 0
) -> tuple[float, ...]:
    """The probability that each is the best: the baseline first, then the candidates in order.

    log_ratios
        For each candidate, its log ratio to the baseline in each block or None; at least 2 blocks.

    Whole blocks are drawn, which keeps what candidates share. Means are trimmed as the estimates are. A
    candidate without a value in a draw does not win it.
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
        # Missing values sort to the end, so the upper cut starts at each row's own count.
        ordered = np.sort(drawn, axis=1)
        cut = np.where(counts >= 10, counts // 10, 0)
        rank = np.arange(blocks)
        kept = (rank >= cut[:, None]) & (rank < (counts - cut)[:, None])
        total = np.where(kept, np.nan_to_num(ordered), 0.0).sum(axis=1)
        has = counts > 0
        means[has, number + 1] = total[has] / kept.sum(axis=1)[has]
    wins = np.bincount(means.argmax(axis=1), minlength=candidates + 1)
    return tuple(float(share) for share in wins / draws)
