# SPDX-License-Identifier: Apache-2.0
"""`xlaunch`: run a program, pinned to cores of this machine.

Some programs start workers, choose an interpreter, or reset the environment after xlaunch has decided: a
note says so, with the command that places them.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import click

import xlaunch
from xlaunch.console import say
from xlaunch.environment.program import (
    PROJECT_TOOLS,
    WRAPPERS,
    Program,
    assignments,
    executed_commands,
    invoked,
    shell_script,
)
from xlaunch.errors import UsageError
from xlaunch.launching import Purpose, check_startable, prepare, run_plan
from xlaunch.options.commands import launch_command, say_chosen
from xlaunch.options.definitions import BY_KEY, COMMANDS, RESERVED, max_cache_bytes
from xlaunch.options.precedence import ResolvedOptions, host_request_from, request_from
from xlaunch.planning.request import LogFormat, OnFailure, ProgramRequest, Request
from xlaunch.shared_host import is_rank


@launch_command(
    program_required=True,
    # click searches for translations of texts that are not given here, at every start.
    own=[
        click.version_option(
            xlaunch.__version__, message="xlaunch %(version)s", help="Show the version and exit."
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
        own_variables = assignments(request.words[1:]) if word == "env" else []
        variables = f"; or a variable as --env {own_variables[0]}" if own_variables else ""
        raise UsageError(
            f"{word!r} is a command of xlaunch: put it first, or write '-- {word}' or a path "
            f"for a program of that name{variables}"
        )


class Hint(NamedTuple):
    """What to say of one program."""

    why: str
    instead: str
    """``{count}`` is the number of workers, ``{name}`` the program."""
    subcommands: tuple[str, ...] = ()
    """The program's first argument must be one of them; empty: it may be anything."""
    counts: tuple[str, ...] = ()
    """Its options with the number of workers. One worker is placed like any other program."""
    default: str = "N"
    """The number of workers without these options."""
    variable: str = ""
    """The variable that replaces `default`."""


_WORKERS = "starts workers, which share the cores and are not placed"
_LATER = "chooses the interpreter after xlaunch, which sets less for a program that it does not know"  # fmt: skip
_ELSEWHERE = "starts its program elsewhere, where nothing arrives of what xlaunch chooses"
_RUN = ("run",)
_PORTS = "write xlaunch --instances {count} --substitute {name}"

_BINDS = Hint("binds again, after xlaunch has chosen the number of threads for its own CPUs", "leave {name} out and use --cpus or --numa-nodes")  # fmt: skip
_TORCHRUN = Hint(_WORKERS, "write xlaunch --nproc-per-node {count} PROGRAM", (), ("--nproc-per-node", "--nproc_per_node"), "1")  # fmt: skip
_ACCELERATE = Hint(_WORKERS, "write accelerate launch --no_python xlaunch PROGRAM", (), ("--num_processes", "--num-processes"))  # fmt: skip
_DEEPSPEED = Hint(_WORKERS, "write deepspeed --no_python --no_local_rank xlaunch PROGRAM", (), ("--num_gpus", "--num_accelerators"))  # fmt: skip
_MPI = Hint(_WORKERS, "write {name} --bind-to none -n {count} xlaunch PROGRAM", (), ("-n", "-np", "--np", "-c"))  # fmt: skip
_WEB = Hint(_WORKERS, _PORTS + " APP --port {{8000+index}}", (), ("--workers",), "1", "WEB_CONCURRENCY")  # fmt: skip
_DASK = Hint(_WORKERS, "write xlaunch --instances {count} dask worker SCHEDULER", (), ("--nworkers", "--nprocs"), "1")  # fmt: skip

