# SPDX-License-Identifier: Apache-2.0
"""Counts with their nouns, lists of numbers, columns of text, and likely words, for every message and table of the
launcher; and the prefix of an instance's variables.

Lists of CPUs and nodes have the format of the kernel, taskset and numactl: ``0-3,8,16-30:2``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Sequence

from xlaunch.errors import UsageError

INSTANCE_PREFIX = "XLAUNCH_INSTANCE_"
"""The beginning of variables that tell an instance its place. A nested launcher sets its own."""


def counted(number: int, noun: str) -> str:
    """**Ex.:** ``1 instance``, ``4 instances``."""
    return f"{number} {plural(number, noun)}"


def plural(number: int, noun: str) -> str:
    """The noun alone, with an s unless the number is 1."""
    return noun if number == 1 else f"{noun}s"


def cited(fact: str, source: str | None) -> str:
    """The fact with its source, if that is known. **Ex.:** ``3.5 (cgroup v2 /sys/fs/cgroup/job)``."""
    return f"{fact} ({source})" if source else fact


def did_you_mean(word: str, words: Collection[str], *, count: int = 3, form: str = "{}") -> str:
    """The end of a message about an unknown word: the nearest known words, each in `form`.

    They are at most two typing mistakes away, one for words of fewer than six letters, or begin
    with the word. Empty if none does. **Ex.:** ``; did you mean cache or caches?``
    """
    letters = len(word.lstrip("-"))
    limit = 2 if letters >= 6 else 1
    distances = {
        name: 0 if letters >= 3 and name.startswith(f"{word}-") else mistakes(word, name)
        for name in words
    }
    near = [name for name in sorted(words, key=distances.__getitem__) if distances[name] <= limit]
    shown = [form.format(name) for name in near[:count]]
    return f"; did you mean {' or '.join(shown)}?" if shown else ""


def mistakes(word: str, other: str) -> int:
    """The fewest letters to insert, drop, replace or swap with the next that turn one word into the other."""
    if abs(len(word) - len(other)) > 2:
        return 3  # further away than any caller looks
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(word, 1):
        earlier, before, row = before, row, [i]
        for j, b in enumerate(other, 1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (a != b)))
            if i > 1 and j > 1 and (a, b) == (other[j - 2], word[i - 2]):
                row[j] = min(row[j], earlier[j - 2] + 1)
    return row[-1]


def printable(text: str) -> str:
    """The text with a question mark for each character that cannot be printed."""
    return text if text.isprintable() else "".join([c if c.isprintable() else "?" for c in text])


def passable(text: str) -> str:
    """The text, if it can be a path, an argument or a variable of a program. Raises `UsageError`."""
    try:
        whole = b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        raise UsageError(f"{text!r} cannot be written in this system's encoding") from None
    if not whole:
        raise UsageError(f"{text!r} holds a null character")
    return text


def check_passable(value: object) -> None:
    """Raise `UsageError` for text in a value, or in a tuple, that is not `passable`."""
    if isinstance(value, str):
        passable(value)
    elif isinstance(value, tuple) and not isinstance(next(iter(value), 0), int):
        for item in value:  # lists of CPUs may name a million
            check_passable(item)


def size(size_bytes: int) -> str:
    """**Ex.:** ``512 B``, ``1.5 MiB``, ``20 GiB``."""
    value, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"


def align(rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> list[str]:
    """The rows as lines, each column as wide as its widest cell; those in `right` to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def fit(
    rows: Sequence[Sequence[str]],
    *,
    width: int | None,
    right: Collection[str] = (),
    optional: Sequence[str] = (),
) -> list[str]:
    """As `align`, within `width` characters, of any width if that is None.

    The first row has the headings. While it is wider, the columns with the headings in `optional` are left out one after the other.
    If that is not enough, each row becomes a block of lines, one for each cell. `right`: headings.
    """
    names = list(rows[0])
    for left_out in range(len(optional) + 1):
        kept = [i for i, name in enumerate(names) if name not in optional[:left_out]]
        shown = [[row[i] for i in kept] for row in rows]
        lines = align(shown, right=[i for i, name in enumerate(shown[0]) if name in right])
        if width is None or max(map(len, lines)) <= width:
            return lines
    lines = []
    for first, *others in rows[1:]:
        lines.append(f"{names[0]} {first}")
        lines += [f"  {line}" for line in align(list(zip(names[1:], others, strict=True)))]
    return lines


