# SPDX-License-Identifier: Apache-2.0
"""Lines of hypertune's protocol: which numbers are whose, and what is said of wrong ones."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.golden import Golden

from xlaunch.metrics.live import LINES_AFTER_MARK, LiveLine
from xtune.launches.announcements import (
    Announcement,
    LaunchAnnouncements,
    parse_announcement,
    read_announcements,
)
from xtune.launches.launch import Goal, Objective

LATENCY = "@hypertune {'name': 'latency (ms)'}"
RATE = "@hypertune {'name': 'rate', 'higher_is_better': True, 'target_val': 100}"


def read(*lines: str, instance: int = 0) -> LaunchAnnouncements:
    told = [LiveLine(instance, "out", 10.0 + at, text) for at, text in enumerate(lines)]
    return read_announcements(told, began_s=9.0)


def values(announced: LaunchAnnouncements) -> dict[tuple[str, int], tuple[float, ...]]:
    return {(one.metric, one.instance): one.values for one in announced.series}


# One announcement


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (LATENCY, Announcement("latency (ms)")),
        (RATE, Announcement("rate", higher_is_better=True)),
        ('[3] INFO: @hypertune {"name": "a b"}', Announcement("a b")),
        ("@hypertune {'name': 'x', 'target_val': -inf}", Announcement("x")),
        ('@hypertune {"name": "x", "higher_is_better": true}', Announcement("x", True)),
        ("@hypertune{'name': ' x '}", Announcement("x")),
    ],
)
def test_dictionary_is_read_from_the_line(line: str, expected: Announcement):
    assert parse_announcement(line) == expected


def test_wrong_dictionary_is_named(golden: Golden):
    said = []
    for text in (
        "", "{'name': latency}", "__import__('os').system('true')", "[" * 5000, "['name']",
        "{'name': 'x', 'goal': 'max'}", "{'name': 3}", "{'name': ' '}",
        "{'name': 'x', 'higher_is_better': 'yes'}",
    ):  # fmt: skip
        with pytest.raises(ValueError) as refused:  # noqa: PT011
            parse_announcement(f"@hypertune {text}")
        said.append(str(refused.value))
        assert "\n" not in said[-1]
        assert len(said[-1]) < 250
    golden(said)


def test_announcement_is_an_objective():
    assert parse_announcement(LATENCY).objective == Objective(
        "@hypertune latency (ms)", Goal.MINIMIZE
    )
    assert parse_announcement(RATE).objective.goal is Goal.MAXIMIZE


# Announcements and numbers


def test_number_follows_on_the_next_line():
    announced = read("epoch 1", LATENCY, "12.5", "13", "loss 3", RATE, " 1e2 ")
    assert values(announced) == {
        ("@hypertune latency (ms)", 0): (12.5,),
        ("@hypertune rate", 0): (100.0,),
    }
    assert [one.name for one in announced.announcements] == ["latency (ms)", "rate"]
    assert announced.notes == ()
    assert [one.times_s for one in announced.series] == [(3.0,), (7.0,)]


@pytest.mark.parametrize(
    ("lines", "numbers"),
    [
        ([LATENCY, "libgomp: a warning", "3 of 4 done", "12.5"], (12.5,)),
        ([LATENCY, "tensor(0.25)", LATENCY, "tensor(0.5, dtype=torch.float64)"], (0.25, 0.5)),
        ([line for step in range(5) for line in (LATENCY, str(step))], (0, 1, 2, 3, 4)),
    ],
    ids=["lines between", "scalars of torch", "a series"],
)
def test_numbers_of_one_name(lines: list[str], numbers: tuple[float, ...]):
    announced = read(*lines)
    assert values(announced) == {("@hypertune latency (ms)", 0): numbers}
    assert len(announced.announcements) == 1


def test_a_number_that_is_not_finite_is_named_and_left_out():
    announced = read(LATENCY, "2.5", LATENCY, "nan", LATENCY, "tensor(-inf)", "3.0")
    assert announced.not_finite == "nan"
    assert [one.values for one in announced.series] == [(2.5,)]


def test_number_that_never_comes_is_said():
    for lines in ([LATENCY], [LATENCY, *["other"] * LINES_AFTER_MARK, "5"]):
        announced = read(*lines)
        assert announced == LaunchAnnouncements(
            notes=(
                "instance 0: no number followed @hypertune of 'latency (ms)';"
                " print it on a line of its own",
            )
        )


def test_next_announcement_ends_the_wait_for_a_number():
    announced = read(LATENCY, RATE, "7")
    assert values(announced) == {("@hypertune rate", 0): (7.0,)}
    assert len(announced.notes) == 1


def test_wrong_dictionary_takes_no_number(golden: Golden):
    announced = read("@hypertune {name}", "7", LATENCY, "8")
    assert values(announced) == {("@hypertune latency (ms)", 0): (8.0,)}
    golden(announced.notes[0])


@given(st.integers(1, 6), st.randoms())
def test_lines_of_instances_and_streams_may_mix(count: int, order: random.Random):
    told = {
        (instance, stream): [
            line
            for step in range(3)
            for line in (LATENCY, f"progress {step}", f"{100 * instance + step}")
        ]
        for instance in range(count)
        for stream in ("out", "err")
    }
    lines = []
    while told:
        source = order.choice(list(told))
        lines.append(LiveLine(*source, float(len(lines)), told[source].pop(0)))
        if not told[source]:
            del told[source]
    announced = read_announcements(lines, began_s=0.0)
    for one in announced.series:
        own = [100.0 * one.instance + step for step in range(3)]
        assert sorted(one.values) == sorted([*own, *own])
        assert list(one.times_s) == sorted(one.times_s)
    assert len(announced.series) == count
