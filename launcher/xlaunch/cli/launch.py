# SPDX-License-Identifier: Apache-2.0
"""`xlaunch`: run a program well placed on this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import click

import xlaunch
from xlaunch.cli import RESERVED, say
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
from xlaunch.cli.presets.command import LayeredCommand
from xlaunch.environment import prepare_environment
from xlaunch.errors import UsageError
from xlaunch.launching import check_startable, run_plan
from xlaunch.machine import read_machine
from xlaunch.planning import plan as make_plan
from xlaunch.planning.request import OnFailure, Request


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"xlaunch {xlaunch.__version__}")
        ctx.exit()


@click.command(cls=LayeredCommand, context_settings=CONTEXT)
@with_program
@with_options(
    LAYOUT,
    PROGRAM,
    ENVIRONMENT,
    RUNNING,
    PRESETS,
    MACHINE,
    [
        click.option(
            "--dry-run",
            cls=OneCallOption,
            is_flag=True,
            help="Print the plan and run nothing (xlaunch plan).",
        ),
        click.option(
            "--json",
            "as_json",
            cls=OneCallOption,
            is_flag=True,
            help="With --dry-run: print the plan as JSON.",
        ),
        click.option(
            "--explain", cls=OneCallOption, is_flag=True, help="Say each decision and its reason."
        ),
        click.option("-v", "--verbose", is_flag=True, help="Show the plan before it runs."),
        click.option("-q", "--quiet", is_flag=True, help="No notes, no table at the end."),
        click.option(
            "--version",
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help="Print the version.",
        ),
    ],
)
def launch(
    *,
    dry_run: bool,
    as_json: bool,
    explain: bool,
    verbose: bool,
    quiet: bool,
    save_preset: str | None,
    sysroot: str | None,
    synthetic: str | None,
    **options: Any,
) -> int:
    """Run PROGRAM on this machine's CPUs: placed, supervised, explained.

    \b
    xlaunch train.py                              all cores, one thread each
    xlaunch --instances 4 --ncores 4 infer.py     four pinned copies
    xlaunch --mode throughput -m my.server        one copy per NUMA node
    xlaunch plan --instances max --ncores 4       only show what would run where

    PROGRAM is a Python script, run by the active environment's interpreter, or any executable.
    Other commands: xlaunch plan, topology, libraries, env, init. A program with the name of a command is
    reached by -- or a path. Every option can also come from a variable, XLAUNCH_OPT_NCORES=4, or
    from a file (--preset), and a flag that is set there is taken back by its opposite: --no-smt.
    """
    request = request_from(options)
    refuse_contradictions(click.get_current_context())
    _refuse_command_names(request, click.get_current_context().obj)
    if save_preset is not None and not request.program:
        return 0
    if dry_run:
        from xlaunch.cli.plan import print_plan
        from xlaunch.cli.topology import machine_of

        with machine_of(sysroot, synthetic) as machine:
            print_plan(request, machine, explain=explain, as_json=as_json)
        return 0
    if as_json:
        raise UsageError(
            "--json prints a plan: it goes with --dry-run or xlaunch plan; --report FILE writes the "
            "results of a run"
        )
    if sysroot is not None or synthetic is not None:
        option = "--synthetic" if sysroot is None else "--sysroot"
        raise UsageError(f"{option} names another machine; it goes with --dry-run or xlaunch plan")
    machine = read_machine()
    plan = make_plan(request, machine)
    environment = prepare_environment(plan, os.environ, make_folders=True)
    check_startable(plan)
    if not quiet:
        # The plan, where it is shown, holds them too.
        shown = () if verbose or explain else (*plan.warnings, *environment.warnings)
        for warning in shown:
            say(f"warning: {warning}")
        if request.max_restarts is not None and request.on_failure is not OnFailure.RESTART:
            say("warning: --max-restarts does nothing without --on-failure restart")
    if verbose or explain:
        from xlaunch.cli.plan import describe

        click.echo(describe(plan, machine, environment, explain=explain), err=True)
    return run_plan(plan, environment, note=_note(quiet), table=not quiet)


def _note(quiet: bool) -> Any:
    return (lambda _: None) if quiet else (lambda text: say(f"warning: {text}"))


def _refuse_command_names(request: Request, arguments: Sequence[str]) -> None:
    # Behind `--` click has taken the `--` away; `arguments`, which the program's words end, show it.
    if request.module or not request.program:
        return
    word = request.program[0]
    if word in RESERVED and "--" not in arguments[: -len(request.program)][-1:]:
        raise UsageError(
            f"{word!r} is a command of xlaunch: put it first, or write '-- {word}' or a path "
            "for a program of that name"
        )
