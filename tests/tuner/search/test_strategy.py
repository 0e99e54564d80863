# SPDX-License-Identifier: Apache-2.0
"""What a search launches, in which order, and what it never chooses."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable

import pytest
from tests.tiers import quick_first
from tests.tuner.search.scripted import (
    BEST,
    RATE,
    SMALL,
    SPACE,
    ScriptedMeasurer,
    follow,
    gain,
    searched,
    stages,
)

from xtune.evidence.verdicts import VerdictKind, smallest_gain
from xtune.launches.launch import Goal, Launch, Objective, Outcome, Requirement
from xtune.search.budget import MAX_BLOCKS
from xtune.search.events import Allowance, Seed
from xtune.search.records import Record, Stage
from xtune.search.strategy import CONTROL_EVERY, Strategy
from xtune.space.parameters import BARE, Configuration, Parameter, Target
from xtune.space.spaces import Space
from xtune.tuning import next_step

PRESET = SPACE.complete({"allocator": "glibc"})
WINNER = SPACE.complete({"allocator": "tcmalloc", "batch": 8})
SEEDS = [Seed("preset latency", PRESET), Seed("an earlier winner", WINNER)]


def strategy(measurer: ScriptedMeasurer, **options: object) -> Strategy:
    arguments = {"host": "here", "seed": 1, **options}
    space = arguments.pop("space", SPACE)
    objective = arguments.pop("objective", RATE)
    return Strategy(space, measurer.plan_hash, objective, **arguments)  # type: ignore[arg-type]


def numbers(
    name: str, default: int, where: Target = Target.PROGRAM, *, ordered: bool = True
) -> Parameter:
    return Parameter(name, (1, 2, 4, 8), default, where, ordered=ordered)


def test_the_bare_command_is_first_then_what_is_known_to_be_worth_trying() -> None:
    measurer = ScriptedMeasurer()
    records = follow(strategy(measurer, seeds=SEEDS), measurer, 7)
    assert measurer.measured[:4] == [BARE, SPACE.default, PRESET, WINNER]
    assert [(record.step.stage, record.step.origin) for record in records] == [
        (Stage.BASELINE, "the bare command"),
        (Stage.SEED, "xlaunch"),
        (Stage.SEED, "preset latency"),
        (Stage.SEED, "an earlier winner"),
        (Stage.SEARCH, ""),
        (Stage.SEARCH, ""),
        (Stage.CONTROL, "the bare command"),
    ]


def test_the_model_chooses_from_the_third_launch_on() -> None:
    third = set()
    for seed in range(12):
        measurer = ScriptedMeasurer()
        records = follow(strategy(measurer, seed=seed), measurer, 5)
        assert stages(records)[2:] == [Stage.SEARCH] * 3
        third.add(measurer.measured[2])
    assert len(third) > 1


def test_searches_do_not_all_begin_with_what_a_space_names_first() -> None:
    """Of values that were never tried, each is as good as the others."""
    first = set()
    for seed in range(12):
        measurer = ScriptedMeasurer()
        records = follow(strategy(measurer, seed=seed), measurer, 6)
        first |= {one["allocator"] for one in searched(records)[2:]}
    assert first == set(SPACE.parameter("allocator").values)


def test_seeds_of_one_plan_are_launched_once() -> None:
    measurer = ScriptedMeasurer()
    seeds = [Seed("a preset", SPACE.default), *SEEDS, Seed("again", WINNER)]
    records = follow(strategy(measurer, seeds=seeds), measurer, 7)
    assert Counter(stages(records))[Stage.SEED] == 3
    assert stages(records)[4] is Stage.SEARCH


def test_seeds_that_cannot_be_carried_out_are_left_out() -> None:
    measurer = ScriptedMeasurer(plan=lambda one: None if one == PRESET else repr(one))
    records = follow(strategy(measurer, seeds=SEEDS), measurer, 4)
    assert PRESET not in searched(records)
    assert records[2].step.origin == "an earlier winner"


def without_omp(configuration: Configuration) -> str:
    """A machine on which `omp` changes nothing."""
    return repr({name: value for name, value in configuration.items() if name != "omp"})


def test_configurations_of_one_plan_are_measured_as_one() -> None:
    measurer = ScriptedMeasurer(plan=without_omp)
    one = strategy(measurer)
    assert one.plans == 120
    chosen = searched(follow(one, measurer, 60))
    assert {configuration["omp"] for configuration in chosen} == {"auto"}


def test_what_cannot_be_carried_out_is_never_proposed() -> None:
    measurer = ScriptedMeasurer(plan=lambda one: None if one.get("smt") else repr(one))
    one = strategy(measurer)
    assert one.plans == 180
    assert not any(configuration["smt"] for configuration in searched(follow(one, measurer, 60)))


@pytest.mark.parametrize("goal", Goal)
def test_it_finds_what_is_best(goal: Goal) -> None:
    measurer = ScriptedMeasurer(goal=goal, seed=3)
    one = strategy(measurer, objective=Objective("items/s", goal))
    records = follow(one, measurer, 40)
    favourite = one.favourite(records)
    assert gain(favourite.configuration) == gain(BEST)
    assert favourite.value == pytest.approx(
        100.0 * math.exp(gain(BEST) * (1 if goal is Goal.MAXIMIZE else -1)), rel=0.03
    )
    assert favourite.ratio == pytest.approx(math.exp(gain(BEST)), rel=0.03)


def test_the_bare_command_is_launched_again_soon_and_then_every_few_launches() -> None:
    measurer = ScriptedMeasurer()
    records = follow(strategy(measurer), measurer, 50)
    controls = [at for at, stage in enumerate(stages(records)) if stage is Stage.CONTROL]
    assert controls == [6, 10, 35, 35 + CONTROL_EVERY]
    assert all(records[at].step.configuration == BARE for at in controls)


def test_each_host_launches_the_bare_command() -> None:
    measurer = ScriptedMeasurer()
    records = follow(strategy(measurer, host="a"), measurer, 5, host="a")
    records = follow(strategy(measurer, host="b"), measurer, 2, records=records, host="b")
    assert stages(records)[5:] == [Stage.BASELINE, Stage.SEARCH]


def test_hosts_of_different_speed_are_put_on_one_scale() -> None:
    """Host b is twice as fast, so its launches must not look twice as good."""
    slow = ScriptedMeasurer(seed=1)
    fast = ScriptedMeasurer(lambda one: gain(one) + math.log(2.0), seed=2)
    records: list[Record] = []
    here, there = strategy(slow, host="a"), strategy(fast, host="b")
    for _ in range(20):
        records = follow(here, slow, 1, records=records, host="a")
        records = follow(there, fast, 1, records=records, host="b")
    favourite = here.favourite(records)
    found = gain(favourite.configuration)
    assert found > 0.3
    assert favourite.ratio == pytest.approx(math.exp(found), rel=0.04)


@pytest.mark.parametrize("outcome", [Outcome.CRASHED, Outcome.TIMED_OUT])
def test_what_fails_is_never_best_and_tried_twice_at_most(outcome: Outcome) -> None:
    """The fastest allocator crashes with every batch above 4."""

    def end(configuration: Configuration) -> Outcome:
        bad = configuration.get("allocator") == "tcmalloc" and configuration.get("batch", 0) > 4
        return outcome if bad else Outcome.MEASURED

    measurer = ScriptedMeasurer(outcomes=end, seed=2)
    one = strategy(measurer)
    records = follow(one, measurer, 60)
    failed = [r.step.plan_hash for r in records if r.launch and r.launch.outcome is outcome]
    assert 0 < len(failed) < 12
    assert max(Counter(failed).values()) <= 2
    favourite = one.favourite(records)
    assert end(favourite.configuration) is Outcome.MEASURED
    assert gain(favourite.configuration) == pytest.approx(0.35)  # jemalloc, batch 8, thp always


def bests_missed(
    searches: int,
    make: Callable[[int, random.Random], ScriptedMeasurer],
    objective: Objective = RATE,
) -> int:
    """Searches of 40 launches that do not name the best though it is far ahead."""
    missed = 0
    for seed in range(searches):
        measurer = make(seed, random.Random(seed))
        one = strategy(measurer, space=SMALL, objective=objective, seed=seed)
        favourite = one.favourite(follow(one, measurer, 40, total=40))
        missed += dict(favourite.configuration) != {"allocator": "tcmalloc", "smt": False}
    return missed


@pytest.mark.parametrize("searches", quick_first([20, 150]))
def test_random_crashes_do_not_eliminate_the_best(searches: int) -> None:
    """One launch in 20 crashes, whatever it launches."""

    def make(seed: int, chance: random.Random) -> ScriptedMeasurer:
        def end(one: Configuration) -> Outcome:
            bad = one != BARE and chance.random() < 0.05
            return Outcome.CRASHED if bad else Outcome.MEASURED

        return ScriptedMeasurer(seed=seed, noise=0.03, outcomes=end)

    assert bests_missed(searches, make) <= searches // 50


@pytest.mark.parametrize("searches", quick_first([20, 150]))
def test_a_requirement_that_is_broken_now_and_then_does_not_eliminate_the_best(
    searches: int,
) -> None:
    """A p99 near its bound: one launch in 20 is above it."""
    bound = Requirement("p99<=20ms", "p99", True, 0.02)

    def make(seed: int, chance: random.Random) -> ScriptedMeasurer:
        def change(launch: Launch) -> Launch:
            p99_s = 0.021 if chance.random() < 0.05 else 0.019
            return launch._replace(requirements=((bound.text, p99_s),))

        return ScriptedMeasurer(seed=seed, noise=0.03, change=change)

    objective = Objective("items/s", Goal.MAXIMIZE, (bound,))
    assert bests_missed(searches, make, objective) <= searches // 50


def test_what_breaks_a_requirement_is_never_best() -> None:
    requirement = Requirement("rss<=1MiB", "rss", True, 2.0**20)
    objective = Objective("items/s", Goal.MAXIMIZE, (requirement,))

    def change(launch: Launch) -> Launch:
        rss = 2.0**21 if launch.configuration.get("thp") == "always" else 2.0**19
        return launch._replace(requirements=((requirement.text, rss),))

    measurer = ScriptedMeasurer(seed=2, change=change)
    one = strategy(measurer, objective=objective)
    favourite = one.favourite(follow(one, measurer, 50))
    assert favourite.configuration["thp"] != "always"
    assert gain(favourite.configuration) == pytest.approx(0.35)


def test_a_launch_that_cannot_win_may_be_cut() -> None:
    measurer = ScriptedMeasurer(noise=0.001)
    one = strategy(measurer)
    follow(one, measurer, 30)
    assert measurer.cuts[:2] == [None, None]  # the bare command and the default
    later = [cut for cut in measurer.cuts[20:] if cut is not None]
    best = 100.0 * math.exp(gain(BEST))
    assert later
    assert all(0.5 * best < cut < 0.8 * best for cut in later)


def test_what_was_cut_is_not_best() -> None:
    measurer = ScriptedMeasurer(lambda one: -1.0 if one.get("smt") else 0.0, noise=0.01)
    one = strategy(measurer)
    records = follow(one, measurer, 30)
    assert any(r.launch and r.launch.outcome is Outcome.CUT for r in records)
    favourite = one.favourite(records)
    assert favourite.configuration["smt"] is False


def test_the_final_gets_its_share_of_the_budget() -> None:
    measurer = ScriptedMeasurer(noise=0.05)
    one = strategy(measurer)
    records = follow(one, measurer, 100, total=50.0)
    counts = Counter(stages(records))
    assert len(records) <= 50
    assert 8 <= counts[Stage.FINAL] <= 16
    first_final = stages(records).index(Stage.FINAL)
    assert set(stages(records)[first_final:]) == {Stage.FINAL}
    final = one.final(records)
    assert final.plan.baseline == BARE
    assert final.verdict().best != BARE


def test_a_small_space_is_launched_twice_before_the_final() -> None:
    measurer = ScriptedMeasurer(noise=0.04)
    one = strategy(measurer, space=SMALL)
    records = follow(one, measurer, 60, total=60.0)
    began = stages(records).index(Stage.FINAL)
    seen = Counter(searched(records[:began]))
    assert set(seen) == set(SMALL)
    assert sum(seen.values()) == 16
    best = SMALL.complete({"allocator": "tcmalloc"})
    assert seen[best] == max(seen.values()) > 2
    final = one.final(records)
    assert final.verdict().best == best


def test_a_final_may_use_what_a_small_space_did_not_need() -> None:
    """Two configurations that are hard to tell apart: blocks are all that helps."""
    space = Space([SPACE.parameter("smt")])
    measurer = ScriptedMeasurer(lambda one: 0.02 * bool(one.get("smt")), noise=0.04)
    one = strategy(measurer, space=space)
    records = follow(one, measurer, 120, total=100.0)
    counts = Counter(stages(records))
    assert counts[Stage.SEARCH] <= 4
    assert counts[Stage.FINAL] > 2 * MAX_BLOCKS
    assert len(records) <= 100


@pytest.mark.parametrize(("total", "blocks"), [(9, 0), (15, 5), (20, 6)])
def test_a_budget_too_small_for_a_final_is_enough_where_nothing_else_is_left(
    total: int, blocks: int
) -> None:
    """Two configurations, one of which cannot run: after a few launches nothing is left to search."""
    space = Space([SPACE.parameter("smt")])
    crashes = lambda one: Outcome.CRASHED if one.get("smt") else Outcome.MEASURED  # noqa: E731
    measurer = ScriptedMeasurer(lambda one: 0.02 * (one != BARE), noise=0.02, outcomes=crashes)
    one = strategy(measurer, space=space)
    records = follow(one, measurer, total, total=float(total))
    made = Counter(stages(records))
    assert made[Stage.FINAL] == 2 * blocks
    assert (one.final(records) is not None) == bool(blocks)


def test_a_clear_gain_needs_few_blocks() -> None:
    """Of 200 launches a third is not kept for what four blocks show."""
    measurer = ScriptedMeasurer(lambda one: 0.0 if one == BARE else 1.0 + gain(one), noise=0.01)
    one = strategy(measurer)
    records = follow(one, measurer, 200, total=100.0)
    assert Counter(stages(records))[Stage.FINAL] <= 24


def test_the_same_records_lead_to_the_same_step() -> None:
    """After a kill nothing but the records is left."""
    measurer = ScriptedMeasurer(seed=5, noise=0.03)
    one = strategy(measurer)
    records = follow(one, measurer, 48, total=50.0)
    for count in (0, 1, 2, 48):
        left = Allowance(50.0 - count, 50.0)
        again = next_step(strategy(measurer), records[:count], left)
        expected = records[count].step if count < 48 else next_step(one, records, left)
        assert (again.stage, again.configuration) == (expected.stage, expected.configuration)


def test_a_final_goes_on_where_it_was_left() -> None:
    measurer = ScriptedMeasurer(seed=5, noise=0.05)
    whole = follow(strategy(measurer), measurer, 100, total=50.0)
    began = stages(whole).index(Stage.FINAL)
    for count in range(began + 1, len(whole)):
        one = strategy(measurer)
        step = next_step(one, whole[:count], Allowance(50.0 - count, 50.0))
        assert step.key == whole[count].step.key
        assert step.configuration == whole[count].step.configuration


def test_a_later_search_makes_another_final_that_may_err_less() -> None:
    measurer = ScriptedMeasurer(seed=5, noise=0.05)
    before = follow(strategy(measurer), measurer, 100, total=40.0)
    records, one = go_on(before, measurer, 40)
    assert Stage.SEARCH in stages(records)[len(before) :]
    final = one.final(records)
    assert final.plan.attempt == 1
    assert final.plan.error == pytest.approx(final.plan.rule.error / 2)


def go_on(
    records: list[Record], measurer: ScriptedMeasurer, launches: int
) -> tuple[list[Record], Strategy]:
    """Another search of the same study."""
    one, since = strategy(measurer), len(records)
    records = list(records)
    for left in range(launches, 0, -1):
        step = next_step(one, records, Allowance(left, launches, since=since))
        if step is None:
            break
        launch = measurer.measure(step.configuration)
        records.append(Record(len(records), step, "here", launch))
    return records, one


def hardly(configuration: Configuration) -> float:
    """2 % faster than the bare command, whatever is changed."""
    return 0.0 if configuration == BARE else 0.02


def test_an_open_final_goes_on_in_the_next_search() -> None:
    measurer = ScriptedMeasurer(hardly, seed=5, noise=0.03)
    first = follow(strategy(measurer), measurer, 100, total=40.0)
    before = strategy(measurer).final(first)
    assert before.verdict().kind is VerdictKind.INCONCLUSIVE
    records, one = go_on(first, measurer, 20)
    assert set(stages(records)[len(first) :]) == {Stage.FINAL}
    after = one.final(records)
    assert after.plan.finalists == before.plan.finalists
    assert after.plan.attempt == 0
    assert after.blocks == before.blocks + 10
    assert set(before.launches) <= set(after.launches)
    again = strategy(measurer).final(records)
    assert (again.plan, again.launches) == (after.plan, after.launches)


@pytest.mark.parametrize(("left", "more"), [(1, 0), (2, 2), (7, 6)])
def test_a_final_goes_on_by_whole_blocks(left: int, more: int) -> None:
    measurer = ScriptedMeasurer(hardly, seed=5, noise=0.03)
    first = follow(strategy(measurer), measurer, 100, total=40.0)
    records, _ = go_on(first, measurer, left)
    assert stages(records)[len(first) :] == [Stage.FINAL] * more


def test_the_noise_says_which_gains_a_budget_shows() -> None:
    measurer = ScriptedMeasurer(noise=0.03)
    one = strategy(measurer)
    allowance = Allowance(40.0, 40.0)
    records = follow(one, measurer, 4, total=40.0)
    assert one.resolution(records, allowance) is None, "nothing was launched twice"
    records = follow(one, measurer, 5, total=40.0, records=records)
    seen = one.resolution(records, allowance)
    assert seen.degrees == 2
    assert seen.gain == smallest_gain(seen.spread, 6, finalists=1)
    assert one.resolution(records, Allowance(9.0, 9.0)) is None, "no final"
    larger = one.resolution(records, Allowance(200.0, 200.0))
    assert larger.gain < seen.gain
    whole = follow(one, measurer, 40, total=40.0, records=records)
    final = one.final(whole)
    after = one.resolution(whole, Allowance(0.0, 40.0))
    assert after.gain == smallest_gain(after.spread, final.plan.planned, finalists=1)
    assert after.low < after.gain < after.high
    assert after.degrees > 2


def test_nobody_launches_what_another_worker_is_launching() -> None:
    measurer = ScriptedMeasurer()
    records = follow(strategy(measurer), measurer, 20)
    for _ in range(10):
        step = next_step(strategy(measurer, host="there"), records, Allowance(50, 100))
        assert step is not None
        records.append(Record(len(records), step, "there", None))
    under_way = [
        record.step.plan_hash
        for record in records
        if record.launch is None and record.step.configuration != BARE
    ]
    assert len(set(under_way)) == len(under_way) == 8
    assert len({record.step.key for record in records}) == len(records)


def test_nobody_interferes_with_a_final_of_another_worker() -> None:
    measurer = ScriptedMeasurer(seed=5, noise=0.05)
    one = strategy(measurer)
    records = follow(one, measurer, 100, total=50.0)
    began = stages(records).index(Stage.FINAL)
    half = [*records[: began + 3], records[began + 3]._replace(launch=None)]
    assert next_step(strategy(measurer, host="there"), half, Allowance(50, 100)) is None
