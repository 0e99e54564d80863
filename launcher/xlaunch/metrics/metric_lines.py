# SPDX-License-Identifier: Apache-2.0
"""Metrics as `--metric` names them, and their values on lines that a program prints.

sentences/s                 123.4 sentences/s    sentences/s: 123.4    {"sentences/s": 1.2e3}
loss                        step 12 loss 0.25    loss=0.25
'took ([0-9.]+) s a batch'  a regular expression, by its parenthesis; its group is the number
'step=took ([0-9.]+) s'      the same with a name
latency:total               the kind comes first: rate, latency (or time) or value
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from xlaunch.errors import UsageError

MAX_LINE = 4096
"""Number of characters of a line that are searched."""

SECONDS_PER_UNIT = {
    "ns": 1e-9, "nsec": 1e-9, "nanosecond": 1e-9, "nanoseconds": 1e-9,
    "us": 1e-6, "µs": 1e-6, "μs": 1e-6,
    "usec": 1e-6, "usecs": 1e-6, "microsecond": 1e-6, "microseconds": 1e-6,
    "ms": 1e-3, "msec": 1e-3, "msecs": 1e-3, "millisecond": 1e-3, "milliseconds": 1e-3,
    "s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0,
}  # fmt: skip
"""Units of time as programs print them, and in names of metrics. Unicode has two micro signs."""

SECONDS_AFTER_NUMBER = {
    **SECONDS_PER_UNIT,
    "m": 60.0, "min": 60.0, "mins": 60.0, "minute": 60.0, "minutes": 60.0,
    "h": 3600.0, "hr": 3600.0, "hrs": 3600.0, "hour": 3600.0, "hours": 3600.0,
}  # fmt: skip
"""Units of time after a number. In a name, ``min`` would be a minimum."""

_NUMBER = (
    r"[-+]?(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?|[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
    r"|[nN][aA][nN]|[iI][nN][fF](?:[iI][nN][iI][tT][yY])?)"
)
# A number is not the beginning of a longer one or a word: 1.2k, 12,34, 3x, 1'234, 1 234, 1:30, 29-31, 1m 30s.
_GROUPING = "'\u2019\u00a0\u2009\u202f"
_NUMBER_ENDS = rf"(?!\w|[.,:{_GROUPING}-][0-9]|\.\.[0-9])"
_SPACED = r"(?![0-9]{1,3}(?: [0-9]{3})+(?![0-9]))"
_COMPOUND = (
    r"(?!\s?d(?:ays?)?,? (?:and )?[0-9]|\s?h\w*,? (?:and )?[0-9]+\s?[ms]"
    r"|\s?m(?:in\w*)?,? (?:and )?[0-9.]+\s?s|\s?s(?:ec\w*)?,? (?:and )?[0-9.]+\s?m(?:s|illis\w*)\b(?!/)"
    r"|\s(?:thousand|million|billion))"
)
_PREFIXES = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
"""After the numbers of rates. **Ex.:** ``1.2k items/s``, ``3.1Mit/s``."""
_PREFIX = rf"(?:\s?[{''.join(_PREFIXES)}])?"
_UNIT = "|".join(sorted(SECONDS_AFTER_NUMBER, key=len, reverse=True))
_THOUSANDS_OR_NOT = re.compile(_NUMBER)
_SPREAD = rf"(?:\s?(?:±|\+/-|\+-)\s?{_NUMBER})?"
_UNIT_AFTER = re.compile(rf"{_SPREAD}\s?({_UNIT})(?!\w|/)")
_SIZED = rf"(?P<prefix>[kKMGTP]?)(?P<binary>i?)(?P<size>B|[Bb]ytes?|b|[Bb]its?)(?:(?:/|p)(?P<per>{_UNIT}))?"
_OTHER_UNIT = re.compile(
    rf"%|{_SIZED}|(?:[A-Za-z]\w*)?/(?P<rate>{_UNIT})|{'|'.join(SECONDS_PER_UNIT)}"
)
_OTHER = f"(?:{re.sub('[?]P<[a-z]+>', '?:', _OTHER_UNIT.pattern)})"
_OTHER_UNIT_AFTER = re.compile(rf"{_SPREAD}\s?({_OTHER})(?![\w/])")
_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")

_RATE = re.compile(
    r"(/|\bper[ _]|_per_)(s|secs?|seconds?|min|minutes?|h|hours?)\b"
    r"|\b(fps|qps|rps|tps|throughput)\b"
)
_TIME_WORDS = frozenset(("latency", "duration", "time", "elapsed"))


_NAMED_EXPRESSION = re.compile(r"(\w(?:[\w %/.-]*[\w%])?)=(\w.*)")
"""``NAME=REGEX``. In ``loss=([0-9.]+)`` and ``loss=\\s*([0-9.]+)`` all is the regular expression."""


class MetricKind(enum.Enum):
    """How several values of a metric are summarized."""

    RATE = "rate"
    """Work per time: instances are added up. **Ex.:** ``sentences/s``, ``fps``, ``throughput``."""
    TIME = "latency"
    """A duration: percentiles. **Ex.:** ``ms``, ``latency``, ``step_time``, ``s/it``."""
    VALUE = "value"
    """Any other number: the mean. **Ex.:** ``loss``, ``accuracy``."""


class Value(NamedTuple):
    """A number that was printed."""

    number: float
    """NaN and infinities, too: programs print them when they diverge."""
    unit: str | None
    """The unit after it, if any: of time, a size, something per time, or %; see `_unit_size`."""


class Metric(NamedTuple):
    """What to search lines for."""

    name: str
    """As given, without the kind."""
    kind: MetricKind
    patterns: tuple[re.Pattern[str], ...]
    """In order of preference. The number is the first group."""
    named: bool
    """Whether it was given as a name, not as a regular expression."""
    inverse: re.Pattern[str] | None = None
    """Where the inverse of a rate is: tqdm prints 2.5it/s, and 1.25s/it below one it/s."""

    def read(self, line: str) -> Value | None:
        """Its value on `line`; None if there is none."""
        if self.named and self.name not in line:
            match = self.inverse.search(line) if self.inverse else None
            inverse = _value(match[1], None) if match else None
            return Value(1 / inverse.number, None) if inverse and inverse.number else None
        for pattern in self.patterns:
            match = pattern.search(line)
            if match is not None:
                start, end = match.span(1)
                return _value(line[start:end], self.unit_after(line[end:])) if start >= 0 else None
        return None

    def read_report(self, line: str) -> Value | None:
        """Its value on a reported line, ``NAME VALUE``; None if there is none."""
        name, _, number = line.strip().rpartition(" ")
        if self.named and name.rstrip(" :=") == self.name:
            return _value(number, self.name if self.name in SECONDS_PER_UNIT else None)
        return self.read(line)

    def unit_after(self, rest: str) -> str | None:
        """The unit at the beginning of what follows a number, unless it is the metric's name."""
        is_time = self.kind is MetricKind.TIME
        if is_time and self.name in SECONDS_PER_UNIT:
            return self.name
        match = (_UNIT_AFTER if is_time else _OTHER_UNIT_AFTER).match(rest)
        return match[1] if match and (is_time or match[1] != self.name) else None


