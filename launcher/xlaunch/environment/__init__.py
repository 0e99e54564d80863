# SPDX-License-Identifier: Apache-2.0
"""From a plan to what each instance is started with: program, interpreter, variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from xlaunch.environment.program import Program, resolve_program
from xlaunch.environment.variables import Setting, choose_settings, instance_variables
from xlaunch.planning.plan import Plan

__all__ = ["Environment", "Program", "Setting", "prepare_environment"]


class Environment(NamedTuple):
    """What the instances of a plan are started with; the tuples run parallel to its instances."""

    program: Program
    settings: tuple[tuple[Setting, ...], ...]
    variables: tuple[dict[str, str], ...]


def prepare_environment(plan: Plan, inherited: Mapping[str, str]) -> Environment:
    """Find the program of `plan` and choose the variables of every instance.

    `inherited` is the environment to start from, as a rule `os.environ`.
    Raises what `resolve_program` raises.
    """
    program = resolve_program(plan.request, inherited)
    piped = plan.relayed or plan.request.log_dir is not None
    settings = tuple(
        choose_settings(plan, instance, inherited, piped=piped) for instance in plan.instances
    )
    variables = tuple(
        instance_variables(plan, instance, chosen, inherited)
        for instance, chosen in zip(plan.instances, settings, strict=True)
    )
    return Environment(program, settings, variables)
