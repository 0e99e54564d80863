# SPDX-License-Identifier: Apache-2.0
"""Kinds of option values: how each is read from text, and how values are written."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from xlaunch.errors import UsageError
from xlaunch.machine.cpu_list import MAX_NUMBER, format_cpu_list, parse_cpu_list, read_digits
from xlaunch.machine.topology import CPUs
from xlaunch.planning.request import MAX, Max, RestartLimit

SECONDS_PER_UNIT = {
    **dict.fromkeys(("", "s", "sec"), 1.0),
    **dict.fromkeys(("m", "min"), 60.0),
    "ms": 0.001,
    "h": 3600.0,
    "d": 86400.0,
}
BYTES_PER_UNIT = {
    "": 1,
    "b": 1,
    **{f"{letter}{end}": 1024**n for n, letter in enumerate("kmgt", 1) for end in ("", "ib")},
    **{f"{letter}b": 1000**n for n, letter in enumerate("kmgt", 1)},
}
MAX_INTEGER = (1 << 63) - 1
"""The largest integer that every TOML parser reads."""


class OptionKind(NamedTuple):
    """A kind of value."""

    metavar: str
    """How help shows it; empty for flags."""
    parse: Callable[[str], Any]
    """The value that a text stands for. Raises `UsageError`, without the option's name."""
    example: Any = ""
    """A value as a file writes it."""
    words: tuple[str, ...] = ()
    """Values that a shell may complete."""


def parse_count(text: str) -> int | Max:
    """A whole number from 1, or ``max`` in any case."""
    if text.lower() == "max":
        return MAX
    number = _digits(text)
    if not number:
        raise UsageError(
            f"{text!r} is not a count; write a whole number from 1 to {MAX_NUMBER}, or max"
        )
    return number


def parse_restarts(text: str) -> RestartLimit | Max:
    """A number of restarts within a time: ``5/10m``; ``5`` within ten minutes; ``5/all``; ``max``."""
    from xlaunch.supervision.restarts import check_limit

    if text.lower() == MAX.value:
        return MAX
    restarts, slash, window = text.partition("/")
    number = _digits(restarts)
    window_s = math.inf if window.lower() == "all" else _scaled(window, SECONDS_PER_UNIT)
    if not number or (slash and not window_s):
        raise UsageError(
            f"{text!r} is not a number of restarts; write 5/10m, 5 (within ten minutes), 5/all or max"
        )
    limit = RestartLimit(number, window_s) if slash and window_s else RestartLimit(number)
    check_limit(limit)
    return limit


def parse_health(text: str) -> str:
    """What a probe asks, with braces: a URL, a port, or ``exec:COMMAND``."""
    from xlaunch.supervision.probes import check_form

    check_form(text)
    return text


def parse_whole_number(text: str, least: int = 0) -> int:
    """A whole number from `least`."""
    number = _digits(text)
    if number is None or number < least:
        raise UsageError(f"{text!r} is not a whole number from {least} to {MAX_NUMBER}")
    return number


def parse_number_list(text: str) -> CPUs:
    """Numbers and ranges, at least one: ``0-3,8``."""
    numbers = parse_cpu_list(text, what="")
    if not numbers:
        raise UsageError(f"the list {text!r} is empty; write for example 0-3,8")
    return numbers


def parse_duration(text: str) -> float:
    """Seconds, or a number with a unit: ``90``, ``1.5s``, ``10m``, ``5min``, ``2h``."""
    seconds = _scaled(text, SECONDS_PER_UNIT)
    if seconds is None:
        raise UsageError(
            f"{text!r} is not a time; write seconds, or a number with ms, s, m, h or d"
        )
    return seconds


def parse_positive_duration(text: str) -> float:
    """As `parse_duration`, above 0."""
    seconds = parse_duration(text)
    if seconds == 0:
        raise UsageError(f"{text!r} is not a time above 0")
    return seconds


def parse_wait(text: str) -> float:
    """As `parse_duration`; infinite for ``max``."""
    return math.inf if text.lower() == MAX.value else parse_duration(text)


def parse_size(text: str) -> int:
    """Bytes, or a number with a unit: ``20GiB``, ``500MB``, ``1.5G``; a lone letter means 1024."""
    size_bytes = _scaled(text.lower(), BYTES_PER_UNIT)
    if size_bytes is None:
        raise UsageError(
            f"{text!r} is not a size; write bytes, or a number with KiB, MiB, GiB, TiB, KB, MB or GB"
        )
    return int(size_bytes)


