# SPDX-License-Identifier: Apache-2.0
"""The options of a launch: one table for `xlaunch` and `xlaunch plan`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from xlaunch.cli.parameters import (
    CacheFolder,
    Count,
    Duration,
    MetricName,
    NumberList,
    Variable,
    WholeNumber,
    Word,
)
from xlaunch.environment.variables import OPTION_PREFIX
from xlaunch.errors import UsageError
from xlaunch.planning.request import (
    MAX,
    ECores,
    HugePages,
    MemoryPolicy,
    Mode,
    OnFailure,
    Place,
    Request,
)

Command = Callable[..., Any]


class OneCallOption(click.Option):
    """An option of one call, which neither presets nor other files hold. **Ex.:** ``--dry-run``."""


CONTEXT = {
    "allow_interspersed_args": False,
    "auto_envvar_prefix": OPTION_PREFIX.rstrip("_"),
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
}
"""What follows the program's name is the program's, byte for byte."""

LAYOUT = [
    click.option("--instances", type=Count(), help="Instances to run; max: as many as fit."),
    click.option("--ncores", type=Count(), help="Physical cores for each; max: as many as fit."),
    click.option(
        "--mode", type=Word(Mode), help="latency: 4 cores each, over everything; throughput: one per NUMA node."
    ),
    click.option("--cpus", type=NumberList(), help="Use these logical CPUs only: 0-3,8."),
    click.option("--nodes", type=NumberList(), help="Use these NUMA nodes only."),
    click.option("--reserve", type=WholeNumber(), default=0, metavar="K", help="Cores to leave free."),
    click.option(
        "--instance-index", type=NumberList(), help="Of the whole layout, run these instances only."
    ),
    click.option(
        "--place", type=Word(Place), default=Place.COMPACT, help="Side by side (default), or far apart."
    ),
    click.option("--smt", is_flag=True, help="Use every SMT sibling of a core, not just the first."),
    click.option(
        "--ecores",
        type=Word(ECores),
        help="Efficiency cores. Default: left out where there are performance cores.",
    ),
    click.option("--oversubscribe", is_flag=True, help="Let instances share cores if there are too few."),
    click.option(
        "--memory",
        type=Word(MemoryPolicy),
        default=MemoryPolicy.AUTO,
        help="NUMA memory policy. Default: auto, an instance's own node first.",
    ),
]  # fmt: skip

PROGRAM = [
    click.option("-m", "--module", is_flag=True, help="PROGRAM is a Python module."),
    click.option("--python", metavar="FILE", help="Interpreter for scripts and modules."),
    click.option(
        "--no-python",
        is_flag=True,
        help="PROGRAM is an executable, whatever its name; rarely needed.",
    ),
    click.option(
        "--env", type=Variable(), multiple=True, help="Set a variable for every instance."
    ),
    click.option(
        "--substitute",
        is_flag=True,
        help="Replace {index}, {count}, {cpus}, {ncores}, {node}, {8000+index} in ARGS, as in --env.",
    ),
]

ENVIRONMENT = [
    click.option(
        "--allocator",
        default="auto",
        metavar="NAME|FILE",
        help="Allocator profile: auto, glibc, glibc-tuned, glibc-one-arena, glibc-frugal, "
        "jemalloc, tcmalloc, mimalloc, or a library.",
    ),
    click.option(
        "--omp",
        default="auto",
        metavar="NAME|FILE",
        help="OpenMP runtime and how it waits: auto, gnu, intel, llvm, none, or a library.",
    ),
    click.option(
        "--thp",
        type=Word(HugePages),
        default=HugePages.AUTO,
        help="Huge pages. Default: auto, the allocator asks where the system leaves it to programs.",
    ),
    click.option(
        "--cache-dir",
        type=CacheFolder(),
        metavar="DIR",
        help="Where compile caches go, by hardware.",
    ),
    click.option("--no-cache", is_flag=True, help="Leave compile caches where they are."),
]

RUNNING = [
    click.option("--log-dir", metavar="DIR", help="Write each instance's output to files in DIR."),
    click.option(
        "--tag/--no-tag",
        default=None,
        help="Instance number before each line. Default: if several.",
    ),
    click.option(
        "--pty",
        is_flag=True,
        help="Let instances write to a pseudo-terminal: progress bars, colours.",
    ),
    click.option(
        "--on-failure",
        type=Word(OnFailure),
        default=OnFailure.STOP,
        help="An instance that fails ends the others (stop, default), or not, or is restarted.",
    ),
    click.option(
        "--max-restarts",
        type=Count(),
        help="With --on-failure restart: restarts of each instance in the whole run. Default: 3; max: no "
        "limit.",
    ),
    click.option(
        "--timeout", type=Duration(zero=False), help="End the run after this time: 90, 10m, 2h."
    ),
    click.option(
        "--grace",
        type=Duration(zero=True),
        default="10s",
        help="From SIGTERM to SIGKILL. Default: 10s.",
    ),
    click.option("--supervise", is_flag=True, help="Keep a supervisor even for a single instance."),
    click.option(
        "--metric",
        type=MetricName(),
        multiple=True,
        help="Report on a number that instances print: 'sentences/s', or a regular expression.",
    ),
    click.option("--report", metavar="FILE", help="Write a report of the run as JSON."),
]

PRESETS = [
    click.option(
        "--preset",
        cls=OneCallOption,
        expose_value=False,
        metavar="FILE",
        help="Take options from a TOML file, here or in ~/.config/xlaunch/presets; flags win.",
    ),
    click.option(
        "--save-preset",
        cls=OneCallOption,
        metavar="FILE",
        help="Write the options that are not defaults to FILE, for --preset.",
    ),
    click.option(
        "--isolated",
        cls=OneCallOption,
        is_flag=True,
        expose_value=False,
        help="Read neither the project's [tool.xlaunch] nor ~/.config/xlaunch/config.toml.",
    ),
]

MACHINE = [
    click.option(
        "--sysroot",
        cls=OneCallOption,
        metavar="DIR",
        help="Another machine: its sys and proc in DIR, or a capture (see topology --capture).",
    ),
    click.option(
        "--synthetic",
        cls=OneCallOption,
        metavar="TEXT",
        help='A made-up machine: "package:2 node:2 l3:4 core:8 pu:2", each count per one of the '
        "level before.",
    ),
]

PER_LAUNCH = (LAYOUT, RUNNING)
"""Where instances go, and what becomes of them: an instance's own launches decide it anew."""


