# SPDX-License-Identifier: Apache-2.0
"""A request is made of flat options, and its parts travel apart."""

from __future__ import annotations

import pytest

from xlaunch.errors import UsageError
from xlaunch.machine import read_machine
from xlaunch.planning import LayoutRequest, Mode, ProgramRequest, Request, RunRequest, plan


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
