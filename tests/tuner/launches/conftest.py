# SPDX-License-Identifier: Apache-2.0
"""Runners of small programs, each launch a real one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from tests.tuner.conftest import Needs

from xlaunch.machine import read_machine
from xlaunch.planning import Request
from xtune.launches.launch import Goal, Objective
from xtune.launches.requirements import parse_requirement
from xtune.launches.runner import Runner
from xtune.space.parameters import Parameter, Target
from xtune.space.resolution import Resolver
from xtune.space.spaces import Space

LAYOUTS = Parameter("layout", ("1x1", "2x1"), "1x1", Target.OPTION)

BEGIN = """
import os, signal, sys, time
def tell(*words): print(*words, flush=True)
"""

MakeRunner = Callable[..., Runner]


@pytest.fixture
def two_cpus(needs: Needs) -> None:
    """Two instances of a core each can be started."""
    needs(len(os.sched_getaffinity(0)) > 1, "two CPUs")


@pytest.fixture
def make_runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeRunner:
    """A runner of a Python program, which runs in a directory of the test's own."""
    monkeypatch.chdir(tmp_path)

    def make(
        code: str,
        metric: str = "x/s",
        goal: Goal = Goal.MAXIMIZE,
        *,
        requirements: Sequence[str] = (),
        parameters: Sequence[Parameter] = (LAYOUTS,),
        program: tuple[str, ...] | None = None,
        environment: Mapping[str, str] | None = None,
        asked: Mapping[str, object] | None = None,
        **options: object,
    ) -> Runner:
        request = Request.of(
            *program or (sys.executable, "-c", BEGIN + code),
            **(asked or {}),  # type: ignore[arg-type]
        )
        machine = read_machine()
        inherited = os.environ if environment is None else environment
        return Runner(
            Resolver(Space(parameters), request, inherited, machine),
            Objective(metric, goal, tuple(map(parse_requirement, requirements))),
            environment=inherited,
            **options,  # type: ignore[arg-type]
        )

    return make
