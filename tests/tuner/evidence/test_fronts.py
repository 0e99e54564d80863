# SPDX-License-Identifier: Apache-2.0
"""A front holds what nothing beats in both goals."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.tuner.evidence.scripted_finals import RATE, launch

from xtune.evidence.readings import Point, front_of
from xtune.launches.launch import Goal, Launch, Objective
from xtune.space.parameters import Configuration

WAIT = Objective("wait", Goal.MINIMIZE)


def launches(rows: list[tuple[float, float]]) -> list[Launch]:
    """Two launches of a configuration for each rate and time to wait."""
    return [
        launch(Configuration({"n": number}), rate)._replace(metrics=(("wait", wait),))
        for number, (rate, wait) in enumerate(rows)
        for _ in range(2)
    ]


def front(rows: list[tuple[float, float]]) -> dict[object, Point]:
    points = front_of(launches(rows), RATE, WAIT)
    return {point.configuration["n"]: point for point in points if not point.is_beaten}


def test_throughput_against_latency() -> None:
    """In images a second, and in milliseconds; the best by the first goal comes first."""
    assert list(front([(100, 20), (200, 35), (150, 40), (90, 20), (50, 5)])) == [1, 0, 4]


def test_equal_points_share_the_front() -> None:
    assert list(front([(1, 1), (1, 1)])) == [0, 1]


def test_a_point_has_the_median_of_its_launches() -> None:
    made = launches([(100, 20), (200, 35)])
    made[0] = made[0]._replace(value=110.0)
    assert [tuple(one)[1:3] for one in front_of(made, RATE, WAIT)] == [(200.0, 35.0), (105.0, 20.0)]
    assert front_of([], RATE, WAIT) == ()


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=2, max_size=12))
def test_a_front_is_what_nothing_beats(rows: list[tuple[float, float]]) -> None:
    kept = front(rows)
    for number, (rate, wait) in enumerate(rows):
        beaten = any(r >= rate and w <= wait and (r > rate or w < wait) for r, w in rows)
        assert (number in kept) == (not beaten)
