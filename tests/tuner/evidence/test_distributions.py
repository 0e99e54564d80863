# SPDX-License-Identifier: Apache-2.0
"""Distributions agree with published tables, with exact counts, and with scipy where it is there."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import math
from collections.abc import Callable

import pytest

from xtune.evidence.distributions import (
    binomial_at_least,
    binomial_lower_bound,
    binomial_upper_bound,
    incomplete_beta,
    normal_quantile,
    normal_tail,
    student_quantile,
    student_tail,
)

Needs = Callable[[object, str], None]

# Upper 2.5 % and 0.5 % points of Student's t (Fisher and Yates' table III, to ten digits).
STUDENT = [
    (1, 0.025, 12.7062047362),
    (2, 0.025, 4.3026527297),
    (3, 0.025, 3.1824463053),
    (5, 0.025, 2.5705818356),
    (10, 0.025, 2.2281388520),
    (30, 0.025, 2.0422724563),
    (120, 0.025, 1.9799304051),
    (1, 0.005, 63.6567411629),
    (4, 0.005, 4.6040948713),
    (20, 0.005, 2.8453397098),
]


@pytest.mark.parametrize(("degrees", "tail", "expected"), STUDENT)
def test_student_quantiles_agree_with_the_table(degrees: int, tail: float, expected: float) -> None:
    assert student_quantile(tail, degrees) == pytest.approx(expected, abs=1e-9)
    assert student_tail(expected, degrees) == pytest.approx(tail, rel=1e-9)
    assert student_quantile(1.0 - tail, degrees) == pytest.approx(-expected, rel=1e-9)


def test_student_with_one_degree_is_cauchy_far_out_in_the_tail() -> None:
    for t in (1.0, 30.0, 1e6):
        assert student_tail(t, 1) == pytest.approx(math.atan2(1.0, t) / math.pi, rel=1e-10)


def test_student_with_many_degrees_is_normal() -> None:
    """Fisher's expansion (1925): z + (z**3 + z) / (4 n), and next to nothing more."""
    z = 1.9599639845400545
    assert student_quantile(0.025, 1e5) == pytest.approx(z + (z**3 + z) / 4e5, abs=1e-8)


def test_normal_tail_keeps_its_digits() -> None:
    assert normal_quantile(0.975) == pytest.approx(1.9599639845400545, abs=1e-12)
    assert normal_tail(6.0) == pytest.approx(9.865876450377018e-10, rel=1e-12)
    assert normal_tail(-6.0) == pytest.approx(1.0 - 9.865876450377018e-10, rel=1e-12)


def test_incomplete_beta_of_whole_numbers_is_a_binomial_sum() -> None:
    for a, b, x in ((1, 1, 0.3), (2, 5, 0.1), (7, 3, 0.9), (40, 60, 0.41)):
        trials = a + b - 1
        direct = math.fsum(
            math.comb(trials, hits) * x**hits * (1 - x) ** (trials - hits)
            for hits in range(a, trials + 1)
        )
        assert incomplete_beta(a, b, x) == pytest.approx(direct, rel=1e-11)


def test_incomplete_beta_has_its_ends() -> None:
    assert incomplete_beta(2.0, 3.0, 0.0) == 0.0
    assert incomplete_beta(2.0, 3.0, 1.0) == 1.0


def test_binomial_bounds_agree_with_the_published_ones() -> None:
    """Clopper and Pearson's 95 % limits of 0 of 10 and 5 of 10; the rule of three."""
    assert binomial_upper_bound(0, 10, 0.975) == pytest.approx(0.3084971078, abs=1e-9)
    assert binomial_upper_bound(5, 10, 0.975) == pytest.approx(0.8129138, abs=1e-6)
    assert binomial_lower_bound(5, 10, 0.975) == pytest.approx(0.1870862, abs=1e-6)
    assert binomial_upper_bound(0, 1000) == pytest.approx(1.0 - 0.05 ** (1 / 1000), rel=1e-9)
    assert binomial_upper_bound(10, 10) == 1.0
    assert binomial_lower_bound(0, 10) == 0.0


def test_binomial_tail_has_its_ends() -> None:
    assert binomial_at_least(0, 5, 0.5) == 1.0
    assert binomial_at_least(6, 5, 0.5) == 0.0
    assert binomial_at_least(5, 5, 0.5) == pytest.approx(1 / 32, rel=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: student_quantile(0.0, 3), "the tail is 0.0"),
        (lambda: student_tail(1.0, 0), "0 degrees of freedom"),
        (lambda: incomplete_beta(1.0, 1.0, 1.5), "x is 1.5"),
    ],
)
def test_what_has_no_answer_is_refused(call: Callable[[], float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_everything_agrees_with_scipy(needs: Needs) -> None:
    needs(importlib.util.find_spec("scipy"), "scipy")
    stats = importlib.import_module("scipy.stats")
    special = importlib.import_module("scipy.special")
    for degrees, tail in itertools.product((1, 2, 3.5, 9, 200), (0.4, 0.025, 1e-3, 1e-8)):
        expected = stats.t.isf(tail, degrees)
        assert student_quantile(tail, degrees) == pytest.approx(expected, rel=1e-10)
    for a, b, x in itertools.product((0.5, 2, 50, 500), (0.5, 3, 80), (1e-8, 0.3, 0.9, 0.999)):
        expected = special.betainc(a, b, x)
        assert incomplete_beta(a, b, x) == pytest.approx(expected, rel=1e-9, abs=1e-300)
    for hits, trials in ((3, 40), (41, 1000), (999, 1000)):
        expected = stats.beta.ppf(0.95, hits + 1, trials - hits)
        assert binomial_upper_bound(hits, trials) == pytest.approx(expected, rel=1e-9)
