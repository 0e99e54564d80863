# SPDX-License-Identifier: Apache-2.0
"""What mattered is named, what did not is not, and too few launches are said to be too few."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.binomial import binomial_lower_bound
from tests.golden import Golden
from tests.tuner.evidence.scripted_finals import RATE, launch
from tests.tuner.evidence.simulation import (
    NOISES,
    NoiseModel,
    random_configurations,
    simulated,
    speed_of,
)

from xtune.evidence.readings import Importance, SettingImportance, ValueEffect, importance_of
from xtune.launches.launch import Goal, Launch, Objective, Outcome
from xtune.space.parameters import BARE, Configuration, Parameter, Target, Value
from xtune.space.spaces import Space

SPACE = Space(
    [
        Parameter("allocator", ("auto", "jemalloc", "tcmalloc"), "auto", Target.OPTION),
        Parameter("openmp", ("gnu", "intel", "llvm"), "gnu", Target.OPTION),
        Parameter("cores", (1, 2, 4), 4, Target.OPTION, ordered=True),
        Parameter("smt", (False, True), False, Target.OPTION),
    ]
)
Effects = dict[str, dict[Value, float]]


def searched(
    effects: Effects,
    *,
    count: int = 30,
    noise: NoiseModel = NOISES["3 %"],
    seed: int = 0,
    goal: Goal = Goal.MAXIMIZE,
) -> list[Launch]:
    workload = simulated(speed_of(effects), noise, seed=seed, goal=goal)
    chosen = random_configurations(SPACE, count, np.random.default_rng(seed))
    return [workload.measure(row) for row in [SPACE.default, SPACE.default, *chosen]]


def judged(seen: list[Launch], objective: Objective = RATE) -> Importance:
    return importance_of(seen, SPACE.parameters, objective)


def setting(importance: Importance, name: str) -> SettingImportance:
    return next(row for row in importance.settings if row.name == name)


def effect(importance: Importance, name: str, value: Value) -> ValueEffect:
    return next(row for row in setting(importance, name).effects if row.value == value)


def test_what_mattered_comes_first_with_its_effect() -> None:
    importance = judged(searched({"allocator": {"tcmalloc": 1.30}, "smt": {True: 0.95}}))
    assert importance.note == ""
    first = importance.settings[0]
    assert first.name == "allocator"
    assert first.matters
    assert first.share > 0.7
    best = first.effects[0]
    assert best.value == "tcmalloc"
    assert best.low < 1.30 < best.high
    assert best.ratio == pytest.approx(1.30, rel=0.05)
    assert setting(importance, "smt").effects[0].ratio < 1.0
    assert not setting(importance, "openmp").matters
    assert importance.explained > 0.8
    assert sum(row.share for row in importance.settings) <= 1.0


def test_effects_are_told_apart_though_a_search_mixes_them() -> None:
    """Nine of ten launches with tcmalloc also have smt, which costs 20 %: means alone mislead."""
    rng = np.random.default_rng(0)
    speed = speed_of({"allocator": {"tcmalloc": 1.15}, "smt": {True: 0.80}})
    workload = simulated(speed, NOISES["1 %"], seed=0)
    seen = [
        workload.measure(
            row.with_value("allocator", allocator).with_value("smt", bool(rng.random() < share))
        )
        for row in random_configurations(SPACE, 30, rng)
        for allocator, share in (("tcmalloc", 0.9), ("auto", 0.1))
    ]
    with_it, without = ([one.value or 0.0 for one in seen[first::2]] for first in (0, 1))
    assert np.mean(with_it) < np.mean(without)
    best = effect(judged(seen), "allocator", "tcmalloc")
    assert best.low > 1.0
    assert best.ratio == pytest.approx(1.15, rel=0.03)


def test_a_ratio_above_1_is_better_where_less_is() -> None:
    effects: Effects = {"openmp": {"intel": 1.25}}
    seen = searched(effects, goal=Goal.MINIMIZE)
    best = setting(judged(seen, Objective("wall", Goal.MINIMIZE)), "openmp").effects[0]
    assert (best.value, best.ratio) == ("intel", pytest.approx(1.25, rel=0.05))


@pytest.mark.long
@pytest.mark.parametrize(("noise", "count"), [("3 %", 20), ("heavy tails", 40), ("drift", 30)])
def test_settings_that_do_nothing_are_not_said_to_matter(noise: str, count: int) -> None:
    wrong = 0
    for seed in range(100):
        importance = judged(searched({}, count=count, noise=NOISES[noise], seed=seed))
        wrong += any(row.matters for row in importance.settings)
    assert binomial_lower_bound(wrong, 100, 0.999) < 0.05


@pytest.mark.long
def test_intervals_cover_the_effect() -> None:
    hits = 0
    for seed in range(100):
        importance = judged(searched({"allocator": {"tcmalloc": 1.10}}, seed=seed))
        seen = effect(importance, "allocator", "tcmalloc")
        hits += seen.low <= 1.10 <= seen.high
    assert hits / 100 > 0.90


def test_interactions_stay_unexplained_and_widen_the_intervals() -> None:
    """tcmalloc helps by 40 % with smt, and costs as much without it: on average nothing."""

    def speed(configuration: Configuration) -> float:
        if configuration["allocator"] != "tcmalloc":
            return 1.0
        return 1.4 if configuration["smt"] else 1.0 / 1.4

    chosen = random_configurations(SPACE, 50, np.random.default_rng(0))
    workload = simulated(speed, NOISES["1 %"], seed=0)
    importance = judged([workload.measure(row) for row in chosen])
    assert importance.explained < 0.5
    seen = effect(importance, "allocator", "tcmalloc")
    assert seen.low < 1.0 < seen.high
    assert math.log(seen.high / seen.low) > 0.1


def test_more_launches_of_a_configuration_are_one_configuration() -> None:
    seen = searched({"allocator": {"tcmalloc": 1.3}}, count=20)
    importance = judged(seen + seen)
    assert importance.launches == 2 * len(seen)
    assert importance.configurations == 21
    counts = {row.value: row.configurations for row in setting(importance, "smt").effects}
    assert counts[True] == sum(
        row["smt"] is True for row in {launch.configuration for launch in seen}
    )


def test_many_launches_of_one_configuration_do_not_outweigh_the_others() -> None:
    """The default happens to be 30 % faster than its settings explain; 50 launches of it or 1."""
    seen = searched({"allocator": {"tcmalloc": 1.3}}, noise=NOISES["1 %"])[2:]
    once, often = (judged([*seen, *[launch(SPACE.default, 130.0)] * times]) for times in (1, 50))
    assert setting(often, "allocator").effects[0].ratio == pytest.approx(
        setting(once, "allocator").effects[0].ratio, rel=0.02
    )


def test_defaults_left_out_of_a_configuration_are_its_defaults() -> None:
    seen = searched({"smt": {True: 1.2}})
    shortened = [
        row._replace(configuration=Configuration(SPACE.changes(row.configuration))) for row in seen
    ]
    assert judged(shortened) == judged(seen)


def test_launches_without_a_value_are_left_out() -> None:
    seen = searched({"allocator": {"tcmalloc": 1.3}})
    bad = [
        launch(seen[-1].configuration, None, outcome=Outcome.CRASHED),
        launch(seen[-1].configuration, 0.0),
        launch(BARE, 50.0),
    ]
    importance = judged(seen + bad)
    assert importance.launches == len(seen)
    assert importance.settings == judged(seen).settings


def test_too_few_configurations_are_said_to_be_too_few(golden: Golden) -> None:
    importance = judged(searched({}, count=4))
    assert importance.settings == ()
    golden(importance.note, judged([]).note)


def test_a_value_that_one_configuration_had_is_not_judged() -> None:
    seen = [row for row in searched({}) if row.configuration["allocator"] != "jemalloc"]
    once = seen[5].configuration.with_value("allocator", "jemalloc")
    importance = judged([*seen, launch(once, 500.0)])
    values = {row.value for row in setting(importance, "allocator").effects}
    assert values == {"tcmalloc"}
    still = [row for row in seen if row.configuration["smt"] is False]
    flat = setting(judged(still), "smt")
    assert flat.effects == ()
    assert flat.share == 0.0


def test_values_that_always_came_together_are_not_told_apart() -> None:
    """Which of the two helps is unknown: each may, and neither is said to."""
    both = [
        row
        for row in random_configurations(SPACE, 60, np.random.default_rng(0))
        if (row["allocator"] == "tcmalloc") == (row["openmp"] == "intel")
    ]
    workload = simulated(speed_of({"allocator": {"tcmalloc": 1.3}}), NOISES["1 %"], seed=0)
    importance = judged([workload.measure(row) for row in both])
    for name, value in (("allocator", "tcmalloc"), ("openmp", "intel")):
        seen = effect(importance, name, value)
        assert 1.0 < seen.ratio < 1.3
        assert seen.low < 1.0
        assert not setting(importance, name).matters
