# SPDX-License-Identifier: Apache-2.0
"""Every proposer proposes what can be launched, and learns from what it is told."""

from __future__ import annotations

import collections
import random
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import pytest
from benchmarks.tuner.proposers import GridProposer, OptunaProposer, Proposer, RandomProposer
from tests.tuner.search.scripted import SPACE, gain

from xtune.search.proposer import MAX_HELD, REPEAT_EVERY, Belief
from xtune.search.proposer import Proposer as Process
from xtune.search.records import Rating
from xtune.space.parameters import Configuration, Parameter, Target, Value
from xtune.space.spaces import Space

CONDITIONED = Space(SPACE.parameters, ["batch <= 4 if smt", "allocator != tcmalloc if omp == gnu"])
LARGE = Space(
    [Parameter(f"p{at}", tuple(range(6)), 0, Target.PROGRAM, ordered=True) for at in range(8)]
)
"""1,679,616 configurations."""


def plan(configuration: Configuration) -> str | None:
    """`thp` does nothing, and `glibc` cannot be had."""
    if configuration["allocator"] == "glibc":
        return None
    return repr({name: value for name, value in configuration.items() if name != "thp"})


def sampler(name: str) -> Callable[[Space, Callable[[Configuration], str | None]], Proposer]:
    def make(space: Space, plan_hash: Callable[[Configuration], str | None]) -> Proposer:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        made = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}[name]
        return OptunaProposer(space, plan_hash, made(seed=1))

    return make


class Model:
    """xtune's own proposer with a given noise."""

    def __init__(
        self, space: Space, plan_hash: Callable[[Configuration], str | None], seed: int = 0
    ) -> None:
        self.process = Process(space, plan_hash, seed)

    def propose(
        self, ratings: Sequence[Rating], taken: Collection[str] = ()
    ) -> Configuration | None:
        return self.process.propose(ratings, SPREAD, taken)

    def favourites(self, ratings: Sequence[Rating], count: int) -> list[Configuration]:
        return self.process.favourites(ratings, Belief(self.process, ratings, SPREAD), count)


SPREAD = 0.03

PROPOSERS = {
    "model": Model,
    "random": RandomProposer,
    "grid": GridProposer,
    "optuna tpe": sampler("tpe"),
    "optuna random": sampler("random"),
}


def proposed(
    proposer: Proposer,
    count: int,
    score: Callable[[Configuration], float | None] = lambda _: None,
    plan_hash: Callable[[Configuration], str] = repr,
) -> list[Rating]:
    """What is proposed in so many launches, or until nothing is left.

    score
        What each is rated. None, a failure: nothing is worth launching again.
    """
    ratings: list[Rating] = []
    while len(ratings) < count and (chosen := proposer.propose(ratings)) is not None:
        ratings.append(Rating(chosen, plan_hash(chosen), score(chosen)))
    return ratings


@pytest.mark.parametrize("name", PROPOSERS)
def test_what_is_proposed_can_be_launched(name: str) -> None:
    proposer = PROPOSERS[name](CONDITIONED, plan)  # type: ignore[operator]
    ratings: list[Rating] = []
    for number in range(40):
        taken = {"taken": {ratings[-1].plan_hash} if ratings else set()} if name == "model" else {}
        chosen = proposer.propose(ratings, **taken)
        assert chosen is not None
        assert chosen in CONDITIONED
        plan_hash = plan(chosen)
        assert plan_hash is not None
        assert plan_hash not in taken.get("taken", ())
        score = None if number % 7 == 0 else gain(chosen)
        ratings.append(Rating(chosen, plan_hash, score))


@pytest.mark.parametrize("name", ["model", "optuna tpe"])
def test_what_is_learnt_shows(name: str) -> None:
    ratings = proposed(PROPOSERS[name](SPACE, repr), 60, gain)  # type: ignore[operator]
    scores = [one.score for one in ratings if one.score is not None]
    average = sum(map(gain, SPACE)) / SPACE.size
    assert sum(scores[30:]) / 30 > average + 0.15
    assert max(scores) > 0.4


@pytest.mark.parametrize("name", ["model", "random", "grid"])
def test_every_plan_is_proposed_before_any_is_again(name: str) -> None:
    small = Space([SPACE.parameter("omp"), SPACE.parameter("smt")])
    ratings = proposed(PROPOSERS[name](small, repr), 6)  # type: ignore[operator]
    assert {one.configuration for one in ratings} == set(small)


def test_every_fifth_launch_repeats_the_best() -> None:
    proposer = Model(SPACE, repr)
    generator = np.random.default_rng(3)
    ratings: list[Rating] = []
    for count in range(1, 41):
        chosen = proposer.propose(ratings)
        is_known = any(one.configuration == chosen for one in ratings)
        assert is_known == (count % REPEAT_EVERY == 0)
        if is_known:
            assert proposer.favourites(ratings, 1) == [chosen]
        score = gain(chosen) + 0.1 * generator.standard_normal()
        ratings.append(Rating(chosen, repr(chosen), score))


def test_one_failure_is_forgiven_and_a_second_is_not() -> None:
    proposer = Model(Space([SPACE.parameter("omp")]), repr)
    ratings = proposed(proposer, 8)
    assert max(collections.Counter(one.plan_hash for one in ratings).values()) == 2
    assert proposer.propose(ratings) is None


