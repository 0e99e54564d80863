# SPDX-License-Identifier: Apache-2.0
"""`xtune compare` as a user types it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.golden import Golden
from tests.tiers import quick_first
from tests.tuner.cli.commands import Desk, Done

ITEMS = ("--metric", "items/s", "--warmup", "0")


def _compared(done: Done) -> str:
    """What a comparison prints, without its last line if that is about other programs, such as other tests."""
    return done.out.partition("whether the commands themselves differ")[0]


def test_the_better_of_two_rates_is_named_in_a_sentence(golden: Golden, desk: Desk) -> None:
    done = desk.xtune("compare", *ITEMS, "rate.py 2", "rate.py 3")
    assert done.code == 0
    assert done.err == ""
    golden(_compared(done))


def test_json_has_every_value_and_the_ratio_of_the_second(desk: Desk) -> None:
    done = desk.xtune("compare", *ITEMS, "--json", "rate.py 4", "rate.py 2")
    found = done.found
    assert found["verdict"] == "first"
    assert found["ratio"] == 0.5
    assert found["interval"] == [0.5, 0.5]
    assert found["commands"][0] == {
        "command": "rate.py 4",
        "median": 400.0,
        "values": [400.0] * 4,
    }


def test_a_shell_runs_what_only_a_shell_understands(desk: Desk) -> None:
    words = ("echo 2 items/s | cat", "echo '3 items/s;'")
    assert desk.xtune("compare", *ITEMS, "--json", *words).found["ratio"] == pytest.approx(1.5)


@pytest.mark.long
def test_rates_of_several_instances_of_xlaunch_are_added(desk: Desk) -> None:
    two = "xlaunch --instances 2 --ncores 1 --oversubscribe rate.py 2"
    done = desk.xtune("compare", *ITEMS, "--json", "rate.py 2", two)
    assert done.found["ratio"] == pytest.approx(2.0)


@pytest.mark.long
def test_wall_time_is_compared_without_a_metric(desk: Desk) -> None:
    done = desk.xtune("compare", "--json", "nap.py 0", "nap.py 0.6")
    assert done.found["verdict"] == "first"
    assert done.found["metric"] == "wall"


@pytest.mark.parametrize(
    ("metric", "numbers"),
    quick_first(
        [
            pytest.param("latency", ("900 ms", "0.9 s")),
            pytest.param("throughput", ("900 MB/s", "0.9 GB/s")),
        ]
    ),
)
def test_numbers_are_compared_in_one_unit(
    golden: Golden, desk: Desk, metric: str, numbers: Sequence[str]
) -> None:
    options = ("--metric", metric, "--warmup", "0")
    done = desk.xtune("compare", *options, *[f"echo {metric} {one}" for one in numbers])
    golden(_compared(done))


def test_values_below_0_are_compared_by_differences(golden: Golden, desk: Desk) -> None:
    options = ("--warmup", "0", "--goal", "minimize", "--metric", "loss")
    words = ("compare", *options, "echo loss 0.2", "echo loss -0.3")
    done = desk.xtune(*words)
    golden(_compared(done))
    found = desk.xtune(words[0], "--json", *words[1:]).found
    assert found["verdict"] == "second"
    assert found["difference"] == pytest.approx(0.5)
    assert found["interval"] == pytest.approx([0.5, 0.5])


def test_what_cannot_be_compared_is_one_line(golden: Golden, desk: Desk) -> None:
    said = []
    for words in (
        (), ("true",), ("true", "true", "true"), ("true", " "), ("true", 'echo "a'), ("--runs", "3", "true", "true"),
        ("true", "no-such-program"), ("true", "false"), ("true", "no-such-program | cat; exit 4"),
        (*ITEMS, "rate.py 1", "echo hello"), ("--metric", "loss", "true", "true"),
        ("--metric", "latency", "echo latency 9", "echo latency 9 s"),
        ("--metric", "rate:speed", "echo speed 9 %", "echo speed 9"), ("--metric", "x/s", "echo -1 x/s", "echo 1 x/s"),
        ("true", "xlaunch"), ("true", "xlaunch --instances 100000 true"),
    ):  # fmt: skip
        done = desk.xtune("compare", *words)
        said.append(f"{done.message} ({done.code})")
    golden(said, hide=r"/bin/sh: .*: .*not found|(?<=100000 cores and ).*(?= \(2)")