def _both(one: Any, other: Any) -> bool:
    return one not in (None, False) and other not in (None, False)


def _both_max(one: Any, other: Any) -> bool:
    return one is MAX and other is MAX


CONTRADICTIONS: dict[tuple[str, str], Callable[[Any, Any], bool]] = {
    ("mode", "instances"): _both,
    ("mode", "ncores"): _both,
    ("instances", "ncores"): _both_max,
    ("module", "no_python"): _both,
    ("cache_dir", "no_cache"): _both,
    ("pty", "log_dir"): _both,
    ("quiet", "verbose"): _both,
    ("quiet", "explain"): _both,
}
"""Options that cannot be had together, and whether two values of theirs are such a case."""


def refuse_contradictions(ctx: click.Context) -> None:
    """Raise `UsageError` for two flags that were both asked for and cannot both be had."""
    options = ctx.params
    if options["quiet"] and (options["verbose"] or options["explain"]):
        raise UsageError("--quiet contradicts --verbose and --explain; drop one")
    if options["module"] and options["no_python"]:
        raise UsageError("--no-python contradicts --module: a module needs Python; drop one")


def names_of(*groups: Sequence[Callable[[Command], Command]]) -> frozenset[str]:
    """The names of the values that the options of `groups` give."""
    command = click.command()(with_options(*groups)(lambda: None))
    return frozenset([option.name for option in command.params if option.name])


def with_options(*groups: Sequence[Callable[[Command], Command]]) -> Callable[[Command], Command]:
    """Give a command the options of `groups`, in their order."""

    def decorate(command: Command) -> Command:
        for option in reversed([option for group in groups for option in group]):
            command = option(command)
        return command

    return decorate


def with_program(command: Command, *, required: bool = True) -> Command:
    """Give a command the program's words: all that follows the options."""
    metavar = "[--] PROGRAM [ARGS...]" if required else "[[--] PROGRAM [ARGS...]]"
    return click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar=metavar)(command)


def request_from(options: dict[str, Any]) -> Request:
    """The request that a command line makes; `options` as click gives them."""
    words = {name: value for name, value in options.items() if name in Request._fields}
    words["timeout_s"] = options.get("timeout")
    words["grace_s"] = options.get("grace", Request().grace_s)
    return Request(**words)
