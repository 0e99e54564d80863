# SPDX-License-Identifier: Apache-2.0
"""All looks of a final together err as often as they may, however often it is continued."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from xtune.evidence.verdicts import MIN_PAIRS, look_level

ERROR = 0.025


def crossing_rate(planned: int, blocks: int, attempt: int = 0) -> float:
    """The probability that a motion without any effect crosses the boundary of some look, as a share.

    The density of those that have not crossed is carried from look to look (Armitage, McPherson and
    Rowe 1969).
    """
    error = ERROR * 0.5**attempt
    grid, mass, crossed, last = np.zeros(1), np.ones(1), 0.0, 0
    for block in range(MIN_PAIRS, blocks + 1):
        boundary = norm.isf(look_level(block, planned, error, attempt)) * np.sqrt(block)
        root = np.sqrt(block - last)
        crossed += mass @ norm.sf((boundary - grid) / root)
        lowest = -7.0 * np.sqrt(block)
        points = np.linspace(lowest, boundary, max(201, int(6.0 * (boundary - lowest) / root)))
        density = norm.pdf((points[:, None] - grid[None]) / root) @ mass / root
        grid, last = points, block
        mass = density * (points[1] - points[0])
        mass[[0, -1]] *= 0.5
    return float(crossed / error)


@pytest.mark.parametrize("attempt", [0, 1, 3])
@pytest.mark.parametrize("planned", [4, 5, 6, 7, 8, 9, 10, 12, 13, 20, 60])
def test_looks_after_every_block_of_a_plan_use_nine_tenths_of_the_error(
    planned: int, attempt: int
) -> None:
    used = crossing_rate(planned, planned, attempt)
    assert 0.65 < used < 0.905


@pytest.mark.parametrize(
    ("planned", "times"), [(4, 20), (6, 12), pytest.param(12, 12, marks=pytest.mark.long)]
)
def test_looks_beyond_the_plan_use_less_than_the_rest(planned: int, times: int) -> None:
    assert crossing_rate(planned, planned) < crossing_rate(planned, times * planned) < 0.99


def test_a_look_costs_less_the_earlier_it_is() -> None:
    levels = [look_level(block, 12, ERROR) for block in range(1, 13)]
    assert levels == sorted(levels)
    assert levels[-1] == pytest.approx(0.53 * ERROR)
    assert look_level(24, 12, ERROR) == pytest.approx(0.025 * ERROR)
    assert look_level(3, 2, ERROR) == look_level(3, 4, ERROR), "a claim needs four blocks"
