# SPDX-License-Identifier: Apache-2.0
"""Comparisons of two commands whose truth is known."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from xtune.evidence.comparisons import Comparison, Result
from xtune.evidence.verdicts import ClaimRule
from xtune.launches.launch import WALL, Goal, Launch, Objective, Outcome
from xtune.space.parameters import BARE

SIMULATED = 200


def launch(value: float) -> Launch:
    return Launch(BARE, "", Outcome.MEASURED, value, 0.0)


def results(ratio: float, *, spread: float, planned: int = 12) -> Counter[Result]:
    """Those of commands of which the second takes `ratio` times the time of the first."""
    found: Counter[Result] = Counter()
    for seed in range(SIMULATED):
        chance = np.random.default_rng(seed)
        comparison = Comparison(Objective(WALL, Goal.MINIMIZE), planned=planned, rule=ClaimRule())
        while not comparison.is_over:
            first, second = np.exp(spread * chance.standard_normal(2)).tolist()
            comparison.record((launch(first), launch(ratio * second)))
        found[comparison.finding(in_full=False).result] += 1
    return found


@pytest.mark.parametrize("spread", [0.002, 0.03])
def test_two_equal_commands_differ_in_at_most_5_of_100_comparisons(spread: float) -> None:
    found = results(1.0, spread=spread)
    assert found[Result.FIRST] + found[Result.SECOND] <= 0.05 * SIMULATED


def test_little_noise_shows_that_there_is_no_difference() -> None:
    assert results(1.0, spread=0.002)[Result.NO_DIFFERENCE] >= 0.9 * SIMULATED


@pytest.mark.parametrize(("ratio", "better"), [(1.1, Result.FIRST), (1 / 1.1, Result.SECOND)])
def test_a_difference_of_10_percent_is_found_whichever_is_better(
    ratio: float, better: Result
) -> None:
    found = results(ratio, spread=0.03)
    assert found[better] >= 0.9 * SIMULATED
    assert found[better] + found[Result.INCONCLUSIVE] == SIMULATED


def test_the_interval_is_that_of_the_second_command_whichever_is_better() -> None:
    comparison = Comparison(Objective(WALL, Goal.MINIMIZE), planned=12, rule=ClaimRule())
    while not comparison.is_over:
        wobble = 1.0 + 0.001 * (len(comparison.pairs) % 2)
        comparison.record((launch(1.0), launch(2.0 * wobble)))
    finding = comparison.finding()
    assert finding.result is Result.FIRST
    assert finding.interval is not None
    assert finding.interval.low < finding.interval.estimate < finding.interval.high
    assert finding.interval.estimate == pytest.approx(0.5, rel=0.01)


def test_an_open_comparison_advises_more_pairs() -> None:
    comparison = Comparison(Objective("x/s", Goal.MAXIMIZE), planned=6, rule=ClaimRule())
    for second in (1.06, 1.0, 1.08, 1.01, 1.09, 0.99):
        comparison.record((launch(1.0), launch(second)))
    assert comparison.is_over
    finding = comparison.finding()
    assert finding.result is Result.INCONCLUSIVE
    assert finding.more is not None
