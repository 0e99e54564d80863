# SPDX-License-Identifier: Apache-2.0
"""Ratios with confidence intervals, and what a comparison prints."""

from __future__ import annotations

import pytest
from tests.golden import Golden

pytest.importorskip("torch")

from benchmarks.harness.comparison import Comparison, RatioGoal, report, times_faster
from benchmarks.harness.measurement import Case, Result


def test_the_ratio_and_its_interval_are_those_of_paired_logarithms() -> None:
    ours = Result("ours", (1.0, 2.0, 4.0))
    constant = times_faster(ours, Result("twice", (2.0, 4.0, 8.0)))
    assert constant == pytest.approx((2, 2, 2))
    # The logarithms are log 2 times 0, 1 and 2: t(2) = 4.303, error 1 / sqrt(3).
    spread = times_faster(ours, Result("other", (1.0, 4.0, 16.0)))
    assert spread.ratio == pytest.approx(2)
    assert spread.high == pytest.approx(2 * 2 ** (4.3027 / 3**0.5), rel=1e-3)
    assert spread.low == pytest.approx(2 / 2 ** (4.3027 / 3**0.5), rel=1e-3)


def test_a_goal_is_judged_by_the_fastest_peer(
    golden: Golden, capsys: pytest.CaptureFixture[str]
) -> None:
    results = [Result("ours", (1.0, 1.0)), Result("slow", (3.0, 3.0)), Result("fast", (1.5, 1.5))]
    cases = [Case(result.name, lambda: 0.0) for result in results]
    for goal, verdict in ((RatioGoal(2.0), "MISSED"), (RatioGoal(2.0, ("slow",)), "met")):
        (line,) = report(Comparison("work", "ours", cases, goal), results)
        assert line.startswith(f"goal {verdict}: work: ")
    golden(capsys.readouterr().out)
