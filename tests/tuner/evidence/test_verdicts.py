# SPDX-License-Identifier: Apache-2.0
"""A verdict claims what was shown, and no more."""

from __future__ import annotations

import math

import pytest
from tests.golden import Golden
from tests.tuner.evidence.scripted_finals import ONE, THREE, TWO, around, finalist

from xtune.evidence.verdicts import (
    ClaimRule,
    FinalistResults,
    Verdict,
    VerdictKind,
    is_tie,
    judge,
    undecided,
)
from xtune.space.parameters import BARE

RULE = ClaimRule()


def judged(*finalists: FinalistResults, rule: ClaimRule = RULE, **more: object) -> Verdict:
    return judge(BARE, finalists, rule=rule, level=rule.error, **more)  # type: ignore[arg-type]


def test_a_clear_gain_is_claimed_with_its_interval(golden: Golden) -> None:
    verdict = judged(finalist(ONE, around(1.10, 0.03, 9)))
    assert verdict.kind is VerdictKind.GAIN
    assert verdict.best == verdict.leader == ONE
    assert verdict.gain == pytest.approx(1.10)
    # t of 8 degrees at 2.5 % is 2.306; 2.306 * 0.03 / 3.
    assert verdict.interval.low == pytest.approx(1.10 * math.exp(-0.02306), rel=1e-4)
    assert verdict.interval.high == pytest.approx(1.10 * math.exp(0.02306), rel=1e-4)
    assert verdict.more is None
    assert verdict.finalists[0].chance == 1 / 512
    golden(verdict.reason)


def test_a_gain_below_the_minimal_effect_is_none(golden: Golden) -> None:
    """0.5 % faster for sure: real, and not worth a change."""
    verdict = judged(finalist(ONE, around(1.005, 0.002, 12)))
    assert verdict.kind is VerdictKind.NO_GAIN
    assert verdict.best == BARE
    assert verdict.leader == ONE
    assert verdict.gain is None
    golden(verdict.reason)
    small = ClaimRule(min_effect=0.001)
    assert judged(finalist(ONE, around(1.005, 0.002, 12)), rule=small).kind is VerdictKind.GAIN


def test_without_a_gain_the_reason_says_where_the_best_is(golden: Golden) -> None:
    reasons = []
    for ratio, spread, kind in (
        (1.03, 0.05, VerdictKind.INCONCLUSIVE),
        (0.99, 0.05, VerdictKind.INCONCLUSIVE),
        (0.9, 0.02, VerdictKind.NO_GAIN),
    ):
        verdict = judged(finalist(ONE, around(ratio, spread, 8)))
        assert (verdict.kind, verdict.best, verdict.leader) == (kind, BARE, ONE)
        reasons.append(verdict.reason)
    golden(reasons)


def test_more_finalists_widen_the_interval() -> None:
    one = judged(finalist(ONE, around(1.10, 0.03, 9)))
    three = judged(
        finalist(ONE, around(1.10, 0.03, 9)),
        finalist(TWO, around(1.0, 0.03, 9, seed=1)),
        finalist(THREE, around(1.0, 0.03, 9, seed=2)),
    )
    assert three.interval.level == pytest.approx(0.025 / 3)
    assert three.interval.low < one.interval.low < one.interval.high < three.interval.high


def test_nothing_is_claimed_of_three_pairs(golden: Golden) -> None:
    verdict = judged(finalist(ONE, [2.0, 2.0, 2.0]))
    assert verdict.kind is VerdictKind.INCONCLUSIVE
    golden(verdict.reason)
    assert judged(finalist(ONE, [2.0, 2.0, 2.0, 2.0])).kind is VerdictKind.GAIN
    assert judged(finalist(ONE, [0.5, 0.5, 0.5])).kind is VerdictKind.INCONCLUSIVE


def test_outliers_may_not_take_a_gain_back(golden: Golden) -> None:
    """5 % faster in ten blocks, half as fast in two: the typical launch gains, the mean loses."""
    ratios = [*around(1.05, 0.004, 18), 0.5, 0.5]
    verdict = judged(finalist(ONE, ratios))
    assert verdict.interval.low > 1.0
    assert verdict.interval.mean < 1.0
    assert verdict.kind is VerdictKind.INCONCLUSIVE
    golden(verdict.reason)
    assert verdict.finalists[0].outlying == (18, 19)


