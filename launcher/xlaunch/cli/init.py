# SPDX-License-Identifier: Apache-2.0
"""`xlaunch init`: a preset to start from, with the machine and every option explained in it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import click

from xlaunch.cli import say
from xlaunch.cli.machine_drawing import draw_machine
from xlaunch.cli.options import CONTEXT, click_option, with_options
from xlaunch.cli.topology import machine_of
from xlaunch.errors import UsageError
from xlaunch.machine.topology import Machine
from xlaunch.options.files import SUFFIX
from xlaunch.options.presets import all_options_text, comment
from xlaunch.options.table import BY_KEY
from xlaunch.planning.planner import plan
from xlaunch.planning.request import MAX, Mode, Request
from xlaunch.whole_files import write_output

DEFAULT_FILE = "xlaunch.toml"
"""What ``--preset xlaunch`` finds in the same directory."""

LAYOUTS = (
    (Request(mode=Mode.THROUGHPUT), ('mode = "throughput"',)),
    (Request(mode=Mode.LATENCY), ('mode = "latency"',)),
    (Request(instances=MAX, ncores=1), ('instances = "max"', "ncores = 1")),
)


@click.command(context_settings=CONTEXT | {"allow_interspersed_args": True})
@click.argument("file", default=DEFAULT_FILE)
@with_options(
    [
        click.option("-f", "--force", is_flag=True, help="Replace FILE if it exists."),
        click_option(BY_KEY["sysroot"]),
        click_option(BY_KEY["synthetic"]),
    ]
)
def command(*, file: str, force: bool, sysroot: str | None, synthetic: str | None) -> None:
    """Write a preset to start from: this machine, layouts for it, every option with its default.

    FILE is xlaunch.toml by default. All options in it are commented out.
    """
    if not file.endswith(SUFFIX):
        raise UsageError(f"{file!r}: the name of a preset ends in {SUFFIX}")
    if os.path.lexists(file) and not force:
        raise UsageError(f"{file!r} exists; --force replaces it, or name another file")
    if os.path.lexists(file) and not os.path.isfile(file):
        raise UsageError(f"{file!r} is not a regular file; name another one")
    name = file.removesuffix(SUFFIX) if os.path.dirname(file) == "" else file
    with machine_of(sysroot, synthetic) as machine:
        text = preset_for(machine, use=name)
    write_output(file, text)
    say(f"{file}: written; choose in it, then: xlaunch --preset {name} PROGRAM")


def preset_for(machine: Machine, *, use: str) -> str:
    """The text of the preset. Options are lines that begin with ``#`` and no space."""
    head = comment(f"Options for xlaunch. To use them: xlaunch --preset {use} PROGRAM")
    head += comment("A line that begins with # and no space is an option: remove the # to set it.")
    drawing = [f"# {line}" for line in str(draw_machine(machine)).splitlines()]
    layouts = ["\n".join(comment("Layouts for this machine. Set at most one."))]
    every = "\n".join(comment("Every option, with its default."))
    blocks = ["\n".join(head), "\n".join(drawing), *layouts, *_layouts(machine), every]
    return "\n\n".join([*blocks, all_options_text()]) + "\n"


def _layouts(machine: Machine) -> Iterator[str]:
    """The layouts that this machine can have, each with the options that choose it."""
    for request, lines in LAYOUTS:
        try:
            layout = next(d for d in plan(request, machine).decisions if d.subject == "layout")
        except UsageError:
            continue
        yield "\n".join([*comment(layout.value), *(f"#{line}" for line in lines)])
