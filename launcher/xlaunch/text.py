# SPDX-License-Identifier: Apache-2.0
"""Counts with their nouns, columns of text, and likely words, for every message and table of the launcher;
and the prefix of an instance's variables.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Sequence

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
    """A line broken at spaces to fit `width` columns; later pieces are indented by two more.

    None: the line as it is.
    """
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
