# SPDX-License-Identifier: Apache-2.0
"""The command as it would run without xlaunch, made so that it can be watched like every other launch.

It is bound to nothing, no variable is chosen for it, no library preloaded. What it shares with the
others is only what looking on takes: its output goes through a pipe, from which a Python program
would otherwise hold its lines back, and it may report values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from xlaunch.environment import Environment
from xlaunch.environment.program import resolve_program
from xlaunch.environment.substitution import own_program, with_own_variables
from xlaunch.environment.variables import split_inherited
from xlaunch.machine.topology import Machine
from xlaunch.planning import MemoryPolicy, Plan, Request, plan


class BareCommand(NamedTuple):
    """What to start, and with which variables."""

    plan: Plan
    environment: Environment


def bare_command(request: Request, environment: Mapping[str, str], machine: Machine) -> BareCommand:
    """The program of `request` on its own. Raises what `resolve_program` raises.

    request
        Of it count the program and how it is found, `env`, and what is measured.
    environment
        What it inherits, as a rule `os.environ`.
    """
    own = Request(
        program=request.program,
        module=request.module,
        no_python=request.no_python,
        python=request.python,
        substitute=request.substitute,
        env=request.env,
        metric=request.metric,
        supervise=True,
        grace_s=request.grace_s,
        mem_policy=MemoryPolicy.NONE,
    )
    made = plan(own, machine)._replace(bound=False, decisions=(), warnings=())
    (instance,) = made.instances
    inherited = split_inherited(environment).users_own
    program = resolve_program(own, inherited)
    variables = {**inherited, **dict(with_own_variables(made, instance).request.env)}
    if made.relayed:
        variables.setdefault("PYTHONUNBUFFERED", "1")
    programs = (own_program(program, made, instance),)
    return BareCommand(made, Environment(program, programs, ((),), (variables,)))
