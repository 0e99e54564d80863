# SPDX-License-Identifier: Apache-2.0
"""Conditions: what they mean, and what is wrong with one."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.golden import Golden

from xtune.errors import SpaceError
from xtune.space.conditions import MAX_CHARACTERS, parse_condition
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
        ("4<threads<=8", True),
        ("batch*threads == 16", True),
        ("threads - batch*3 == 2", True),
        ("threads // 3 == 2 and threads % 3 == 2", True),
        ("threads / 16 == rate", True),
        ("-threads < -(4)", True),
        ("(batch + 2) * 2 == threads", True),
        ("batch + 2 * 2 == 6", True),
        ("batch==1 or batch==2 and threads==4", False),
        ("(batch==2 or batch==1) and threads==8", True),
        ("not smt and batch==2", True),
        ("smt == false", True),
        ("allocator==glibc-one-arena", True),
        ("allocator==glibc", False),
        ("glibc != allocator", True),
        ("allocator=='glibc-one-arena'", True),
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
    ],
)
def test_means_what_it_says(text: str, holds: bool) -> None:
    condition = parse_condition(text, NAMES, {"tcmalloc", "glibc-frugal"})
    assert condition.holds(VALUES) is holds
    assert condition.text == text


def test_an_error_names_the_part_that_is_wrong(golden: Golden) -> None:
    said = []
    for text in (
        "threads<=ncors", "smt if fast", "threads=4", "smt | threads<4", "!smt", "threads<=4 batch",
        "allocator==jemaloc", "omp=='x'", "allocator<glibc", "threads=='4'", "allocator=='glibc",
        "threads**2<9", "threads<1j", "threads<__import__('os')", "threads.real<4",
        "[threads for threads in (1, 2)] == 3", "threads < 4 if smt if smt", "1<2",
        "(" * 240 + "smt" + ")" * 240, "smt\nor",
    ):  # fmt: skip
        with pytest.raises(SpaceError) as caught:
            parse_condition(text, NAMES)
        said.append(str(caught.value))
        assert said[-1].startswith("--when ")
        assert "\n" not in said[-1]
        assert caught.value.exit_code == 2
    golden(said, hide=r"(?<=cannot be read )\(.*\)(?=; write)")  # the words are those of Python


def test_empty_and_endless_conditions_are_refused() -> None:
    with pytest.raises(SpaceError, match="the condition is empty; write for example"):
        parse_condition("  ", NAMES)
    with pytest.raises(SpaceError, match=rf"601 characters; at most {MAX_CHARACTERS}, and several"):
        parse_condition("smt or " * 85 + "not smt"[:6], NAMES)


@pytest.mark.parametrize("text", ["threads", "threads<'glibc'", "allocator+1==2"])
def test_what_has_no_truth_is_refused(golden: Golden, text: str) -> None:
    with pytest.raises(SpaceError) as caught:
        parse_condition(text, NAMES).holds(VALUES)
    golden(str(caught.value))


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


@settings(max_examples=50)
@given(TRUTHS.filter(lambda text: any(name in text for name in NAMES) and len(text) <= 300))
def test_binds_and_computes_as_python_does(text: str) -> None:
    condition = parse_condition(text, NAMES)
    for threads, smt, allocator in itertools.product((4, 16), (False, True), ("auto", "jemalloc")):
        values = {**VALUES, "threads": threads, "smt": smt, "allocator": allocator}
        assert condition.holds(values) is bool(eval(text, {"__builtins__": {}}, dict(values)))
