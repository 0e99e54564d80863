# SPDX-License-Identifier: Apache-2.0
"""Option values in TOML: what a file may write, and how an option's value is written."""

from __future__ import annotations

import enum
import os
from collections.abc import Sequence
from typing import Any

import click

from xlaunch.cli.parameters import NumberList, Variable
from xlaunch.errors import UsageError
from xlaunch.machine.cpu_list import format_cpu_list

LARGEST_INTEGER = (1 << 63) - 1
"""TOML promises no more."""


def file_name_of(option: click.Parameter) -> str:
    """An option's name in a file: its long name. **Ex.:** ``log-dir``."""
    return max(option.opts, key=len).lstrip("-")


def is_flag(option: click.Parameter) -> bool:
    """Whether the option is on or off."""
    return isinstance(option, click.Option) and option.is_flag


def typed_value(option: click.Parameter, value: Any, ctx: click.Context) -> Any:
    """A value of a file as the command line would hold it before reading it; checked as there.

    **Ex.:** 4 is ``"4"``; ``[0, "2-3"]`` of a CPU list is ``"0,2-3"``; a table of variables is a list
    of ``NAME=VALUE``. Raises `UsageError`, without the names of file and key.
    """
    typed = _typed(option, value)
    try:
        option.type_cast_value(ctx, typed)
    except click.BadParameter as error:
        raise UsageError(error.message.rstrip(".")) from None
    except UsageError as error:
        raise UsageError(str(error).removeprefix(f"{option.opts[-1]}: ")) from None
    return typed


def file_value(option: click.Parameter, value: Any) -> Any:
    """An option's value as a file has it: the inverse of `typed_value` and the option's type."""
    if isinstance(option.type, Variable):
        return dict(value)
    if isinstance(option, click.Option) and option.multiple:
        return [_plain(item) for item in value]
    return _plain(value)


def shown_value(option: click.Parameter, value: Any) -> str:
    """An option's value for a reader. **Ex.:** ``4``, ``0-3,8``, ``latency``, ``true``, ``A=1 B=2``."""
    plain = file_value(option, value)
    if isinstance(plain, dict):
        return " ".join(f"{name}={content}" for name, content in plain.items())
    if isinstance(plain, list):
        return " ".join(map(str, plain))
    return str(plain).lower() if isinstance(plain, bool) else str(plain)


def _typed(option: click.Parameter, value: Any) -> Any:
    if isinstance(option.type, Variable):
        return _variables(value)
    if is_flag(option):
        if not isinstance(value, bool):
            raise UsageError(f"must be true or false, not {_named(value)}")
        return value
    if isinstance(option, click.Option) and option.multiple:
        items = value if isinstance(value, list) else [value]
        return [_word(option, item) for item in items]
    if isinstance(value, list) and isinstance(option.type, NumberList):
        return ",".join([_word(option, item) for item in value])
    return _word(option, value)


def _variables(value: Any) -> list[str]:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return [_text(item) for item in value]
    if not isinstance(value, dict):
        raise UsageError(f'must be a table such as {{ NAME = "value" }}, not {_named(value)}')
    words = []
    for name, content in value.items():
        if not name or "=" in name:
            raise UsageError(f"{name!r} cannot be the name of a variable")
        if isinstance(content, bool) or not isinstance(content, str | int):
            raise UsageError(f"{name}: write the value in quotes, not as {_named(content)}")
        words.append(f"{_text(name)}={_text(_digits(content))}")
    return words


def _word(option: click.Parameter, value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and not isinstance(option.type, type(click.STRING)):
        return _digits(value)
    raise UsageError(f"must be {_expected(option)}, not {_named(value)}")


def _digits(value: str | float) -> str:
    if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        raise UsageError("the number is too large")
    return value if isinstance(value, str) else repr(value)


def _text(value: str) -> str:
    """`value`, if a program can be given it."""
    try:
        whole = b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        raise UsageError(f"{value!r} cannot be written in this system's encoding") from None
    if not whole:
        raise UsageError(f"{value!r} holds a null character")
    return value


def _expected(option: click.Parameter) -> str:
    if isinstance(option.type, type(click.STRING)):
        return "text in quotes"
    return f"{option.type.name}, in quotes unless it is a number"


def _named(value: Any) -> str:
    """A TOML value by its kind. **Ex.:** ``the number 4``."""
    if isinstance(value, bool):
        return f"{str(value).lower()} without quotes"
    if isinstance(value, int | float):
        return "a number"
    kinds: Sequence[tuple[type, str]] = ((str, "text"), (list, "a list"), (dict, "a table"))
    return next((kind for known, kind in kinds if isinstance(value, known)), "a date or a time")


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < LARGEST_INTEGER else value
    if isinstance(value, tuple) and all(isinstance(item, int) for item in value):
        return format_cpu_list(value)
    return str(value)
