# SPDX-License-Identifier: Apache-2.0
"""``xlaunch topology``: the machine, drawn or as JSON; also captured, or made up."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

import click

from xlaunch.cli.machine_drawing import Drawing, draw_machine
from xlaunch.errors import UsageError
from xlaunch.machine import read_machine
from xlaunch.machine.topology import Machine


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")
@click.option(
    "--sysroot",
    metavar="DIR",
    help="Show the machine whose sys and proc lie in DIR, or in a capture (.tar.xz).",
)
@click.option(
    "--synthetic",
    metavar="TEXT",
    help='Make a machine up, such as "package:2 node:2 l3:4 core:8 pu:2": each count is per '
    "thing of the level before it.",
)
@click.option(
    "--capture",
    metavar="FILE",
    help="Write what this machine is read from to FILE (.tar.xz), for --sysroot elsewhere.",
)
def topology(
    *, as_json: bool, sysroot: str | None, synthetic: str | None, capture: str | None
) -> None:
    """Show packages, NUMA nodes, L3 caches and cores, and which of them may be used here."""
    if sysroot is not None and synthetic is not None:
        raise UsageError("--sysroot and --synthetic each name a machine; give one of them")
    if capture is not None:
        if as_json or sysroot is not None or synthetic is not None:
            raise UsageError("--capture writes this machine to a file; give it alone")
        _capture(capture)
        return
    with machine_of(sysroot, synthetic) as machine:
        if as_json:
            from xlaunch.machine.description import describe_machine, format_json

            click.echo(format_json(describe_machine(machine)))
        else:
            show(draw_machine(machine), machine.notes)


@contextlib.contextmanager
def machine_of(sysroot: str | None, synthetic: str | None) -> Iterator[Machine]:
    """The machine that the options name; this one when they name none.

    What had to be unpacked or made up lies in a temporary folder, which is gone at the end.
    Raises `UsageError` when they name none that can be read.
    """
    if synthetic is not None:
        from xlaunch.machine.scratch import scratch_folder
        from xlaunch.machine.synthetic import parse_levels, write_tree

        levels = parse_levels(synthetic)
        with scratch_folder() as folder:
            write_tree(levels, folder)
            yield read_machine(folder)
    elif sysroot is not None and os.path.isfile(sysroot):
        from xlaunch.machine.capture import unpacked

        with unpacked(sysroot) as folder:
            yield read_machine(folder)
    else:
        yield read_machine("/" if sysroot is None else sysroot)


def show(drawing: Drawing, notes: tuple[str, ...]) -> None:
    """Print a drawing, with colour where standard output is a terminal that has it."""
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
        from rich.console import Console

        Console(highlight=False, soft_wrap=True).print(drawing)
    else:
        click.echo(str(drawing))
    for note in notes:
        click.echo(f"note: {note}", err=True)


def _capture(path: str) -> None:
    if not sys.platform.startswith("linux"):
        raise UsageError("--capture: only a machine that runs Linux can be captured")
    from xlaunch.machine.capture import write_capture

    write_capture(path)
    click.echo(f"{path}: this machine, for --sysroot {path}", err=True)
