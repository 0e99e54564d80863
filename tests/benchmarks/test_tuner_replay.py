# SPDX-License-Identifier: Apache-2.0
"""What a replayed strategy sees is a plan's mean with noise, and what it chose is judged by the mean."""

from __future__ import annotations

import math
import statistics

import pytest
from benchmarks.tuner.recorded import Header, RecordedLaunch, RecordedPlan, Recording
from benchmarks.tuner.replay import ResampledMeasurer, levelled, noise_of, share

from xtune.launches.launch import Goal, Launch, Objective, Outcome, Secondary
from xtune.space.parameters import BARE, Configuration, Parameter, Target
from xtune.space.spaces import Space

VALUES = {
    "quick": (100.0, 110.0, 121.0),
    "steady": (90.0, 90.0, 90.0),
    "breaks": (120.0, None, 120.0),
}


def configuration(name: str) -> Configuration:
    return Configuration({"way": name})


def recording(goal: Goal = Goal.MAXIMIZE) -> Recording:
    """Three plans and the bare command, three launches each."""
    ways = Parameter("way", tuple(VALUES), "steady", Target.OPTION, False)
    header = Header("ways", Space((ways,)), "made up", ("ways.py",), Objective("images/s", goal))
    plans = [
        RecordedPlan("bare", (BARE,)),
        *(RecordedPlan(name, (configuration(name),)) for name in VALUES),
    ]
    launches = [
        RecordedLaunch(number, launch_of(plan, value))
        for number in range(3)
        for plan, value in [
            (plans[0], 80.0),
            *zip(plans[1:], (values[number] for values in VALUES.values()), strict=True),
        ]
    ]
    return Recording(header, plans, launches)


def launch_of(plan: RecordedPlan, value: float | None) -> Launch:
    outcome = Outcome.CRASHED if value is None else Outcome.MEASURED
    hashed = plan.plan_hash or ""
    return Launch(plan.configurations[0], hashed, outcome, value, 0.0, secondary=Secondary(1.0))


def drawn(source: Recording, name: str, seed: int) -> list[float | None]:
    measurer = ResampledMeasurer(source, noise_of(source), seed)
    return [measurer.measure(configuration(name)).value for _ in range(300)]


def test_noise_is_as_wide_as_what_was_recorded() -> None:
    noise = noise_of(recording())
    assert noise.keys() == {"bare", "quick", "steady"}, "what breaks has no mean"
    assert noise["steady"] == [0.0, 0.0, 0.0]
    # The spread of the population that three launches are a sample of.
    wanted = statistics.stdev(math.log(value) for value in (100.0, 110.0, 121.0))
    assert statistics.pstdev(noise["quick"]) == pytest.approx(wanted)
    assert statistics.fmean(noise["quick"]) == pytest.approx(0.0)


def test_a_run_sees_the_mean_with_the_noise_of_that_plan() -> None:
    source = recording()
    assert set(drawn(source, "steady", 0)) == {90.0}
    quick = drawn(source, "quick", 0)
    mean = statistics.fmean((100.0, 110.0, 121.0))
    assert set(quick) == {mean * math.exp(noise) for noise in noise_of(source)["quick"]}
    assert drawn(source, "quick", 0) == quick, "a seed is a run"
    assert drawn(source, "quick", 1) != quick
    # Three in turn are not the three recorded ones: draws do not depend on one another.
    assert any(len(set(quick[at : at + 3])) < 3 for at in range(0, 300, 3))


def test_what_breaks_now_and_then_does_so_in_a_replay() -> None:
    seen = drawn(recording(), "breaks", 0)
    assert set(seen) == {120.0, None}


@pytest.mark.parametrize(
    ("goal", "best", "other"),
    [(Goal.MAXIMIZE, "quick", "steady"), (Goal.MINIMIZE, "steady", "quick")],
)
def test_a_choice_is_judged_by_what_its_plan_comes_to(goal: Goal, best: str, other: str) -> None:
    source = recording(goal)
    mean = statistics.fmean((100.0, 110.0, 121.0))
    assert share(source, configuration(best)) == 1.0
    assert share(source, configuration(other)) == pytest.approx(90.0 / mean)
    assert share(source, configuration("breaks")) == 0.0


def test_a_round_that_was_slow_as_a_whole_is_lifted_to_the_others() -> None:
    source = recording()
    slow = [
        one._replace(launch=one.launch._replace(value=one.launch.value and 0.5 * one.launch.value))
        if one.round == 1
        else one
        for one in source.launches
    ]
    level = levelled(Recording(source.header, source.plans, slow))
    values = [launch.value for launch in level.by_plan["steady"]]
    assert values[1] == pytest.approx(values[0], rel=0.1)
    assert noise_of(level)["quick"][0] == pytest.approx(noise_of(levelled(source))["quick"][0])
