# SPDX-License-Identifier: Apache-2.0
"""Steadiness on made-up series of each kind, and how seldom noise alone is taken for a change."""

from __future__ import annotations

import statistics
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.binomial import binomial_upper_bound
from tests.golden import Golden
from tests.tiers import quick_first
from tests.tuner.launches.noise import LEVEL, NOISES, made_series

from xtune.launches.launch import Steadiness
from xtune.launches.steadiness import MIN_VALUES, Judgement, judge

FLAT, WARM_UP, SLOW_DOWN, NOT_STEADY, TOO_FEW = Steadiness

SEEDS = range(25)


def judged(
    shape: str, count: int = 200, *, noise: str = "gaussian", share: float = 0.02, seed: int = 0
) -> Judgement:
    values = made_series(shape, noise, count, share=share, seed=seed)
    return judge(values, larger_is_better=True)


def judge_all(shape: str, count: int = 200, *, share: float = 0.02) -> list[Judgement]:
    return [judged(shape, count, share=share, seed=seed) for seed in SEEDS]


# By kind


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("flat", FLAT),
        ("slow start", WARM_UP),
        ("two speeds", WARM_UP),
        ("heats up", SLOW_DOWN),
        ("cools off", SLOW_DOWN),
        ("late change", NOT_STEADY),
        ("throttles in turns", NOT_STEADY),
        ("drifts", NOT_STEADY),
        ("dip", FLAT),
    ],
)
@pytest.mark.parametrize("count", [200, 2000])
def test_shape_is_named_in_nearly_all_noise(shape: str, expected: Steadiness, count: int):
    found = [judgement.steadiness for judgement in judge_all(shape, count, share=0.01)]
    assert found.count(expected) >= 0.95 * len(SEEDS)


def test_what_is_better_decides_between_warm_up_and_slow_down():
    values = made_series("two speeds", "gaussian", 200, share=0.02, seed=1)
    names = [judge(values, larger_is_better=better).steadiness for better in (True, False, None)]
    assert names == [WARM_UP, SLOW_DOWN, WARM_UP]


def test_a_change_is_found_where_it_is():
    starts = [judgement.start for judgement in judge_all("two speeds", 200)]
    assert statistics.median(starts) == 60
    assert all(58 <= start <= 62 for start in starts)


@pytest.mark.parametrize("count", [12, 30, 200, 5000])
def test_a_single_slow_first_value_is_dropped(count: int):
    for seed in SEEDS:
        values = made_series("flat", "gaussian", count, share=0.02, seed=seed)
        values[0] = 0.2 * LEVEL
        judgement = judge(values, larger_is_better=True)
        assert judgement.steadiness is WARM_UP
        assert 1 <= judgement.start <= 3


@pytest.mark.parametrize("share", [0.01, 0.05])
def test_what_is_kept_of_a_warm_up_is_the_level_it_ends_on(share: float):
    for seed in SEEDS:
        values = made_series("slow start", "gaussian", 300, share=share, seed=seed)
        judgement = judge(values, larger_is_better=True)
        kept = statistics.fmean(values[judgement.start :])
        error = share * LEVEL / (300 - judgement.start) ** 0.5
        assert abs(kept - LEVEL) < 0.015 * LEVEL + 4 * error
        assert statistics.fmean(values) < LEVEL * 0.99  # what averaging through it would say


def test_single_odd_values_stay_and_count():
    values = made_series("flat", "gaussian", 200, share=0.01, seed=3)
    for at in (40, 90, 91, 150):
        values[at] = 0.3 * LEVEL
    assert judge(values, larger_is_better=True)[:2] == (FLAT, 0)


def test_notes_say_what_was_dropped_or_is_wrong(golden: Golden):
    values = [50.0] * 20 + [100.0] * 60
    golden(
        judge(values, larger_is_better=True).note,
        judge(values, larger_is_better=False).note,
        judge(values[::-1][:70], larger_is_better=True).note,
    )


