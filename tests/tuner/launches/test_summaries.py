# SPDX-License-Identifier: Apache-2.0
"""Series of several instances summed up: by kind, over the time in which all were steady."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.golden import Golden
from tests.tuner.launches.noise import made_series

from xlaunch.metrics.metric_lines import MetricKind
from xlaunch.text import number
from xtune.launches.launch import Series, Steadiness
from xtune.launches.summaries import ALWAYS, Summary, Window, summarise, unit_in, worst

FLAT, WARM_UP, SLOW_DOWN, NOT_STEADY, TOO_FEW = Steadiness


def series(*values: float, instance: int = 0, metric: str = "x/s", step_s: float = 1.0) -> Series:
    """Values that came at 1, 2, 3, ... times `step_s`."""
    times = tuple(step_s * (place + 1) for place in range(len(values)))
    return Series(instance, metric, times, tuple(map(float, values)))


def summed_up(*found: Series, window: Window = ALWAYS, **known: object) -> Summary:
    summary = summarise(found[0].metric, found, window=window, **known)  # type: ignore[arg-type]
    assert summary is not None
    return summary


# By kind


def test_rates_of_instances_add_up():
    summary = summed_up(series(1, 2, 3), series(10, 20, instance=1))
    assert (summary.kind, summary.value, summary.count) == (MetricKind.RATE, 2 + 15, 5)
    assert (summary.unit, summary.p90, summary.p99) == (None, None, None)


def paced(rates: list[float], works: list[float], instance: int = 0) -> Series:
    """Rates that are printed after so much work each, the first piece from time 0 on."""
    spans = [work / rate for work, rate in zip(works, rates, strict=True)]
    return Series(instance, "x/s", tuple(itertools.accumulate(spans)), tuple(rates))


def test_a_rate_counts_for_as_long_as_it_lasted():
    """A hundred images at 50 and a hundred at 150 images/s take 2.67 s: 75 images/s."""
    alternating = paced([50.0, 150.0] * 4, [100.0] * 8)
    whole = Window(0.0, math.inf)
    assert summed_up(alternating, window=whole).value == pytest.approx(75)
    # Without a window, nothing says when the first 100 images began.
    assert summed_up(alternating).value == pytest.approx(75)
    later = Window(alternating.times_s[1], math.inf)
    assert summed_up(alternating, window=later).value == pytest.approx(75)
    two = summed_up(alternating, paced([10.0, 30.0] * 4, [10.0] * 8, 1), window=whole)
    assert two.value == pytest.approx(75 + 15)
    every_second = series(*[50.0, 150.0] * 4)
    assert summed_up(every_second, window=whole).value == pytest.approx(100)
    # After a warm-up, too.
    warm = paced([10.0] * 20 + [80.0, 120.0] * 30, [100.0] * 80)
    summary = summed_up(warm, window=whole)
    assert (summary.steadiness, summary.count) == (WARM_UP, 60)
    assert summary.value == pytest.approx(96)


def test_a_rate_counts_from_the_beginning_of_the_window():
    """9 of the 10 s of the first value lie before it."""
    found = Series(0, "x/s", (0.0, 10.0, 11.0), (1.0, 10.0, 20.0))
    assert summed_up(found, window=Window(9.0, math.inf)).value == pytest.approx(15)


def test_a_rate_far_above_the_others_counts_as_the_usual_work():
    """A step of 100 images in a second, whose clock said 10 ms."""
    rates = [100.0] * 10 + [1e4] + [100.0] * 9
    times = tuple(float(place + 1) for place in range(20))
    summary = summed_up(Series(0, "x/s", times, tuple(rates)), window=Window(0.0, math.inf))
    assert summary.value == pytest.approx(100)
    assert summary.notes[-1].startswith("1 of 20 values are over 10 times their median")
    # Where a step does take less time, the rate is as printed.
    fast = paced(rates, [100.0] * 20)
    assert summed_up(fast, window=Window(0.0, math.inf)).value == pytest.approx(2000 / 19.01)
    # A fifth of the values is no accident.
    often = series(*[100.0] * 16, *[2000.0, 100.0] * 4)
    assert summed_up(often, window=Window(0.0, math.inf)).value > 300


def test_rates_that_came_at_once_share_the_time_before_them():
    found = Series(0, "x/s", (1.0, 4.0, 4.0, 5.0), (8.0, 10.0, 20.0, 30.0))
    assert summed_up(found, window=Window(1.0, math.inf)).value == pytest.approx(
        (3.0 * 15.0 + 30.0) / 4.0
    )


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=9).map(sorted))
def test_rates_that_are_printed_together_at_the_end_count_alike(delays: list[float]):
    """The time between two lines of one burst says nothing of how long each rate lasted."""
    times = tuple(100.0 + 0.004 * delay for delay in delays)
    values = tuple(float(2**place) for place in range(len(delays)))
    for window in (ALWAYS, Window(99.0, math.inf)):
        summary = summed_up(Series(0, "x/s", times, values), window=window)
        assert summary.value == pytest.approx(statistics.fmean(values))


def test_times_pool():
    summary = summed_up(
        series(1, 2, 3, metric="step_ms"), series(7, 8, 9, 10, instance=1, metric="step_ms")
    )
    assert (summary.kind, summary.unit, summary.value) == (MetricKind.TIME, "ms", 7)
    assert summary.mean == pytest.approx(40 / 7)
    assert summary.p90 == pytest.approx(9.4)
    assert summary.p99 is None  # of seven values
    values = [float(n) for n in range(1, 102)]
    halves = series(*values[:50], metric="ms"), series(*values[50:], metric="ms", instance=1)
    assert summed_up(*halves).p99 == 100.0


def test_of_other_values_the_last_tenth_counts():
    summary = summed_up(series(1, metric="loss"), series(2, 4, metric="loss", instance=1))
    assert (summary.kind, summary.value) == (MetricKind.VALUE, 2.5)
    assert summed_up(series(*[9] * 28, 5, 4, 3, metric="loss")).value == 4.0
    said = summed_up(series(3, 1, 2, metric="total"), kind=MetricKind.TIME, unit="us")
    assert (said.kind, said.unit, said.value) == (MetricKind.TIME, "us", 2)


@given(st.floats(1e-9, 1e9), st.integers(1, 300))
def test_mean_of_equal_values_is_that_value(value: float, count: int):
    summary = summed_up(series(*[value] * count, metric="accuracy"))
    assert summary.value == summary.mean == value


def test_values_near_the_largest_number_have_a_mean():
    values = [1.7e308, 1.5e308, 1.7e308]
    assert 1.5e308 <= summed_up(series(*values, metric="loss")).value <= 1.7e308


def test_nothing_is_no_summary():
    assert summarise("x/s", []) is None
    assert summarise("x/s", [series(1, 2)], window=Window(2.5, 9.0)) is None


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("step_ms", "ms"), ("latency (ms)", "ms"), ("s/it", "s"), ("time µs", "µs"), ("ms", "ms"),
        ("latency", None), ("ms of s", None), ("items", None),
    ],
)  # fmt: skip
def test_unit_is_read_from_the_name(name: str, unit: str | None):
    assert unit_in(name) == unit


# The time that counts


def test_only_the_common_window_counts():
    summary = summed_up(
        series(9, 9, 1, 2, 9), series(99, 99, 10, 20, 99, instance=1), window=Window(2.5, 4.0)
    )
    # Of the second in which the third value was printed, half lies in the window.
    assert summary.value == pytest.approx((0.5 * 1 + 2) / 1.5 + (0.5 * 10 + 20) / 1.5)


def test_each_instance_s_warm_up_is_dropped_from_all():
    early = made_series("flat", "gaussian", 100, share=0.01, seed=1)
    late = [50.0] * 40 + made_series("flat", "gaussian", 60, share=0.01, seed=2)
    summary = summed_up(series(*early), series(*late, instance=1))
    assert summary.steadiness is WARM_UP
    assert summary.count == 120
    assert summary.value == pytest.approx(
        statistics.fmean(early[40:]) + statistics.fmean(late[40:])
    )
    assert summary.notes == (
        f"instance 1: warm-up: the first 40 of 100 values were dropped (mean 50, then"
        f" {number(statistics.fmean(late[40:]))})",
    )


def test_values_of_one_moment_are_told_apart_by_their_place():
    # What a program holds back comes all at once.
    values = (20.0, *made_series("flat", "gaussian", 30, share=0.01, seed=1))
    summary = summed_up(Series(0, "x/s", (5.0,) * 31, values))
    assert (summary.steadiness, summary.count) == (WARM_UP, 30)
    assert summary.value == pytest.approx(statistics.fmean(values[1:]))


def test_values_of_the_moment_in_which_the_window_begins_count_but_for_the_first():
    found = Series(0, "x/s", (1.0, 1.0, 1.0, 2.0), (900.0, 1.0, 2.0, 6.0))
    summary = summed_up(found, window=Window(1.0, 2.0))
    assert (summary.value, summary.count) == (3.0, 3)


def test_no_steady_state_is_said_and_nothing_dropped(golden: Golden):
    values = made_series("late change", "gaussian", 100, share=0.01, seed=1)
    summary = summed_up(series(*values))
    assert (summary.steadiness, summary.count) == (NOT_STEADY, 100)
    assert summary.value == pytest.approx(statistics.fmean(values))
    golden(summary.notes[0])


def test_without_a_time_in_which_all_were_steady_all_values_count(golden: Golden):
    early = made_series("flat", "gaussian", 40, share=0.01, seed=1)
    late = [50.0] * 40 + made_series("flat", "gaussian", 60, share=0.01, seed=2)
    summary = summed_up(series(*early), series(*late, instance=1))
    assert summary.count == 140
    golden(summary.notes)


def test_slower_is_worse_for_times_and_faster_for_rates():
    values = made_series("two speeds", "gaussian", 100, share=0.01, seed=1)
    assert summed_up(series(*values)).steadiness is WARM_UP
    assert summed_up(series(*values, metric="ms")).steadiness is SLOW_DOWN
    assert summed_up(series(*values, metric="ms"), larger_is_better=True).steadiness is WARM_UP


def test_notes_of_many_instances_are_few():
    warm = [50.0] * 10 + [100.0] * 30
    alike = summed_up(*(series(*warm, instance=index) for index in range(8)))
    assert alike.notes == (
        "each instance: warm-up: the first 10 of 40 values were dropped (mean 50, then 100)",
    )
    flat = [100.0] * 40
    differing = summed_up(
        *(series(*([50.0] * index + flat), instance=index) for index in range(8)), known=["before"]
    )
    assert differing.notes[0] == "before"
    assert [note[:10] for note in differing.notes[1:4]] == [
        "instance 1",
        "instance 2",
        "instance 3",
    ]
    assert differing.notes[4:] == ("likewise 4 more instances",)


def test_worst_steadiness_is_told():
    assert worst([FLAT, WARM_UP]) is WARM_UP
    assert worst([WARM_UP, SLOW_DOWN]) is SLOW_DOWN
    assert worst([SLOW_DOWN, NOT_STEADY, TOO_FEW]) is NOT_STEADY
    assert worst([FLAT, TOO_FEW]) is TOO_FEW
    assert worst(iter([FLAT])) is FLAT


@given(
    st.lists(
        st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 1e6)), max_size=40).map(sorted),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(["x/s", "ms", "loss"]),
    st.tuples(st.floats(0, 50), st.floats(50, 100)),
)
def test_value_lies_among_the_values(
    told: list[list[tuple[float, float]]], metric: str, edges: tuple[float, float]
):
    found = [
        Series(index, metric, tuple(at for at, _ in one), tuple(value for _, value in one))
        for index, one in enumerate(told)
    ]
    window = Window(*edges)
    summary = summarise(metric, found, window=window)
    inside = [window.of(one).values for one in found]
    assert (summary is None) == (not any(inside))
    if summary is not None:
        together = [value for values in inside for value in values]
        parts = sum(map(bool, inside)) if metric == "x/s" else 1
        assert min(together) * 0.999 <= summary.value / parts <= max(together) * 1.001
        assert 0 < summary.count <= len(together)
