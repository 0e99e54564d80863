# SPDX-License-Identifier: Apache-2.0
"""Drift is found where there is some, none where there is none; one outlier does not matter."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from tests.binomial import binomial_lower_bound
from tests.golden import Golden

from xtune.evidence.noise import Control, Drift, drift_of

Level = Callable[[float], float]


def controls(level: Level, noise: float, *, count: int = 15, seed: int = 0) -> list[Control]:
    """Over an hour."""
    rng = np.random.default_rng(seed)
    times = [3600.0 * place / (count - 1) for place in range(count)]
    return [Control(t, math.log(level(t)) + rng.normal(0.0, noise)) for t in times]


def of_values(values: Iterable[float]) -> Drift:
    return drift_of([Control(float(t), math.log(value)) for t, value in enumerate(values)])


def steady(_: float) -> float:
    return 1.0


def heats_up(at_s: float) -> float:
    return 1.0 - 0.15 * at_s / 3600.0


def steps_down(at_s: float) -> float:
    return 1.0 if at_s < 1800.0 else 0.85


def waves(at_s: float) -> float:
    return 1.0 + 0.1 * math.sin(2.0 * math.pi * at_s / 3600.0)


def test_noise_is_not_taken_for_drift() -> None:
    found = sum(
        drift_of(controls(steady, 0.03, seed=seed), seed=seed + 10_000).has_drifted
        for seed in range(600)
    )
    assert binomial_lower_bound(found, 600, 0.999) < 0.01


@pytest.mark.parametrize("outliers", [0, 1])
@pytest.mark.parametrize(("level", "span"), [(heats_up, 0.17), (steps_down, 0.18), (waves, 0.22)])
def test_drift_is_found_and_measured(level: Level, span: float, outliers: int) -> None:
    found = []
    for seed in range(100):
        rows = controls(level, 0.02, seed=seed)
        for at in range(5, 5 + outliers):
            rows[at] = rows[at]._replace(level=math.log(0.6) + rows[at].level)
        drift = drift_of(rows, seed=seed + 10_000)
        found += [drift.span] if drift.has_drifted else []
    assert len(found) >= 90
    assert float(np.median(found)) == pytest.approx(span, abs=0.04)


def test_one_bad_control_does_not_change_the_span() -> None:
    values = [100.0 * 0.99**t for t in range(12)]
    straight = of_values(values)
    values[5] = 60.0
    drift = of_values(values)
    assert drift.has_drifted
    assert straight.span == pytest.approx(0.99**-9 - 1.0)
    assert drift.span == pytest.approx(straight.span)


def test_without_drift_only_the_noise_is_known() -> None:
    drift = drift_of(controls(steady, 0.03))
    assert not drift.has_drifted
    assert drift.span == 0.0
    assert drift.caution == ""
    assert drift.noise == pytest.approx(0.03, rel=0.6)


def test_few_or_equal_controls_prove_nothing() -> None:
    assert not of_values([]).has_drifted
    drift = of_values(100.0 - 10.0 * t for t in range(4))
    assert (drift.has_drifted, drift.probability) == (False, 1.0)
    assert not of_values([100.0] * 20).has_drifted


def test_a_machine_that_hardly_moves_has_not_drifted() -> None:
    drift = of_values(100.0 + 0.01 * t for t in range(20))
    assert drift.probability < 0.01
    assert not drift.has_drifted


def test_a_step_of_values_that_are_otherwise_equal_is_one() -> None:
    drift = of_values([100.0] * 9 + [80.0] * 5)
    assert drift.has_drifted
    assert drift.span == pytest.approx(100.0 / 80.0 - 1.0)


def test_order_of_controls_is_that_of_time() -> None:
    rows = [Control(float(t), -0.02 * t) for t in range(10)]
    assert drift_of(rows[::-1]) == drift_of(rows)


def test_a_caution_says_what_drift_means(golden: Golden) -> None:
    caution = drift_of(controls(heats_up, 0.01)).caution
    golden(caution)
