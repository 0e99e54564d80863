# SPDX-License-Identifier: Apache-2.0
"""How numbers, units, durations, sizes and times are written."""

from __future__ import annotations

import math

import pytest

from xlaunch.text import number
from xtune.launches.launch import WALL, Goal, Objective
from xtune.show.words import (
    NOTHING,
    amount,
    counted,
    duration,
    launches,
    objective_quantity,
    percent,
    period,
    ratios,
    size,
    spans,
)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.0, 4, "0"),
        (0.012345, 4, "0.01235"),
        (1.5, 4, "1.5"),
        (12345.6, 4, "12,350"),
        (9999.6, 4, "10,000"),
        (0.3333, 3, "0.333"),
        (-2.5, 4, "-2.5"),
        (1e-7, 4, "1e-07"),
        (math.inf, 4, "∞"),
        (-math.inf, 4, "-∞"),
        (math.nan, 4, "not a number"),
    ],
)
def test_numbers(value: float, digits: int, text: str) -> None:
    assert number(value, digits) == text


@pytest.mark.parametrize(
    ("value", "metric", "text"),
    [
        (126_812.0, "items/s", "126,800 items/s"),
        (1_234_567_890.0, "MB/s", "1,235,000,000 MB/s"),
        (1234.5, "step_ms", "1,234 ms"),
        (78.351, "@hypertune latency (ms)", "78.35 ms"),
        (2.5, "@hypertune speed", "2.5 (speed)"),
        (0.5, WALL, "0.5 s"),
        (0.0123456, "accuracy", "0.01235 (accuracy)"),
        (2.5, "rate:loss", "2.5 (loss)"),
        (2.5, r"took ([0-9.]+)", r"2.5 (took ([0-9.]+))"),
    ],
)
def test_amounts(value: float, metric: str, text: str) -> None:
    assert amount(value, Objective(metric, Goal.MAXIMIZE)) == text


def test_axes_name_metric_unit_and_goal() -> None:
    axes = [
        objective_quantity(Objective(one, Goal.MINIMIZE)).axis
        for one in (WALL, "images/s", "latency_ms")
    ]
    assert axes == ["wall time (s)", "images/s", "latency_ms"]
    quantity = objective_quantity(Objective("@hypertune latency (ms)", Goal.MINIMIZE))
    assert (quantity.axis, quantity.better) == ("latency (ms)", "less is better")
    assert quantity.of(None) == NOTHING


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ((1.0436, 1.0004, 1.0886), ["1.0436", "1.0004", "1.0886"]),
        ((3.98, 3.9, 4.06), ["3.98", "3.90", "4.06"]),
        ((1.5557, 1.53, 1.583), ["1.556", "1.530", "1.583"]),
        ((1.0,), ["1.00"]),
        ((1.2, 0.0, math.inf), ["1.20", "0.00", "\N{INFINITY}"]),
        ((126.81,), ["126.8"]),
    ],
)
def test_ratios_keep_the_digits_that_tell_them_apart(
    values: tuple[float, ...], texts: list[str]
) -> None:
    assert ratios(*values) == texts


@pytest.mark.parametrize(
    ("time_s", "text"),
    [
        (0.0123, "12 ms"),
        (0.34, "0.3 s"),
        (5.0, "5.0 s"),
        (48.4, "48 s"),
        (200.0, "3 min 20 s"),
        (3900.0, "1 h 5 min"),
    ],
)
def test_durations(time_s: float, text: str) -> None:
    assert duration(time_s) == text


def test_shares_sizes_and_periods() -> None:
    assert [percent(share) for share in (0.0, 0.004, 0.425)] == ["0 %", "<1 %", "42 %"]
    assert [size(one) for one in (None, 3 << 20, 3 << 29)] == [NOTHING, "3 MiB", "1.5 GiB"]
    assert period(0.0, 3600.0) == "1 Jan 1970, 00:00 to 01:00 UTC"
    assert period(0.0, 90000.0) == "1 Jan 1970, 00:00 to 2 Jan 1970, 01:00 UTC"


def test_counts_and_lists() -> None:
    assert [launches(count) for count in (1, 2, 1200)] == [
        "1 launch",
        "2 launches",
        "1,200 launches",
    ]
    assert counted(3, "pair") == "3 pairs"
    assert spans([3, 7, 8, 9, 11, 12]) == "3, 7 to 9, 11, 12"
