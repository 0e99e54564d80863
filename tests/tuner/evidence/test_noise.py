# SPDX-License-Identifier: Apache-2.0
"""Noise is measured over launches, and a caution says what it means."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest

from xtune.evidence.noise import (
    disturbance_of,
    noise_cautions,
    outliers,
    pooled_spread,
)
from xtune.launches.launch import Launch, Outcome, Secondary
from xtune.space.parameters import BARE


def cautions(values: Sequence[float]) -> list[str]:
    return list(noise_cautions(values, [math.log(value) for value in values]))


def test_the_spread_is_that_of_all_repeated_launches() -> None:
    rng = np.random.default_rng(0)
    groups = [list(rng.normal(level, 0.04, 3)) for level in rng.normal(0.0, 1.0, 200)]
    pooled = pooled_spread([*groups, [5.0]])
    assert pooled.spread == pytest.approx(0.04, rel=0.07)
    assert pooled.degrees == 400
    assert pooled_spread([[1.0], [2.0]]) == (0.0, 0)


def test_outliers_are_named_and_nothing_is_changed() -> None:
    values = [100.0, 101.0, 99.0, 100.5, 70.0, 99.5, 100.2]
    before = list(values)
    assert outliers([math.log(value) for value in values]) == (4,)
    assert values == before
    assert outliers([0.0, 0.0, 0.0, 0.0, 0.0005]) == ()
    assert outliers([0.0, 0.0, 0.0, 0.0, 0.2]) == (4,)
    assert outliers([0.0, 0.0, 9.0]) == ()


def test_quiet_launches_earn_no_caution() -> None:
    assert cautions([100.0, 100.4, 99.7, 100.1, 99.9]) == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([100.0, 130.0, 80.0, 95.0], ["launches differ by 21%"]),
        (
            [100.0, 101.0, 99.0, 100.0, 20.0],
            [
                "launches differ by 43%",
                "the lowest launch is 76% away",
                "launch 5 of 5 is an outlier",
            ],
        ),
        ([85.0, 100.0, 100.3, 99.8, 100.1, 99.9, 100.0], ["the first launch is an outlier"]),
    ],
)
def test_a_caution_states_the_fact_and_the_remedy_in_a_line(
    values: list[float], expected: list[str]
) -> None:
    found = cautions(values)
    assert len(found) == len(expected)
    for caution, beginning in zip(found, expected, strict=True):
        assert caution.startswith(beginning)
        assert ";" in caution
        assert "\n" not in caution


def waiting(*shares: float | None) -> list[Launch]:
    return [
        Launch(BARE, "", Outcome.MEASURED, 1.0, 0.0, secondary=Secondary(1.0, waited=share))
        for share in shares
    ]


def test_pairs_in_which_one_waited_longer_are_disturbed() -> None:
    found = disturbance_of(itertools.pairwise(waiting(0.0, 0.3, 0.05, 0.06, None, 0.9)))
    assert found.startswith("not known: in 2 of 3 pairs of launches one waited much longer")


@pytest.mark.parametrize("shares", [(), (0.5,), (0.5, 0.5, 0.55), (0.0, 0.9, 0.9), (None, None)])
def test_where_most_pairs_waited_alike_nothing_is_said(shares: tuple[float | None, ...]) -> None:
    assert disturbance_of(itertools.pairwise(waiting(*shares))) == ""