@pytest.mark.parametrize("count", [0, 1, 2, MIN_VALUES - 1])
def test_too_few_values_are_said_to_be_so(count: int):
    judgement = judge([1.0] * count, larger_is_better=True)
    assert (judgement.steadiness, judgement.start, judgement.levels) == (TOO_FEW, 0, ())
    assert judgement.note == (f"{count} values: too few to see a warm-up" if count > 1 else "")


# Without noise, and at the edges


def test_constant_values_are_flat():
    for value in (0.0, 1.0, -3.5, 1e-300, 1e300):
        assert judge([value] * 50, larger_is_better=True).steadiness is FLAT


def test_steps_without_noise_are_cut_exactly():
    judgement = judge([1.0] * 30 + [2.0] * 10 + [3.0] * 60, larger_is_better=True)
    assert (judgement.steadiness, judgement.start) == (WARM_UP, 40)
    levels = [(level.start, level.stop, round(level.mean, 9)) for level in judgement.levels]
    assert levels == [(0, 30, 1), (30, 40, 2), (40, 100, 3)]


def test_levels_within_one_per_cent_are_one():
    values = made_series("flat", "gaussian", 400, share=0.002, seed=1)
    values[:100] = [value * 0.993 for value in values[:100]]
    judgement = judge(values, larger_is_better=True)
    assert len(judgement.levels) == 2
    assert (judgement.steadiness, judgement.start) == (FLAT, 0)


def test_very_many_values_are_judged_by_blocks():
    values = made_series("two speeds", "gaussian", 120_000, share=0.1, seed=1)
    judgement = judge(values, larger_is_better=True)
    assert judgement.steadiness is WARM_UP
    assert 36_000 <= judgement.start <= 36_600


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=60),
    st.sampled_from([True, False, None]),
)
def test_any_series_is_judged(values: list[float], better: bool | None):
    judgement = judge(values, larger_is_better=better)
    assert 0 <= judgement.start < max(1, len(values))
    if judgement.levels:
        assert judgement.levels[0].start == 0
        assert judgement.levels[-1].stop == len(values)
        for before, after in zip(judgement.levels, judgement.levels[1:], strict=False):
            assert before.stop == after.start
    if judgement.steadiness in (FLAT, NOT_STEADY, TOO_FEW):
        assert judgement.start == 0
    else:
        assert judgement.start > 0


@given(st.integers(0, 1000), st.integers(-60, 60))
def test_scale_does_not_matter(seed: int, power: int):
    values = made_series("slow start", "heavy tails", 100, share=0.05, seed=seed)
    before = judge(values, larger_is_better=True)
    after = judge([value * 2.0**power for value in values], larger_is_better=True)
    assert (before.steadiness, before.start) == (after.steadiness, after.start)


# False alarms


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(
    ("count", "share"),
    quick_first(pytest.param(*case) for case in [(12, 0.03), (40, 0.03), (150, 0.1), (250, 0.05)]),
)
def test_noise_alone_is_seldom_called_unsteady(noise: str, count: int, share: float):
    trials = 150
    first = zlib.crc32(f"{noise}{count}".encode())
    found = [
        judged("flat", count, noise=noise, share=share, seed=first + trial).steadiness
        for trial in range(trials)
    ]
    unsteady = found.count(NOT_STEADY)
    # Exact (Clopper and Pearson 1934): with 95 % confidence the true rate is below this.
    assert binomial_upper_bound(unsteady, trials) <= 0.06
    assert found.count(FLAT) >= 0.85 * trials


@pytest.mark.full
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("count", [10, 12, 20, 50, 100, 400, 1000])
def test_noise_alone_is_seldom_called_unsteady_over_many_seeds(noise: str, count: int):
    trials = 2000
    found = [
        judged("flat", count, noise=noise, share=0.03, seed=seed).steadiness
        for seed in range(10_000, 10_000 + trials)
    ]
    assert binomial_upper_bound(found.count(NOT_STEADY), trials, 0.99) <= 0.03
