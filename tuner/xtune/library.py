# SPDX-License-Identifier: Apache-2.0
"""`xtune.tune`: a search as a call, of a program or of a function."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from xlaunch.errors import UsageError
from xlaunch.options.kinds import FLAG, METRIC, POSITIVE_DURATION, WHOLE_NUMBER
from xlaunch.text import did_you_mean
from xtune.launches.functions import Function, Trial, words_of_function
from xtune.request import (
    DEFAULT_REQUEST,
    EACH,
    FIXED_OPTIONS,
    SHARED,
    parse_percentage,
    search_request,
)
from xtune.search.events import Observer
from xtune.searches import begin, conclude, search
from xtune.show.results import SearchResult
from xtune.space.user_parameters import parse_parameter

__all__ = ["Trial", "tune"]

OF_PROGRAMS = (
    "ready", "measure", "load", "warmup", "ready_timeout", "prepare", "cleanup", "conf_file", "timeout", "tried", "work",
)  # fmt: skip
"""Options that a function has no use for: it does that itself."""

_PARSERS: dict[str, Callable[[str], Any]] = {
    "metric": METRIC.parse,
    "min_effect": parse_percentage,
    "ready_timeout": POSITIVE_DURATION.parse,
    "seed": WHOLE_NUMBER.parse,
    "timeout": POSITIVE_DURATION.parse,
    "warmup": POSITIVE_DURATION.parse,
    **{key: option.kind.parse for key, option in FIXED_OPTIONS.items()},
}
_CHOICES = {"goal": ("maximize", "minimize"), "work": (EACH, SHARED)}
_FLAGS = {key for key, option in FIXED_OPTIONS.items() if option.kind is FLAG}
_FLAGS |= {name for name, value in DEFAULT_REQUEST.items() if isinstance(value, bool)}
_SEVERAL = {key for key, option in FIXED_OPTIONS.items() if option.multiple}
_SEVERAL |= {name for name, value in DEFAULT_REQUEST.items() if value == ()}


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
    arguments: list[str] | None = None
    function = program[0] if program and callable(program[0]) else None
    if function is not None:
        words, options = _of_function(program, options)
    else:
        words = tuple(map(str, program))
        arguments = [*_as_arguments(options), "--", *words]
    asked = search_request({**DEFAULT_REQUEST, **_typed(options), "program": words})
    begun = begin(asked, arguments, observer=observer, function=function)
    with contextlib.closing(begun.study.storage):
        return conclude(begun, search(begun, observer or Observer()))


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


def _typed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as `search_request` takes them; texts mean what they mean on the command line."""
    known = DEFAULT_REQUEST.keys() | FIXED_OPTIONS.keys()
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name not in known:
            raise UsageError(f"tune has no option {name!r}{did_you_mean(name, known)}")
        if value is None:
            continue
        if name in _SEVERAL:
            found[name] = tuple([_value(name, one) for one in _listed(value)])
        else:
            found[name] = _value(name, value)
    return found


def _value(name: str, value: Any) -> Any:
    if name in _FLAGS:
        if not isinstance(value, bool):
            raise UsageError(f"{name}={value!r}: write True or False")
        return value
    if name == "min_effect" and isinstance(value, float):
        value = f"{100 * value:.12g}%"
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    if text not in _CHOICES.get(name, (text,)):
        raise UsageError(f"{name}={value!r}: write {' or '.join(_CHOICES[name])}")
    try:
        return _PARSERS.get(name, str)(text)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None


def _listed(value: Any) -> tuple[Any, ...]:
    if isinstance(value, Mapping):  # variables of `env`
        return tuple([f"{name}={content}" for name, content in value.items()])
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _as_arguments(options: Mapping[str, Any]) -> Iterator[str]:
    """The command line of options, for `xtune resume`. **Ex.:** ``--param=n=1,2``."""
    for name, value in _typed_texts(options):
        option = f"--{'try' if name == 'tried' else name.replace('_', '-')}"
        if value is True:
            yield option
        elif value is not False:
            yield f"{option}={value}"


def _typed_texts(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in options.items():
        if name == "min_effect" and isinstance(value, float):
            yield name, f"{100 * value:.12g}%"
        elif name in _SEVERAL:
            yield from ((name, one) for one in _listed(value))
        elif isinstance(value, list | tuple):
            yield name, ",".join(map(str, value))
        elif value is not None:
            yield name, value