def folded(line: str, width: int | None) -> list[str]:
    """A line broken at spaces to fit `width`; later pieces are indented by two more. None: as it is."""
    if width is None or len(line) <= width:
        return [line]
    import textwrap  # only commands that show something need it

    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(
        line, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )


def number(value: float, digits: int = 4) -> str:
    """A number to some significant digits. **Ex.:** ``0.0123``, ``12.34``, ``126,800``."""
    if not math.isfinite(value):
        return f"{'-' * (value < 0)}\N{INFINITY}" if math.isinf(value) else "not a number"
    if not (value == 0 or 1e-4 <= abs(value) < 1e12):
        return f"{value:.{digits}g}"
    rounded = float(f"{value:.{digits}g}")
    places = max(0, digits - 1 - math.floor(math.log10(abs(rounded)))) if rounded else 0
    text = f"{rounded:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


MAX_NUMBER = 1 << 20
"""No kernel has CPU or node numbers this large; a larger number is a typing error."""


def parse_cpu_list(
    text: str, *, what: str = "CPU list", below: int = MAX_NUMBER
) -> tuple[int, ...]:
    """The numbers that `text` names, ascending, each once. An empty text names none.

    Ranges may have a stride. **Ex.:** ``"0-2,8-14:3"`` is ``(0, 1, 2, 8, 11, 14)``. Numbers must be
    less than `below`. No more than `MAX_NUMBER` are listed before repeated ones are dropped.
    Raises `UsageError`, which begins with `what`, for anything else.
    """
    numbers: set[int] = set()
    listed = 0
    text = text.strip()
    if not text:
        return ()
    beginning = f"{what}: " if what else ""
    for part in text.split(","):
        interval, _, stride = part.strip().partition(":")
        first, dash, last = interval.partition("-")
        bounds = [first, last] if dash else [first]
        if stride or part.endswith(":"):
            bounds.append(stride)
        if not all(bound.isascii() and bound.isdigit() for bound in bounds):
            raise UsageError(
                f"{beginning}cannot read {_quoted(part, text)}; "
                "write numbers and ranges such as 0-3,8 or 0-30:2"
            )
        low = read_digits(first)
        high = read_digits(last) if dash else low
        step = read_digits(stride) if stride else 1
        if high < low or step == 0 or high >= below:
            reason = f"is too large: at most {below - 1}"
            if high < low:
                reason = "runs backwards"
            elif step == 0:
                reason = "has a stride of 0"
            raise UsageError(f"{beginning}{_quoted(part, text)} {reason}")
        interval_numbers = range(low, high + 1, step)
        listed += len(interval_numbers)
        if listed > MAX_NUMBER:
            raise UsageError(f"{beginning}names more than {MAX_NUMBER} numbers; list each once")
        numbers.update(interval_numbers)
    return tuple(sorted(numbers))


def _quoted(part: str, text: str) -> str:
    """A part of a list, and the list where it has more. **Ex.:** ``'a' in '1,a'``."""
    return repr(part) if part == text else f"{part!r} in {text!r}"


def read_digits(digits: str) -> int:
    """The number in `digits`, at most `MAX_NUMBER` + 1: Python refuses to convert thousands of digits."""
    digits = digits.lstrip("0") or "0"
    longest = len(str(MAX_NUMBER))
    return min(int(digits), MAX_NUMBER + 1) if len(digits) <= longest else MAX_NUMBER + 1


def format_cpu_list(cpus: Iterable[int]) -> str:
    """The shortest list of numbers and ranges. **Ex.:** ``(0, 1, 2, 8)`` is ``"0-2,8"``."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join([f"{low}" if low == high else f"{low}-{high}" for low, high in ranges])


def name_numbers(noun: str, numbers: Iterable[int]) -> str:
    """The noun with its list. **Ex.:** ``CPU 2``, ``CPUs 0-3``, ``CPU -`` for an empty list."""
    distinct = set(numbers)
    return f"{noun}{'s' if len(distinct) > 1 else ''} {format_cpu_list(distinct) or '-'}"
