# SPDX-License-Identifier: Apache-2.0
"""What looks best is launched without each of its changes, and what that tells is told."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from tests.tuner.search.scripted import (
    BEST,
    RATE,
    SMALL,
    SPACE,
    ScriptedMeasurer,
    follow,
    gain,
    stages,
)
from xtune.search.ablation_turns import MAX_ABLATIONS

from xtune.evidence.distributions import student_quantile
from xtune.launches.launch import Outcome
from xtune.search.ablation import ablations_of, leaner, without_each
from xtune.search.budget import MIN_FINAL
from xtune.search.events import Allowance
from xtune.search.records import Record, Stage, Step
from xtune.search.scale import USUAL_DEGREES, Scale
from xtune.search.strategy import Strategy
from xtune.space.parameters import BARE, Configuration
from xtune.space.spaces import Space

TOTAL = 40


def strategy(measurer: ScriptedMeasurer, space: Space = SPACE, seed: int = 1) -> Strategy:
    return Strategy(space, measurer.plan_hash, RATE, host="here", seed=seed)


def recorded(
    measurer: ScriptedMeasurer, *launched: Configuration, cut: bool = False
) -> list[Record]:
    """Launches of these, whatever for."""
    records = []
    for number, configuration in enumerate(launched):
        plan_hash = measurer.plan_hash(configuration) or ""
        cut_at = 1e9 if cut else None
        step = Step(Stage.SEARCH, configuration, plan_hash, str(number), cut_at=cut_at)
        launch = measurer.measure(configuration, cut_at=cut_at)
        records.append(Record(number, step, "here", launch))
    return records


def without(name: str, configuration: Configuration = BEST) -> Configuration:
    return SPACE.complete({**configuration, name: SPACE.default[name]})


@pytest.mark.parametrize("seed", range(5))
def test_before_the_final_the_best_is_launched_without_each_change(seed: int) -> None:
    measurer = ScriptedMeasurer(seed=seed)
    one = strategy(measurer)
    records = follow(one, measurer, 100, total=TOTAL)
    assert len(records) <= TOTAL
    final = one.final(records)
    assert final is not None
    best = final.plan.finalists[0].configuration
    assert gain(best) == pytest.approx(gain(BEST))
    first = stages(records).index(Stage.FINAL)
    count = Counter(stages(records))[Stage.ABLATION]
    assert 0 < count <= MAX_ABLATIONS
    assert stages(records)[first - count : first] == [Stage.ABLATION] * count
    # Each plan is known by then, most by the search itself; twice only what was doubted.
    launched = Counter(record.step.configuration for record in records[:first])
    for name, other in without_each(SPACE, best):
        assert launched[other] >= 1, name
    left_out = records[first - count : first]
    again = {r.step.configuration for r in left_out if r.step.key.startswith("ablation again ")}
    assert all(
        launched[record.step.configuration] == 1 + (record.step.configuration in again)
        for record in left_out
    )
    assert {record.step.origin for record in left_out} <= {
        "the best without what seems to do nothing",
        *(f"the best without its {name}" for name in SPACE.changes(best)),
    }


def test_nothing_is_left_out_where_nothing_is_ahead() -> None:
    measurer = ScriptedMeasurer(lambda _: 0.0, noise=0.02)
    records = follow(strategy(measurer), measurer, 100, total=TOTAL)
    assert len(records) == TOTAL
    assert Stage.ABLATION not in stages(records)


def test_nothing_is_left_out_of_a_race_which_launches_everything() -> None:
    measurer = ScriptedMeasurer()
    records = follow(strategy(measurer, SMALL), measurer, 100, total=60)
    assert Stage.RACE in stages(records)
    assert Stage.ABLATION not in stages(records)


def test_one_that_had_luck_is_no_finalist() -> None:
    """All that is launched as an ablation alone looks twice as good as it is."""
    ablated: list[Configuration] = []
    measurer = ScriptedMeasurer(lambda one: gain(one) + math.log(2.0) * (one in ablated))
    one = strategy(measurer, seed=2)
    records: list[Record] = []
    while Stage.FINAL not in stages(records):
        before = len(records)
        records = follow(one, measurer, 1, total=TOTAL, records=records)
        assert len(records) > before
        step = records[-1].step
        known = {record.step.plan_hash for record in records[:-1]}
        if step.stage is Stage.ABLATION and step.plan_hash not in known:
            # It is too late for this launch; make it anew.
            ablated.append(step.configuration)
            records[-1] = records[-1]._replace(launch=measurer.measure(step.configuration))
    assert ablated
    final = one.final(records)
    assert final is not None
    assert not {finalist.configuration for finalist in final.plan.finalists} & set(ablated)


def test_without_each_leaves_out_one_change_at_a_time() -> None:
    assert dict(without_each(SPACE, BEST)) == {
        "allocator": SPACE.complete({"batch": 8, "thp": "always"}),
        "batch": SPACE.complete({"allocator": "tcmalloc", "thp": "always"}),
        "thp": SPACE.complete({"allocator": "tcmalloc", "batch": 8}),
    }
    assert without_each(SPACE, SPACE.complete({"batch": 8})) == []
    # What the conditions of a space do not allow is left out.
    bound = Space(SPACE.parameters, conditions=["batch != 4 if allocator == 'tcmalloc'"])
    assert [name for name, _ in without_each(bound, bound.complete(BEST))] == ["allocator", "thp"]


def test_ratios_and_intervals_by_hand() -> None:
    measurer = ScriptedMeasurer(noise=0.0)
    records = recorded(measurer, BEST, BEST, BEST, without("allocator"), without("thp"))
    scale = Scale(records, RATE)
    first, second = ablations_of(BEST, SPACE, measurer.plan_hash, scale)
    assert (first.name, first.value, first.default) == ("allocator", "tcmalloc", "auto")
    assert first.ratio == pytest.approx(math.exp(-0.2))
    assert second.name == "thp"
    assert second.ratio == pytest.approx(math.exp(-0.1))
    assert first.launches == second.launches == 1
    # Without any noise seen, what is taken for it weighs as before, among two degrees more.
    assert scale.degrees == USUAL_DEGREES + 2
    error = scale.spread * math.sqrt(1 + 1 / 3)
    reach = student_quantile(0.025 / 2, scale.degrees) * error  # two are told
    assert math.log(first.low) == pytest.approx(-0.2 - reach)
    assert math.log(first.high) == pytest.approx(-0.2 + reach)


def test_what_was_cut_or_failed_tells_nothing() -> None:
    measurer = ScriptedMeasurer()
    records = recorded(measurer, BEST) + recorded(measurer, without("thp"), cut=True)
    assert records[1].launch is not None
    assert records[1].launch.outcome is Outcome.CUT
    assert ablations_of(BEST, SPACE, measurer.plan_hash, Scale(records, RATE)) == ()
    broken = ScriptedMeasurer(outcomes=lambda _: Outcome.CRASHED)
    records = recorded(measurer, BEST) + recorded(broken, without("thp"))
    assert ablations_of(BEST, SPACE, measurer.plan_hash, Scale(records, RATE)) == ()


def test_a_change_that_changes_no_plan_is_not_told() -> None:
    """A machine on which `omp` does nothing: without it, it is the same."""

    def plan(configuration: Configuration) -> str:
        return repr({name: value for name, value in configuration.items() if name != "omp"})

    measurer = ScriptedMeasurer(noise=0.0, plan=plan)
    best = SPACE.complete({**BEST, "omp": "intel"})
    records = recorded(measurer, BARE, BEST, without("thp", best))
    found = ablations_of(best, SPACE, plan, Scale(records, RATE))
    assert [(one.name, round(one.ratio, 3)) for one in found] == [("thp", 0.905)]


def test_changes_are_left_out_one_after_another_the_cheapest_first() -> None:
    best = SPACE.complete({**BEST, "omp": "intel"})
    found = [dict(SPACE.changes(one)) for one in leaner(SPACE, best, gain)]
    assert found == [
        {"allocator": "tcmalloc", "batch": 8, "thp": "always"},
        {"allocator": "tcmalloc", "batch": 8},
        {"allocator": "tcmalloc"},
        {},
    ]
    # What the conditions of a space do not allow waits until they do: 8 needs the huge pages.
    bound = Space(SPACE.parameters, conditions=["thp != 'auto' if batch == 8"])
    allowed = [dict(bound.changes(one)) for one in leaner(bound, bound.complete(BEST), gain)]
    assert allowed == [{"allocator": "tcmalloc", "thp": "always"}, {"allocator": "tcmalloc"}, {}]


WITH_OMP = SPACE.complete({**BEST, "omp": "intel"})


def finalists_of(measurer: ScriptedMeasurer, total: int, seed: int) -> list[Configuration]:
    """Of a search that has launched the best already."""
    one = Strategy(SPACE, measurer.plan_hash, RATE, host="here", seed=seed)
    records = recorded(measurer, WITH_OMP)
    final = one.final(follow(one, measurer, total, total=total, records=records))
    assert final is not None
    return [finalist.configuration for finalist in final.plan.finalists]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))]
)
def test_what_wins_carries_nothing_that_does_nothing(seed: int) -> None:
    """Another OpenMP is worth two thousandths, always: the best has it, and who uses it need not."""
    measurer = ScriptedMeasurer(
        lambda one: gain(one) + 0.002 * (one.get("omp") == "intel"), noise=0.0
    )
    # Where there is room for one, it is the one with fewer changes; else both, and the final says.
    assert finalists_of(measurer, 40, seed) == [BEST]
    assert finalists_of(measurer, 90, seed)[:2] == [WITH_OMP, BEST]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))]
)
def test_what_seems_to_do_nothing_and_does_something_stays(seed: int) -> None:
    """That OpenMP does nothing but to the best, which is half as fast without it."""

    def speed(one: Configuration) -> float:
        spoilt = one.get("omp") != "intel" and all(
            one.get(name) == BEST[name] for name in ("allocator", "batch", "thp")
        )
        return gain(one) - math.log(2.0) * spoilt

    assert finalists_of(ScriptedMeasurer(speed, noise=0.0), 60, seed)[0] == WITH_OMP


@pytest.mark.parametrize(("lost", "finalist"), [(0.0, BEST), (math.log(2.0), WITH_OMP)])
def test_a_single_launch_can_refuse_what_has_fewer_changes(
    lost: float, finalist: Configuration
) -> None:
    """It is never a finalist by the luck of one launch; by the failure of one it is not."""
    measurer = ScriptedMeasurer(noise=0.0)
    few = [SPACE.complete(changes) for changes in ({}, {"batch": 8}, {"thp": "always"})]
    both = [SPACE.complete({**one, "omp": omp}) for one in few for omp in ("auto", "intel")]
    records = recorded(measurer, BARE, *both, WITH_OMP, WITH_OMP)
    records[0] = records[0]._replace(step=records[0].step._replace(stage=Stage.BASELINE))
    (last,) = recorded(ScriptedMeasurer(lambda one: gain(one) - lost, noise=0.0), BEST)
    step = last.step._replace(stage=Stage.ABLATION)
    records.append(last._replace(number=len(records), step=step))

    one = strategy(measurer)
    begins = one.next(records, Allowance(MIN_FINAL.launches, TOTAL))
    assert begins is not None
    assert begins.stage is Stage.FINAL
    final = one.final([*records, Record(len(records), begins, "here", None)])
    assert final is not None
    assert [one.configuration for one in final.plan.finalists] == [finalist]


def doubted(measurer: ScriptedMeasurer) -> list[Record]:
    """All that the best's changes do is known but for `thp`: without it, one launch was 20 % behind."""
    few = [SPACE.complete(changes) for changes in ({}, {"batch": 8}, {"allocator": "tcmalloc"})]
    others = [without("allocator"), without("batch")]
    records = recorded(measurer, BARE, *few, *others, *others, BEST, BEST)
    records[0] = records[0]._replace(step=records[0].step._replace(stage=Stage.BASELINE))
    unlucky = ScriptedMeasurer(lambda one: gain(one) - 0.1, noise=0.0)
    (last,) = recorded(unlucky, without("thp"))
    return [*records, last._replace(number=len(records))]


