# SPDX-License-Identifier: Apache-2.0
"""`xlaunch topology`: the machine, drawn or as JSON; also captured, or made up."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from xlaunch.errors import UsageError
from xlaunch.machine import machine_of
from xlaunch.options.commands import CONTEXT, GroupedCommand, click_options, with_options
from xlaunch.options.definitions import BY_KEY, IN_FILES, OptionGroup
from xlaunch.options.precedence import COMMAND_LINE, Layer, request_from, resolve, variables_layer
from xlaunch.planning.drawing import Drawing, draw_machine
from xlaunch.planning.planner import plan
from xlaunch.planning.request import Request


@click.command(cls=GroupedCommand, context_settings=CONTEXT)
@with_options(
    [
        click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON."),
        click.option("--svg", is_flag=True, help="Print a picture as SVG."),
        click.option(
            "--capture",
            metavar="FILE",
            help="Write what this machine is read from to FILE (.tar.xz), for --sysroot elsewhere.",
        ),
        click.option("--force", is_flag=True, help="Let --capture replace any file."),
        *click_options([BY_KEY["sysroot"], BY_KEY["synthetic"]]),
    ],
    click_options([option for option in IN_FILES if option.group is OptionGroup.LAYOUT]),
)
def command(*, as_json: bool, svg: bool, capture: str | None, force: bool, **typed: Any) -> None:
    """Show packages, NUMA nodes, L3 caches and cores.

    CPUs that may not be used here are marked. With --instances, --ncores or another layout option:
    also which instance would run where.
    """
    typed_options = {key: value for key, value in typed.items() if value is not None}
    variables = variables_layer(os.environ, typed_options)
    inherited = {key: value for key, value in variables.values.items() if key in typed}
    options = resolve(
        [Layer(COMMAND_LINE, typed_options), variables._replace(values=inherited)]
    ).values
    request = request_from(options)
    sysroot, synthetic = options.get("sysroot"), options.get("synthetic")
    if as_json and svg:
        raise UsageError("--json and --svg: print one of them")
    if capture is not None:
        if as_json or svg or sysroot is not None or synthetic is not None or request != Request():
            raise UsageError("--capture writes this machine to a file; give it alone")
        if not sys.platform.startswith("linux"):
            raise UsageError("--capture: only a machine that runs Linux can be captured")
        from xlaunch.machine.capture import write_capture

        write_capture(capture, force=force)
        click.echo(f"{capture}: this machine, for --sysroot {capture}", err=True)
        return
    if as_json and request != Request():
        raise UsageError("--json shows the machine alone; for a plan: xlaunch plan --json")
    with machine_of(sysroot, synthetic) as machine:
        planned = plan(request.layout, machine) if request != Request() else None
    if as_json:
        from xlaunch.machine.description import describe_machine, format_json

        click.echo(format_json(describe_machine(machine)))
    elif svg:
        from xlaunch.planning.svg import draw_svg

        click.echo(draw_svg(machine, planned))
    else:
        notes = dict.fromkeys((*machine.notes, *(planned.warnings if planned is not None else ())))
        show(draw_machine(machine, planned), tuple(notes))


def show(drawing: Drawing, notes: tuple[str, ...]) -> None:
    """Print a drawing, with colour if standard output is a terminal that has it."""
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
        from rich.console import Console

        Console(highlight=False, soft_wrap=True).print(drawing)
    else:
        click.echo(str(drawing))
    for note in notes:
        click.echo(f"note: {note}", err=True)
