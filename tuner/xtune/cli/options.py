# SPDX-License-Identifier: Apache-2.0
"""The options of a search, and what a command line asks for as one value."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from xlaunch.cli.options import ENVIRONMENT, LAYOUT, PROGRAM, Command, request_from
from xlaunch.cli.parameters import Duration, WholeNumber
from xlaunch.errors import UsageError
from xlaunch.planning.request import Request

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # not subscriptable before click 8.4

CONTEXT = {
    "allow_interspersed_args": False,
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
}
"""What follows the program's name is the program's, byte for byte."""

DEFAULT_BUDGET = "40 launches"
DEFAULT_MIN_EFFECT = "1%"
EACH, SHARED = "each", "shared"

_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")


class Percentage(_ParamType):
    """A share that is written with its sign: ``1%``, ``0.5%``."""

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


def _fixing(groups: Sequence[Sequence[Any]], left_out: Sequence[str]) -> list[Any]:
    """The options of xlaunch that fix something, but for some."""
    kept = []
    for option in (option for group in groups for option in group):
        (made,) = click.command()(option(lambda: None)).params
        if made.name not in left_out:
            kept.append(option)
    return kept


AIM = [
    click.option(
        "--metric",
        multiple=True,
        metavar="NAME|REGEX",
        help="What to compare by: a number that PROGRAM prints or reports, as 'images/s'; "
        "@hypertune for what it announces so; wall. Default: wall, the time until it ends. "
        "A second one: the front of both is shown too. More are recorded.",
    ),
    click.option(
        "--goal",
        type=click.Choice(["maximize", "minimize"]),
        multiple=True,
        help="Default: rates become larger, times smaller. A second one is for the second --metric.",
    ),
    click.option(
        "--require",
        multiple=True,
        metavar="BOUND",
        help="What has to hold besides: 'p99<=20ms', 'rss<=8GiB', 'accuracy>=0.9'.",
    ),
    click.option(
        "--min-effect",
        type=Percentage(),
        default=DEFAULT_MIN_EFFECT,
        help=f"Gains below this are none. Default: {DEFAULT_MIN_EFFECT}.",
    ),
    click.option(
        "--work",
        type=click.Choice([EACH, SHARED]),
        default=EACH,
        help="shared: instances divide the work between them, so that wall time compares layouts.",
    ),
]

SPACE = [
    click.option(
        "--param",
        multiple=True,
        metavar="NAME=VALUES",
        help="Search this too, and put it for {NAME} in ARGS and --env: batch=1,2,4 or n=4..64.",
    ),
    click.option(
        "--when",
        multiple=True,
        metavar="CONDITION",
        help="Only configurations that keep it: 'threads<=ncores', 'batch>=8 if smt'.",
    ),
    click.option("--only-params", is_flag=True, help="Search nothing but --param."),
    click.option(
        "--try",
        "tried",
        multiple=True,
        metavar="FILE",
        help="A preset of xlaunch to launch early, beside what xtune tries by itself.",
    ),
    click.option(
        "--allow-numerics",
        is_flag=True,
        help="Search switches too that may change PROGRAM's results, as bf16 arithmetic.",
    ),
    click.option(
        "--conf-file",
        metavar="FILE",
        help="Search what a YAML file of Intel's hypertune names, and by what PROGRAM announces.",
    ),
]

SPENDING = [
    click.option(
        "--budget",
        metavar="TIME|LAUNCHES",
        help=f"10m, 1h30m, '40 launches', or both with a comma. Default: {DEFAULT_BUDGET}.",
    ),
    click.option(
        "--timeout",
        type=Duration(zero=False),
        help="For one launch: a program that still runs then is measured by what it printed until "
        "then. Default: ten times the bare command's time, and a minute.",
    ),
    click.option("--seed", type=WholeNumber(), default=0, help="Of all that is drawn. Default: 0."),
]

STORAGE = click.option(
    "--storage",
    metavar="FILE|URL",
    help="Where studies are kept: a file, or a database as postgresql://... that machines of one "
    "kind share. Default: ~/.local/state/xtune/studies.db.",
)

KEEPING = [
    STORAGE,
    click.option(
        "--study", metavar="NAME", help="Name of the study. Default: by program and space."
    ),
]

ANSWER = [
    click.option(
        "--save-preset",
        metavar="FILE",
        help="Where to write what won, for xlaunch --preset. Default: best.toml, or the first of "
        "best-2.toml, ... that is free.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON."),
    click.option(
        "-v",
        "--verbose",
        is_flag=True,
        help="A line for each launch, and its output; why something is not searched.",
    ),
    click.option("-q", "--quiet", is_flag=True, help="Nothing but the verdict."),
]

FIXED = _fixing([LAYOUT, PROGRAM, ENVIRONMENT], ["instance_index"])
"""Options of xlaunch: what is fixed is not searched."""


class Asked(NamedTuple):
    """What a command line asks for, but for how it is shown."""

    request: Request
    """Program, and what of the launch is fixed."""
    metrics: tuple[str, ...]
    goals: tuple[str, ...]
    """For the metrics in their order."""
    require: tuple[str, ...]
    min_effect: float
    work_shared: bool
    param: tuple[str, ...]
    when: tuple[str, ...]
    only_params: bool
    allow_numerics: bool
    conf_file: str | None
    tried: tuple[str, ...]
    """Files of presets."""
    budget: str | None
    timeout_s: float | None
    seed: int
    storage: str | None
    study: str | None


def asked_from(options: dict[str, Any]) -> Asked:
    """What is asked for; `options` as click gives them. Raises `UsageError` for contradictions."""
    request = request_from({**options, "metric": (), "timeout": None})
    if not request.program:
        raise UsageError(
            "name a program: xtune [OPTIONS] [--] PROGRAM [ARGS...]; xtune --help lists the options"
        )
    if request.module and request.no_python:
        raise UsageError("--no-python contradicts --module: a module needs Python; drop one")
    if options["quiet"] and options["verbose"]:
        raise UsageError("--quiet contradicts --verbose; drop one")
    if len(options["goal"]) > max(1, min(2, len(options["metric"]))):
        raise UsageError(
            f"{len(options['goal'])} --goal for {len(options['metric'])} --metric: one for each, two at most"
        )
    if options["only_params"] and options["conf_file"]:
        raise UsageError("--only-params contradicts --conf-file, which names launch settings")
    if options["only_params"] and not options["param"]:
        raise UsageError("--only-params: there is no --param to search; give one, as batch=1,2,4")
    return Asked(
        request=request,
        metrics=options["metric"],
        goals=options["goal"],
        require=options["require"],
        min_effect=options["min_effect"],
        work_shared=options["work"] == SHARED,
        param=options["param"],
        when=options["when"],
        only_params=options["only_params"],
        allow_numerics=options["allow_numerics"],
        conf_file=options["conf_file"],
        tried=options["tried"],
        budget=options["budget"],
        timeout_s=options["timeout"],
        seed=options["seed"],
        storage=options["storage"],
        study=options["study"],
    )


def with_program(command: Command) -> Command:
    """Give a command the program's words: all that follows the options."""
    metavar = "[--] PROGRAM [ARGS...]"
    return click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar=metavar)(command)
