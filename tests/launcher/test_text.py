# SPDX-License-Identifier: Apache-2.0
"""Tables that fit a terminal."""

from __future__ import annotations

import pytest

from xlaunch.text import fit

ROWS = [("name", "size", "where", "use"), ("a", "10", "here", "x"), ("bb", "9", "there", "y")]


def fitted(width: int | None) -> list[str]:
    return fit(ROWS, width=width, right=("size",), optional=("use", "where"))


@pytest.mark.parametrize("width", [None, 80, 22])
def test_table_that_fits_has_all_columns(width: int | None):
    assert fitted(width) == [
        "name  size  where  use",
        "a       10  here   x",
        "bb       9  there  y",
    ]


@pytest.mark.parametrize(
    ("width", "heading"), [(21, "name  size  where"), (17, "name  size  where"), (16, "name  size")]
)
def test_optional_columns_are_left_out_in_their_order(width: int, heading: str):
    assert fitted(width)[0] == heading
    assert max(map(len, fitted(width))) <= width


def test_rows_are_stacked_where_no_table_fits():
    assert fitted(9) == [
        "name a",
        "  size   10",
        "  where  here",
        "  use    x",
        "name bb",
        "  size   9",
        "  where  there",
        "  use    y",
    ]
