# SPDX-License-Identifier: Apache-2.0
"""A final orders its launches fairly, survives what launches do, and stops when it may."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.golden import Golden
from tests.tuner.evidence.scripted_finals import (
    ONE,
    RATE,
    RATE_UNDER_P99,
    THREE,
    TWO,
    go_on,
    launch,
    play,
    scripted,
)

from xtune.evidence.finals import Final, Finalist, FinalLaunch, FinalPlan
from xtune.evidence.verdicts import ClaimRule, Verdict, VerdictKind
from xtune.launches.launch import Goal, Launch, Objective, Outcome
from xtune.space.parameters import BARE, Configuration

EQUAL = {BARE: 100.0, ONE: 100.0, TWO: 100.0, THREE: 100.0}


def plan(*configurations: Configuration, blocks: int = 12, **more: object) -> FinalPlan:
    chosen = [Finalist(row, len(row)) for row in configurations]
    return FinalPlan(BARE, chosen, planned=blocks, **more)  # type: ignore[arg-type]


def test_two_take_turns_as_abba_or_baab() -> None:
    made = plan(ONE)
    orders = [made.order(block) for block in range(40)]
    pairs = [tuple(orders[place : place + 2]) for place in range(0, 40, 2)]
    assert set(pairs) == {((0, 1), (1, 0)), ((1, 0), (0, 1))}


@given(st.integers(1, 6), st.integers(0, 1000))
def test_every_place_and_every_neighbour_comes_equally_often(count: int, seed: int) -> None:
    everyone = count + 1
    group = everyone if everyone % 2 == 0 else 2 * everyone
    chosen = [Finalist(Configuration({"n": number})) for number in range(count)]
    made = FinalPlan(BARE, chosen, planned=2 * group, seed=seed)
    orders = [made.order(block) for block in range(2 * group)]
    assert all(sorted(order) == list(range(everyone)) for order in orders)
    for part in (orders[:group], orders[group:]):
        places = Counter((place, who) for order in part for place, who in enumerate(order))
        assert set(places.values()) == {group // everyone}
        after = Counter(pair for order in part for pair in itertools.pairwise(order))
        assert len(after) == everyone * (everyone - 1)
        assert len(set(after.values())) == 1


def test_the_seed_is_the_plan() -> None:
    assert plan(ONE, TWO, seed=3) == plan(ONE, TWO, seed=3)
    one, other = plan(ONE, TWO, seed=3), plan(ONE, TWO, seed=4)
    assert [one.order(at) for at in range(6)] != [other.order(at) for at in range(6)]


def test_turns_follow_the_plan() -> None:
    made = plan(ONE, TWO, blocks=3)
    final, steps = play(made, scripted(EQUAL, noise=0.02))
    assert [(step.block, step.candidate) for step in steps] == [
        (block, candidate) for block in range(3) for candidate in made.order(block)
    ]
    assert final.blocks == 3
    assert len(final.launches) == 9


def test_asking_changes_nothing() -> None:
    final = Final(plan(ONE), RATE)
    first = final.next()
    assert final.next() == first
    final.record(first, launch(first.configuration, 100.0))
    final.verdict()
    assert final.next() == final.next() != first


@pytest.mark.parametrize(
    ("values", "objective", "gain"),
    [
        ({BARE: 100.0, ONE: 130.0, TWO: 90.0}, RATE, 1.3),
        ({BARE: 10.0, ONE: 8.0, TWO: 12.0}, Objective("wall", Goal.MINIMIZE), 1.25),
    ],
)
def test_a_gain_ends_the_final_at_a_look(
    values: dict[Configuration, float], objective: Objective, gain: float
) -> None:
    final, _ = play(plan(ONE, TWO), scripted(values, noise=0.02), objective=objective)
    verdict = final.verdict()
    assert final.is_over
    assert final.blocks == 4
    assert verdict.kind is VerdictKind.GAIN
    assert verdict.best == ONE
    assert verdict.gain == pytest.approx(gain, rel=0.05)


def test_who_is_behind_stops_and_the_others_go_on() -> None:
    values = {BARE: 100.0, ONE: 104.0, TWO: 104.0, THREE: 70.0}
    contest = plan(ONE, TWO, THREE)
    final, steps = play(contest, scripted(values, noise=0.03))
    counts = Counter(step.configuration for step in steps)
    assert counts[THREE] == 4
    assert counts[BARE] == counts[ONE] == counts[TWO] > 4
    finalists = {row.configuration: row for row in final.verdict().finalists}
    assert finalists[THREE].dropped == "behind another finalist"
    # What goes on is judged by all its pairs, what has stopped by those until then.
    pairs = {one: row.interval and row.interval.pairs for one, row in finalists.items()}
    assert pairs == {ONE: final.blocks, TWO: final.blocks, THREE: 4}
    until_then, _ = play(contest, scripted(values, noise=0.03), blocks=4)
    (stopped,) = [row for row in until_then.verdict().finalists if row.dropped]
    assert stopped.interval == finalists[THREE].interval


def test_a_finalist_that_surely_gains_too_little_stops_beside_a_noisy_leader() -> None:
    """The leader is too noisy for anything to be surely behind it."""
    swings = itertools.cycle((0.80, 1.35))

    def execute(step: FinalLaunch) -> Launch:
        values = {BARE: 100.0, ONE: 100.1 + 0.1 * (step.block % 2), TWO: 100.0}
        swing = next(swings) if step.configuration == TWO else 1.0
        return launch(step.configuration, values[step.configuration] * swing)

    final, steps = play(plan(ONE, TWO), execute)
    rows = {row.configuration: row for row in final.verdict().finalists}
    assert rows[ONE].dropped == "no gain"
    assert not rows[TWO].dropped
    counts = Counter(step.configuration for step in steps)
    assert counts[ONE] < counts[TWO] == counts[BARE] == 12


def test_a_gain_does_not_end_the_final_while_another_finalist_may_be_better() -> None:
    def execute(step: FinalLaunch) -> Launch:
        other = 125.0 if step.block % 2 else 137.0
        values = {BARE: 100.0, ONE: 130.0 + 0.1 * step.block, TWO: other}
        return launch(step.configuration, values[step.configuration])

    final, _ = play(plan(ONE, TWO), execute, blocks=4)
    verdict = final.verdict()
    assert verdict.kind is VerdictKind.GAIN
    assert not final.is_over
    assert final.next() is not None


def test_when_none_can_gain_it_ends_early() -> None:
    values = {BARE: 100.0, ONE: 80.0, TWO: 79.0}
    final, steps = play(plan(ONE, TWO), scripted(values, noise=0.01))
    assert final.verdict().kind is VerdictKind.NO_GAIN
    assert final.is_over
    assert len(steps) == 12


def test_a_failed_launch_leaves_its_pair_out() -> None:
    def crash(step: FinalLaunch) -> Launch | None:
        fails = (step.configuration, step.block) == (ONE, 2)
        return launch(ONE, None, outcome=Outcome.CRASHED) if fails else None

    script = scripted({BARE: 100.0, ONE: 105.0, TWO: 101.0}, noise=0.02, instead=crash)
    final, steps = play(plan(ONE, TWO), script, blocks=6)
    assert sum((step.configuration, step.block) == (ONE, 2) for step in steps) == 1
    rows = {row.configuration: row for row in final.verdict().finalists}
    assert rows[ONE].log_ratios[2] is None
    assert rows[ONE].interval.pairs == 5
    assert rows[TWO].interval.pairs == 6


@pytest.mark.parametrize(
    "bad",
    [
        launch(ONE, None, outcome=Outcome.TIMED_OUT),
        launch(ONE, 0.0),
        launch(ONE, math.nan),
        launch(ONE, -5.0),
    ],
)
def test_a_finalist_that_fails_twice_is_out(bad: Launch) -> None:
    script = scripted(
        EQUAL, noise=0.02, instead=lambda step: bad if step.configuration == ONE else None
    )
    final, steps = play(plan(ONE, TWO), script)
    counts = Counter(step.configuration for step in steps)
    assert counts[ONE] == 2 < counts[TWO] == final.blocks
    finalist = final.verdict().finalists[-1]
    assert finalist.configuration == ONE
    assert finalist.out.startswith("2 of 2 launches failed (")


def test_when_every_finalist_is_out_the_final_is_over(golden: Golden) -> None:
    def fail(step: FinalLaunch) -> Launch | None:
        failed = launch(step.configuration, None, outcome=Outcome.OUT_OF_MEMORY)
        return None if step.configuration == BARE else failed

    final, steps = play(plan(ONE, TWO), scripted(EQUAL, instead=fail))
    assert final.blocks == 2
    assert len(steps) <= 6
    verdict = final.verdict()
    assert final.is_over
    assert (verdict.kind, verdict.best) == (VerdictKind.INCONCLUSIVE, BARE)
    golden(verdict.reason)


def bare_crashes_in(*blocks: int) -> Callable[[FinalLaunch], Launch | None]:
    crashed = launch(BARE, None, outcome=Outcome.CRASHED)
    return lambda step: crashed if step.configuration == BARE and step.block in blocks else None


def test_a_default_that_fails_once_costs_its_block_only() -> None:
    made = plan(ONE, TWO)
    final, steps = play(made, scripted(EQUAL, noise=0.02, instead=bare_crashes_in(1, 3)))
    assert final.blocks == 12
    for block in (1, 3):
        cut = made.order(block).index(0) + 1
        assert sum(step.block == block for step in steps) == cut
    assert final.verdict().interval.pairs == 10


def test_a_default_that_fails_twice_in_a_row_ends_it(golden: Golden) -> None:
    final, steps = play(plan(ONE), scripted(EQUAL, instead=bare_crashes_in(*range(1, 12))))
    assert steps[-1].block == 2
    verdict = final.verdict()
    assert final.is_over
    golden(verdict.reason)
    assert verdict.kind is VerdictKind.INCONCLUSIVE


def test_a_finalist_that_breaks_a_requirement_twice_is_out(golden: Golden) -> None:
    script = scripted({BARE: 100.0, ONE: 102.0, TWO: 102.0}, noise=0.04)

    def execute(step: FinalLaunch) -> Launch:
        waits = 0.030 if step.configuration == ONE and step.block in (1, 3) else 0.010
        return launch(step.configuration, script(step).value, p99_s=waits)

    final, steps = play(plan(ONE, TWO), execute, objective=RATE_UNDER_P99)
    assert Counter(step.configuration for step in steps)[ONE] == 4
    finalist = final.verdict().finalists[-1]
    assert finalist.configuration == ONE
    golden(finalist.out)


def test_keeping_a_requirement_that_the_default_breaks_wins() -> None:
    def execute(step: FinalLaunch) -> Launch:
        waits = 0.050 if step.configuration == BARE else 0.010
        value = 100.0 if step.configuration == BARE else 95.0
        return launch(step.configuration, value * (1.0 + 0.01 * (step.block % 3)), p99_s=waits)

    final, _ = play(plan(ONE), execute, objective=RATE_UNDER_P99)
    verdict = final.verdict()
    assert verdict.kind is VerdictKind.GAIN
    assert verdict.best == ONE
    assert verdict.gain < 1.0


def test_an_open_final_goes_on_with_the_pairs_that_it_has() -> None:
    script = scripted({BARE: 100.0, ONE: 104.0}, noise=0.04)
    final, _ = play(plan(ONE, blocks=4), script)
    assert final.verdict().kind is VerdictKind.INCONCLUSIVE
    assert not final.is_over
    go_on(final, script)
    assert final.blocks > 4
    assert final.verdict().kind is VerdictKind.GAIN
    assert final.is_over


@settings(max_examples=25)
@given(st.randoms(use_true_random=False), st.integers(0, 50))
def test_launches_in_any_order_and_more_than_asked_for_contradict_nothing(
    chance: random.Random, count: int
) -> None:
    """What was recorded is the state: in any order, also of finalists that were dropped by then."""
    made, verdict, launches = whole_final()
    kept = list(launches.items())[:count]
    chance.shuffle(kept)
    extra = {(block, 3): launch(THREE, 500.0) for block in range(6, 12)}
    again = Final(made, RATE, {**extra, **dict(kept)})
    go_on(again, lambda step: launches[step.block, step.candidate], 12)
    assert again.verdict() == verdict


@functools.cache
def whole_final() -> tuple[FinalPlan, Verdict, dict[tuple[int, int], Launch]]:
    """A plan, its verdict, and the launches by block and candidate, in order."""
    made = plan(ONE, TWO, THREE)
    values = {BARE: 100.0, ONE: 103.0, TWO: 101.0, THREE: 80.0}
    whole, steps = play(made, scripted(values, noise=0.03))
    keys = [(step.block, step.candidate) for step in steps]
    by_key = dict(zip(sorted(keys), whole.launches, strict=True))
    return made, whole.verdict(), {key: by_key[key] for key in keys}


@pytest.mark.parametrize(
    ("two", "seed", "block_launches"),
    [(102.0, 4, 3), pytest.param(70.0, 2, 2, id="a dropped finalist takes no more launches")],
)
def test_a_verdict_that_is_open_says_what_would_settle_it(
    two: float, seed: int, block_launches: int
) -> None:
    values = {BARE: 100.0, ONE: 103.0 if seed == 4 else 106.0, TWO: two}
    final, _ = play(plan(ONE, TWO, blocks=6), scripted(values, noise=0.04, seed=seed))
    assert final.next(block_launches) is not None
    assert final.next(block_launches - 1) is None
    more = final.verdict().more
    assert more.launches == block_launches * more.blocks > 0
    assert more.seconds == pytest.approx(10.0 * more.launches)


def test_a_block_that_is_half_made_needs_the_other_half() -> None:
    script = scripted({BARE: 100.0, ONE: 104.0}, noise=0.06)
    final, _ = play(plan(ONE, blocks=12), script, blocks=5)
    whole = final.verdict().more
    step = final.next()
    final.record(step, script(step))
    half = final.verdict().more
    assert (half.blocks, half.launches) == (whole.blocks, whole.launches - 1)


def test_a_final_that_loses_gets_no_advice() -> None:
    final, _ = play(plan(ONE, blocks=4), scripted({BARE: 100.0, ONE: 85.0}, noise=0.12, seed=1))
    verdict = final.verdict()
    assert verdict.kind is VerdictKind.INCONCLUSIVE
    assert verdict.more is None


def test_each_further_final_may_err_half_as_much() -> None:
    errors = [plan(ONE, attempt=attempt).error for attempt in range(30)]
    assert errors[:2] == [pytest.approx(0.025), pytest.approx(0.0125)]
    assert sum(errors) < 0.05


def test_the_rule_is_the_callers() -> None:
    strict = ClaimRule(confidence=0.99, min_effect=0.2)
    made = plan(ONE, rule=strict)
    final, _ = play(made, scripted({BARE: 100.0, ONE: 115.0}, noise=0.01))
    assert made.error == pytest.approx(0.005)
    assert final.verdict().kind is VerdictKind.NO_GAIN


@settings(max_examples=40)
@given(st.data())
def test_whatever_launches_do_the_final_comes_to_an_end(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 4))
    blocks = data.draw(st.integers(1, 9))
    chosen = [Finalist(Configuration({"n": number}), number) for number in range(count)]
    made = FinalPlan(BARE, chosen, planned=blocks, seed=data.draw(st.integers(0, 9)))
    final = Final(made, RATE_UNDER_P99)
    taken = 0
    while (step := final.next()) is not None and step.block < blocks:
        assert step.block == final.blocks
        outcome = data.draw(st.sampled_from([Outcome.MEASURED] * 4 + [Outcome.CRASHED]))
        value = data.draw(st.sampled_from([100.0, 101.0, 120.0, 0.0]))
        waits = data.draw(st.sampled_from([0.01, 0.03]))
        final.record(step, launch(step.configuration, value, outcome=outcome, p99_s=waits))
        taken += 1
        verdict = final.verdict(in_full=False)
        assert (verdict.gain is None) == (verdict.kind is not VerdictKind.GAIN)
        assert (verdict.best == BARE) == (verdict.kind is not VerdictKind.GAIN)
    assert taken == len(final.launches) <= blocks * (count + 1)
    assert final.is_over or final.blocks == blocks