def parse_variable(text: str) -> tuple[str, str]:
    """An environment variable: ``NAME=VALUE``."""
    name, equals, content = text.partition("=")
    if not equals or not name:
        raise UsageError(f"{text!r} is not NAME=VALUE")
    return name, content


def parse_variable_name(text: str) -> str:
    """The name of an environment variable."""
    if not text or "=" in text or "\0" in text:
        raise UsageError(f"{text!r} is not the name of a variable")
    return text


def parse_flag(text: str) -> bool:
    """The value of a flag's variable, in any case."""
    if text.lower() in ("1", "true", "yes", "on", "t", "y"):
        return True
    if text.lower() in ("0", "false", "no", "off", "f", "n"):
        return False
    raise UsageError(f"{text!r} is not true or false")


def parse_directory(text: str) -> str:
    """A directory's name. An empty one is not taken for the default."""
    if not text:
        raise UsageError("the directory's name is empty; leave the option out for the default")
    return text


def parse_metric(text: str) -> str:
    """A metric: a name as it is printed, or a regular expression with a group."""
    from xlaunch.metrics.metric_lines import parse_metric as check

    check(text)
    return text


COUNT = OptionKind("N|max", parse_count, 2)
RESTARTS = OptionKind("N[/TIME]|max", parse_restarts, "5/10m", ("max",))
HEALTH = OptionKind("URL|PORT|exec:COMMAND", parse_health, "{9000+index}")
WHOLE_NUMBER = OptionKind("N", parse_whole_number, 1)
POSITIVE_NUMBER = OptionKind("N", partial(parse_whole_number, least=1), 2)
NUMBER_LIST = OptionKind("LIST", parse_number_list, "0-3")
DURATION = OptionKind("TIME", parse_duration, "10s")
WAIT = OptionKind("TIME|max", parse_wait, "10m")
POSITIVE_DURATION = OptionKind("TIME", parse_positive_duration, "10m")
SIZE = OptionKind("SIZE", parse_size, "20GiB")
VARIABLE = OptionKind("NAME=VALUE", parse_variable)
VARIABLE_NAME = OptionKind("NAME", parse_variable_name, "OMP_NUM_THREADS")
METRIC = OptionKind("NAME|REGEX", parse_metric, "sentences/s")
FLAG = OptionKind("", parse_flag, True)
FILE = OptionKind("FILE", str, "file")
DIRECTORY = OptionKind("DIR", str, "directory")
CAPTURED = OptionKind("DIR|FILE", str, "directory")
NAMED_DIRECTORY = OptionKind("DIR", parse_directory, "directory")
NAME_OR_FILE = OptionKind("NAME|FILE", str, "auto")
TEXT = OptionKind("TEXT", str)


def one_of(words: type[enum.Enum], metavar: str = "") -> OptionKind:
    """One of an enumeration's values, in any case."""
    allowed = [member.value for member in words]

    def parse(text: str) -> Any:
        try:
            return words(text.lower())
        except ValueError:
            raise UsageError(f"{text!r} is not one of {', '.join(allowed)}") from None

    return OptionKind(metavar or "|".join(allowed), parse, allowed[0], tuple(allowed))


def spelt(kind: OptionKind, **former: str) -> OptionKind:
    """The same kind, which also takes words of other launchers: ``default`` for ``glibc``."""

    def parse(text: str) -> Any:
        return kind.parse(former.get(text, text))

    return kind._replace(parse=parse)


def plain(value: Any) -> Any:
    """One value as TOML has it: the inverse of `OptionKind.parse`, but for numbers that stay numbers."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, float):
        return int(value) if value.is_integer() and value < MAX_INTEGER else value
    if isinstance(value, RestartLimit):
        return str(value)
    if isinstance(value, tuple):
        return format_cpu_list(value)
    return value


def _scaled(text: str, units: Mapping[str, float]) -> float | None:
    """A number times its unit; None for anything else, and for what is negative or not finite."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz").rstrip()
    unit = text[len(number) :].lstrip()
    # float() would take 1_0, and the digits of other scripts.
    if unit not in units or "_" in number or not text.isascii():
        return None
    try:
        value = float(number) * units[unit]
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _digits(text: str) -> int | None:
    """The number that `text` writes in plain digits; None for anything else or a larger one."""
    if not (text.isascii() and text.isdigit()):
        return None
    number = read_digits(text)
    return number if number <= MAX_NUMBER else None
