# SPDX-License-Identifier: Apache-2.0
"""All looks of a final together err as often as they may, however often it is continued."""

from __future__ import annotations

import numpy as np
import pytest

from xtune.evidence.distributions import normal_quantile
from xtune.evidence.looks import PLAN_SHARE, look_level, spent_error


def levels(looks: tuple[int, ...], planned: int, error: float = 0.025) -> list[float]:
    return [look_level(looks[: at + 1], planned, error) for at in range(len(looks))]


def crossing_rate(looks: tuple[int, ...], planned: int) -> float:
    """How many of 200,000 random walks without any effect cross at some look."""
    steps = np.random.default_rng(1).standard_normal((200_000, looks[-1])).cumsum(axis=1)
    crossed = np.zeros(len(steps), dtype=bool)
    for look, level in zip(looks, levels(looks, planned), strict=True):
        crossed |= steps[:, look - 1] / np.sqrt(look) > -normal_quantile(level)
    return float(crossed.mean())


@pytest.mark.parametrize("looks", [(4, 6, 9, 12), (4, 5, 6, 7, 8), (1, 30)])
def test_all_looks_of_a_plan_err_as_often_as_they_may(looks: tuple[int, ...]) -> None:
    assert crossing_rate(looks, looks[-1]) == pytest.approx(0.025 * PLAN_SHARE, abs=0.0015)


@pytest.mark.parametrize("looks", [(4, 6, 12), (4, 6, 7, 8, 9, 30), tuple(range(4, 40))])
def test_looks_beyond_the_plan_share_what_it_keeps(looks: tuple[int, ...]) -> None:
    planned = 6
    expected = spent_error(looks[-1] / planned, 0.025)
    assert 0.025 * PLAN_SHARE < expected < 0.025
    assert crossing_rate(looks, planned) == pytest.approx(expected, abs=0.0015)


def test_the_error_is_never_used_up() -> None:
    spent = [spent_error(part, 0.025) for part in (0.0, 0.5, 1.0, 2.0, 3.0, 1e9)]
    expected = [0.0, 0.25 * PLAN_SHARE, PLAN_SHARE, 0.95, 1.0 - 0.1 / 3.0, 1.0]
    assert spent == pytest.approx([0.025 * part for part in expected])


def test_a_single_look_gets_what_the_plan_may_use() -> None:
    assert look_level((12,), 12, 0.025) == pytest.approx(0.025 * PLAN_SHARE, rel=1e-9)


def test_a_look_before_the_end_costs_the_later_ones() -> None:
    assert look_level((4, 6, 9, 10, 12), 12, 0.025) < look_level((4, 6, 9, 12), 12, 0.025)


@pytest.mark.parametrize("looks", [(), (0, 1), (5, 5), (6, 4)])
def test_looks_have_to_ascend(looks: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="ascend from 1"):
        look_level(looks, 12, 0.025)
