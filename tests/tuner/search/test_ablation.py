# SPDX-License-Identifier: Apache-2.0
"""What looks best is launched without each of its changes, and what that tells is told."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from tests.tuner.search.scripted import BEST, RATE, SPACE, ScriptedMeasurer, follow, gain, stages

from xtune.evidence.ratios import student_quantile
from xtune.launches.launch import Limits, Outcome
from xtune.search.ablation import ablations_of, without_each
from xtune.search.budget import MIN_FINAL
from xtune.search.events import Allowance
from xtune.search.records import USUAL_DEGREES, NextLaunch, Record, ScoreScale, Stage
from xtune.search.strategy import MAX_CHECKS, Strategy
from xtune.space.parameters import BARE, Configuration
from xtune.space.spaces import Space
from xtune.tuning import next_step

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
        step = NextLaunch(Stage.SEARCH, configuration, plan_hash, str(number), cut_at=cut_at)
        launch = measurer.measure(configuration, Limits(cut_at=cut_at))
        records.append(Record(number, step, "here", launch))
    return records


def without(name: str, configuration: Configuration = BEST) -> Configuration:
    return SPACE.complete({**configuration, name: SPACE.default[name]})


def test_nothing_is_left_out_where_nothing_is_ahead() -> None:
    measurer = ScriptedMeasurer(lambda _: 0.0, noise=0.02)
    records = follow(strategy(measurer), measurer, 100, total=TOTAL)
    assert len(records) == TOTAL
    assert Stage.ABLATION not in stages(records)


def test_one_that_had_luck_is_no_finalist() -> None:
    """The best without one of its changes looks twice as good as it is."""
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
        if step.origin.startswith("the best without its ") and step.plan_hash not in known:
            # It is too late for this launch; make it anew.
            ablated.append(step.configuration)
            records[-1] = records[-1]._replace(launch=measurer.measure(step.configuration))
    assert ablated
    final = one.final(records)
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
    scale = ScoreScale(records, RATE)
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
    assert records[1].launch.outcome is Outcome.CUT
    assert ablations_of(BEST, SPACE, measurer.plan_hash, ScoreScale(records, RATE)) == ()
    broken = ScriptedMeasurer(outcomes=lambda _: Outcome.CRASHED)
    records = recorded(measurer, BEST) + recorded(broken, without("thp"))
    assert ablations_of(BEST, SPACE, measurer.plan_hash, ScoreScale(records, RATE)) == ()


def test_a_change_that_changes_no_plan_is_not_told() -> None:
    """A machine on which `omp` does nothing: without it, it is the same."""

    def plan(configuration: Configuration) -> str:
        return repr({name: value for name, value in configuration.items() if name != "omp"})

    measurer = ScriptedMeasurer(noise=0.0, plan=plan)
    best = SPACE.complete({**BEST, "omp": "intel"})
    records = recorded(measurer, BARE, BEST, without("thp", best))
    found = ablations_of(best, SPACE, plan, ScoreScale(records, RATE))
    assert [(one.name, round(one.ratio, 3)) for one in found] == [("thp", 0.905)]


@pytest.mark.parametrize("seed", range(3))
def test_before_the_final_the_best_is_launched_without_each_change(seed: int) -> None:
    measurer = ScriptedMeasurer(seed=seed)
    one = strategy(measurer, seed=seed)
    records = follow(one, measurer, 100, total=60)
    assert len(records) <= 60
    final = one.final(records)
    best = final.plan.finalists[0].configuration
    assert gain(best) == pytest.approx(gain(BEST))
    first = stages(records).index(Stage.FINAL)
    count = Counter(stages(records))[Stage.ABLATION]
    assert count <= MAX_CHECKS + 1
    assert stages(records)[first - count : first] == [Stage.ABLATION] * count
    plans = [record.step.plan_hash for record in records[first - count : first]]
    assert not set(plans) & {record.step.plan_hash for record in records[: first - count]}
    told = ablations_of(best, SPACE, measurer.plan_hash, ScoreScale(records, RATE))
    assert {one.name for one in told} == set(SPACE.changes(best))


WITH_OMP = SPACE.complete({**BEST, "omp": "intel"})


def finalists_of(measurer: ScriptedMeasurer, total: int, seed: int) -> list[Configuration]:
    """Of a search that has launched the best already."""
    one = strategy(measurer, seed=seed)
    records = recorded(measurer, WITH_OMP, WITH_OMP)
    records = follow(one, measurer, total, total=total, records=records)
    final = one.final(records)
    found = [finalist.configuration for finalist in final.plan.finalists]
    told = ablations_of(found[0], SPACE, measurer.plan_hash, ScoreScale(records, RATE))
    assert {"allocator", "batch", "thp"} <= {one.name for one in told}
    return found


@pytest.mark.parametrize("seed", range(2))
def test_what_wins_carries_nothing_that_does_nothing(seed: int) -> None:
    """Another OpenMP is worth two thousandths, always: the best has it, and who uses it need not."""
    measurer = ScriptedMeasurer(
        lambda one: gain(one) + 0.002 * (one.get("omp") == "intel"), noise=0.0
    )
    # Where there is room for one, it is the one with fewer changes; else both, and the final says.
    assert finalists_of(measurer, 40, seed) == [BEST]
    assert finalists_of(measurer, 90, seed)[:2] == [WITH_OMP, BEST]


@pytest.mark.parametrize("seed", range(2))
def test_what_does_something_stays(seed: int) -> None:
    """That OpenMP does nothing but to the best, which is half as fast without it."""

    def speed(one: Configuration) -> float:
        spoilt = one.get("omp") != "intel" and all(
            one.get(name) == BEST[name] for name in ("allocator", "batch", "thp")
        )
        return gain(one) - math.log(2.0) * spoilt

    assert finalists_of(ScriptedMeasurer(speed, noise=0.0), 60, seed)[0] == WITH_OMP


def test_useless_changes_that_are_needed_together_stay() -> None:
    """Without either of two settings it is as fast, without both half as fast: one launch refuses that."""

    def speed(one: Configuration) -> float:
        return 0.4 - 0.7 * (one.get("omp") == "auto" and one.get("thp") == "auto")

    best = SPACE.complete({"omp": "intel", "thp": "never"})
    measurer = ScriptedMeasurer(speed, noise=0.0)
    few = [SPACE.complete(changes) for changes in ({"omp": "intel"}, {"thp": "never"}, {})]
    records = recorded(measurer, BARE, best, best, best, *few)
    baseline = records[0].step._replace(stage=Stage.BASELINE)
    checks = [one._replace(step=one.step._replace(stage=Stage.ABLATION)) for one in records[4:]]
    records = [records[0]._replace(step=baseline), *records[1:4], *checks]
    one = strategy(measurer)
    begins = next_step(one, records, Allowance(MIN_FINAL.launches, TOTAL))
    assert begins is not None
    final = one.final([*records, Record(len(records), begins, "here", None)])
    assert [one.configuration for one in final.plan.finalists] == [best]
