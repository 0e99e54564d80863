# SPDX-License-Identifier: Apache-2.0
"""Drift is found where there is some, left alone where there is none, and taken off."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from xtune.evidence.distributions import binomial_lower_bound
from xtune.evidence.drift import Control, drift_of
from xtune.evidence.noise import Trouble
from xtune.evidence.ratios import NoRatioError

Level = Callable[[float], float]


def controls(level: Level, noise: float, *, count: int = 15, seed: int = 0) -> list[Control]:
    """Over an hour."""
    rng = np.random.default_rng(seed)
    times = [3600.0 * place / (count - 1) for place in range(count)]
    return [Control(t, 100.0 * level(t) * math.exp(rng.normal(0.0, noise))) for t in times]


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


@pytest.mark.parametrize("level", [heats_up, steps_down, waves])
def test_drift_is_found_and_taken_off(level: Level) -> None:
    found = 0
    for seed in range(100):
        drift = drift_of(controls(level, 0.02, seed=seed), seed=seed + 10_000)
        found += drift.has_drifted
        if not drift.has_drifted:
            continue
        # The same workload an hour long: what is left of the drift is a fraction of it.
        times = np.linspace(0.0, 3600.0, 200)
        raw = [math.log(level(t)) for t in times]
        left = [math.log(drift.normalised(100.0 * level(t), t) / 100.0) for t in times]
        assert np.std(left) < 0.6 * np.std(raw)
    assert found >= 90


def test_the_level_is_a_line_between_controls_and_flat_beyond() -> None:
    drift = drift_of([Control(float(t), 100.0 * 0.98**t) for t in range(10)])
    assert drift.has_drifted
    assert drift.level(-5.0) == drift.level(0.0)
    assert drift.level(50.0) == drift.level(9.0)
    middle = math.log(drift.level(4.5))
    assert middle == pytest.approx(0.5 * (math.log(drift.level(4.0)) + math.log(drift.level(5.0))))
    assert drift.level(3.0) / drift.level(6.0) == pytest.approx(0.98**-3)
    assert drift.span == pytest.approx(0.98**-9 - 1.0, rel=0.02)


@pytest.mark.parametrize("level", [heats_up, steps_down, waves])
def test_one_outlier_does_not_hide_drift(level: Level) -> None:
    found = 0
    for seed in range(100):
        rows = controls(level, 0.02, seed=seed)
        rows[5] = rows[5]._replace(value=0.6 * rows[5].value)
        found += drift_of(rows, seed=seed + 10_000).has_drifted
    assert found >= 90


def test_one_bad_control_bends_nothing() -> None:
    values = [100.0 * 0.99**t for t in range(12)]
    values[5] = 60.0
    drift = drift_of([Control(float(t), value) for t, value in enumerate(values)])
    assert drift.has_drifted
    assert drift.level(5.0) == pytest.approx(
        math.sqrt(drift.level(4.0) * drift.level(6.0)), rel=0.01
    )


def test_without_drift_values_stay_as_they_are() -> None:
    drift = drift_of(controls(steady, 0.03))
    assert not drift.has_drifted
    assert drift.level(1000.0) == 1.0
    assert drift.normalised(123.0, 1000.0) == 123.0
    assert drift.caution is None
    assert drift.noise == pytest.approx(0.03, rel=0.6)


def test_few_controls_prove_nothing() -> None:
    assert not drift_of([]).has_drifted
    drift = drift_of([Control(float(t), 100.0 - 10.0 * t) for t in range(4)])
    assert not drift.has_drifted
    assert drift.probability == 1.0
    assert drift_of([]).normalised(5.0, 0.0) == 5.0


def test_a_machine_that_hardly_moves_has_not_drifted() -> None:
    drift = drift_of([Control(float(t), 100.0 + 0.01 * t) for t in range(20)])
    assert drift.probability < 0.01
    assert not drift.has_drifted


def test_equal_controls_have_not_drifted() -> None:
    assert not drift_of([Control(float(t), 100.0) for t in range(20)]).has_drifted


def test_a_step_of_values_that_are_otherwise_equal_is_one() -> None:
    values = [100.0] * 9 + [80.0] * 5
    drift = drift_of([Control(float(t), value) for t, value in enumerate(values)])
    assert drift.has_drifted
    assert drift.level(12.0) / drift.level(2.0) == pytest.approx(0.8)


def test_order_of_controls_is_that_of_time() -> None:
    rows = [Control(float(t), 100.0 * 0.98**t) for t in range(10)]
    assert drift_of(rows[::-1]) == drift_of(rows)


def test_drift_is_told_with_what_it_means() -> None:
    caution = drift_of(controls(heats_up, 0.01)).caution
    assert caution is not None
    assert caution.trouble is Trouble.DRIFT
    assert "60 min," in caution.text
    assert "\n" not in caution.text


def test_a_control_without_a_ratio_is_refused() -> None:
    with pytest.raises(NoRatioError, match="came to 0;"):
        drift_of([Control(0.0, 0.0)])