HINTS: Mapping[str, Hint] = {
    **dict.fromkeys(("numactl", "taskset", "ipexrun"), _BINDS),
    **dict.fromkeys(("torchrun", "torch.distributed.run", "torch.distributed.launch"), _TORCHRUN),
    "accelerate": _ACCELERATE._replace(subcommands=("launch",)),
    **dict.fromkeys(("accelerate-launch", "accelerate.commands.launch"), _ACCELERATE),
    **dict.fromkeys(("deepspeed", "deepspeed.launcher.runner"), _DEEPSPEED),
    **dict.fromkeys(("mpirun", "mpiexec", "orterun", "prterun", "prun"), _MPI),
    "mpiexec.hydra": _MPI._replace(instead="write {name} -n {count} xlaunch PROGRAM"),
    "srun": _MPI._replace(instead="write srun -n {count} xlaunch PROGRAM", counts=("-n", "--ntasks")),
    **dict.fromkeys(("horovodrun", "horovod.runner.launch"), _MPI._replace(instead="write horovodrun --mpi -np {count} xlaunch PROGRAM")),
    "uvicorn": _WEB,
    "gunicorn": _WEB._replace(instead="write xlaunch --instances {count} gunicorn --reuse-port APP", counts=("--workers", "-w")),
    "hypercorn": _WEB._replace(instead=_PORTS + " APP --bind :{{8000+index}}", counts=("--workers", "-w"), variable=""),
    "dask": _DASK._replace(subcommands=("worker",)),
    "dask-worker": _DASK,
    "ray": Hint(_WORKERS, "write xlaunch --instances {count} ray start --block --address HOST:PORT", ("start",)),
    **dict.fromkeys(PROJECT_TOOLS, Hint(_LATER, "write {name} run xlaunch PROGRAM", _RUN)),
    **dict.fromkeys(("sudo", "doas"), Hint("drops the variables that xlaunch sets", "write {name} xlaunch PROGRAM")),
    **dict.fromkeys(("docker", "podman"), Hint(_ELSEWHERE, "write {name} run IMAGE xlaunch PROGRAM", _RUN)),
    "ssh": Hint(_ELSEWHERE, "write ssh HOST xlaunch PROGRAM"),
    "systemd-run": Hint(_ELSEWHERE, "write systemd-run xlaunch PROGRAM"),
}  # fmt: skip
"""By the name of a program or of a Python module."""


def program_hints(
    program: Program, environment: Mapping[str, str], words: Sequence[str] = ()
) -> Iterator[str]:
    """What to say of a program that is placed only in part, one line each; usually nothing.

    `environment`: what the program inherits. `words`: the program and its arguments, as typed. Nothing is
    said of how a command line is placed that has xlaunch in it.
    """
    if misplaced := _misplaced_options(words):
        went = f"{' and '.join(misplaced)} after {words[0]} went to the program"
        yield f"{went}, which does not mention it; xlaunch's options stand before the program"
    if any(os.path.basename(word) == "xlaunch" for word in program.command):
        return
    wrappers = [invoked(words) for words in executed_commands(program.argv)][:-1]
    for name, arguments in [*wrappers, invoked(program.command)]:
        if name == "env" and (given := assignments(arguments)):
            options = " ".join([f"--env {shlex.quote(word)}" for word in given])
            yield (
                "env sets variables after xlaunch has chosen its own: "
                f"write xlaunch {options} PROGRAM"
            )
        if (hint := HINTS.get(name)) is not None:
            yield from _say(hint, name, arguments, environment)
    name, arguments = invoked(program.command)
    if name in WRAPPERS and arguments and name not in HINTS:
        yield (
            f"{name} with these options hides its program from xlaunch, which sets less for it: "
            f"write xlaunch between {name}'s options and PROGRAM"
        )
    script = shell_script(program.command)
    if "xlaunch" not in script and re.search(r"(^|[\s/;&|(])python[\d.]*\s|\.py\b", script):
        name = os.path.basename(program.command[0])
        yield (
            f"{name} runs a shell script, and xlaunch sets less for Python programs that it does not "
            "know: write xlaunch before them, in the script"
        )


def _say(
    hint: Hint, name: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> Iterator[str]:
    subcommand = next(iter(arguments), "") if hint.subcommands else ""
    if hint.subcommands and subcommand not in hint.subcommands:
        return
    count = _count(hint.counts, arguments) or environment.get(hint.variable) or hint.default
    if count != "1":
        named = f"{name} {subcommand}".strip()
        yield f"{named} {hint.why}: {hint.instead.format(name=name, count=count)}"


def _count(options: Sequence[str], arguments: Sequence[str]) -> str:
    """The value of the last of `options` among `arguments`: ``-w 4``, ``-w4``, ``--workers=4``."""
    count = ""
    for word, value in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, attached = word.partition("=")
        if name in options:
            count = attached if equals else value
        elif word[:2] in options and word[2:].isdecimal():
            count = word[2:]
    return count if count.isdecimal() else "N" if count else ""


def _misplaced_options(words: Sequence[str]) -> list[str]:
    """The options of xlaunch that were typed after a script which does not mention them.

    **Ex.:** ``infer.py --instances 4``, where infer.py nowhere says ``instances``.
    """
    names = [word[2:].partition("=")[0] for word in words[1:] if word.startswith("--")]
    options = [name for name in dict.fromkeys(names) if name.replace("-", "_") in BY_KEY]
    # A pipe can be read only once, by the program.
    if not options or not words[0].endswith(".py") or not os.path.isfile(words[0]):
        return []
    try:
        with open(words[0], encoding="utf-8", errors="replace") as script:
            text = script.read()
    except OSError:
        return []
    return [
        f"--{name}" for name in options if name not in text and name.replace("-", "_") not in text
    ]