def test_settings_that_failed_are_tried_late() -> None:
    """tcmalloc always fails: the others are tried first, though nothing else is known of either."""
    tried = [SPACE.complete({"allocator": "tcmalloc", "batch": batch}) for batch in (1, 2, 4, 8)]
    fine = [SPACE.complete({"allocator": "glibc", "batch": batch}) for batch in (1, 2, 4, 8)]
    ratings = [Rating(one, repr(one), None) for one in tried]
    ratings += [Rating(one, repr(one), 0.01 * at) for at, one in enumerate(fine)]
    for _ in range(6):
        chosen = Model(SPACE, repr).propose(ratings)
        assert chosen["allocator"] != "tcmalloc"
        ratings.append(Rating(chosen, repr(chosen), 0.0))


def test_beliefs_are_the_posterior_of_a_gaussian_process() -> None:
    """Two plans by hand: similarity 1/2 (1/2 + 0) where one of two parameters agrees."""
    space = Space([SPACE.parameter("omp"), SPACE.parameter("smt")])
    process = Process(space, repr)
    one, other = space.default, space.complete({"smt": True})
    far = space.complete({"omp": "gnu", "smt": True})
    ratings = [Rating(one, repr(one), 0.0), Rating(other, repr(other), 0.2)]
    means, deviations = Belief(process, ratings, 1e-6).of([one, other, far])
    assert means[:2] == pytest.approx([0.0, 0.2], abs=1e-6)
    assert deviations[:2] == pytest.approx([0.0, 0.0], abs=1e-3)
    assert means[2] == pytest.approx(0.1 + 0.1 * 0.25 / (1.0 - 0.25))
    assert deviations[2] == pytest.approx(0.2 * np.sqrt(1.0 - 0.0625 / (1.0 - 0.0625)))


@pytest.mark.parametrize("space", [SPACE, LARGE], ids=["small", "large"])
def test_the_same_launches_and_seed_lead_to_the_same_proposal(space: Space) -> None:
    """Whatever else was asked of the model before: a resumed search goes on as the first would have."""

    def plan_of(configuration: Configuration) -> str:
        return repr({name: value for name, value in configuration.items() if name != "p7"})

    generator = np.random.default_rng(5)
    proposer = Model(space, plan_of, seed=3)
    ratings: list[Rating] = []
    for count in range(24):
        chosen = proposer.propose(ratings)
        if count % 6 == 5:
            assert Model(space, plan_of, seed=3).propose(ratings) == chosen
        score = 0.02 * sum(map(len, map(str, chosen.values()))) + 0.05 * generator.standard_normal()
        ratings.append(Rating(chosen, plan_of(chosen), score))
        if count % 2:
            proposer.favourites(ratings[: count // 2], 3)


def test_a_grid_goes_through_the_space_in_order_and_ends() -> None:
    small = Space([SPACE.parameter("omp"), SPACE.parameter("smt")])
    proposer = GridProposer(small, repr)
    assert [proposer.propose([]) for _ in range(7)] == [*small, None]
    other = GridProposer(small, repr, ["smt", "omp"])
    found = [one for _ in range(6) if (one := other.propose([])) is not None]
    assert [one["smt"] for one in found] == [False] * 3 + [True] * 3


def test_a_sampler_is_told_of_a_failure_as_the_worst() -> None:
    proposer = sampler("tpe")(SPACE, repr)
    assert isinstance(proposer, OptunaProposer)
    told: list[Rating] = []
    for score in (None, 0.5, 0.2, 0.3, None):
        chosen = proposer.propose(told)
        assert chosen is not None
        told.append(Rating(chosen, repr(chosen), score))
    proposer.propose(told)
    first, *values = [trial.value for trial in proposer._study.trials[:-1]]
    assert first is None, "nothing was worse"
    assert values == [0.5, 0.2, 0.3, 0.2]


def test_the_pool_of_a_space_of_millions_stays_small_and_finds_its_way() -> None:
    def score(configuration: Configuration) -> float:
        return -0.02 * sum((int(value) - 4) ** 2 for value in configuration.values())

    proposer = Model(LARGE, repr, seed=1)
    ratings = proposed(proposer, 50, score)
    assert len(proposer.process._pool) <= MAX_HELD
    assert max(one.score or -9.0 for one in ratings) > -0.13, "at most 6 steps from the best"
    assert score(LARGE.default) == -2.56


def test_equal_plans_that_are_found_on_the_way_are_not_launched_again() -> None:
    """Too many to resolve beforehand, and all but `p0` and `p1` do nothing."""
    space = Space(LARGE.parameters[:4])
    assert space.size == 1296

    def plan(configuration: Configuration) -> str:
        return f"{configuration['p0']} {configuration['p1']}"

    ratings = proposed(Model(space, plan, seed=1), 30, plan_hash=plan)
    assert len({one.plan_hash for one in ratings}) == 30


MODES = Space(
    [
        *[Parameter(f"p{at}", tuple("abcdefg"), "a", Target.OPTION) for at in range(3)],
        Parameter("mode", ("slow", "fast"), "slow", Target.PROGRAM),
    ]
)
"""686 configurations."""

Effects = Mapping[tuple[str, Value], float]


def test_each_value_of_a_small_parameter_is_tried_twice_early() -> None:
    """The first launch with `fast` changes all else, and so tells nothing about it."""
    for seed in range(6):
        chance = random.Random(seed)
        effects = {
            (one.name, v): chance.gauss(0, 0.3) for one in MODES.parameters for v in one.values
        }

        def score(configuration: Configuration, effects: Effects = effects) -> float:
            return sum(effects[setting] for setting in configuration.items())

        ratings = proposed(Model(MODES, repr, seed), 8, score)
        modes = collections.Counter(one.configuration["mode"] for one in ratings)
        assert min(modes["slow"], modes["fast"]) >= 2
