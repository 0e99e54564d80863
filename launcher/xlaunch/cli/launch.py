# SPDX-License-Identifier: Apache-2.0
"""`xlaunch`: run a program, pinned to cores of this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

import xlaunch
from xlaunch.cli.hints import program_hints
from xlaunch.console import say
from xlaunch.environment.program import assignments
from xlaunch.errors import UsageError
from xlaunch.launching import Purpose, check_startable, prepare, run_plan
from xlaunch.options.commands import launch_command, say_chosen
from xlaunch.options.definitions import COMMANDS, RESERVED, max_cache_bytes
from xlaunch.options.precedence import ResolvedOptions, host_request_from, request_from
from xlaunch.planning.request import LogFormat, OnFailure, ProgramRequest, Request
from xlaunch.shared_host import is_rank


@launch_command(
    program_required=True,
    # click searches for translations of texts that are not given here, at every start.
    own=[
        click.version_option(
            xlaunch.__version__,
            message="xlaunch %(version)s",
            help="Show the version and exit.",
        ),
        click.help_option("-h", "--help", help="Show this message and exit."),
    ],
)
def command(resolved: ResolvedOptions) -> int:
    """Run PROGRAM pinned to cores and NUMA nodes, with tuned threads and allocator.

    \b
    xlaunch train.py                           all cores, one thread each
    xlaunch --instances 4 --ncores 4 infer.py  four pinned copies
    xlaunch --mode throughput -m my.server     one copy per NUMA node
    xlaunch plan --instances max --ncores 4    show what would run where

    PROGRAM is a Python script, run by the active environment's interpreter, or any executable. To
    run a program with the name of a command put -- before it, or write a path. Options can also be
    set by variables, XLAUNCH_OPT_NCORES=4, and by files (--preset).
    """
    request, options = request_from(resolved.values), resolved.values
    typed = click.get_current_context().obj or ()
    _refuse_command_names(request.program, typed)
    if options.get("save_preset") is not None and not request.program.words:
        return 0
    starts_ranks = "nproc_per_node" in options or "nnodes" in options
    dry_run = options.get("dry_run", False)
    _refuse_combinations(request, resolved, starts_ranks=starts_ranks)
    if not dry_run:
        say_chosen(resolved)
    if starts_ranks:
        from xlaunch.cli.torchrun import run_torchrun

        run_torchrun(request, resolved, typed)
        return 0
    if dry_run:
        from xlaunch.cli.plan import prepare_unrecorded, print_plan

        print_plan(prepare_unrecorded(request, resolved), resolved)
        return 0
    return _run(request, resolved)


command.modules = {name: f"xlaunch.cli.{name}" for name in COMMANDS}


def _refuse_combinations(
    request: Request, resolved: ResolvedOptions, *, starts_ranks: bool
) -> None:
    """Raise `UsageError` for options that go with others only."""
    options = resolved.values
    if not options.get("dry_run"):
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
    rank_mode = host_request_from(options).rank_mode
    if request.run.health is not None and (starts_ranks or is_rank(os.environ, rank_mode)):
        raise UsageError(
            "--health is for services, whose instances can be restarted one by one; ranks wait for each other"
        )
    for key in ("node_rank", "rendezvous"):
        if key in options and not starts_ranks:
            raise UsageError(f"--{key.replace('_', '-')} goes with --nproc-per-node")


def _run(request: Request, resolved: ResolvedOptions) -> int:
    """Plan the request beside other launches, and run it; return the exit code."""
    options, as_json = resolved.values, request.run.log_format is LogFormat.JSON
    quiet, verbose = options.get("quiet", False), options.get("verbose", False)

    def note(text: str, kind: str = "note") -> None:
        if not quiet:
            say(f"{kind}: {text}", as_json=as_json)

    def warn(text: str) -> None:
        note(text, "warning")

    prepared = prepare(request, host_request_from(options), purpose=Purpose.LAUNCH, note=note)
    plan, environment, run = prepared.plan, prepared.environment, prepared.request.run
    words = request.program.words
    assert environment is not None
    check_startable(plan, run, environment.programs)
    if verbose or options.get("explain"):
        from xlaunch.cli.plan import describe

        click.echo(describe(prepared, resolved), err=True)
    else:
        for warning in (*plan.warnings, *environment.warnings):
            warn(warning)
    for text in (*prepared.notes, *program_hints(environment.program, prepared.inherited, words)):
        note(text)
    if run.max_restarts is not None and run.failure_rule is not OnFailure.RESTART:
        warn("--max-restarts does nothing without --on-failure restart")
    if environment.caches.base is not None:
        try:
            max_cache_bytes(os.environ, 0)  # the pruner itself has no terminal
        except UsageError as error:
            warn(f"compile caches are not pruned: {error}")
    return run_plan(prepared, note=warn, table=not quiet, explain=verbose)


def _refuse_command_names(request: ProgramRequest, arguments: Sequence[str]) -> None:
    # click removes `--`; `arguments`, which end with the program's words, show whether it was there.
    if request.module or not request.words:
        return
    word = request.words[0]
    if word in RESERVED and "--" not in arguments[: -len(request.words)][-1:]:
        given = assignments(request.words[1:]) if word == "env" else []
        variables = f"; or a variable as --env {given[0]}" if given else ""
        raise UsageError(
            f"{word!r} is a command of xlaunch: put it first, or write '-- {word}' or a path "
            f"for a program of that name{variables}"
        )
