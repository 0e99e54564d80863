# SPDX-License-Identifier: Apache-2.0
"""The options of a search, and the request that they make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from xlaunch.options.commands import (
    CONTEXT,
    Command,
    GroupedCommand,
    OptionType,
    click_options,
    with_options,
    with_program,
)
from xlaunch.options.definitions import METRIC, POSITIVE_DURATION, WHOLE_NUMBER, OptionKind
from xtune.request import (
    DEFAULT_BUDGET,
    EACH,
    FIXED_OPTIONS,
    MIN_EFFECT_TEXT,
    READY_TIMEOUT_S,
    SHARED,
    SearchRequest,
    parse_percentage,
    search_request,
)


def _option(names: str, metavar: str | None, help_text: str, **more: Any) -> Any:
    return click.option(*names.split(), metavar=metavar, help=help_text, **more)


MIN_EFFECT = _option(
    "--min-effect", None, f"Smallest gain that counts. Default: {MIN_EFFECT_TEXT}.",
    type=OptionType(OptionKind("N%", parse_percentage)), default=MIN_EFFECT_TEXT,
)  # fmt: skip
PREPARE = _option("--prepare", "COMMAND", "Command to run before each launch.")

OBJECTIVE = [
    _option(
        "--metric", None, "Number to compare: 'images/s', or auto. Default: wall.",
        type=OptionType(METRIC), multiple=True,
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
        type=OptionType(POSITIVE_DURATION), default=READY_TIMEOUT_S,
    ),
    _option("--load", "NAME=LOW..HIGH", "Measure at the highest load within --require: c=1..512."),
    _option(
        "--warmup", None, "Time under load before it is measured.",
        type=OptionType(POSITIVE_DURATION), default=0.0,
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
        type=OptionType(POSITIVE_DURATION),
    ),
    _option("--seed", None, "Random seed. Default: 0.", type=OptionType(WHOLE_NUMBER), default=0),
]  # fmt: skip

STORAGE = _option("--storage", "FILE|URL", "File or URL. Default: ~/.local/state/xtune/studies.db.")
STUDY = [STORAGE, _option("--study", "NAME", "Name of the study. Default: from program and space.")]
FORCE = _option("--force", None, "Let files that xtune writes replace any other.", is_flag=True)
AS_JSON = _option("--json as_json", None, "Print the verdict as JSON.", is_flag=True)

OUTPUT = [
    _option("--save-preset", "FILE", "Preset for a gain. Default: best.toml, best-2.toml, ..."),
    FORCE,
    AS_JSON,
    _option("-v --verbose", None, "Print each launch, its output, and what is left out.", is_flag=True),
    _option("-q --quiet", None, "Print the verdict only.", is_flag=True),
]  # fmt: skip

RESUMING = [STORAGE, _option(*BUDGET, "10m, 1h30m, '40 launches', or both. Default: as begun.")]

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
        type=OptionType(METRIC),
    ),
    _option(
        "--goal", "maximize|minimize", "Default: maximize rates, minimize times.",
        type=click.Choice(["maximize", "minimize"]),
    ),
    _option("--runs", None, "Maximum runs of each. Default: 12, and more of short ones.", type=OptionType(WHOLE_NUMBER)),
    _option("--warmup", None, "Unmeasured runs before. Default: 1.", type=OptionType(WHOLE_NUMBER), default=1),
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
    "Fixed settings of xlaunch, which are not searched": click_options(FIXED_OPTIONS.values()),
}
"""The options of a search, by the headings of --help."""


def options_of(decorate: Callable[[Command], Command]) -> list[click.Option]:
    """The options that a decorator gives to a command."""
    command = click.command()(decorate(lambda: None))
    return [param for param in command.params if isinstance(param, click.Option)]


class SearchCommand(GroupedCommand):
    """A command whose --help shows the options of `GROUPS` under their headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options; those of no group come last."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        sections: dict[str, set[Any]] = {
            title: {option.name for option in options_of(with_options(group))}
            for title, group in GROUPS.items()
        }
        sections["Other"] = {option.name for option in options}.difference(*sections.values())
        for title, names in sections.items():
            rows = [option.get_help_record(ctx) for option in options if option.name in names]
            with formatter.section(title):
                formatter.write_dl([row for row in rows if row is not None])


def with_search_options(command: Command) -> Command:
    """Add the program and all options of a search."""
    return with_program(with_options(*GROUPS.values())(command))


def parse_search(arguments: Sequence[str]) -> SearchRequest:
    """Parse the arguments of `xtune` that a study has stored. Raises what click raises."""

    @click.command()
    @with_search_options
    def ignore(**_: Any) -> None: ...

    context = click.Context(ignore, **CONTEXT)  # type: ignore[arg-type]
    ignore.parse_args(context, list(arguments))
    return search_request(context.params)
