# SPDX-License-Identifier: Apache-2.0
"""Who is dropped from a race, and when it is over."""

from __future__ import annotations

import random

from xtune.search.racing import MAX_BLOCKS, block_order, race_state

PLANS = ["a", "b", "c", "d"]
LEVELS = {"a": 0.0, "b": -0.02, "c": -0.3, "d": -0.5}


def blocks(
    count: int, noise: float, seed: int = 0, levels: dict[str, float] = LEVELS
) -> list[dict[str, float | None]]:
    """Each with a level of its own: the machine moves slowly."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        level = rng.gauss(0.0, 0.2)
        found.append({plan: level + own + rng.gauss(0, noise) for plan, own in levels.items()})
    return found  # type: ignore[return-value]


def test_nobody_is_dropped_after_one_block() -> None:
    state = race_state(PLANS, blocks(1, 0.001), 2)
    assert state.survivors == ("a", "b", "c", "d")
    assert not state.is_over


def test_who_is_surely_behind_is_dropped() -> None:
    state = race_state(PLANS, blocks(2, 0.01), 2)
    assert set(state.survivors) == {"a", "b"}


def test_noise_keeps_all_in() -> None:
    assert len(race_state(PLANS, blocks(2, 1.0), 2).survivors) == 4


def test_equal_plans_are_seldom_dropped() -> None:
    same = dict.fromkeys(PLANS, 0.0)
    states = [race_state(PLANS, blocks(4, 0.05, seed, same), 1) for seed in range(200)]
    dropped = sum(4 - len(state.survivors) for state in states)
    assert dropped < 0.05 * 200 * 4


def test_who_fails_is_out() -> None:
    rows = blocks(1, 0.01)
    rows[0]["a"] = None
    assert race_state(PLANS, rows, 2).survivors == ("b", "c", "d")


def test_it_is_over_when_one_is_left_or_nothing_more_is_learnt() -> None:
    assert race_state(["a"], [{"a": 0.0}], 2).is_over
    assert race_state(PLANS, blocks(3, 0.01), 2).is_over
    assert not race_state(PLANS, blocks(2, 0.01), 2).is_over, "two blocks are few for a choice"
    assert not race_state(PLANS, blocks(MAX_BLOCKS - 1, 1.0), 2).is_over
    assert race_state(PLANS, blocks(MAX_BLOCKS, 1.0), 2).is_over
    assert race_state(PLANS, [dict.fromkeys(PLANS)], 2).is_over, "all have failed"
    assert not race_state(PLANS, [], 2).is_over


def test_orders_differ_by_block_and_are_the_same_for_all_workers() -> None:
    orders = [tuple(block_order(PLANS, block, 7)) for block in range(20)]
    assert len(set(orders)) > 5
    assert all(sorted(order) == PLANS for order in orders)
    assert orders == [tuple(block_order(list(reversed(PLANS)), block, 7)) for block in range(20)]
