# SPDX-License-Identifier: Apache-2.0
"""Conditions: what they mean, and where an error in one is."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xtune.errors import SpaceError
from xtune.space.conditions import MAX_CHARACTERS, MAX_NESTED, parse_condition
from xtune.space.parameters import Value

NAMES: dict[str, tuple[Value, ...]] = {
    "threads": (4, 8, 16),
    "batch": (1, 2, 4, 8),
    "rate": (0.5, 2.0),
    "ncores": (1, 2, 8),
    "smt": (False, True),
    "allocator": ("auto", "glibc", "glibc-one-arena", "jemalloc"),
    "omp": ("auto", "intel+active"),
    "layout": ("1xall", "4x1"),
}
VALUES: dict[str, Value] = {
    "threads": 8,
    "batch": 2,
    "rate": 0.5,
    "ncores": 8,
    "smt": False,
    "allocator": "glibc-one-arena",
    "omp": "intel+active",
    "layout": "4x1",
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("threads<=ncores", True),
        ("threads < ncores", False),
        ("4<threads<=8", True),
        ("8 < threads <= 8", False),
        ("batch*threads == 16", True),
        ("threads - batch*3 == 2", True),
        ("threads-1 < ncores", True),
        ("threads // 3 == 2 and threads % 3 == 2", True),
        ("threads / 16 == rate", True),
        ("-threads < -(4)", True),
        ("(batch + 2) * 2 == threads", True),
        ("batch + 2 * 2 == 6", True),
        ("batch==1 or batch==2 and threads==4", False),
        ("(batch==2 or batch==1) and threads==8", True),
        ("not smt", True),
        ("not smt and batch==2", True),
        ("smt == false", True),
        ("smt != true", True),
        ("allocator==glibc-one-arena", True),
        ("allocator==glibc", False),
        ("glibc != allocator", True),
        ("allocator=='glibc-one-arena'", True),
        ('allocator=="jemalloc"', False),
        ("allocator in (glibc, glibc-one-arena)", True),
        ("allocator not in [glibc, jemalloc]", True),
        ("batch in (1, 3)", False),
        ("omp==intel+active", True),
        ("layout==4x1 and omp!=auto", True),
        ("batch>=8 if allocator==glibc", True),
        ("batch>=8 if allocator==glibc-one-arena", False),
        ("batch==2 or smt if threads==8 and not smt", True),
        ("allocator==tcmalloc", False),
        ("rate == .5", True),
        ("rate*2 == 1.0", True),
    ],
)
def test_means_what_it_says(text: str, holds: bool) -> None:
    condition = parse_condition(text, NAMES, {"tcmalloc", "glibc-frugal"})
    assert condition.holds(VALUES) is holds
    assert condition.text == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("threads<=ncors", "character 10: nothing here has the name 'ncors'; did you mean ncores?"),
        (
            "smt if fast",
            "character 8: nothing here has the name 'fast'; there are threads, batch, ",
        ),
        ("threads", "character 1: this is a number by itself; compare it, as in threads<=ncores"),
        ("allocator", "character 1: this is text by itself; compare it, as in threads<=ncores"),
        ("threads=4", "character 8: '=' means nothing; write =="),
        ("smt && threads<4", "character 5: '&' means nothing; write and"),
        ("!smt", "character 1: '!' means nothing; write not, or !="),
        ("threads<=", "character 10: a name, a number or text is expected, not the end"),
        ("threads <= <", "character 12: a name, a number or text is expected, not '<'"),
        ("(threads<4", "character 11: ')' is expected here"),
        ("threads<4)", "character 10: ')' is not expected here"),
        ("threads<=4 batch", "character 12: 'batch' is not expected here"),
        ("threads<4 if", "character 13: a name, a number or text is expected, not the end"),
        (
            "allocator==jemaloc",
            "character 12: the parameter is never 'jemaloc'; did you mean jemalloc?",
        ),
        ("omp=='x'", "character 6: the parameter is never 'x'; it is auto or intel+active"),
        ("allocator<glibc", "character 10: text has no order; write == or !="),
        ("smt<true", "character 4: true or false has no order; write == or !="),
        ("threads=='4'", "character 8: a number is compared with text; text is written in quotes"),
        ("threads==glibc", "character 10: nothing here has the name 'glibc'; there are threads,"),
        ("smt==1", "character 4: true or false is compared with a number"),
        ("smt+1==2", "character 1: a number is expected here, and this is true or false"),
        ("allocator in glibc", "character 14: a list in parentheses is expected after 'in'"),
        ("allocator in (glibc", "character 20: ',' or ')' is expected here"),
        ("allocator=='glibc", "character 12: the quote is not closed"),
        ("threads<4.5.6", "character 9: '4' means nothing"),
        ("threads<__import__('os')", "character 9: nothing here has the name '__import__'; there"),
        ("threads.real<4", "character 8: '.' means nothing"),
        ("1<2", "character 1: speaks of no parameter; there are threads, batch, "),
        ("not " * (MAX_NESTED + 1) + "smt", f"nested more than {MAX_NESTED} deep"),
        ("(" * 200 + "smt" + ")" * 200, f"nested more than {MAX_NESTED} deep"),
        ("smt\nor", r"--when 'smt\nor': character 7: a name, a number"),
    ],
)
def test_an_error_points_at_its_place(text: str, message: str) -> None:
    with pytest.raises(SpaceError) as caught:
        parse_condition(text, NAMES)
    assert message in str(caught.value)
    assert str(caught.value).startswith("--when ")
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.exit_code == 2


def test_empty_and_endless_conditions_are_refused() -> None:
    with pytest.raises(SpaceError, match="the condition is empty; write for example"):
        parse_condition("  ", NAMES)
    with pytest.raises(SpaceError, match=rf"601 characters; at most {MAX_CHARACTERS}, and several"):
        parse_condition("smt or " * 85 + "not smt"[:6], NAMES)


def test_dividing_by_nothing_says_where() -> None:
    condition = parse_condition("batch % (threads-8) == 0", NAMES)
    assert condition.holds({**VALUES, "threads": 9})
    with pytest.raises(SpaceError, match="divides by 0 where batch=2, threads=8"):
        condition.holds(VALUES)


NUMBERS = st.deferred(
    lambda: st.one_of(
        st.sampled_from(["threads", "batch", "ncores"]),
        st.integers(0, 20).map(str),
        st.builds("({} {} {})".format, NUMBERS, st.sampled_from(["+", "-", "*"]), NUMBERS),
        st.builds("-{}".format, NUMBERS),
    )
)
COMPARISONS = st.one_of(
    st.builds(
        "{} {} {}".format, NUMBERS, st.sampled_from(["<", "<=", "==", "!=", ">", ">="]), NUMBERS
    ),
    st.builds("{} <= {} < {}".format, NUMBERS, NUMBERS, NUMBERS),
    st.builds("{} in ({}, {})".format, NUMBERS, NUMBERS, NUMBERS),
    st.builds("{} not in ({}, {})".format, NUMBERS, NUMBERS, NUMBERS),
    st.sampled_from(["smt", "allocator == 'glibc'", "allocator in ('glibc', 'auto')"]),
)
TRUTHS = st.recursive(
    COMPARISONS,
    lambda inner: st.one_of(
        st.builds("{} {} {}".format, inner, st.sampled_from(["and", "or"]), inner),
        st.builds("not {}".format, inner),
        st.builds("({})".format, inner),
    ),
    max_leaves=6,
)


@given(TRUTHS.filter(lambda text: any(name in text for name in NAMES) and len(text) <= 300))
def test_binds_and_computes_as_python_does(text: str) -> None:
    condition = parse_condition(text, NAMES)
    for threads, smt, allocator in itertools.product((4, 16), (False, True), ("auto", "jemalloc")):
        values = {**VALUES, "threads": threads, "smt": smt, "allocator": allocator}
        assert condition.holds(values) is bool(eval(text, {"__builtins__": {}}, dict(values)))
