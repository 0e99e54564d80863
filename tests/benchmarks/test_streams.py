# SPDX-License-Identifier: Apache-2.0
"""Streams are held against the best processes of any split, and goals against the most streams."""

from __future__ import annotations

import pytest
from benchmarks.harness.turns import Launched, Measured
from benchmarks.streams import __main__ as streams

SPLITS = [streams.Split(8, 4), streams.Split(32, 1), streams.Split(16, 1)]


def measured(rate: float) -> Measured:
    """Two launches of one turn, 2 % apart."""
    return Measured(
        tuple(Launched([rate * side], [0.01], [0.0], [(100.0, 50.0)]) for side in (0.99, 1.01))
    )


def row(streams_rate: float) -> dict[str, Measured]:
    return {
        "plain": measured(100.0),
        "8x4 processes": measured(200.0),
        "32x1 processes": measured(300.0),
        "16x1 processes": measured(250.0),
        "8x4 compiled": measured(900.0),
        "32x1 compiled": measured(streams_rate),
        "16x1 compiled": measured(10.0),
    }


def test_cells_hold_each_against_plain_and_the_best_processes() -> None:
    found = row(750.0)
    best = streams._best_processes(found)
    assert best is found["32x1 processes"]
    name, rate, of_plain, of_processes, *_ = streams._row(
        "32x1 compiled", found["32x1 compiled"], found["plain"], best
    )
    assert (name, rate) == ("32x1 compiled", "750.0")
    assert of_plain.startswith("7.50 [")
    assert of_processes.startswith("2.50 [")
    assert streams._row("32x1 processes", best, found["plain"], best)[3] == "-"


@pytest.mark.parametrize(
    ("rate", "met"), [(750.0, ["met", "met"]), (650.0, ["met", "MISSED"]), (550.0, ["MISSED"] * 2)]
)
def test_goals_are_of_the_most_streams_of_a_core_each(rate: float, met: list[str]) -> None:
    lines = list(streams._goal_lines("resnet50 bfloat16", row(rate), SPLITS))
    assert [line.split(":")[0] for line in lines] == [f"goal {one}" for one in met]
    assert list(streams._goal_lines("bert bfloat16", row(700.0), SPLITS[:1])) == []
