# SPDX-License-Identifier: Apache-2.0
"""`xlaunch`: run a program, pinned to cores of this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

import xlaunch
from xlaunch.cli import RESERVED, say
from xlaunch.cli.options import launch_command
from xlaunch.environment import prepare_environment
from xlaunch.errors import UsageError
from xlaunch.machine import read_machine
from xlaunch.options.definitions import BY_KEY
from xlaunch.options.layers import Resolved, request_from
from xlaunch.planning.planner import plan
from xlaunch.planning.request import OnFailure, Request


@launch_command(
    program_required=True,
    own=[click.version_option(xlaunch.__version__, message="xlaunch %(version)s")],
)
def command(asked: Resolved) -> int:
    """Run PROGRAM pinned to cores and NUMA nodes, with tuned threads and allocator.

    \b
    xlaunch train.py                              all cores, one thread each
    xlaunch --instances 4 --ncores 4 infer.py     four pinned copies
    xlaunch --mode throughput -m my.server        one copy per NUMA node
    xlaunch plan --instances max --ncores 4       only show what would run where

    PROGRAM is a Python script, run by the active environment's interpreter, or any executable.
    Other commands: xlaunch plan, topology, libraries, env, cache. To run a program with the name of
    a command put -- before it, or write a path. Options can also be set by variables,
    XLAUNCH_OPT_NCORES=4, and by files (--preset).
    """
    request, options = request_from(asked.values), asked.values
    _refuse_command_names(request, click.get_current_context().obj or ())
    if options.get("save_preset") is not None and not request.program:
        return 0
    if options.get("dry_run"):
        from xlaunch.cli.plan import print_plan

        print_plan(request, asked)
        return 0
    if options.get("json"):
        raise UsageError(
            "--json prints a plan: it goes with --dry-run or xlaunch plan; --report FILE writes the "
            "results of a run"
        )
    for key in ("sysroot", "synthetic"):
        if key in options:
            raise UsageError(
                f"--{key} names another machine; it goes with --dry-run or xlaunch plan"
            )
    from xlaunch.launching import check_startable, run_plan

    machine = read_machine()
    made = plan(request, machine)
    environment = prepare_environment(made, os.environ, make_directories=True)
    check_startable(made)
    quiet, shown = options.get("quiet", False), options.get("verbose") or options.get("explain")
    if shown:
        from xlaunch.cli.plan import describe

        text = describe(made, machine, environment, asked if options.get("explain") else None)
        click.echo(text, err=True)
    elif not quiet:
        for warning in (*made.warnings, *environment.warnings):
            say(f"warning: {warning}")
    restarts = request.on_failure is OnFailure.RESTART
    if not quiet and (misplaced := misplaced_options(request.program)):
        says = f"{' and '.join(misplaced)} after {request.program[0]} went to the program"
        say(f"note: {says}, which does not mention it; xlaunch's options stand before the program")
    if not quiet and request.max_restarts is not None and not restarts:
        say("warning: --max-restarts does nothing without --on-failure restart")

    def note(text: str) -> None:
        if not quiet:
            say(f"warning: {text}")

    return run_plan(
        made, environment, note=note, table=not quiet, explain=options.get("verbose", False)
    )


def misplaced_options(program: Sequence[str]) -> list[str]:
    """Options of xlaunch among the arguments of a script that does not know them.

    **Ex.:** ``infer.py --instances 4``, where infer.py nowhere says ``instances``.
    """
    names = {word: word[2:].partition("=")[0] for word in program[1:] if word.startswith("--")}
    known = {word: name for word, name in names.items() if name.replace("-", "_") in BY_KEY}
    if not known or not program[0].endswith(".py"):
        return []
    try:
        with open(program[0], encoding="utf-8", errors="replace") as script:
            text = script.read()
    except OSError:
        return []
    return [
        f"--{name}"
        for name in dict.fromkeys(known.values())
        if name not in text and name.replace("-", "_") not in text
    ]


def _refuse_command_names(request: Request, arguments: Sequence[str]) -> None:
    # click removes `--`; `arguments`, which end with the program's words, show whether it was there.
    if request.module or not request.program:
        return
    word = request.program[0]
    if word in RESERVED and "--" not in arguments[: -len(request.program)][-1:]:
        raise UsageError(
            f"{word!r} is a command of xlaunch: put it first, or write '-- {word}' or a path "
            "for a program of that name"
        )
