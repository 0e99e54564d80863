# SPDX-License-Identifier: Apache-2.0
"""Every proposer proposes what can be launched, and learns from what it is told."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable

import numpy as np
import pytest
from benchmarks.tuner.proposers import GridProposer, OptunaProposer, Proposer, RandomProposer
from tests.tuner.search.scripted import SPACE, gain

from xtune.search.pool import MAX_HELD, Pool
from xtune.search.proposers import ModelProposer, best_first, knowledge_gradient
from xtune.search.records import Rating
from xtune.search.surrogate import Belief
from xtune.space.parameters import Configuration, Parameter, Where
from xtune.space.spaces import Space

CONDITIONED = Space(SPACE.parameters, ["batch <= 4 if smt", "allocator != tcmalloc if omp == gnu"])
LARGE = Space(
    [Parameter(f"p{at}", tuple(range(6)), 0, Where.PROGRAM, ordered=True) for at in range(8)]
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


PROPOSERS = {
    "model": ModelProposer,
    "random": RandomProposer,
    "grid": GridProposer,
    "optuna tpe": sampler("tpe"),
    "optuna random": sampler("random"),
}


def rating(configuration: Configuration, plan_hash: str, score: float | None) -> Rating:
    return Rating(configuration, plan_hash, score)


@pytest.mark.parametrize("name", PROPOSERS)
def test_what_is_proposed_can_be_launched(name: str) -> None:
    proposer = PROPOSERS[name](CONDITIONED, plan)  # type: ignore[operator]
    ratings: list[Rating] = []
    for number in range(40):
        taken = {ratings[-1].plan_hash} if ratings else set()
        chosen = proposer.propose(ratings, taken)
        assert chosen is not None
        assert chosen in CONDITIONED
        plan_hash = plan(chosen)
        assert plan_hash is not None
        assert plan_hash not in taken
        score = None if number % 7 == 0 else gain(chosen)
        ratings.append(rating(chosen, plan_hash, score))


@pytest.mark.parametrize("name", ["model", "optuna tpe"])
def test_what_is_learnt_shows(name: str) -> None:
    proposer = PROPOSERS[name](SPACE, repr)  # type: ignore[operator]
    ratings: list[Rating] = []
    for _ in range(60):
        chosen = proposer.propose(ratings)
        ratings.append(rating(chosen, repr(chosen), gain(chosen)))
    scores = [one.score for one in ratings if one.score is not None]
    average = sum(map(gain, SPACE)) / SPACE.size
    assert sum(scores[30:]) / 30 > average + 0.15
    assert max(scores) > 0.4


@pytest.mark.parametrize("name", ["model", "random", "grid"])
def test_every_plan_is_proposed_before_any_is_again(name: str) -> None:
    small = Space([SPACE.parameter("omp"), SPACE.parameter("smt")])
    proposer = PROPOSERS[name](small, repr)  # type: ignore[operator]
    ratings: list[Rating] = []
    for _ in range(6):
        chosen = proposer.propose(ratings)
        assert chosen is not None
        # Failures: nothing is worth launching again.
        ratings.append(rating(chosen, repr(chosen), None))
    assert {one.configuration for one in ratings} == set(small)


def test_the_best_of_many_noisy_launches_is_launched_again() -> None:
    proposer = ModelProposer(SPACE, repr)
    generator = np.random.default_rng(3)
    ratings: list[Rating] = []
    for _ in range(40):
        chosen = proposer.propose(ratings)
        assert chosen is not None
        score = gain(chosen) + 0.1 * generator.standard_normal()
        ratings.append(rating(chosen, repr(chosen), score))
    counts = collections.Counter(one.plan_hash for one in ratings)
    (favourite,) = proposer.favourites(ratings, 1)
    assert counts[repr(favourite)] >= 2
    # Most launches still go to what is new.
    assert len(counts) > 20


@pytest.mark.parametrize("space", [SPACE, LARGE], ids=["small", "large"])
def test_the_same_launches_and_seed_lead_to_the_same_proposal(space: Space) -> None:
    """Whatever else was asked of the model before: a resumed search goes on as the first would have."""

    def plan_of(configuration: Configuration) -> str:
        return repr({name: value for name, value in configuration.items() if name != "p7"})

    generator = np.random.default_rng(5)
    proposer = ModelProposer(space, plan_of, seed=3)
    ratings: list[Rating] = []
    for count in range(24):
        chosen = proposer.propose(ratings)
        assert chosen is not None
        if count % 6 == 5:
            assert ModelProposer(space, plan_of, seed=3).propose(ratings) == chosen
        score = 0.02 * sum(map(len, map(str, chosen.values()))) + 0.05 * generator.standard_normal()
        ratings.append(rating(chosen, plan_of(chosen), score))
        if count % 2:
            proposer.favourites(ratings[: count // 2], 3)


def test_chance_decides_between_merits_that_come_to_the_same() -> None:
    merits = np.array([0.0, 1.0, 0.5, 1.0 + 1e-9, 1.0 - 1e-9, 0.5])
    orders = {tuple(best_first(merits, np.random.default_rng(seed))) for seed in range(200)}
    assert {order[:3] for order in orders} == set(itertools.permutations((1, 3, 4)))
    assert {order[3:] for order in orders} == {(2, 5, 0), (5, 2, 0)}
    nothing = {tuple(best_first(np.zeros(2), np.random.default_rng(seed))) for seed in range(50)}
    assert nothing == {(0, 1), (1, 0)}


def test_as_many_launches_of_others_are_learnt_anew() -> None:
    model = ModelProposer(SPACE, repr)
    configurations = [SPACE.complete({"allocator": one, "smt": two})
                      for one in ("auto", "tcmalloc") for two in (False, True)]  # fmt: skip
    one, two, three, four = configurations
    first = [Rating(one, repr(one), 0.0), Rating(two, repr(two), 1.0)] * 3
    second = [Rating(three, repr(three), 1.0), Rating(four, repr(four), 0.0)] * 3
    assert model.favourites(first, 1) == [two]
    assert model.favourites(second, 1) == [three]
    mean, _ = model.believed(three)
    assert mean > 0.7


def test_the_knowledge_gradient_is_what_a_launch_raises_the_best_mean_by() -> None:
    generator = np.random.default_rng(0)
    root = generator.standard_normal((4, 4))
    covariance = root @ root.T
    means, noise = np.array([0.3, 0.0, -0.2, 0.1]), 0.5
    launched = [0, 1]
    belief = Belief(means[None], np.diagonal(covariance)[None], np.array([noise]))
    (found,) = knowledge_gradient(belief, means[None, launched], covariance[None][:, :, launched])
    for at in range(4):
        seen = sorted({*launched, at})
        # What the value of such a launch would be, and the means after it (Kalman's update).
        surprise = generator.standard_normal(200_000) * np.sqrt(covariance[at, at] + noise)
        moved = covariance[at, seen] / (covariance[at, at] + noise)
        best = (means[seen] + surprise[:, None] * moved).max(axis=1)
        assert found[at] == pytest.approx(best.mean() - means[launched].max(), rel=0.1)


def test_a_grid_goes_through_the_space_in_order_and_ends() -> None:
    small = Space([SPACE.parameter("omp"), SPACE.parameter("smt")])
    proposer = GridProposer(small, repr)
    assert [proposer.propose([]) for _ in range(7)] == [*small, None]
    other = GridProposer(small, repr, ["smt", "omp"])
    found = [one for _ in range(6) if (one := other.propose([])) is not None]
    assert [one["smt"] for one in found] == [False] * 3 + [True] * 3


def test_a_sampler_is_told_of_launches_that_it_did_not_propose() -> None:
    proposer = sampler("tpe")(SPACE, repr)
    known = [rating(one, repr(one), gain(one)) for one in list(SPACE)[::7]]
    proposer.propose(known)
    assert isinstance(proposer, OptunaProposer)
    assert len(proposer._study.trials) == len(known) + 1
    assert proposer._study.best_value == max(one.score or 0.0 for one in known)


def test_a_failure_is_told_as_the_worst() -> None:
    proposer = sampler("tpe")(SPACE, repr)
    assert isinstance(proposer, OptunaProposer)
    first = proposer.propose([])
    assert first is not None
    told = [rating(first, repr(first), None)]
    second = proposer.propose(told)
    assert second is not None
    told += [rating(second, repr(second), -0.5)]
    third = proposer.propose(told)
    assert third is not None
    proposer.propose([*told, rating(third, repr(third), None)])
    values = [trial.value for trial in proposer._study.trials[:3]]
    assert values == [None, -0.5, -0.5]


def test_the_pool_of_a_space_of_millions_stays_small_and_finds_its_way() -> None:
    def score(configuration: Configuration) -> float:
        return -0.02 * sum((int(value) - 4) ** 2 for value in configuration.values())

    proposer = ModelProposer(LARGE, repr, seed=1)
    ratings: list[Rating] = []
    for _ in range(50):
        chosen = proposer.propose(ratings)
        assert chosen is not None
        ratings.append(rating(chosen, repr(chosen), score(chosen)))
    assert len(proposer.pool.around(proposer.favourites(ratings, 50), [])) <= MAX_HELD
    assert max(one.score or -9.0 for one in ratings) > -0.13, "at most 6 steps from the best"
    assert score(LARGE.default) == -2.56


def test_equal_plans_that_are_found_on_the_way_are_not_launched_again() -> None:
    """Too many to resolve beforehand, and all but `p0` and `p1` do nothing."""
    space = Space(LARGE.parameters[:4])
    assert space.size == 1296

    def plan(configuration: Configuration) -> str:
        return f"{configuration['p0']} {configuration['p1']}"

    proposer = ModelProposer(space, plan, seed=1)
    ratings: list[Rating] = []
    for _ in range(30):
        chosen = proposer.propose(ratings)
        assert chosen is not None
        # Failures: nothing is worth launching again.
        ratings.append(rating(chosen, plan(chosen), None))
    assert len({one.plan_hash for one in ratings}) == 30


def test_of_equal_plans_the_one_with_fewest_changes_stands_for_all() -> None:
    space = Space([SPACE.parameter("omp"), SPACE.parameter("smt")])
    pool = Pool(space, lambda one: str(one["smt"]), seed=1)
    assert set(pool.configurations) == {space.complete({}), space.complete({"smt": True})}
    assert pool.owner("True") == space.complete({"smt": True})
