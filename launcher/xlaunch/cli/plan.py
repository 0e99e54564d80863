# SPDX-License-Identifier: Apache-2.0
"""`xlaunch plan`: show what would run where, and run nothing."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

import click

from xlaunch.console import say, terminal_width
from xlaunch.environment import Environment
from xlaunch.environment.variables import VariableSetting
from xlaunch.errors import UsageError
from xlaunch.launching import Purpose, prepare
from xlaunch.options.commands import launch_command
from xlaunch.options.definitions import OF_TORCHRUN, OPTIONS, OptionGroup
from xlaunch.options.precedence import ResolvedOptions, host_request_from, request_from
from xlaunch.planning.plans import Plan
from xlaunch.planning.rendering import plan_to_dict, render_plan
from xlaunch.planning.request import Request
from xlaunch.shared_host import PreparedLaunch

OF_A_RUN = tuple(
    [
        option.name
        for option in OPTIONS
        if option.group is OptionGroup.SUPERVISION
        or (option.group is OptionGroup.OUTPUT and not option.one_call and not option.short)
    ]
)
"""Options that change what happens while a program runs."""


@launch_command(
    program_required=False,
    without=(*OF_TORCHRUN, "wait"),
    hidden=(*OF_A_RUN, "dry-run", "verbose"),
    own=[
        click.option(
            "--svg", is_flag=True, default=None, help="Print a picture of the plan as SVG."
        )
    ],
)
def command(resolved: ResolvedOptions) -> None:
    """Show which instance would run where, and run nothing.

    xlaunch shows the same with --dry-run. PROGRAM may be left out. All options of xlaunch are
    taken; those that change nothing here are not listed.
    """
    request = request_from(resolved.values)
    first = "".join(request.program.words[:1])
    if resolved.values.get("svg") and first.endswith(".svg"):
        raise UsageError(f"--svg prints the picture: write > {first}")
    print_plan(prepare_unrecorded(request, resolved), resolved)


def say_untried(resolved: ResolvedOptions) -> str | None:
    """Note which code that files choose is not tried, because the command only answers; and return it."""
    if note := resolved.note_of_files():
        say(f"note: not tried: {note}")
    return resolved.chosen_by_files()


def prepare_unrecorded(request: Request, resolved: ResolvedOptions) -> PreparedLaunch:
    """What a launch with these options would do now, without leaving a record of it."""
    host = host_request_from(resolved.values)
    return prepare(request, host, purpose=Purpose.PLAN, untried=say_untried(resolved))


def print_plan(prepared: PreparedLaunch, resolved: ResolvedOptions) -> None:
    """Print a plan on standard output, as text or JSON."""
    if resolved.values.get("svg"):
        if resolved.values.get("json") or resolved.values.get("explain"):
            raise UsageError("--svg prints a picture alone; leave out --json and --explain")
        from xlaunch.planning.svg import draw_svg

        click.echo(draw_svg(prepared.machine, prepared.plan))
    elif resolved.values.get("json"):
        click.echo(_as_json(prepared.plan, prepared.environment))
    else:
        click.echo(describe(prepared, resolved))


def _as_json(plan: Plan, environment: Environment | None) -> str:
    from xlaunch.machine.description import format_json

    values = plan_to_dict(plan)
    if environment is not None:
        values["warnings"] += environment.warnings
        values["program"] = _printable(environment.program.argv)
        for instance, program, settings in zip(
            values["instances"], environment.programs, environment.settings, strict=True
        ):
            instance["environment"] = {setting.name: setting.value for setting in settings}
            if program != environment.program:
                instance["program"] = _printable(program.argv)
    return format_json(values)


def describe(prepared: PreparedLaunch, resolved: ResolvedOptions) -> str:
    """The plan and the environment as text; with --explain with the reasons and the options."""
    machine, plan, environment = prepared.machine, prepared.plan, prepared.environment
    explain = resolved.values.get("explain", False)
    width = terminal_width(1)
    lines = [render_plan(plan, machine, explain=explain, width=width)]
    lines += resolved.explain() if explain else []
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
    if explain and program.starts_ranks:
        lines.append("  thread counts: left to the program, which starts ranks of its own")
    if explain and environment.allocator_left_alone is not None:
        lines.append(f"  allocator: left alone; {environment.allocator_left_alone}")
    lines += _variables(environment.settings, explain=explain)
    return "\n".join(lines)


def _variables(settings: Sequence[Sequence[VariableSetting]], *, explain: bool) -> Iterator[str]:
    """A line for each variable. Variables with the same reason follow it, if reasons are shown."""
    # An instance may lack a variable that another one has: their thread counts differ.
    values: dict[str, list[str]] = {}
    for setting in [setting for own in settings for setting in own]:
        text = "not set" if setting.value is None else setting.value
        values.setdefault(setting.name, []).append(text)
    reasons: dict[str, list[str]] = {}
    for setting in settings[0]:
        shown = explain or setting.users_own or setting.option is not None
        if setting.value is None and not shown:
            continue
        own = values[setting.name]
        value = own[0] if len(set(own)) == 1 else " ".join(own)
        text = f"{setting.name} {value}" if setting.value is None else f"{setting.name}={value}"
        reasons.setdefault(setting.reason if shown else "", []).append(text)
    for reason, assignments in reasons.items():
        if not reason or len(assignments) == 1:
            end = f"  ({reason})" if reason else ""
            yield from [f"  {text}{end}" for text in assignments]
        else:
            yield f"  {reason}:"
            yield from [f"    {text}" for text in assignments]


def _printable(words: tuple[str, ...]) -> list[str]:
    """The words as valid text: bytes that cannot be decoded are escaped."""
    return [word.encode(errors="backslashreplace").decode() for word in words]
