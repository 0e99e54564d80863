# SPDX-License-Identifier: Apache-2.0
"""A request is made of flat options, and its parts travel apart."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from tests.golden import Golden

from xlaunch.errors import UsageError
from xlaunch.launching import launch, start
from xlaunch.machine import read_machine
from xlaunch.planning import MAX, LayoutRequest, ProgramRequest, Request, RunRequest, plan
from xlaunch.planning.request import MemoryPolicy, Mode, Place, checked


def test_options_reach_the_part_that_has_them() -> None:
    made = Request.of("infer.py", "--batch=8", instances=2, allocator="glibc", timeout_s=60.0)
    assert made.layout == LayoutRequest(instances=2)
    assert made.program == ProgramRequest(("infer.py", "--batch=8"), allocator="glibc")
    assert made.run == RunRequest(timeout_s=60.0)
    assert made.replace(instances=None, tag=True).run == RunRequest(timeout_s=60.0, tag=True)


def test_every_option_is_in_one_part_only() -> None:
    names = [name for part in Request() for name in part._fields]
    assert len(names) == len(set(names)) == len(Request().options())


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(TypeError, match=r"no option ncore$"):
        Request.of("infer.py", ncore=2)


def test_a_plan_is_of_the_layout_alone() -> None:
    machine = read_machine()
    made = plan(Request.of("infer.py", ncores=1, timeout_s=60.0).layout, machine)
    assert made == plan(LayoutRequest(ncores=1), machine)
    with pytest.raises(UsageError, match="--mode contradicts --ncores"):
        plan(LayoutRequest(mode=Mode.LATENCY, ncores=1), machine)


def test_words_stand_for_members_of_enumerations() -> None:
    machine = read_machine()
    made = plan(LayoutRequest(ncores="max", place="scatter", mem_policy="local"), machine)  # type: ignore[arg-type]
    assert made == plan(
        LayoutRequest(ncores=MAX, place=Place.SCATTER, mem_policy=MemoryPolicy.LOCAL), machine
    )


def test_a_value_of_another_type_is_refused(golden: Golden) -> None:
    wrong: list[dict[str, Any]] = [
        {"instances": "x"}, {"instances": 1.5}, {"ncores": True}, {"mode": "fast"}, {"smt": "no"}, {"cpus": [0]},
        {"cpus": ("0",)},
    ]  # fmt: skip
    golden.errors(*[partial(plan, LayoutRequest(**option), read_machine()) for option in wrong])


def test_a_launch_refuses_them_before_it_starts(golden: Golden) -> None:
    made = plan(LayoutRequest(ncores=1), read_machine())
    wrong: list[list[Any]] = [
        ["true"],
        [ProgramRequest(("sleep", 1))],  # type: ignore[arg-type]
        [ProgramRequest(("true",)), RunRequest(timeout_s="3")],  # type: ignore[arg-type]
    ]
    golden.errors(*[partial(begin, made, *parts) for parts in wrong for begin in (launch, start)])


def test_every_annotation_of_a_request_can_be_checked() -> None:
    for part in Request():
        assert checked(part, type(part)) is part