def test_ties_go_to_fewer_changes_then_to_less_memory(golden: Golden) -> None:
    best = finalist(TWO, around(1.205, 0.005, 12), changes=2, memory_bytes=1e9)
    simple = finalist(ONE, around(1.200, 0.005, 12, seed=1), changes=1, memory_bytes=3e9)
    verdict = judged(best, simple)
    assert verdict.best == ONE
    golden(verdict.reason)
    small = finalist(THREE, around(1.199, 0.005, 12, seed=2), changes=1, memory_bytes=2e9)
    assert judged(best, simple, small).best == THREE
    unknown = finalist(THREE, around(1.199, 0.005, 12, seed=2), changes=1)
    assert judged(best, simple, unknown).best == ONE


def test_what_is_clearly_behind_is_no_tie() -> None:
    best = finalist(TWO, around(1.30, 0.02, 12), changes=5)
    behind = finalist(ONE, around(1.20, 0.02, 12, seed=1), changes=1)
    assert judged(best, behind).best == TWO
    assert not is_tie(behind, best, RULE)
    assert is_tie(best, best, RULE)


def test_a_tie_that_is_no_gain_itself_does_not_win() -> None:
    best = finalist(TWO, around(1.06, 0.03, 12), changes=5)
    weak = finalist(ONE, around(1.05, 0.20, 12, seed=1), changes=1)
    assert is_tie(weak, best, RULE)
    assert judged(best, weak).best == TWO


def test_a_finalist_that_is_out_claims_nothing(golden: Golden) -> None:
    failed = finalist(ONE, around(1.5, 0.02, 9), out="2 of 9 launches failed (crashed)")
    other = finalist(TWO, around(1.1, 0.02, 9))
    verdict = judged(failed, other)
    assert verdict.best == TWO
    assert verdict.finalists[-1].configuration == failed.configuration
    alone = judged(failed)
    assert alone.kind is VerdictKind.INCONCLUSIVE
    golden(alone.reason)
    assert alone.best == BARE


@pytest.mark.parametrize("both_keep", [0, 4])
def test_keeping_what_the_default_breaks_is_a_gain(golden: Golden, both_keep: int) -> None:
    """10 % slower, but within the 20 ms that the bare command misses in eight blocks.

    Blocks in which both keep it tell nothing.
    """
    blocks = 8 + both_keep
    row = finalist(ONE, around(0.9, 0.02, blocks), kept=[True] * blocks)
    verdict = judged(row, baseline_kept=[False] * 8 + [True] * both_keep)
    assert verdict.kind is VerdictKind.GAIN
    assert verdict.best == ONE
    assert verdict.gain == pytest.approx(0.9, rel=1e-4)
    golden(verdict.reason)


def test_keeping_it_by_chance_is_none(golden: Golden) -> None:
    """4 blocks of 8 where only the bare command broke it: 1 in 16, by chance."""
    broken = [False] * 4 + [True] * 4
    row = finalist(ONE, around(0.9, 0.02, 8), kept=[True] * 8)
    verdict = judged(row, baseline_kept=broken)
    assert verdict.kind is VerdictKind.INCONCLUSIVE
    golden(verdict.reason)
    mostly = finalist(ONE, around(0.9, 0.02, 8), kept=[True] * 6 + [False] * 2)
    assert judged(mostly, baseline_kept=[False] * 6 + [True] * 2).kind is VerdictKind.INCONCLUSIVE


def test_blocks_without_a_pair_are_left_out() -> None:
    ratios: list[float | None] = [*around(1.1, 0.02, 8)]
    verdict = judged(finalist(ONE, [None, *ratios[:4], None, *ratios[4:]]))
    assert verdict.interval.pairs == 8
    assert verdict.gain == pytest.approx(1.1)


def test_without_a_final_the_default_stays(golden: Golden) -> None:
    verdict = undecided(BARE, "stopped before the final")
    assert (verdict.kind, verdict.best, verdict.gain) == (VerdictKind.INCONCLUSIVE, BARE, None)
    golden(judged().reason)
