# SPDX-License-Identifier: Apache-2.0
"""Budgets as they are written, and what they leave for the final."""

from __future__ import annotations

import math

import pytest

from xtune.errors import BudgetError
from xtune.search.budget import (
    MAX_BLOCKS,
    MAX_BLOCKS_OF_REST,
    MIN_FINAL,
    MIN_WITH_FINAL,
    SHARE_OF_FINAL,
    Budget,
    FinalSize,
    final_size,
    min_launches_for_final,
    parse_budget,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10m", Budget(None, 600.0)),
        ("90s", Budget(None, 90.0)),
        ("1h30m", Budget(None, 5400.0)),
        ("1.5h", Budget(None, 5400.0)),
        ("1h 30m", Budget(None, 5400.0)),
        ("40 launches", Budget(40)),
        ("40", Budget(40)),
        (" 2 launches ", Budget(2)),
        ("10m, 40 launches", Budget(40, 600.0)),
        ("40 launches or 10m", Budget(40, 600.0)),
        ("20, 30", Budget(20)),
    ],
)
def test_what_can_be_written(text: str, expected: Budget) -> None:
    assert parse_budget(text) == expected


@pytest.mark.parametrize(
    "text", ["", "soon", "-5m", "10mm", "10m40", "5 lunches", "m", "1d", "10m,,5", "10 min"]
)
def test_what_cannot(text: str) -> None:
    with pytest.raises(BudgetError, match="cannot be read; write a time"):
        parse_budget(text)


@pytest.mark.parametrize("text", ["0", "1 launch", "0s", "0h0m"])
def test_what_is_too_little(text: str) -> None:
    with pytest.raises(BudgetError, match="; try "):
        parse_budget(text)


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        (Budget(40), "40 launches"),
        (Budget(None, 600.0), "10m"),
        (Budget(40, 5430.0), "40 launches, 1h30m30s"),
        (Budget(None, 0.25), "0.25s"),
    ],
)
def test_how_it_is_said(budget: Budget, said: str) -> None:
    assert str(budget) == said


def test_what_is_left() -> None:
    assert Budget(40).left(10, 1e9, None) == 30
    assert Budget(40).left(50, 0.0, 10.0) == 0
    assert Budget(None, 600.0).left(10, 100.0, None) == math.inf
    assert Budget(None, 600.0).left(10, 100.0, 10.0) == 50
    assert Budget(None, 600.0).left(10, 600.0, 10.0) == 0
    assert Budget(20, 600.0).left(10, 100.0, 10.0) == 10


def test_a_final_takes_its_share_and_no_more() -> None:
    assert all(final_size(total) is None for total in range(2, MIN_WITH_FINAL))
    for total in (*range(MIN_WITH_FINAL, 200), math.inf):
        size = final_size(total)
        assert size is not None, total
        assert size.launches <= max(SHARE_OF_FINAL * total, MIN_FINAL.launches)
        assert 4 <= size.blocks <= MAX_BLOCKS
        assert 1 <= size.finalists <= 3


@pytest.mark.parametrize("earlier", [0, 1, 7, 12, 23, 24, 400])
def test_launches_of_earlier_searches_count(earlier: int) -> None:
    fewest = min_launches_for_final(earlier)
    assert final_size(fewest - 1, earlier) is None
    size = final_size(fewest, earlier)
    assert size.launches <= fewest


def test_larger_budgets_never_get_smaller_finals() -> None:
    sizes = [
        size for total in range(MIN_WITH_FINAL, 300) if (size := final_size(total)) is not None
    ]
    assert [size.finalists for size in sizes] == sorted(size.finalists for size in sizes)
    assert final_size(1000) == FinalSize(3, 12)


def test_what_is_left_over_makes_a_final_larger() -> None:
    assert FinalSize(2, 9).with_rest(50.0) == FinalSize(2, 16)
    assert FinalSize(2, 9).with_rest(20.0) == FinalSize(2, 9)
    assert FinalSize(1, 4).with_rest(math.inf) == FinalSize(1, MAX_BLOCKS_OF_REST)


def test_fewer_blocks_than_the_first_look_needs_are_no_use() -> None:
    assert FinalSize(2, 9).with_blocks(6) == FinalSize(2, 6)
    assert FinalSize(2, 9).with_blocks(20) == FinalSize(2, 9)
    assert FinalSize(2, 9).with_blocks(1) == FinalSize(2, 4)
