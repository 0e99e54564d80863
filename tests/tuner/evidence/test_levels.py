# SPDX-License-Identifier: Apache-2.0
"""Boundaries agree with the published ones, and looks err together as often as they may."""

from __future__ import annotations

import numpy as np
import pytest

from xtune.evidence.distributions import normal_quantile
from xtune.evidence.levels import Spending, look_levels

# Two-sided 5 %, equally spaced looks (DeMets and Lan 1994; Proschan, Lan and Wittes 2006, table 5.1).
PUBLISHED = [
    (Spending.OBRIEN_FLEMING, 2, [2.963, 1.969]),
    (Spending.OBRIEN_FLEMING, 3, [3.710, 2.511, 1.993]),
    (Spending.OBRIEN_FLEMING, 5, [4.877, 3.357, 2.680, 2.290, 2.031]),
    (Spending.POCOCK, 2, [2.157, 2.201]),
    (Spending.POCOCK, 3, [2.279, 2.295, 2.296]),
    (Spending.POCOCK, 5, [2.438, 2.427, 2.410, 2.397, 2.386]),
]


def boundaries(levels: tuple[float, ...]) -> list[float]:
    return [-normal_quantile(level) for level in levels]


@pytest.mark.parametrize(("spending", "looks", "expected"), PUBLISHED)
def test_boundaries_are_the_published_ones(
    spending: Spending, looks: int, expected: list[float]
) -> None:
    fractions = tuple((look + 1) / looks for look in range(looks))
    assert boundaries(look_levels(fractions, 0.025, spending)) == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize("spending", list(Spending))
def test_a_single_look_may_err_all_there_is(spending: Spending) -> None:
    assert look_levels((1.0,), 0.025, spending) == (pytest.approx(0.025, rel=1e-9),)


@pytest.mark.parametrize("spending", list(Spending))
def test_spending_starts_at_nothing_and_ends_at_all(spending: Spending) -> None:
    spent = [spending.spent(fraction, 0.025) for fraction in (0.0, 0.1, 0.5, 0.9, 1.0, 1.5)]
    assert spent[0] == 0.0
    assert spent[-2:] == [0.025, 0.025]
    assert spent == sorted(spent)


@pytest.mark.parametrize("spending", list(Spending))
@pytest.mark.parametrize("looks", [(4, 6, 9, 12), (4, 5, 6, 7, 8), (1, 30)])
def test_all_looks_together_err_as_often_as_they_may(
    spending: Spending, looks: tuple[int, ...]
) -> None:
    """200,000 random walks without any effect: 2.5 % of them cross at some look."""
    planned = looks[-1]
    levels = look_levels(tuple(look / planned for look in looks), 0.025, spending)
    steps = np.random.default_rng(1).standard_normal((200_000, planned)).cumsum(axis=1)
    crossed = np.zeros(len(steps), dtype=bool)
    for look, boundary in zip(looks, boundaries(levels), strict=True):
        crossed |= steps[:, look - 1] / np.sqrt(look) > boundary
    assert crossed.mean() == pytest.approx(0.025, abs=0.0015)


def test_a_last_look_before_the_end_may_use_what_is_left() -> None:
    stopped = look_levels((0.4, 0.6), 0.025, Spending.QUADRATIC)
    timed_out = look_levels((0.4, 0.6), 0.025, Spending.QUADRATIC, all_spent=True)
    assert timed_out[0] == stopped[0]
    assert stopped[1] < timed_out[1] < 0.025
    steps = np.random.default_rng(2).standard_normal((200_000, 6)).cumsum(axis=1)
    first, last = boundaries(timed_out)
    crossed = (steps[:, 3] / 2.0 > first) | (steps[:, 5] / np.sqrt(6) > last)
    assert crossed.mean() == pytest.approx(0.025, abs=0.0015)


def test_many_looks_cost_little() -> None:
    """A look after each of 40 blocks asks for 2.2 standard errors at the end, not 1.96."""
    every = look_levels(tuple(n / 40 for n in range(1, 41)), 0.025, Spending.OBRIEN_FLEMING)
    assert boundaries(every)[-1] == pytest.approx(2.15, abs=0.03)
    assert sorted(every) == list(every)


@pytest.mark.parametrize("fractions", [(), (0.0, 1.0), (0.5, 0.5), (0.6, 0.4)])
def test_looks_have_to_ascend(fractions: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="ascend from above 0"):
        look_levels(fractions, 0.025, Spending.POCOCK)
