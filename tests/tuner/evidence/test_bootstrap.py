# SPDX-License-Identifier: Apache-2.0
"""The best finalist is probable; ties and blocks are shared, and a missing block does not count."""

from __future__ import annotations

import numpy as np
import pytest

from xtune.evidence.bootstrap import best_probabilities


def test_the_best_is_probable_and_ties_share() -> None:
    rng = np.random.default_rng(0)
    good = list(rng.normal(0.10, 0.03, 12))
    probabilities = best_probabilities([good, list(rng.normal(0.0, 0.03, 12))])
    assert sum(probabilities) == pytest.approx(1.0)
    assert probabilities[1] > 0.99
    ties = best_probabilities([list(rng.normal(-0.001, 0.03, 400)) for _ in range(2)])
    assert all(share > 0.05 for share in ties)


def test_blocks_keep_what_finalists_share() -> None:
    """A bad block is bad for both: the second is always 1 % ahead, so it is always ahead."""
    shared = list(np.random.default_rng(0).normal(0.05, 0.2, 10))
    probabilities = best_probabilities([shared, [value + 0.01 for value in shared]])
    assert probabilities[1] == 0.0
    assert probabilities[2] > 0.6


def test_missing_blocks_do_not_count_against_a_finalist() -> None:
    sometimes = [0.2, None, 0.21, None, 0.19, 0.2, None, 0.2, 0.22, 0.2, 0.2, 0.2]
    always = [0.1] * 12
    assert best_probabilities([sometimes, always])[1] > 0.999
    assert best_probabilities([[None, None], [0.1, 0.1]]) == (0.0, 0.0, 1.0)


def test_one_block_tells_nothing() -> None:
    with pytest.raises(ValueError, match="1 blocks; need 2"):
        best_probabilities([[0.1]])
