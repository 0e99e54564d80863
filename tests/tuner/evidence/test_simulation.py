# SPDX-License-Identifier: Apache-2.0
"""A search where nothing helps claims a gain in at most 5 % of runs; where something does, it finds it.

Whole searches, simulated: 20 random configurations, the three luckiest and the baseline in a final
of 12 blocks. The rates that are asserted are exact binomial bounds, not the rates seen.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import numpy as np
import pytest
from tests.binomial import binomial_lower_bound, binomial_upper_bound
from tests.tiers import quick_first
from tests.tuner.evidence.scripted_finals import RATE
from tests.tuner.evidence.simulation import (
    NOISES,
    NoiseModel,
    random_configurations,
    simulated,
    speed_of,
)

from xtune.evidence.finals import Final, Finalist, FinalPlan
from xtune.evidence.verdicts import Verdict, VerdictKind
from xtune.space.parameters import Configuration, Parameter, Target
from xtune.space.spaces import Space

SPACE = Space(
    [
        Parameter(name, ("a", "b", "c"), "a", Target.OPTION)
        for name in ("p", "q", "r", "s", "t", "u")
    ]
)
OBSTINATE = {
    "printed in coarse steps": NoiseModel(0.0, modes_apart=0.10),
    "every third launch an outlier": NoiseModel(0.01, outlier_rate=0.3),
    "a machine that wanders": NoiseModel(0.01, drift=0.05),
}
BLOCKS = 12


def searched(
    speed: Callable[[Configuration], float],
    noise: NoiseModel,
    seed: int,
    *,
    impatient: bool = False,
) -> Verdict:
    """The simplest search there is, and its verdict.

    impatient
        Somebody watches the verdict after every block and presses Ctrl-C when it is a gain.
    """
    workload = simulated(speed, noise, seed=seed)
    trials = random_configurations(SPACE, 20, np.random.default_rng(seed))
    seen = sorted(map(workload.measure, trials), key=lambda launch: -(launch.value or 0.0))
    chosen = [
        Finalist(launch.configuration, len(SPACE.changes(launch.configuration)))
        for launch in seen[:3]
    ]
    final = Final(FinalPlan(SPACE.default, chosen, planned=BLOCKS, seed=seed), RATE)
    while final.blocks < BLOCKS and (step := final.next()) is not None:
        final.record(step, workload.measure(step.configuration))
        if impatient and step.block < final.blocks:
            verdict = final.verdict(in_full=False)
            if verdict.kind is VerdictKind.GAIN:
                return verdict
    return final.verdict(in_full=False)


def verdicts(noise: NoiseModel, gain: float, runs: int) -> list[Verdict]:
    """Of searches in which one value of one of six parameters does something."""
    speed = speed_of({"p": {"b": gain}})
    return [searched(speed, noise, seed) for seed in range(runs)]


def claims(noise: NoiseModel, runs: int, *, impatient: bool = False) -> int:
    found = [searched(lambda _: 1.0, noise, seed, impatient=impatient) for seed in range(runs)]
    return sum(row.kind is VerdictKind.GAIN for row in found)


@pytest.mark.long
def test_where_nothing_helps_a_gain_is_claimed_in_5_percent_at_most() -> None:
    """Of 500 searches so few claim one that the true rate is below 5 %, with 95 % confidence.

    With a true rate of 5 % the test would fail with 95 % probability; `full` has 3,000 searches.
    """
    assert binomial_upper_bound(claims(NOISES["3 %"], 500), 500, 0.95) < 0.05


@pytest.mark.full
@pytest.mark.parametrize("name", [*NOISES, *OBSTINATE])
def test_nor_under_any_other_noise(name: str) -> None:
    noise = {**NOISES, **OBSTINATE}[name]
    assert binomial_upper_bound(claims(noise, 3000), 3000, 0.99) < 0.05


@pytest.mark.full
@pytest.mark.parametrize("name", ["3 %", "two states"])
def test_nor_by_somebody_who_stops_as_soon_as_a_gain_shows(name: str) -> None:
    impatient = claims(NOISES[name], 4000, impatient=True)
    assert binomial_upper_bound(impatient, 4000, 0.95) < 0.05


POWER = [
    ("1 %", 1.05, 0.95, 60),
    ("3 %", 1.05, 0.70, 200),
    ("3 %", 1.10, 0.95, 200),
    ("heavy tails", 1.10, 0.90, 200),
    ("drift", 1.05, 0.90, 200),
    ("outliers", 1.10, 0.80, 200),
    ("outliers", 1.30, 0.95, 200),
]


@pytest.mark.parametrize(
    ("name", "gain", "least", "searches"), quick_first(pytest.param(*case) for case in POWER)
)
def test_a_real_gain_is_found(name: str, gain: float, least: float, searches: int) -> None:
    seen = verdicts(NOISES[name], gain, searches)
    found = [row for row in seen if row.kind is VerdictKind.GAIN and row.best["p"] == "b"]
    assert len(found) / searches > least
    # What is claimed is what is there, not the luckiest draw.
    claimed = [row.gain for row in found if row.gain is not None]
    assert statistics.median(claimed) == pytest.approx(gain, rel=0.02)


@pytest.mark.long
def test_intervals_of_whole_searches_hold_the_truth() -> None:
    """Looks, finalists and stopping included: the winner's interval misses in 5 % at most."""
    seen = verdicts(NOISES["3 %"], 1.10, 400)
    missed = 0
    for row in seen:
        true = 1.10 if row.leader["p"] == "b" else 1.0
        missed += not row.interval.low <= true <= row.interval.high
    assert binomial_lower_bound(missed, 400, 0.999) < 0.05


def test_a_loss_is_never_claimed_as_a_gain() -> None:
    speed = speed_of({name: {"b": 0.9, "c": 0.8} for name in "pqrstu"})
    kinds = {searched(speed, NOISES["3 %"], seed).kind for seed in range(40)}
    assert kinds == {VerdictKind.NO_GAIN}
