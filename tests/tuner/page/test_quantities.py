# SPDX-License-Identifier: Apache-2.0
"""How the page writes numbers, units, ratios and times."""

from __future__ import annotations

import math

import pytest

from xtune.measurement.objectives import WALL, Goal
from xtune.page.intervals import axis_for
from xtune.page.quantities import (
    INFINITE,
    NOTHING,
    THIN,
    TIMES,
    number,
    percent,
    period,
    quantity_of,
    ratio,
    reach,
    size,
)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0.0, "0"),
        (0.012345, "0.01235"),
        (1.5, "1.500"),
        (123.456, "123.5"),
        (12345.6, f"12{THIN}346"),
        (-2.5, "-2.500"),
        (1e-7, "1e-07"),
        (3e12, "3e+12"),
        (math.inf, INFINITE),
        (math.nan, "no number"),
    ],
)
def test_numbers(value: float, told: str) -> None:
    assert number(value) == told


@pytest.mark.parametrize(
    ("metric", "told", "axis"),
    [
        (WALL, "2.500 s", "wall time (s)"),
        ("images/s", "2.500 images/s", "images/s"),
        ("MB/s", "2.500 MB/s", "MB/s"),
        ("latency_ms", "2.500 ms", "latency_ms (ms)"),
        ("accuracy", "2.500", "accuracy"),
        ("rate:loss", "2.500", "loss"),
        ("@hypertune speed", "2.500", "speed"),
        (r"took ([0-9.]+)", "2.500", r"took ([0-9.]+)"),
    ],
)
def test_units(metric: str, told: str, axis: str) -> None:
    quantity = quantity_of(metric, Goal.MINIMIZE)
    assert quantity.of(2.5) == told
    assert quantity.axis == axis
    assert quantity.better == "less is better"
    assert quantity.of(None) == NOTHING


def test_ratios_have_the_places_that_their_interval_makes_sense_of() -> None:
    assert reach(1.9741, 2.0702) == f"1.974{TIMES} to 2.070{TIMES}"
    assert reach(5.903, 6.791) == f"5.90{TIMES} to 6.79{TIMES}"
    assert reach(10.31, 11.74) == f"10.3{TIMES} to 11.7{TIMES}"
    assert reach(1.032, 3.61) == f"1.03{TIMES} to 3.61{TIMES}"
    assert reach(0.0, math.inf) == f"0.000{TIMES} to {INFINITE}"
    assert ratio(1.00049, 1.0, 1.0) == f"1.000{TIMES}"
    assert ratio(3.14159) == f"3.14{TIMES}"


def test_shares_sizes_and_periods() -> None:
    assert percent(0.004) == f"<1{THIN}%"
    assert percent(0.0) == f"0{THIN}%"
    assert percent(0.425) == f"42{THIN}%"
    assert (size(None), size(3 << 20), size(3 << 29)) == (NOTHING, "3 MiB", "1.5 GiB")
    assert period(0.0, 3600.0) == "1 Jan 1970, 00:00 to 01:00 UTC"
    assert period(0.0, 90000.0) == "1 Jan 1970, 00:00 to 2 Jan 1970, 01:00 UTC"


@pytest.mark.parametrize(
    "values",
    [[1.0], [], [0.99, 1.02], [1.5, 2.1], [0.3, 9.0], [1e-9, 1e9], [0.0, math.inf], [40.0]],
)
def test_an_axis_holds_one_and_has_few_round_ticks(values: list[float]) -> None:
    axis = axis_for(values)
    assert axis.low < 1.0 < axis.high
    places = [axis.place(tick) for tick in axis.ticks]
    assert places == sorted(places)
    assert 1 <= len(places) <= 8
    assert all(0.0 <= place <= 100.0 for place in places)
    assert axis.place(0.0) == 0.0
    assert axis.place(math.inf) == 100.0
