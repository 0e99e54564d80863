# SPDX-License-Identifier: Apache-2.0
"""The options of a search, and the request that they make."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from xlaunch.errors import UsageError
from xlaunch.options.commands import (
    CONTEXT,
    Command,
    GroupedCommand,
    ParamType,
    Parsed,
    click_options,
    with_options,
)
from xlaunch.options.definitions import OptionGroup
from xlaunch.options.kinds import METRIC, POSITIVE_DURATION, WHOLE_NUMBER
from xlaunch.options.precedence import request_from
from xlaunch.planning.request import Request
from xlaunch.text import check_passable
from xtune.launches.services import Service, with_ports

DEFAULT_BUDGET = "40 launches"
DEFAULT_MIN_EFFECT = "1%"
READY_TIMEOUT_S = 120.0
AUTO = "auto"
"""The --metric that is the rate that the program prints."""
EACH, SHARED = "each", "shared"

_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")


class Percentage(ParamType):
    """A percentage with its sign. **Ex.:** ``1%``, ``0.5%``."""

    name = "N%"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, float):
            return value
        found = _PERCENT.fullmatch(value.strip())
        if found is None or float(found[1]) >= 100:
            return self.fail(
                f"{value!r} is not a percentage from 0% to below 100%; write 1% or 0.5%", param, ctx
            )
        return float(found[1]) / 100.0


def _option(names: str, metavar: str | None, help_text: str, **more: Any) -> Any:
    return click.option(*names.split(), metavar=metavar, help=help_text, **more)


MIN_EFFECT = _option(
    "--min-effect", None, f"Smallest gain that counts. Default: {DEFAULT_MIN_EFFECT}.",
    type=Percentage(), default=DEFAULT_MIN_EFFECT,
)  # fmt: skip
PREPARE = _option("--prepare", "COMMAND", "Command to run before each launch.")

OBJECTIVE = [
    _option(
        "--metric", None, "Number to compare: 'images/s', or auto. Default: wall.",
        type=Parsed(METRIC), multiple=True,
    ),
    _option(
        "--goal", "maximize|minimize", "Default: maximize rates, minimize times.",
        type=click.Choice(["maximize", "minimize"]), multiple=True,
    ),
    _option("--require", "BOUND", "Requirement: 'p99<=20ms', 'rss<=8GiB', 'last(loss)<=2'.", multiple=True),
    MIN_EFFECT,
    _option(
        "--work", f"{EACH}|{SHARED}", "shared: instances divide the work (default: each).",
        type=click.Choice([EACH, SHARED]), default=EACH,
    ),
]  # fmt: skip

SERVICE = [
    _option("--ready", "URL|PORT|LINE", "PROGRAM is a service: it is ready when this answers or is printed."),
    _option("--measure", "COMMAND", "Load generator whose output has the metrics."),
    _option(
        "--ready-timeout", None, f"Time to get ready. Default: {READY_TIMEOUT_S:g} s.",
        type=Parsed(POSITIVE_DURATION), default=READY_TIMEOUT_S,
    ),
    PREPARE,
    _option("--cleanup", "COMMAND", "Command to run after each launch."),
]  # fmt: skip

SPACE = [
    _option("--param", "NAME=VALUES", "Search {NAME} in ARGS and --env: n=1,2,4 or n=4..64.", multiple=True),
    _option("--when", "CONDITION", "Search only where this holds: 'threads<=ncores'.", multiple=True),
    _option("--only-params", None, "Search nothing but --param.", is_flag=True),
    _option("--try tried", "FILE", "Launch this preset of xlaunch early.", multiple=True),
    _option("--allow-numerics", None, "Also search what may change results, such as bf16.", is_flag=True),
    _option("--conf-file", "FILE", "Search what this file of Intel's hypertune names."),
]  # fmt: skip

BUDGET = "--budget", "TIME|LAUNCHES"

SPENDING = [
    _option(*BUDGET, f"10m, 1h30m, '{DEFAULT_BUDGET}' (default), or both."),
    _option(
        "--timeout", None, "Limit of a launch. Default: 10 x baseline + 60 s.",
        type=Parsed(POSITIVE_DURATION),
    ),
    _option("--seed", None, "Random seed. Default: 0.", type=Parsed(WHOLE_NUMBER), default=0),
]  # fmt: skip

STORAGE = _option("--storage", "FILE|URL", "File or URL. Default: ~/.local/state/xtune/studies.db.")
STUDY = [STORAGE, _option("--study", "NAME", "Name of the study. Default: from program and space.")]
FORCE = _option("--force", None, "Let a file that is written replace any other.", is_flag=True)
AS_JSON = _option("--json as_json", None, "Print the verdict as JSON.", is_flag=True)

OUTPUT = [
    _option("--save-preset", "FILE", "Preset for a gain. Default: best.toml, best-2.toml, ..."),
    FORCE,
    AS_JSON,
    _option("-v --verbose", None, "Print each launch, its output, and what is left out.", is_flag=True),
    _option("-q --quiet", None, "Print the verdict only.", is_flag=True),
]  # fmt: skip

RESUMING = [
    STORAGE,
    _option(*BUDGET, "10m, 1h30m, '40 launches', or both. Default: as begun."),
]

REPORTING = [
    STORAGE,
    _option("--html", "FILE", "Write an HTML page too: one file, with charts."),
    _option("--save-preset", "FILE", "Preset to write for a gain."),
    FORCE,
    AS_JSON,
]

RUNS = range(4, 61)
"""Of each command: fewer prove nothing, and more would need another plan of the error."""

COMPARED = [
    _option(
        "--metric", None, "Number that both print: 'images/s'. Default: wall time.",
        type=Parsed(METRIC),
    ),
    _option(
        "--goal", "maximize|minimize", "Default: maximize rates, minimize times.",
        type=click.Choice(["maximize", "minimize"]),
    ),
    _option("--runs", None, "Maximum runs of each. Default: 12, and more of short ones.", type=Parsed(WHOLE_NUMBER)),
    _option("--warmup", None, "Unmeasured runs before. Default: 1.", type=Parsed(WHOLE_NUMBER), default=1),
    PREPARE,
    MIN_EFFECT,
]  # fmt: skip

GROUPS: dict[str, Sequence[Any]] = {
    "Objective": OBJECTIVE,
    "A service": SERVICE,
    "Search space": SPACE,
    "Budget": SPENDING,
    "Study": STUDY,
    "Output": OUTPUT,
    "Fixed settings of xlaunch, which are not searched": click_options(
        OptionGroup.LAYOUT, OptionGroup.MEMORY, OptionGroup.ENVIRONMENT, without="instance-index"
    ),
}
"""The options of a search, by the headings of --help."""


def _names_of(group: Sequence[Any]) -> set[Any]:
    """The names of the values that options give."""
    return {option.name for option in click.command()(with_options(group)(lambda: None)).params}


class SearchCommand(GroupedCommand):
    """A command whose --help shows the options of `GROUPS` under their headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options; those of no group come last."""
        options = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        left = {option.name: option for option in options}
        sections: dict[str, set[Any]] = {title: _names_of(group) for title, group in GROUPS.items()}
        sections["Other"] = left.keys() - {name for one in sections.values() for name in one}
        for title, names in sections.items():
            rows = [left[name].get_help_record(ctx) for name in left if name in names]
            with formatter.section(title):
                formatter.write_dl([row for row in rows if row is not None])


class Asked(NamedTuple):
    """What a search is asked to do, without how it is shown."""

    request: Request
    """The program and the fixed settings."""
    metrics: tuple[str, ...]
    goals: tuple[str, ...]
    """One for each metric, in order."""
    require: tuple[str, ...]
    min_effect: float
    work_shared: bool
    param: tuple[str, ...]
    when: tuple[str, ...]
    only_params: bool
    allow_numerics: bool
    conf_file: str | None
    tried: tuple[str, ...]
    """Preset files."""
    budget: str | None
    timeout_s: float | None
    seed: int
    storage: str | None
    study: str | None
    service: Service | None
    """How the program is measured if it is a service."""
    prepare: str | None
    cleanup: str | None


AS_GIVEN = (
    "require", "min_effect", "param", "when", "only_params", "allow_numerics", "conf_file", "tried",
    "budget", "seed", "storage", "study", "prepare", "cleanup",
)  # fmt: skip
"""Options that `Asked` holds under their own names."""


def asked_from(options: dict[str, Any]) -> Asked:
    """The request that click's `options` make. Raises `UsageError` for contradictions."""
    for name, value in options.items():
        if name != "program":
            check_passable(value)
    request = request_from({**options, "metric": (), "timeout": None})
    if not request.program.words:
        raise UsageError(
            "name a program: xtune [OPTIONS] [--] PROGRAM [ARGS...]; xtune --help lists the options"
        )
    if request.program.module and request.program.no_python:
        raise UsageError("--no-python contradicts --module: a module needs Python; drop one")
    if options["quiet"] and options["verbose"]:
        raise UsageError("--quiet contradicts --verbose; drop one")
    if len(options["goal"]) > max(1, min(2, len(options["metric"]))):
        raise UsageError(
            f"{len(options['goal'])} --goal for {len(options['metric'])} --metric: give one for each"
            " of the first two"
        )
    if len(set(options["metric"])) < len(options["metric"]):
        raise UsageError("--metric names the same number twice; drop one")
    if options["study"] == "":
        raise UsageError("--study: the name is empty; leave it out for a name of xtune's")
    if options["only_params"] and options["conf_file"]:
        raise UsageError("--only-params contradicts --conf-file, which names launch settings")
    if options["only_params"] and not options["param"]:
        raise UsageError(
            "--only-params: there is no --param to search; give one, such as batch=1,2,4"
        )
    service = _service(options)
    if service is not None:
        request = with_ports(request)
    return Asked(
        request=request,
        metrics=options["metric"],
        goals=options["goal"],
        work_shared=options["work"] == SHARED,
        timeout_s=options["timeout"],
        service=service,
        **{name: value for name, value in options.items() if name in AS_GIVEN},
    )


def _service(options: dict[str, Any]) -> Service | None:
    ready, measure = options["ready"], options["measure"]
    if ready is None and measure is None:
        return None
    if ready is None or measure is None:
        raise UsageError(
            "a service needs both --ready (a URL, a port, or text of a line that it prints) and"
            " --measure (the command of a load generator)"
        )
    if not options["metric"]:
        raise UsageError("--measure needs a --metric of its output, such as 'requests/sec'")
    return Service(ready, measure, options["ready_timeout"])


def with_program(command: Command) -> Command:
    """Add the argument that takes the program and its arguments."""
    metavar = "[--] PROGRAM [ARGS...]"
    return click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar=metavar)(command)


def with_search_options(command: Command) -> Command:
    """Add the program and all options of a search."""
    return with_program(with_options(*GROUPS.values())(command))


def parse_search(arguments: Sequence[str]) -> Asked:
    """Parse the arguments of `xtune` that a study has stored. Raises what click raises."""

    @click.command()
    @with_search_options
    def ignore(**_: Any) -> None: ...

    context = click.Context(ignore, **CONTEXT)  # type: ignore[arg-type]
    ignore.parse_args(context, list(arguments))
    return asked_from(context.params)
