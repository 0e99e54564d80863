# SPDX-License-Identifier: Apache-2.0
"""A verdict claims what was shown, no more, and says what would show the rest."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.tuner.evidence.contenders import ONE, THREE, TWO, around, contender

from xtune.evidence.ratios import ratio_interval
from xtune.evidence.verdicts import (
    Contender,
    Kind,
    Rule,
    Verdict,
    blocks_for,
    is_tie,
    judge,
    undecided,
)
from xtune.space.parameters import BARE

RULE = Rule()


def judged(*contenders: Contender, rule: Rule = RULE, **more: object) -> Verdict:
    return judge(BARE, contenders, rule=rule, level=rule.error, **more)  # type: ignore[arg-type]


def test_a_clear_gain_is_claimed_with_its_interval() -> None:
    verdict = judged(contender(ONE, around(1.10, 0.03, 9)))
    assert verdict.kind is Kind.GAIN
    assert verdict.best == verdict.leader == ONE
    assert verdict.gain == pytest.approx(1.10)
    assert verdict.interval is not None
    # t of 8 degrees at 2.5 % is 2.306; 2.306 * 0.03 / 3.
    assert verdict.interval.low == pytest.approx(1.10 * math.exp(-0.02306), rel=1e-4)
    assert verdict.interval.high == pytest.approx(1.10 * math.exp(0.02306), rel=1e-4)
    assert verdict.more is None
    assert verdict.standings[0].chance == 1 / 512
    assert verdict.standings[0].probability_best > 0.99
    assert "1.100 times the default" in verdict.reason


def test_a_gain_below_the_minimal_effect_is_none() -> None:
    """0.5 % faster for sure: real, and not worth a change."""
    verdict = judged(contender(ONE, around(1.005, 0.002, 12)))
    assert verdict.kind is Kind.NO_GAIN
    assert verdict.best == BARE
    assert verdict.leader == ONE
    assert verdict.gain is None
    assert "gains below 1 % were said not to matter" in verdict.reason
    small = Rule(min_effect=0.001)
    assert judged(contender(ONE, around(1.005, 0.002, 12)), rule=small).kind is Kind.GAIN


def test_a_loss_is_no_gain() -> None:
    assert judged(contender(ONE, around(0.9, 0.02, 8))).kind is Kind.NO_GAIN


def test_what_is_neither_says_what_would_settle_it() -> None:
    verdict = judged(
        contender(ONE, around(1.03, 0.05, 8), wall_s=20.0),
        contender(TWO, around(1.00, 0.05, 8, seed=1), wall_s=10.0),
        baseline_wall_s=30.0,
    )
    assert verdict.kind is Kind.INCONCLUSIVE
    assert verdict.best == BARE
    assert verdict.leader == ONE
    more = verdict.more
    assert more is not None
    # ((z(0.0125) + z(0.2)) * 0.05 / log(1.03))**2 is 27.2, plus 2.5 for the spread, minus 8.
    assert more.blocks == 22
    assert more.launches == 66
    assert more.seconds == pytest.approx(22 * 60.0)


def test_a_dropped_finalist_takes_no_more_launches() -> None:
    open_one = contender(ONE, around(1.03, 0.05, 8), wall_s=20.0)
    behind = contender(TWO, around(0.80, 0.05, 8, seed=1), wall_s=10.0)._replace(
        dropped="surely no gain", frozen=ratio_interval([math.log(0.8)] * 4)
    )
    more = judged(open_one, behind, baseline_wall_s=30.0).more
    assert more is not None
    assert more.launches == 2 * more.blocks
    assert more.seconds == pytest.approx(more.blocks * 50.0)


def test_so_many_blocks_do_settle_it_with_the_power_promised() -> None:
    """A gain of 5 % among launches with 3 % noise, one finalist: found in 80 of 100 finals."""
    spread = 0.03 * math.sqrt(2.0)
    blocks = blocks_for(spread, 0.05, finalists=1)
    assert blocks == 8
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(1000):
        drawn = 1.05 * math.e ** (spread * rng.standard_normal(blocks))
        found += judged(contender(ONE, list(drawn)), with_chances=False).kind is Kind.GAIN
    assert 0.76 < found / 1000 < 0.88


def test_blocks_for_grows_with_noise_and_shrinks_with_the_gain() -> None:
    few, more, most = blocks_for(0.02, 0.10), blocks_for(0.04, 0.10), blocks_for(0.04, 0.05)
    assert few is not None
    assert more is not None
    assert most is not None
    assert few < more < most
    assert blocks_for(0.5, 0.001) is None


def test_a_difference_at_the_minimal_effect_is_not_worth_settling() -> None:
    verdict = judged(contender(ONE, around(1.0100001, 0.08, 8)), rule=Rule(min_effect=0.01))
    assert verdict.kind is Kind.INCONCLUSIVE
    assert verdict.more is not None
    below = judged(contender(ONE, around(1.0099, 0.08, 8)))
    assert below.kind is Kind.INCONCLUSIVE
    assert below.more is None


def test_more_finalists_widen_the_interval() -> None:
    one = judged(contender(ONE, around(1.10, 0.03, 9)))
    three = judged(
        contender(ONE, around(1.10, 0.03, 9)),
        contender(TWO, around(1.0, 0.03, 9, seed=1)),
        contender(THREE, around(1.0, 0.03, 9, seed=2)),
    )
    assert one.interval is not None
    assert three.interval is not None
    assert three.interval.level == pytest.approx(0.025 / 3)
    assert three.interval.low < one.interval.low < one.interval.high < three.interval.high


def test_nothing_is_claimed_of_three_pairs() -> None:
    verdict = judged(contender(ONE, [2.0, 2.0, 2.0]))
    assert verdict.kind is Kind.INCONCLUSIVE
    assert verdict.reason == "too few pairs to tell: 3, and 4 are the least"
    assert judged(contender(ONE, [2.0, 2.0, 2.0, 2.0])).kind is Kind.GAIN
    assert judged(contender(ONE, [0.5, 0.5, 0.5])).kind is Kind.INCONCLUSIVE


def test_outliers_may_not_take_a_gain_back() -> None:
    """5 % faster in ten blocks, half as fast in two: the typical launch gains, the mean loses."""
    ratios = [*around(1.05, 0.004, 18), 0.5, 0.5]
    verdict = judged(contender(ONE, ratios))
    assert verdict.interval is not None
    assert verdict.interval.low > 1.0
    assert verdict.interval.plain < 1.0
    assert verdict.kind is Kind.INCONCLUSIVE
    assert "outliers take it back" in verdict.reason
    assert verdict.standings[0].outlying == (18, 19)


def test_ties_go_to_fewer_changes_then_to_less_memory() -> None:
    best = contender(TWO, around(1.205, 0.005, 12), changes=2, memory_bytes=1e9)
    simple = contender(ONE, around(1.200, 0.005, 12, seed=1), changes=1, memory_bytes=3e9)
    verdict = judged(best, simple)
    assert verdict.best == ONE
    assert "changes more or takes more memory" in verdict.reason
    small = contender(THREE, around(1.199, 0.005, 12, seed=2), changes=1, memory_bytes=2e9)
    assert judged(best, simple, small).best == THREE
    unknown = contender(THREE, around(1.199, 0.005, 12, seed=2), changes=1)
    assert judged(best, simple, unknown).best == ONE


def test_what_is_clearly_behind_is_no_tie() -> None:
    best = contender(TWO, around(1.30, 0.02, 12), changes=5)
    behind = contender(ONE, around(1.20, 0.02, 12, seed=1), changes=1)
    assert judged(best, behind).best == TWO
    assert not is_tie(behind, best, RULE)
    assert is_tie(best, best, RULE)


def test_a_tie_that_is_no_gain_itself_does_not_win() -> None:
    best = contender(TWO, around(1.06, 0.03, 12), changes=5)
    weak = contender(ONE, around(1.05, 0.20, 12, seed=1), changes=1)
    assert is_tie(weak, best, RULE)
    assert judged(best, weak).best == TWO


def test_a_finalist_that_is_out_claims_nothing() -> None:
    failed = contender(ONE, around(1.5, 0.02, 9), out="2 of 9 launches failed (crashed)")
    other = contender(TWO, around(1.1, 0.02, 9))
    verdict = judged(failed, other)
    assert verdict.best == TWO
    assert verdict.standings[-1].contender is failed
    assert verdict.standings[-1].probability_best == 0.0
    alone = judged(failed)
    assert alone.kind is Kind.INCONCLUSIVE
    assert alone.reason == "no finalist is left: 2 of 9 launches failed (crashed)"
    assert alone.best == BARE


def test_keeping_what_the_default_breaks_is_a_gain() -> None:
    """10 % slower, but within the 20 ms that the default misses in each block."""
    kept = [True] * 8
    row = contender(ONE, around(0.9, 0.02, 8), kept=kept)
    verdict = judged(row, baseline_kept=[False] * 8)
    assert verdict.kind is Kind.GAIN
    assert verdict.best == ONE
    assert verdict.gain == pytest.approx(0.9)
    assert "keeps what was required and the default does not" in verdict.reason


def test_keeping_it_by_chance_is_none() -> None:
    """4 blocks of 8 where only the default broke it: 1 in 16, by chance."""
    broken = [False] * 4 + [True] * 4
    row = contender(ONE, around(0.9, 0.02, 8), kept=[True] * 8)
    verdict = judged(row, baseline_kept=broken)
    assert verdict.kind is Kind.INCONCLUSIVE
    assert "the default broke what was required in 4 of 8 launches" in verdict.reason
    mostly = contender(ONE, around(0.9, 0.02, 8), kept=[True] * 6 + [False] * 2)
    assert judged(mostly, baseline_kept=[False] * 6 + [True] * 2).kind is Kind.INCONCLUSIVE


def test_blocks_without_a_pair_are_left_out() -> None:
    ratios: list[float | None] = [*around(1.1, 0.02, 8)]
    verdict = judged(contender(ONE, [None, *ratios[:4], None, *ratios[4:]]))
    assert verdict.interval is not None
    assert verdict.interval.pairs == 8
    assert verdict.gain == pytest.approx(1.1)


def test_the_same_contenders_get_the_same_verdict() -> None:
    rows = [
        contender(ONE, around(1.02, 0.03, 12)),
        contender(TWO, around(1.01, 0.03, 12, seed=1)),
    ]
    assert judged(*rows, seed=4) == judged(*rows, seed=4)


def test_without_a_final_the_default_stays() -> None:
    verdict = undecided(BARE, "stopped before the final")
    assert (verdict.kind, verdict.best, verdict.gain) == (Kind.INCONCLUSIVE, BARE, None)
    assert judged().reason == "there was nothing to compare the default with"