def parse_metrics(texts: Iterable[str]) -> tuple[Metric, ...]:
    """Parse the values of `--metric`, each once. Raises `UsageError`."""
    return tuple([parse_metric(text) for text in dict.fromkeys(texts)])


def parse_metric(text: str) -> Metric:
    """Parse a value of `--metric`. Raises `UsageError`."""
    before, colon, after = text.partition(":")
    kinds = {kind.value: kind for kind in MetricKind} | {"time": MetricKind.TIME}
    kind, name = (kinds[before], after) if colon and before in kinds else (None, text)
    if not name.strip():
        raise UsageError(f"the metric {text!r} has no name; write for example 'sentences/s'")
    if not re.search(r"(?<!\\)\(", name):
        kind = kind or kind_of(name)
        work, _, time = name.partition("/")
        inverse = _before(f"{time}/{work}", _PREFIX) if "s" in (work, time) else None
        return Metric(name, kind, tuple(_patterns(name, kind)), True, inverse)
    expression = name
    if match := _NAMED_EXPRESSION.fullmatch(name):
        name, expression = match.groups()
    try:
        pattern = re.compile(expression)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(
            f"{text!r} has a parenthesis, so it is a regular expression, and not a valid one: {error}"
        ) from None
    if not pattern.groups:
        raise UsageError(f"{text!r}: put a group around the number: ([0-9.]+)")
    if kind is None and (kind := kind_of(name)) is MetricKind.VALUE:
        kind = kind_of(expression)
    return Metric(name, kind, (pattern,), named=False)


def kind_of(name: str) -> MetricKind:
    """The kind that a name, or the text of a regular expression, implies.

    Something per time is a rate; a unit of time, or a word such as latency, makes a time.
    """
    text = re.sub(r"\\.", " ", name).lower()
    if _RATE.search(text):
        return MetricKind.RATE
    words = set(re.findall("[a-zµμ]+", text))
    return MetricKind.TIME if words & (_TIME_WORDS | SECONDS_PER_UNIT.keys()) else MetricKind.VALUE


