# SPDX-License-Identifier: Apache-2.0
"""A search where nothing helps claims a gain in at most 5 % of runs; where something does, it finds it.

Whole searches, simulated: 20 random configurations, the three luckiest and the baseline in a final
of 12 blocks. The rates that are asserted are exact binomial bounds, not the rates seen.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter

import numpy as np
import pytest
from tests.binomial import binomial_lower_bound, binomial_upper_bound
from tests.tiers import quick_first
from tests.tuner.evidence.contenders import RATE
from tests.tuner.evidence.simulation import (
    NOISES,
    NoiseModel,
    SimulatedWorkload,
    simulate_search,
    speed_of,
)

from xtune.evidence.verdicts import Verdict, VerdictKind
from xtune.launches.launch import Goal, Objective
from xtune.space.parameters import Configuration, Parameter, Where

SPACE = [
    Parameter(name, ("a", "b", "c"), "a", Where.OPTION) for name in ("p", "q", "r", "s", "t", "u")
]
OBSTINATE = {
    "printed in coarse steps": NoiseModel(0.0, modes_apart=0.10),
    "every third launch an outlier": NoiseModel(0.01, outlier_rate=0.3),
    "a machine that wanders": NoiseModel(0.01, drift=0.05),
}


def verdicts(noise: NoiseModel, gain: float, runs: int, **more: object) -> list[Verdict]:
    """Of searches in which one value of one of six parameters does something."""
    speed = speed_of({"p": {"b": gain}})
    return [
        simulate_search(
            SimulatedWorkload(speed, noise, seed=seed),
            SPACE,
            RATE,
            seed=seed,
            **more,  # type: ignore[arg-type]
        )[0]
        for seed in range(runs)
    ]


def claims(noise: NoiseModel, runs: int, **more: object) -> int:
    return sum(row.kind is VerdictKind.GAIN for row in verdicts(noise, 1.0, runs, **more))


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
    """Ctrl-C after whatever block shows one first; looks were planned after four of the twelve."""
    impatient = claims(
        NOISES[name], 4000, stops_when=lambda verdict: verdict.kind is VerdictKind.GAIN
    )
    assert binomial_upper_bound(impatient, 4000, 0.95) < 0.05


# Power: the least that 99.9 % confidence allows to be asserted, of so many searches.
POWER = [
    ("1 %", 1.05, 0.95, 60),
    ("1 %", 1.05, 0.95, 200),
    ("3 %", 1.05, 0.70, 200),
    ("3 %", 1.10, 0.95, 200),
    ("3 %", 1.30, 0.95, 200),
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
    assert binomial_upper_bound(len(found), searches, 0.999) > least
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
    kinds = Counter(
        simulate_search(SimulatedWorkload(speed, NOISES["3 %"], seed=seed), SPACE, RATE, seed=seed)[
            0
        ].kind
        for seed in range(100)
    )
    assert kinds[VerdictKind.NO_GAIN] == 100


def test_faster_is_less_where_less_is_better() -> None:
    speed = speed_of({"p": {"b": 1.3}})
    workload = SimulatedWorkload(speed, NOISES["1 %"], seed=0, goal=Goal.MINIMIZE)
    verdict, launches = simulate_search(workload, SPACE, Objective("wall", Goal.MINIMIZE))
    assert verdict.best["p"] == "b"
    assert verdict.gain == pytest.approx(1.3, rel=0.02)
    assert workload.now_s() == 10.0 * (20 + launches)


@pytest.mark.parametrize("name", list(NOISES))
def test_noise_is_as_large_as_it_says(name: str) -> None:
    noise = NOISES[name]
    workload = SimulatedWorkload(lambda _: 1.0, noise._replace(drift=0.0), seed=1)
    values = [workload.measure(Configuration({})).value or math.nan for _ in range(4000)]
    logs = np.log(values)
    middle = 1.4826 * float(np.median(np.abs(logs - np.median(logs))))
    if not noise.modes_apart and not noise.heavy_tails:
        assert middle == pytest.approx(noise.spread, rel=0.1)
    if noise.heavy_tails:
        far = float((np.abs(logs) > 4.0 * noise.spread).mean())
        assert 1 / 50 < far < 1 / 25
    low = float((logs < -0.2).mean())
    assert low == pytest.approx(noise.outlier_rate, abs=0.012)


def test_a_drifting_machine_keeps_what_it_moved() -> None:
    workload = SimulatedWorkload(lambda _: 1.0, NoiseModel(0.0, drift=0.01), seed=1)
    logs = [math.log(workload.measure(Configuration({})).value or math.nan) for _ in range(2000)]
    assert statistics.stdev(np.diff(logs)) == pytest.approx(0.01, rel=0.1)
    assert max(logs) - min(logs) > 0.1
