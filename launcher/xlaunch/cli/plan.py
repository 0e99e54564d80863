# SPDX-License-Identifier: Apache-2.0
"""`xlaunch plan`: show what would run where, and run nothing."""

from __future__ import annotations

import os
import shlex
from functools import partial
from typing import Any

import click

from xlaunch.cli.options import (
    CONTEXT,
    ENVIRONMENT,
    LAYOUT,
    MACHINE,
    PRESETS,
    PROGRAM,
    RUNNING,
    OneCallOption,
    refuse_contradictions,
    request_from,
    with_options,
    with_program,
)
from xlaunch.cli.presets.command import LayeredCommand, explain_options
from xlaunch.cli.topology import machine_of
from xlaunch.environment import Environment, prepare_environment
from xlaunch.environment.program import starts_ranks
from xlaunch.machine.topology import Machine
from xlaunch.planning import plan as make_plan
from xlaunch.planning import plan_to_dict, render_plan
from xlaunch.planning.plans import Plan
from xlaunch.planning.request import Request


@click.command(cls=LayeredCommand, context_settings=CONTEXT)
@partial(with_program, required=False)
@with_options(
    LAYOUT,
    PROGRAM,
    ENVIRONMENT,
    RUNNING,
    PRESETS,
    MACHINE,
    [
        click.option(
            "--explain", cls=OneCallOption, is_flag=True, help="Say each decision and its reason."
        ),
        click.option(
            "--json", "as_json", cls=OneCallOption, is_flag=True, help="Print the plan as JSON."
        ),
        click.option(
            "--dry-run",
            cls=OneCallOption,
            is_flag=True,
            expose_value=False,
            help="Changes nothing: a plan is a dry run.",
        ),
        click.option(
            "-v", "--verbose", is_flag=True, help="Changes nothing: the plan is shown anyway."
        ),
        click.option("-q", "--quiet", is_flag=True, help="No notes on what files say."),
    ],
)
def plan(
    *, explain: bool, as_json: bool, sysroot: str | None, synthetic: str | None, **options: Any
) -> None:
    """Show which instance would run on which CPUs, and run nothing.

    The options are those of xlaunch, which shows the same with --dry-run; PROGRAM may be left out.
    """
    refuse_contradictions(click.get_current_context())
    with machine_of(sysroot, synthetic) as machine:
        print_plan(request_from(options), machine, explain=explain, as_json=as_json)


def print_plan(request: Request, machine: Machine, *, explain: bool, as_json: bool) -> None:
    """Plan `request` for `machine` and print the plan on standard output."""
    made = make_plan(request, machine)
    environment = prepare_environment(made, os.environ) if request.program else None
    if as_json:
        import json

        values = plan_to_dict(made)
        if environment is not None:
            values["warnings"] += environment.warnings
            values["program"] = _printable(environment.program.argv)
            for instance, program, settings in zip(
                values["instances"], environment.programs, environment.settings, strict=True
            ):
                instance["environment"] = {setting.name: setting.value for setting in settings}
                if program != environment.program:
                    instance["program"] = _printable(program.argv)
        click.echo(json.dumps(values, indent=1))
        return
    click.echo(describe(made, machine, environment, explain=explain))


def describe(
    plan: Plan, machine: Machine, environment: Environment | None, *, explain: bool
) -> str:
    """The plan and the environment as readable text."""
    lines = [render_plan(plan, machine, explain=explain)]
    if explain:
        lines += explain_options(click.get_current_context())
    if environment is None:
        return "\n".join(lines)
    lines += [f"warning: {warning}" for warning in environment.warnings]
    program = environment.program
    lines.append(f"program: {shlex.join(_printable(program.argv))}")
    if any(own != program for own in environment.programs):
        lines += [
            f"  of instance {instance.index}: {shlex.join(_printable(own.argv))}"
            for instance, own in zip(plan.instances, environment.programs, strict=True)
        ]
    if explain and program.interpreter_reason is not None:
        lines.append(f"  interpreter: {program.interpreter_reason}")
    if explain and starts_ranks(program):
        lines.append("  thread counts: left to the program, which starts ranks of its own")
    # An instance may lack a variable that another one has: thread counts of their own differ.
    values: dict[str, list[str]] = {}
    for setting in [setting for settings in environment.settings for setting in settings]:
        values.setdefault(setting.name, []).append(setting.value)
    for setting in environment.settings[0]:
        own = values[setting.name]
        value = setting.value if len(set(own)) == 1 else " ".join(own)
        told = explain or setting.users_own or setting.option is not None
        reason = f"  ({setting.reason})" if told else ""
        lines.append(f"  {setting.name}={value}{reason}")
    return "\n".join(lines)


def _printable(words: tuple[str, ...]) -> list[str]:
    """The words as valid text: bytes that are none are written escaped."""
    return [word.encode(errors="backslashreplace").decode() for word in words]