@pytest.mark.parametrize(("more", "kept"), [(1, True), (3, True), (4, False)])
def test_launches_are_kept_for_more_than_is_doubted_so_far(more: int, kept: bool) -> None:
    measurer = ScriptedMeasurer(noise=0.0)
    step = strategy(measurer).next(doubted(measurer), Allowance(MIN_FINAL.launches + more, TOTAL))
    assert step is not None
    assert (step.stage is Stage.ABLATION) == kept


@pytest.mark.parametrize("more", [0, 1, 2])
def test_what_ablations_leave_over_makes_the_final_longer(more: int) -> None:
    measurer = ScriptedMeasurer(noise=0.0)
    *records, last = doubted(measurer)
    step = last.step._replace(stage=Stage.ABLATION)
    records += [last._replace(step=step), last._replace(step=step, number=last.number + 1)]
    one = strategy(measurer)
    begins = one.next(records, Allowance(MIN_FINAL.launches + more, TOTAL))
    assert begins is not None
    final = one.final([*records, Record(len(records), begins, "here", None)])
    assert final is not None
    assert len(final.plan.orders) == MIN_FINAL.blocks + more // 2


@pytest.mark.parametrize("slow", [True, False])
def test_what_a_single_slow_launch_tells_of_is_launched_again(slow: bool) -> None:
    """Without `thp` it was launched once, and was 20 % behind: by bad luck, or because it is."""
    measurer = ScriptedMeasurer(
        lambda one: gain(one) - 0.1 * (one.get("thp") == "auto") * (not slow), noise=0.0
    )
    records = doubted(measurer)

    one, allowance = strategy(measurer), Allowance(MIN_FINAL.launches + 1, TOTAL)
    again = one.next(records, allowance)
    assert again is not None
    assert (again.stage, again.configuration) == (Stage.ABLATION, without("thp"))
    assert again.origin == "the best without its thp"
    # While another worker launches it, and once there are two, it is not asked for.
    claimed = Record(len(records), again, "there", None)
    assert one.next([*records, claimed], allowance) != again
    records.append(claimed._replace(launch=measurer.measure(again.configuration)))
    then = one.next(records, Allowance(MIN_FINAL.launches + 1, TOTAL))
    assert then is not None
    assert then.stage is Stage.FINAL
    scale = Scale(records, RATE)
    told = {row.name: row for row in ablations_of(BEST, SPACE, measurer.plan_hash, scale)}
    assert told["thp"].launches == 2
    assert told["thp"].ratio == pytest.approx(math.exp(-0.15 if slow else -0.2), abs=0.02)


