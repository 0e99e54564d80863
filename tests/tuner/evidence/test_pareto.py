# SPDX-License-Identifier: Apache-2.0
"""A front holds what is not beaten, and says where noise leaves it open."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xtune.evidence.pareto import Estimate, Place, pareto_places
from xtune.launches.objectives import Goal

GOALS = (Goal.MAXIMIZE, Goal.MINIMIZE)


def sharp(*values: float) -> tuple[Estimate, ...]:
    return tuple(Estimate(value, value, value) for value in values)


def within(margin: float, *values: float) -> tuple[Estimate, ...]:
    return tuple(Estimate(value, value - margin, value + margin) for value in values)


def test_throughput_against_latency() -> None:
    """In images a second, and in milliseconds."""
    points = [sharp(100, 20), sharp(200, 35), sharp(150, 40), sharp(90, 20), sharp(50, 5)]
    assert pareto_places(points, GOALS) == (
        Place.FRONT,
        Place.FRONT,
        Place.DOMINATED,
        Place.DOMINATED,
        Place.FRONT,
    )


def test_what_intervals_leave_open_is_said() -> None:
    points = [within(5, 100, 20), within(5, 96, 24), within(5, 80, 40)]
    assert pareto_places(points, GOALS) == (Place.FRONT, Place.MAYBE_DOMINATED, Place.DOMINATED)


def test_sure_means_sure_in_both() -> None:
    """Surely more images, and probably sooner: 12 ms may be 17, and 20 ms may be 15."""
    points = [within(5, 120, 12), within(5, 100, 20)]
    assert pareto_places(points, GOALS) == (Place.FRONT, Place.MAYBE_DOMINATED)


def test_equal_points_share_the_front() -> None:
    assert pareto_places([sharp(1, 1), sharp(1, 1)], GOALS) == (Place.FRONT, Place.FRONT)


def test_nothing_has_no_front() -> None:
    assert pareto_places([], GOALS) == ()


@pytest.mark.parametrize(
    ("point", "message"),
    [(sharp(1.0), "1 estimates for 2 goals"), ((Estimate(1, 2, 3), *sharp(1.0)), "not within")],
)
def test_points_that_are_none_are_refused(point: tuple[Estimate, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pareto_places([point], GOALS)


POINTS = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 2)), min_size=1, max_size=12
)


@given(POINTS)
def test_a_front_is_what_nothing_dominates(rows: list[tuple[int, int, int]]) -> None:
    points = [within(margin, rate, wait) for rate, wait, margin in rows]
    places = pareto_places(points, GOALS)
    for place, (rate, wait, _) in zip(places, rows, strict=True):
        beaten = any(r >= rate and w <= wait and (r > rate or w < wait) for r, w, _ in rows)
        assert (place is Place.FRONT) == (not beaten)
    # What is surely dominated stays so when the intervals shrink to nothing.
    exact = pareto_places([sharp(rate, wait) for rate, wait, _ in rows], GOALS)
    for place, then in zip(places, exact, strict=True):
        if place is Place.DOMINATED:
            assert then is Place.DOMINATED


@given(POINTS)
def test_turning_a_goal_round_turns_nothing_else(rows: list[tuple[int, int, int]]) -> None:
    points = [within(margin, rate, wait) for rate, wait, margin in rows]
    turned = [within(margin, rate, -wait) for rate, wait, margin in rows]
    both_up = (Goal.MAXIMIZE, Goal.MAXIMIZE)
    assert pareto_places(points, GOALS) == pareto_places(turned, both_up)
