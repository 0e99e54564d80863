# SPDX-License-Identifier: Apache-2.0
"""The highest load within a bound: found by bisection, in a service that stays up meanwhile."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st
from tests.golden import Golden

from xtune.launches.highest_load import (
    TOLERANCE,
    LoadRange,
    highest,
    load_at_limit,
    parse_load,
)
from xtune.launches.launch import Outcome
from xtune.launches.services import Load


@given(
    st.integers(1, 50),
    st.integers(1, 100_000),
    st.integers(0, 110_000),
    st.none() | st.integers(1, 100_000),
)
def test_the_highest_load_that_holds_is_found(
    low: int, more: int, limit: int, start: int | None
) -> None:
    loads, tried = LoadRange("c", low, low + more), list[int]()

    def holds(level: int) -> bool:
        tried.append(level)
        return level <= limit

    found = highest(holds, loads, start)
    assert len(tried) == len(set(tried)) <= 30
    assert all(loads.low <= level <= loads.high for level in tried)
    if found is None:
        assert limit < low
        return
    assert found <= limit
    assert found == loads.high or found + max(1.0, TOLERANCE * found) >= min(limit, loads.high)


def generated(level: int) -> Load:
    return Load((str(level),))


def judged(limit: int, *, saturated_from: int = 1000):
    """Loads up to `limit` hold."""

    def judge(load: Load) -> tuple[bool, str]:
        return int(load.outputs[0]) <= limit, "x"

    def generate(level: int) -> Load:
        is_saturated = level >= saturated_from
        return generated(level)._replace(
            outcome=Outcome.SATURATED if is_saturated else Outcome.MEASURED
        )

    return generate, judge


def test_the_load_at_the_limit_is_the_result_and_each_one_is_told(golden: Golden) -> None:
    said: list[str] = []
    generate, judge = judged(40)
    loads = LoadRange("c", 1, 512)
    found = load_at_limit(generate, judge, loads, start=None, tell=said.append)
    assert found.level is not None
    assert 38 <= found.level[1] <= 40
    assert found.outputs == (str(found.level[1]),)
    assert said[0] == "c=23: x: holds"
    golden(said)
    # One that was found before is tried first.
    said.clear()
    load_at_limit(generate, judge, loads, start=39, tell=said.append)
    assert said[0] == "c=39: x: holds"
    # If none holds, the lowest is measured.
    generate, judge = judged(0)
    assert load_at_limit(generate, judge, loads, start=None, tell=said.append).level == ("c", 1)


def test_a_generator_at_its_limit_is_not_taken_for_the_service_s() -> None:
    generate, judge = judged(40, saturated_from=41)
    loads = LoadRange("c", 1, 512)
    assert (
        load_at_limit(generate, judge, loads, start=None, tell=print).outcome is Outcome.SATURATED
    )


def test_a_service_that_ends_under_load_ends_the_launch() -> None:
    def generate(level: int) -> Load:
        return generated(level)._replace(
            service_ended=level > 40, problem="it ended" * (level > 40)
        )

    _, judge = judged(40)
    found = load_at_limit(generate, judge, LoadRange("c", 1, 512), start=None, tell=print)
    assert (found.service_ended, found.problem) == (True, "it ended")


def test_the_load_in_the_command() -> None:
    loads = parse_load("c=1..512", "wrk -c{c}")
    assert (
        loads.fill("wrk -c{c} -t{c/count} {port} {cc}", 64) == "wrk -c64 -t{64/count} {port} {cc}"
    )


def test_a_load_that_cannot_be_tried_is_refused(golden: Golden) -> None:
    wrong = ("c", "c=1.5..3", "c=4..4", "c=0..4", "count=1..4", "port=1..4", "rate=1..4")
    golden.errors(*[partial(parse_load, text, "wrk -c{c}") for text in wrong])
