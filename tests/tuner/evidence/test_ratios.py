# SPDX-License-Identifier: Apache-2.0
"""Intervals on ratios point the right way, are exact where they say so, and cover the truth."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.binomial import binomial_lower_bound, binomial_upper_bound

from xlaunch.errors import UsageError
from xtune.errors import ObjectiveError
from xtune.evidence.ratios import (
    log_ratio,
    ratio_interval,
    sign_flip_probability,
)
from xtune.launches.launch import Goal, Launch, Objective, Outcome
from xtune.launches.summaries import compared
from xtune.space.parameters import BARE

Noise = Callable[[np.random.Generator, tuple[int, int, int]], np.ndarray]
REPETITIONS = 4000


def lognormal(rng: np.random.Generator, shape: tuple[int, int, int]) -> np.ndarray:
    return rng.normal(0.0, 0.03, shape)


def heavy_tailed(rng: np.random.Generator, shape: tuple[int, int, int]) -> np.ndarray:
    return 0.02 * rng.standard_t(3, shape)


def outliers(rng: np.random.Generator, shape: tuple[int, int, int]) -> np.ndarray:
    return rng.normal(0.0, 0.02, shape) + math.log(0.7) * (rng.random(shape) < 0.05)


def block_drift(rng: np.random.Generator, shape: tuple[int, int, int]) -> np.ndarray:
    """A random walk of 1 % a launch; which of both comes first in a block is drawn."""
    repetitions, blocks, both = shape
    walk = rng.normal(0.0, 0.01, (repetitions, blocks * both)).cumsum(axis=1).reshape(shape)
    return rng.normal(0.0, 0.02, shape) + rng.permuted(walk, axis=2)


def covered(noise: Noise, pairs: int, level: float) -> tuple[int, int, int]:
    """How often the interval holds the true ratio, lies below it, lies above it."""
    rng = np.random.default_rng(pairs)
    launches = noise(rng, (REPETITIONS, pairs, 2))
    true = 1.07
    below = above = 0
    for row in launches[:, :, 1] - launches[:, :, 0] + math.log(true):
        interval = ratio_interval(row, level=level)
        below += interval.high < true
        above += interval.low > true
    return REPETITIONS - below - above, below, above


@pytest.mark.parametrize(
    "pairs", [6, *(pytest.param(pairs, marks=pytest.mark.long) for pairs in (4, 12, 20))]
)
@pytest.mark.parametrize("noise", [lognormal, heavy_tailed, outliers, block_drift])
def test_a_95_percent_interval_covers_the_truth(noise: Noise, pairs: int) -> None:
    """By what 4,000 repetitions allow to say (99.9 %): 93 % or more, of log-normal noise 97 at most."""
    inside, below, above = covered(noise, pairs, 0.025)
    assert binomial_upper_bound(inside, REPETITIONS, 0.999) > 0.94
    assert inside / REPETITIONS > 0.93
    if noise is lognormal:
        assert inside / REPETITIONS < 0.97
    # Neither side has more than its share of the misses: 2.5 % of 4,000, and five sigmas.
    assert max(below, above) < 150


def test_corrected_levels_are_kept_far_out_in_the_tail() -> None:
    """At the level of three finalists: 0.83 % a side, with trimming and without."""
    for pairs in (5, 12, 30):
        _, below, above = covered(lognormal, pairs, 0.025 / 3)
        assert binomial_lower_bound(below + above, 2 * REPETITIONS, 0.999) < 0.025 / 3 * 1.1


def test_a_ratio_above_1_is_better_for_either_goal() -> None:
    assert log_ratio(110.0, 100.0, Objective("x/s", Goal.MAXIMIZE)) == pytest.approx(math.log(1.1))
    assert log_ratio(110.0, 100.0, Objective("x/s", Goal.MINIMIZE)) == pytest.approx(-math.log(1.1))
    assert log_ratio(100.0, 110.0, Objective("x/s", Goal.MINIMIZE)) == pytest.approx(math.log(1.1))


@pytest.mark.parametrize("value", [0.0, -3.0, math.nan, math.inf])
def test_a_value_without_a_ratio_is_a_users_error_in_one_line(value: float) -> None:
    for pair in ((value, 1.0), (1.0, value)):
        with pytest.raises(ObjectiveError, match="need values above 0") as caught:
            log_ratio(*pair, Objective("x/s", Goal.MAXIMIZE))
        assert "\n" not in str(caught.value)
        assert isinstance(caught.value, UsageError)
        assert isinstance(caught.value, ValueError)


def test_values_that_are_not_all_above_0_are_compared_by_differences() -> None:
    values = [-2.0, 0.5, 0.0]
    launches = [Launch(BARE, "", Outcome.MEASURED, value, 0.0) for value in values]
    loss = compared(Objective("loss", Goal.MINIMIZE), launches)
    assert loss.step == 2.0
    assert [loss.value_at(loss.level(value) or 0.0) for value in values] == values
    logs = [log_ratio(-2.0 + one, -1.5 + one, loss) for one in (0.0, 0.1, -0.1, 0.3)]
    seen = ratio_interval(logs, step=loss.step)
    assert seen.in_values(seen.estimate) == pytest.approx(0.5)
    assert seen.inverse.in_values(seen.inverse.estimate) == pytest.approx(-0.5)
    # Of these, ratios are known.
    for positive in (launches[1:2], []):
        assert compared(Objective("loss", Goal.MINIMIZE), positive).step == 0.0
    assert compared(Objective("images/s", Goal.MAXIMIZE), launches).step == 0.0


def test_a_first_value_near_0_does_not_make_levels_infinite() -> None:
    launches = [Launch(BARE, "", Outcome.MEASURED, value, 0.0) for value in (1e-300, -1e300)]
    loss = compared(Objective("loss", Goal.MINIMIZE), launches)
    seen = ratio_interval([log_ratio(-1e300, 1e-300, loss)] * 4, step=loss.step)
    assert seen.in_values(seen.estimate) == pytest.approx(1e300)


def test_the_t_interval_is_the_textbook_one() -> None:
    """Of 1 to 5: mean 3, sd 1.5811, t of 4 degrees 2.7764, 95 % interval 1.0368 to 4.9632."""
    interval = ratio_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert math.log(interval.estimate) == pytest.approx(3.0)
    assert math.log(interval.low) == pytest.approx(1.0367568, abs=1e-6)
    assert math.log(interval.high) == pytest.approx(4.9632432, abs=1e-6)
    assert interval.error == pytest.approx(0.7071068, abs=1e-6)


def test_one_pair_says_what_it_saw_and_nothing_more() -> None:
    interval = ratio_interval([math.log(1.2)])
    assert interval.estimate == pytest.approx(1.2)
    assert (interval.low, interval.high) == (0.0, math.inf)
    assert interval.error == math.inf


def test_few_pairs_take_the_mean_and_many_leave_an_outlier_out() -> None:
    quiet = [0.05, 0.052, 0.048, 0.05, 0.051, 0.049, 0.05, 0.053, 0.047]
    interval = ratio_interval(quiet)
    assert interval.estimate == interval.mean
    with_outlier = ratio_interval([*quiet, -0.4])
    assert with_outlier.mean < math.exp(0.01)
    assert with_outlier.estimate == pytest.approx(math.exp(0.05), abs=1e-3)
    assert with_outlier.low > 1.0
    assert with_outlier.mean == pytest.approx(math.exp(0.005), abs=1e-3)


def test_the_trimmed_interval_is_tukeys_with_a_degree_less() -> None:
    """Of 1 to 10: mean of 2 to 9; spread of 2, 2, 3 ... 8, 9, 9; 6 degrees of freedom."""
    interval = ratio_interval([float(number) for number in range(1, 11)])
    held = [2.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 9.0]
    error = statistics.stdev(held) / (0.8 * math.sqrt(10))
    assert math.log(interval.estimate) == pytest.approx(5.5)
    assert interval.error == pytest.approx(error)
    assert math.log(interval.low) == pytest.approx(5.5 - 2.4469118511 * error)


def test_the_sign_flip_probability_counts_all_flips() -> None:
    values = [0.03, -0.01, 0.02, 0.04]
    flips = [
        sum(sign * abs(value) for sign, value in zip(signs, values, strict=True))
        for signs in itertools.product((1, -1), repeat=4)
    ]
    expected = sum(flip >= sum(values) - 1e-12 for flip in flips) / 16
    assert sign_flip_probability(values) == expected
    assert sign_flip_probability([]) == 1.0
    assert sign_flip_probability([0.1] * 10) == 1 / 1024


def test_the_sign_flip_probability_of_many_pairs_is_drawn_and_repeats() -> None:
    values = list(np.random.default_rng(3).normal(0.01, 0.05, 17))
    drawn = sign_flip_probability(values, seed=5)
    assert drawn == sign_flip_probability(values, seed=5)
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate((sums + value, sums - value))
    assert drawn == pytest.approx(float((sums >= sum(values) - 1e-12).mean()), abs=0.01)
    assert sign_flip_probability([0.1] * 40) == pytest.approx(1 / 65_537)


@given(
    st.lists(st.floats(-2.0, 2.0), min_size=1, max_size=14), st.sampled_from([0.1, 0.025, 0.002])
)
def test_exchanging_candidate_and_baseline_turns_the_interval_round(
    values: list[float], level: float
) -> None:
    one = ratio_interval(values, level=level)
    other = ratio_interval([-value for value in values], level=level)
    assert one.low <= one.estimate * (1 + 1e-9)
    assert one.estimate <= one.high * (1 + 1e-9)
    assert math.log(one.estimate) == pytest.approx(-math.log(other.estimate), abs=1e-9)
    if one.low > 0 and math.isfinite(other.high):
        assert math.log(one.low) == pytest.approx(-math.log(other.high), abs=1e-6)


@given(st.lists(st.floats(-1.0, 1.0), min_size=2, max_size=14), st.floats(-1.0, 1.0))
def test_the_interval_moves_with_the_effect(values: list[float], effect: float) -> None:
    one = ratio_interval(values)
    moved = ratio_interval([value + effect for value in values])
    assert math.log(moved.estimate) == pytest.approx(math.log(one.estimate) + effect, abs=1e-9)
    assert moved.error == pytest.approx(one.error, abs=1e-9)
