# SPDX-License-Identifier: Apache-2.0
"""How option values are read: counts, CPU lists, durations, variables."""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click

from xlaunch.environment.caches import NAMELESS
from xlaunch.errors import UsageError
from xlaunch.machine.cpu_list import LARGEST_NUMBER, parse_cpu_list, read_digits
from xlaunch.planning.request import MAX

SECONDS_PER_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

E = TypeVar("E", bound=enum.Enum)

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # not subscriptable before click 8.4


class Count(_ParamType):
    """A whole number from 1, or ``max`` in any case."""

    name = "N|max"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """The values as they are written; click would show them in capitals."""
        return self.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value is MAX or isinstance(value, int):
            return value
        if value.lower() == "max":
            return MAX
        number = _whole_number(value)
        if number:
            return number
        return self.fail(
            f"{value!r} is not a count; write a whole number from 1 to {LARGEST_NUMBER}, or max",
            param,
            ctx,
        )


class WholeNumber(_ParamType):
    """A whole number from 0."""

    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, int):
            return value
        number = _whole_number(value)
        if number is not None:
            return number
        return self.fail(f"{value!r} is not a whole number from 0 to {LARGEST_NUMBER}", param, ctx)


def _whole_number(text: str) -> int | None:
    """The number that `text` writes in plain digits; None for anything else and what is too large."""
    if not (text.isascii() and text.isdigit()):
        return None
    number = read_digits(text)
    return number if number <= LARGEST_NUMBER else None


class NumberList(_ParamType):
    """Numbers and ranges, at least one: ``0-3,8``."""

    name = "LIST"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        option = param.opts[-1] if param is not None else "list"
        numbers = parse_cpu_list(value, what=option)
        if not numbers:
            raise UsageError(f"{option}: the list {value!r} is empty; write for example 0-3,8")
        return numbers


class Duration(_ParamType):
    """Seconds, or a number with a unit: ``90``, ``1.5s``, ``10m``, ``2h``, ``250ms``."""

    name = "TIME"

    def __init__(self, *, zero: bool) -> None:
        self._zero = zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, float):
            return value
        number = value.rstrip("abcdefghijklmnopqrstuvwxyz")
        unit = value[len(number) :] or "s"
        try:
            seconds = float(number) * SECONDS_PER_UNIT[unit]
        except (ValueError, KeyError):
            seconds = math.nan
        if math.isfinite(seconds) and (seconds > 0 or (self._zero and seconds == 0)):
            return seconds
        least = "from 0" if self._zero else "above 0"
        return self.fail(
            f"{value!r} is not a time {least}; write seconds, or a number with ms, s, m, h or d",
            param,
            ctx,
        )


class CacheFolder(click.types.StringParamType):
    """The name of a folder. An empty one is refused, not taken for the default."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value:
            raise UsageError(NAMELESS)
        return super().convert(value, param, ctx)


class Variable(_ParamType):
    """An environment variable: ``NAME=VALUE``."""

    name = "NAME=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        name, equals, content = value.partition("=")
        if not equals or not name:
            return self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return name, content


class MetricName(_ParamType):
    """A metric: a name as it is printed, or a regular expression with a group."""

    name = "NAME|REGEX"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from xlaunch.measurement.metric_lines import parse_metric

        parse_metric(value)
        return value

    def split_envvar_value(self, rv: str) -> list[str]:
        """One a line: names hold spaces."""
        return rv.splitlines()


class Word(_ParamType, Generic[E]):
    """One of an enumeration's values, in any case."""

    def __init__(self, words: type[E]) -> None:
        self._words = words
        self.name = "|".join(member.value for member in words)

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """The values as they are written; click would show them in capitals."""
        return self.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, self._words):
            return value
        try:
            return self._words(value.lower())
        except ValueError:
            allowed = ", ".join(member.value for member in self._words)
            return self.fail(f"{value!r} is not one of {allowed}", param, ctx)
