# SPDX-License-Identifier: Apache-2.0
"""The command without xlaunch, prepared so that it can be observed like every other launch.

It is not bound to CPUs, and gets no variables and no preloads from xlaunch. Only observation is the
same as for other launches: its output goes through a pipe, Python's output is unbuffered, and it may
report values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from xlaunch.environment import Environment
from xlaunch.environment.program import resolve_program
from xlaunch.environment.substitution import own_program, own_variables
from xlaunch.environment.variables import split_inherited
from xlaunch.machine.topology import Machine
from xlaunch.planning import LayoutRequest, MemoryPolicy, Plan, ProgramRequest, RunRequest, plan


class BareCommand(NamedTuple):
    """What to start, and with which variables."""

    plan: Plan
    environment: Environment


def bare_command(
    request: ProgramRequest, run: RunRequest, environment: Mapping[str, str], machine: Machine
) -> BareCommand:
    """The program of `request` on its own. Raises what `resolve_program` raises.

    request
        Only the program, how to find it, and `env` are used.
    environment
        The variables that it inherits, usually `os.environ`.
    """
    nowhere = LayoutRequest(mem_policy=MemoryPolicy.NONE)
    made = plan(nowhere, machine)._replace(bound=False, decisions=(), warnings=())
    (instance,) = made.instances
    inherited = split_inherited(environment).users_own
    program = resolve_program(request, inherited)
    variables = inherited | own_variables(request, made, instance)
    if made.relayed(run):
        variables.setdefault("PYTHONUNBUFFERED", "1")
    programs = (own_program(program, request, made, instance),)
    return BareCommand(made, Environment(program, programs, ((),), (variables,)))
