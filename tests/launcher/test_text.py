# SPDX-License-Identifier: Apache-2.0
"""Tables that fit a terminal, and hints at misspelt words."""

from __future__ import annotations

import pytest

from xlaunch.text import did_you_mean, fit, folded, mistakes

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


def test_similar_words_are_named_each_in_its_form():
    known = ["latency", "throughput", "latent"]
    assert did_you_mean("latenc", known) == "; did you mean latency or latent?"
    assert did_you_mean("latenc", known, count=1, form="--{}") == "; did you mean --latency?"
    assert did_you_mean("zebra", known) == ""


@pytest.mark.parametrize(
    ("word", "known", "near"),
    [
        ("--port", "--report", False),  # two mistakes in a word of four letters
        ("--shell", "--help", False),
        ("--haed", "--head", True),
        ("--instnaces", "--instances", True),
        ("--reserve", "--reserve-cores", True),
        ("--frobnicate", "--explain", False),
        ("", "", True),
    ],
)
def test_only_near_words_are_named(word: str, known: str, near: bool):
    assert bool(did_you_mean(word, [known])) == near
    assert mistakes(word, known) == mistakes(known, word)


def test_a_line_is_folded_at_spaces_below_its_own_indentation():
    line = "  omp  auto gnu+passive  (how threads wait)"
    assert folded(line, 24) == ["  omp  auto gnu+passive", "    (how threads wait)"]
    assert folded(line, len(line)) == folded(line, None) == [line]
    assert folded("--a-word-that-is-too-long", 10) == ["--a-word-that-is-too-long"]