@pytest.mark.parametrize(("total", "finalists"), [(40, [WITH_OMP]), (90, [WITH_OMP, BEST])])
def test_where_there_is_room_for_both_a_small_loss_is_left_to_the_final(
    total: int, finalists: list[Configuration]
) -> None:
    """An OpenMP is worth 2 %, more than matters, and less than the noise lets the model tell."""
    worth = {"intel": 0.02, "gnu": 0.018}
    measurer = ScriptedMeasurer(
        lambda one: gain(one) + worth.get(str(one.get("omp")), 0.0), noise=0.03, seed=4
    )
    few = [SPACE.complete(changes) for changes in ({}, {"batch": 8}, {"thp": "always"})]
    both = [SPACE.complete({**one, "omp": omp}) for one in few for omp in ("auto", "intel")]
    # As good as the best, and the second finalist, were there none with fewer changes.
    rival = SPACE.complete({**BEST, "omp": "gnu"})
    records = recorded(measurer, BARE, *both, WITH_OMP, WITH_OMP, rival, rival, BEST)
    records[0] = records[0]._replace(step=records[0].step._replace(stage=Stage.BASELINE))
    one = strategy(measurer)
    begins = one.next(records, Allowance(MIN_FINAL.launches, total))
    assert begins is not None
    final = one.final([*records, Record(len(records), begins, "here", None)])
    assert final is not None
    assert [one.configuration for one in final.plan.finalists][:2] == finalists
