# SPDX-License-Identifier: Apache-2.0
"""What a search is asked to do: one typed request, which the command line and `xtune.tune` fill."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from xlaunch.errors import UsageError
from xlaunch.options.definitions import IN_FILES, OptionGroup
from xlaunch.options.precedence import request_from
from xlaunch.planning.request import Request
from xlaunch.text import check_passable
from xtune.launches.highest_load import LoadRange, parse_load
from xtune.launches.services import Service, with_ports

DEFAULT_BUDGET = "40 launches"
MIN_EFFECT_TEXT = "1%"
READY_TIMEOUT_S = 120.0
AUTO = "auto"
"""The --metric that is the rate that the program prints."""
EACH, SHARED = "each", "shared"

FIXED_OPTIONS = {
    option.key: option
    for option in IN_FILES
    if option.group in (OptionGroup.LAYOUT, OptionGroup.MEMORY, OptionGroup.ENVIRONMENT)
    and option.name != "instance-index"
}
"""Options of xlaunch that a search may fix."""

_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")


class SearchRequest(NamedTuple):
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
    loads: LoadRange | None
    """Of which the highest is found that meets the requirements."""
    prepare: str | None
    cleanup: str | None

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands besides the program's, which may have parameters, too."""
        service = () if self.service is None else (self.service.measure, self.service.ready)
        return (*service, *filter(None, (self.prepare, self.cleanup)))


AS_GIVEN = (
    "require", "min_effect", "param", "when", "only_params", "allow_numerics", "conf_file", "tried",
    "budget", "seed", "storage", "study", "prepare", "cleanup",
)  # fmt: skip
"""Options that `SearchRequest` holds under their own names."""


def search_request(options: Mapping[str, Any]) -> SearchRequest:
    """The request that typed options make, all of them by name. Raises `UsageError` for contradictions."""
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
    loads = None
    if options["load"] is not None and service is not None:
        loads = parse_load(options["load"], service.measure)
        if not options["require"]:
            raise UsageError("--load needs the bound to keep, such as --require 'p99<=200ms'")
    return SearchRequest(
        request=request,
        metrics=options["metric"],
        goals=options["goal"],
        work_shared=options["work"] == SHARED,
        timeout_s=options["timeout"],
        service=service,
        loads=loads,
        **{name: value for name, value in options.items() if name in AS_GIVEN},
    )


def _service(options: Mapping[str, Any]) -> Service | None:
    ready, measure = options["ready"], options["measure"]
    if ready is None and measure is None:
        for name in ("load", "warmup"):
            if options[name]:
                raise UsageError(
                    f"--{name} is about a service under load: give --ready and --measure"
                )
        return None
    if ready is None or measure is None:
        raise UsageError(
            "a service needs both --ready (a URL, a port, or text of a line that it prints) and"
            " --measure (the command of a load generator)"
        )
    if not options["metric"]:
        raise UsageError("--measure needs a --metric of its output, such as 'requests/sec'")
    return Service(ready, measure, options["ready_timeout"], options["warmup"])


def parse_percentage(text: str) -> float:
    """A percentage with its sign. **Ex.:** ``1%`` is 0.01. Raises `UsageError`."""
    match = _PERCENT.fullmatch(text.strip())
    if match is None or float(match[1]) >= 100:
        raise UsageError(f"{text!r} is not a percentage from 0% to below 100%; write 1% or 0.5%")
    return float(match[1]) / 100.0