def convert(value: Value, unit: str | None) -> float:
    """The number in `unit`; unchanged without a unit, or with one of another dimension."""
    factor = None if unit is None or value.unit is None else conversion(value.unit, unit)
    return value.number if factor is None else value.number * factor


def conversion(unit: str, to: str) -> float | None:
    """How many `to` one `unit` is; None if they measure different things. **Ex.:** GB/s, MB/s: 1000."""
    if unit == to:
        return 1.0
    (size, what), (to_size, to_what) = _unit_size(unit), _unit_size(to)
    return size / to_size if what == to_what else None


def _unit_size(unit: str) -> tuple[float, str]:
    """The size of a unit that follows a number, and what it measures.

    **Ex.:** ``ms``: 0.001, s;  ``MiB/s``: 1048576, B/s;  ``items/min``: 1/60, /s;  ``%``: 1, %.
    """
    if unit in SECONDS_AFTER_NUMBER:
        return SECONDS_AFTER_NUMBER[unit], "s"
    match = _OTHER_UNIT.fullmatch(unit)
    if match is None or unit == "%":
        return 1.0, unit
    per = match["per"] or match["rate"]
    size = 1.0 / SECONDS_AFTER_NUMBER[per] if per else 1.0
    if name := match["size"]:
        power = "KMGTP".find(match["prefix"].upper() or "?") + 1
        size *= (1024.0 if match["binary"] else 1000.0) ** power
        size /= 8.0 if name == "b" or "it" in name else 1.0
    return size, ("B" if name else "") + ("/s" if per else "")


class LineSplitter:
    """Splits a stream of bytes into lines of text; carriage returns and backspaces end a line, too."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> Iterator[str]:
        """The lines that `data` completes, without colours and line ends."""
        *lines, tail = re.split(rb"[\n\r\b]", self._pending + data)
        # Only the beginning of a long line is searched.
        self._pending = tail[: 4 * MAX_LINE]
        for line in filter(None, lines):
            text = line[: 4 * MAX_LINE].decode(errors="replace")
            if len(text) > MAX_LINE:  # a number is not to be cut
                text = re.sub(r"[0-9.,]+\Z", "", text[:MAX_LINE])
            yield _COLOURS.sub("", text) if "\x1b" in text else text

    def finish(self) -> Iterator[str]:
        """The remaining text, as a line."""
        return self.feed(b"\n")


def _patterns(name: str, kind: MetricKind) -> Iterator[re.Pattern[str]]:
    """Where the number is: after a colon first; otherwise before a unit, and after any other name."""
    # 12m is 12 minutes, or 12 millions.
    unit = _UNIT if kind is MetricKind.TIME else _OTHER
    quoted = re.escape(name)
    starts = r"(?<![\w/.-])" if re.match(r"\w", name) else ""
    prefix = _PREFIX if kind is MetricKind.RATE else ""
    shown = rf"{_NUMBER}(?:{prefix}(?!i?[Bb]))?"
    number = rf"{_SPACED}({shown}){_COMPOUND}(?:\s?(?:{unit})(?![\w])|{_NUMBER_ENDS})"
    before, behind = _before(name, prefix), re.compile(rf"{starts}{quoted}\s+{number}")
    is_unit = "/" in name or name in SECONDS_PER_UNIT or name in ("fps", "qps", "rps", "tps", "%")
    yield re.compile(rf"{starts}{quoted}[\"']?\s*[:=]\s*[\"']?{number}")
    yield from (before, behind) if is_unit else (behind, before)


def _before(name: str, prefix: str) -> re.Pattern[str]:
    """Where the number before a name is. tqdm has a space behind the slash of some."""
    ends = r"(?![\w/])" if re.search(r"\w$", name) else ""
    quoted = re.escape(name).replace("/", r"/\s?")
    return re.compile(rf"(?<![\w.,+{_GROUPING}-])(?<![0-9]:)({_NUMBER}{prefix})\s*{quoted}{ends}")


def _value(text: str, unit: str | None) -> Value | None:
    text = text.strip()
    factor = _PREFIXES.get(text[-1:], 1.0)
    if factor != 1.0:
        text = text[:-1].strip()
    if not _THOUSANDS_OR_NOT.fullmatch(text):
        return None
    return Value(factor * float(text.replace(",", "")), unit)
