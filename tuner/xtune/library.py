# SPDX-License-Identifier: Apache-2.0
"""`xtune.tune`: a search as a call, of a program or of a function."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import click

from xlaunch.errors import UsageError
from xlaunch.text import did_you_mean
from xtune.cli.options import options_of, parse_search, with_search_options
from xtune.launches.functions import Function, Trial, words_of_function
from xtune.search.events import Observer
from xtune.searches import begin, conclude, search
from xtune.show.results import SearchResult
from xtune.space.user_parameters import parse_parameter

__all__ = ["Trial", "tune"]

OF_PROGRAMS = (
    "ready", "measure", "load", "warmup", "ready_timeout", "prepare", "cleanup", "conf_file", "timeout", "tried", "work",
)  # fmt: skip
"""Options that a function has no use for: it does that itself."""

OUTPUT = ("as_json", "force", "save_preset")
"""Options of the command that a call has no use for."""


def tune(
    *program: str | Function, observer: Observer | None = None, **options: Any
) -> SearchResult:
    """Search as the command does, without output, and return the result that it prints.

    **Ex.:** ``tune("infer.py", metric="images/s", param=["batch=1,2,4"], budget="10m").verdict``

    **Ex.:** ``tune(f, param="batch=1,2,4", goal="maximize")`` with
    ``def f(configuration): return speed(configuration.parameters["batch"])``

    program
        The program and its arguments; or one function, which is called with a
        `xtune.Trial` for each launch and returns a number. If it returns
        ``configuration.launch(number)`` instead, having followed `configuration.layout` and
        `configuration.environment`, these may be searched, too: ``only_params=False``.
    observer
        Is told the course of the search.
    options
        Those of the command line, with underscores; lists for options that may be repeated.

    Ctrl-C ends the search with the verdict so far. Raises the errors of `xtune.errors` and of xlaunch.
    """
    options = {"tried" if name == "try" else name: value for name, value in options.items()}
    function = program[0] if program and callable(program[0]) else None
    if function is not None:
        words, options = _of_function(program, options)
    else:
        words = tuple(map(str, program))
    arguments = [*_as_arguments(options), "--", *words]
    try:
        asked = parse_search(arguments)
    except click.UsageError as error:
        option = error.param if isinstance(error, click.BadParameter) else None
        name = f"{option.name}: " if option else ""
        raise UsageError(f"{name}{error.message.rstrip('.')}") from None
    kept = arguments if function is None else None
    session = begin(asked, kept, observer=observer, function=function)
    with contextlib.closing(session.study.storage):
        return conclude(session, search(session, observer or Observer()))


def _of_function(
    program: tuple[Any, ...], options: Mapping[str, Any]
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The words that stand for a function, and its options with their defaults."""
    if len(program) > 1:
        raise UsageError(
            f"tune takes one function, without arguments, and got {len(program) - 1} more: give it its"
            " values with functools.partial"
        )
    useless = sorted(name for name in OF_PROGRAMS if options.get(name) is not None)
    if useless:
        raise UsageError(f"{useless[0]}: a function does that itself; leave it out")
    parameters = [parse_parameter(text).name for text in _listed(options.get("param"))]
    words = words_of_function(program[0], parameters)
    return words, {"metric": "value", "only_params": True, **options}


def _as_arguments(options: Mapping[str, Any]) -> Iterator[str]:
    """Options as they are typed. **Ex.:** ``--param=n=1,2``. Raises `UsageError` for one that is not known."""
    options_by_name = {
        one.name: one for one in options_of(with_search_options) if one.name not in OUTPUT
    }
    for name, value in options.items():
        if name not in options_by_name:
            raise UsageError(f"tune has no option {name!r}{did_you_mean(name, options_by_name)}")
        option = options_by_name[name]
        if value is None:
            continue
        if option.is_flag:
            if not isinstance(value, bool):
                raise UsageError(f"{name}={value!r}: write True or False")
            yield from option.opts[-1:] if value else option.secondary_opts
            continue
        for item in _listed(value) if option.multiple else [value]:
            text = ",".join(map(str, item)) if isinstance(item, list | tuple) else str(item)
            if name == "min_effect" and isinstance(item, float):
                text = f"{100 * item:.12g}%"
            yield f"{option.opts[-1]}={text}"


def _listed(value: Any) -> tuple[Any, ...]:
    if isinstance(value, Mapping):  # variables of `env`
        return tuple([f"{name}={content}" for name, content in value.items()])
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)
