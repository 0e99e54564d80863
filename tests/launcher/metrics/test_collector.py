# SPDX-License-Identifier: Apache-2.0
"""Values of several instances summed up: the common window, the kinds, what is refused."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.golden import Golden

from xlaunch.metrics import collector
from xlaunch.metrics.collector import Collector, MetricTotal, Series, percentile
from xlaunch.metrics.metric_lines import parse_metric

Lines = dict[int, list[tuple[float, str]]]


def collected(*names: str, lines: Lines) -> Collector:
    collector = Collector([parse_metric(name) for name in names], lines)
    events = [(at, index, line) for index, told in lines.items() for at, line in told]
    for at, index, line in sorted(events):
        collector.feed(index, "out", f"{line}\n".encode(), at)
    return collector


def total_of(
    name: str, lines: Lines, ends: dict[int, float], released_at: float | None = None
) -> MetricTotal:
    _, (total,) = collected(name, lines=lines).sum_up(ends, released_at)
    return total


def rates(*values: tuple[float, float]) -> list[tuple[float, str]]:
    return [(at, f"{value} x/s") for at, value in values]


def test_rates_add_up_over_the_window_in_which_all_ran():
    lines = {
        0: rates((1, 999), (2, 999), (3, 10), (4, 20), (5, 30), (9, 999)),
        1: rates((2.5, 999), (3.5, 100), (4.5, 200)),
    }
    collector = collected("x/s", lines=lines)
    by_instance, (total,) = collector.sum_up({0: 10.0, 1: 5.0}, None)
    # The value at 3 holds since 2.5 in the window, for half as long as the others.
    assert (total.kind, total.sum, total.window_s, total.count) == ("rate", 22 + 150, 2.5, 5)
    assert (total.mean, total.p50, total.notes) == (None, None, ())
    (first,), (second,) = by_instance[0], by_instance[1]
    assert (first.count, first.last, first.mean) == (6, 999, 22)
    assert (second.count, second.last, second.mean) == (3, 200, 150)


def test_rates_are_weighted_by_the_time_that_each_took():
    """Alternately 150 images in 3 s and in 1 s: 75 images/s, not the 100 of the plain mean."""
    lines = {0: rates((0, 999), (3, 50), (4, 150), (7, 50), (8, 150))}
    by_instance, (total,) = collected("x/s", lines=lines).sum_up({0: 9.0}, None)
    assert (total.sum, by_instance[0][0].mean) == (75, 75)


def test_values_that_came_at_once_share_their_time():
    lines = {0: rates((0, 999), (3, 50), (3.001, 70), (4.001, 150))}
    by_instance, _ = collected("x/s", lines=lines).sum_up({0: 9.0}, None)
    assert by_instance[0][0].mean == pytest.approx((60 * 3.001 + 150) / 4.001)


def test_values_that_are_not_finite_are_named_if_they_are_in_the_window():
    lines = [(0.5, "loss nan"), (1.0, "loss 9"), (2.0, "loss 3"), (3.0, "step 3 loss NaN")]
    total = total_of("loss", {0: lines}, {0: 9.0}, released_at=1.0)
    assert (total.count, total.mean, total.not_finite) == (1, 3.0, "step 3 loss NaN")
    assert total.notes == ("left out values that are not finite, as in 'step 3 loss NaN'",)
    assert total_of("loss", {0: lines[:3]}, {0: 9.0}, released_at=1.0).not_finite is None
    at_once = [(1.0, "a loss nan"), (1.0, "b loss 9"), (1.0, "c loss 3")]
    assert total_of("loss", {0: at_once}, {0: 9.0}).not_finite is None
    at_once = [(1.0, "b loss 9"), (1.0, "c loss nan")]
    assert total_of("loss", {0: at_once}, {0: 9.0}).not_finite == "c loss nan"
    only = total_of("loss", {0: lines[:1]}, {0: 9.0})
    assert (only.count, only.not_finite) == (0, "loss nan")


def test_the_last_of_many_values_that_are_not_finite_is_kept():
    lines = [(float(at), f"step {at} loss inf") for at in range(200)]
    total = total_of("loss", {0: lines}, {0: 300.0}, released_at=198.5)
    assert total.not_finite == "step 199 loss inf"


ENDS_3 = {0: 3.0, 1: 3.0}
TOTALS: dict[str, tuple[str, Lines, dict[int, float], float | None, dict[str, object]]] = {
    "other kinds are not weighted": (
        "loss", {0: [(0, "loss 9"), (3, "loss 1"), (4, "loss 3")]}, {0: 9.0}, None,
        {"mean": 2, "last_tenth": 3},
    ),
    "the window begins when the barrier opens": (
        "x/s", {0: rates((1, 999), (6, 10)), 1: rates((6, 20), (6.5, 30))}, {0: 7.0, 1: 8.0}, 5.0,
        {"sum": pytest.approx(10 + (20 * 1.0 + 30 * 0.5) / 1.5), "window_s": 2.0, "notes": ()},
    ),
    "of values that were read at one moment only the first is left out": (
        "x/s", {0: rates((1, 1), (1, 10), (1, 20), (2, 30))}, {0: 3.0}, None,
        {"sum": 20, "count": 3, "window_s": 2.0, "window_from_s": 1.0},
    ),
    "there is no window if one has no value while all run": (
        "x/s", {0: rates((1, 1), (1, 10), (1, 20)), 1: rates((2, 1), (2, 100))}, ENDS_3, None,
        {"window_s": None, "count": 5},
    ),
    "a value at the very end counts": (
        "x/s", {0: rates((1, 1), (2, 4)), 1: rates((1, 1), (2, 5))}, {0: 2.0, 1: 3.0}, None,
        {"sum": 9, "window_s": 1.0},
    ),
    "one value each is summed up and said to be no common window": (
        "x/s", {0: rates((1, 10)), 1: rates((3, 20))}, {0: 2.0, 1: 4.0}, None,
        {"sum": 30, "window_s": None, "notes": (
            "no further value of instances 0, 1 while all ran: all values count",
        )},
    ),
    "without a window warm-up before the barrier still does not count": (
        "x/s", {0: rates((1, 999), (6, 10)), 1: rates((1, 999), (9, 20))}, {0: 7.0, 1: 10.0}, 5.0,
        {"sum": 30, "window_s": None},
    ),
    "an instance without a value is named": (
        "x/s", {0: rates((1, 10), (2, 20)), 1: [], 2: []}, ENDS_3 | {2: 3.0}, None,
        {"sum": 15, "window_s": None, "notes": ("no value of instances 1, 2",)},
    ),
    "a single value of the only instance needs no note": (
        "x/s", {0: rates((1, 10))}, {0: 2.0}, None, {"sum": 10, "notes": ()},
    ),
    "nothing at all": (
        "x/s", {0: [], 1: []}, ENDS_3, None,
        {"count": 0, "sum": None, "window_s": None, "notes": ()},
    ),
    "units of time are brought together": (
        "latency", {0: [(0, "latency 1 ms"), (1, "latency 2000 us"), (2, "latency 0.003 s")]},
        {0: 9.0},
        None, {"unit": "ms", "mean": pytest.approx(2.5)},
    ),
    "other values are averaged": (
        "loss", {0: [(0, "loss 9"), (1, "loss 1"), (2, "loss 3")],
        1: [(0, "loss 9"), (1, "loss 4")]},
        {0: 9.0, 1: 9.0}, None, {"kind": "value", "sum": None, "mean": 3},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TOTALS)
def test_total(case: str):
    name, lines, ends, released_at, expected = TOTALS[case]
    total = total_of(name, lines, ends, released_at)
    assert {key: getattr(total, key) for key in expected} == expected


def test_times_are_pooled_and_not_added_up():
    lines = {
        index: [(at, f"latency: {at + 200 * index} ms") for at in range(201)] for index in (0, 1)
    }
    total = total_of("latency", lines, {0: 1000.0, 1: 1000.0})
    # The first value of each, at the time 0, is no part of the window.
    pooled = [*map(float, range(1, 201)), *map(float, range(201, 401))]
    cuts = statistics.quantiles(pooled, n=100, method="inclusive")
    assert (total.kind, total.unit, total.sum, total.count) == ("latency", "ms", None, 400)
    assert (total.p50, total.p90, total.p99) == pytest.approx((cuts[49], cuts[89], cuts[98]))
    assert total.mean == pytest.approx(statistics.mean(pooled))
    assert total.notes == ()


@pytest.mark.parametrize(("count", "refused"), [(99, True), (100, False)])
def test_p99_takes_a_hundred_values(count: int, refused: bool):
    lines = {0: [(at, f"{at} ms") for at in range(count + 1)]}
    total = total_of("ms", lines, {0: 1000.0})
    assert total.p90 is not None
    assert (total.p99 is None) == refused
    assert total.notes == ((f"no p99 of {count} values: it takes 100",) if refused else ())


def test_metric_that_nobody_printed_is_told_with_what_was_printed(golden: Golden):
    lines = {0: [(0, "no number"), (1, "10 x/s"), (2, "12 other/s"), (3, "12 other/s")]}
    collector = collected("x/s", "y/s", lines=lines)
    golden(collector.unseen())
    assert collected("x/s", lines=lines).unseen() is None
    golden(str(collected("y/s", lines={0: []}).unseen()))


def test_many_values_are_thinned_evenly(monkeypatch):
    monkeypatch.setattr(collector, "MAX_KEPT", 100)
    series = Series()
    for value in range(1000):
        series.add(value, value)
    assert (series.count, series.last, series.first_at) == (1000, 999, 0)
    kept = series.after(None).values
    assert series.stride == 16
    assert kept == list(range(0, 1000, 16))


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40), st.integers(1, 99))
def test_percentile_is_that_of_statistics(values: list[float], percent: int):
    expected = statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
    assert percentile(sorted(values), percent) == pytest.approx(expected, abs=1e-6)
