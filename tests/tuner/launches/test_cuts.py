# SPDX-License-Identifier: Apache-2.0
"""Early ends of rates and times: only what is surely lost, and never what may still win."""

from __future__ import annotations

import statistics

import pytest
from tests.tiers import quick_first
from tests.tuner.launches.noise import NOISES, made_series

from xlaunch.metrics.metric_lines import MetricKind
from xtune.launches.launch import Goal, Series
from xtune.launches.watching import MIN_VALUES, may_be_cut, surely_worse

RATE, TIME, VALUE = MetricKind.RATE, MetricKind.TIME, MetricKind.VALUE
MAXIMIZE, MINIMIZE = Goal.MAXIMIZE, Goal.MINIMIZE
LEVEL = 100.0


def series(values: list[float], instance: int = 0, first_s: float = 1.0) -> Series:
    """Values that came one a second; the first `first_s` after the launch began."""
    return Series(instance, "m", tuple(first_s + at for at in range(len(values))), tuple(values))


def flat(seed: int = 0, count: int = 100, share: float = 0.02) -> list[float]:
    return made_series("flat", "gaussian", count, share=share, seed=seed)


def lost(
    *told: Series,
    cut_at: float,
    kind: MetricKind = RATE,
    goal: Goal = MAXIMIZE,
    instances: int | None = None,
) -> str | None:
    count = len(told) if instances is None else instances
    return surely_worse(told, count, kind=kind, goal=goal, cut_at=cut_at)


def test_steady_rate_far_below_is_cut():
    reason = lost(series(flat()), cut_at=120.0)
    assert reason.endswith("and the value to beat is 120")
    assert reason.startswith("steady at 10")


INSTANCES = [series(flat(seed), instance=seed) for seed in range(3)]


@pytest.mark.parametrize(
    ("told", "kind", "goal", "cut_at", "is_lost"),
    [
        *(([series(flat())], RATE, MAXIMIZE, at, False) for at in (50.0, 99.0, 100.0, 101.0)),
        ([series(flat())], TIME, MINIMIZE, 80.0, True),
        ([series(flat())], TIME, MINIMIZE, 120.0, False),
        (INSTANCES, RATE, MAXIMIZE, 299.0, False),  # rates of instances add up
        (INSTANCES, RATE, MAXIMIZE, 330.0, True),
    ],
)
def test_what_may_win_goes_on(
    told: list[Series], kind: MetricKind, goal: Goal, cut_at: float, is_lost: bool
):
    assert (lost(*told, cut_at=cut_at, kind=kind, goal=goal) is not None) == is_lost


def test_every_instance_has_to_have_come():
    assert lost(*INSTANCES, cut_at=1e9, instances=4) is None
    assert lost(*INSTANCES, series(flat(count=5), instance=3), cut_at=1e9) is None
    assert lost(cut_at=1e9, instances=1) is None


def test_a_time_is_lost_when_the_best_instance_s_is():
    told = [series([LEVEL * (1 + index) for _ in range(60)], index) for index in range(3)]
    assert lost(*told, cut_at=150.0, kind=TIME, goal=MINIMIZE) is None
    assert lost(*told, cut_at=99.0, kind=TIME, goal=MINIMIZE) is not None


def test_few_values_are_waited_on():
    values = flat(count=MIN_VALUES + 1, share=0.001)  # the first is never counted
    assert lost(series(values), cut_at=1e9) is not None
    assert lost(series(values[:-1]), cut_at=1e9) is None


def test_it_has_to_be_steady_for_as_long_as_it_had_run_before():
    assert lost(series(flat(count=60), first_s=10.0), cut_at=1e9) is not None
    assert lost(series(flat(count=60), first_s=100.0), cut_at=1e9) is None


def test_warm_up_does_not_count():
    values = [20.0] * 30 + flat(count=200)
    assert lost(series(values), cut_at=99.0) is None
    assert lost(series(values), cut_at=115.0) is not None
    assert lost(series(values[:40]), cut_at=99.0) is None


@pytest.mark.parametrize("shape", ["late change", "throttles in turns", "drifts", "heats up"])
def test_what_is_not_steady_is_never_cut(shape: str):
    values = made_series(shape, "gaussian", 200, share=0.01, seed=1)
    assert lost(series(values), cut_at=1e9) is None


@pytest.mark.parametrize("kind", MetricKind)
@pytest.mark.parametrize("goal", Goal)
def test_only_rates_upwards_and_times_downwards_are_cut(kind: MetricKind, goal: Goal):
    assert may_be_cut(kind, goal) == ((kind, goal) in ((RATE, MAXIMIZE), (TIME, MINIMIZE)))


@pytest.mark.parametrize("noise", quick_first(NOISES))
@pytest.mark.parametrize(("kind", "goal"), [(RATE, MAXIMIZE), (TIME, MINIMIZE)])
def test_what_equals_the_best_is_never_cut_at_any_moment(noise: str, kind: MetricKind, goal: Goal):
    for seed in range(8):
        values = made_series("flat", noise, 200, share=0.05, seed=seed)
        whole = statistics.fmean(values) if kind is RATE else statistics.median(values)
        for count in range(MIN_VALUES, 200, 12):
            assert lost(series(values[:count]), cut_at=whole, kind=kind, goal=goal) is None
