# SPDX-License-Identifier: Apache-2.0
"""Values that a program announces, as scripts written for Intel's hypertune do:

>>> print("@hypertune {'name': 'latency (ms)', 'higher_is_better': False}")
>>> print(latency)

The dictionary is read from the output, not from the source: it may be made when the program runs,
and by any program. Each instance's lines are its own, and between the two lines there may be others.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from xlaunch.measurement.live import LINES_AFTER_MARK, LiveLine
from xtune.measurement.launches import Series
from xtune.measurement.objectives import Goal, Objective

MARK = "@hypertune"
"""What announces a value; before a name, the metric that is announced so."""

KEYS = ("name", "higher_is_better", "target_val")


class Announcement(NamedTuple):
    """What a program says of a value that it is about to print."""

    name: str
    higher_is_better: bool = False
    target: float | None = None
    """Good enough to stop; None: nothing is."""

    @property
    def metric(self) -> str:
        """How objectives and series name it. **Ex.:** ``@hypertune latency (ms)``."""
        return f"{MARK} {self.name}"

    @property
    def objective(self) -> Objective:
        """To search for the best of it."""
        return Objective(self.metric, Goal.MAXIMIZE if self.higher_is_better else Goal.MINIMIZE)


class Announced(NamedTuple):
    """What all instances of a launch announced."""

    announcements: tuple[Announcement, ...] = ()
    """Each name once, in the order of the first."""
    series: tuple[Series, ...] = ()
    notes: tuple[str, ...] = ()
    """Lines that announced nothing after all, and why."""


def read_announcements(lines: Iterable[LiveLine], began_s: float) -> Announced:
    """Pair announcements with the numbers after them.

    lines
        Those of xlaunch that hold `MARK`, and the lines after each, of all instances.
    began_s
        When the launch did, on their clock.
    """
    waiting: dict[tuple[int, str], Announcement] = {}
    left: dict[tuple[int, str], int] = {}
    known: dict[str, Announcement] = {}
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    notes: list[str] = []
    for line in lines:
        source = (line.instance, line.stream)
        if MARK in line.text:
            _give_up(waiting.pop(source, None), line.instance, notes)
            try:
                waiting[source] = parse_announcement(line.text)
            except ValueError as error:
                notes.append(f"instance {line.instance}: {error}")
            left[source] = LINES_AFTER_MARK
            continue
        if source not in waiting:
            continue
        left[source] -= 1
        value = _number(line.text)
        if value is not None:
            announcement = waiting.pop(source)
            known.setdefault(announcement.name, announcement)
            values = found.setdefault((announcement.metric, line.instance), [])
            values.append((line.at_s - began_s, value))
        elif left[source] == 0:
            _give_up(waiting.pop(source), line.instance, notes)
    for (instance, _), announcement in waiting.items():
        _give_up(announcement, instance, notes)
    series = [
        Series(instance, metric, tuple(at for at, _ in values), tuple(v for _, v in values))
        for (metric, instance), values in sorted(found.items())
    ]
    return Announced(tuple(known.values()), tuple(series), tuple(dict.fromkeys(notes)))


def parse_announcement(line: str) -> Announcement:
    """What a line with `MARK` says. Raises ValueError with one line that says what is wrong."""
    text = line.partition(MARK)[2].strip()
    shown = f"{MARK} {text[:80]}"
    try:
        said = _dictionary(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise ValueError(
            f"{shown!r}: write a dictionary behind {MARK}, as in {{'name': 'latency'}}"
        ) from None
    if not isinstance(said, dict) or not set(said) <= set(KEYS):
        raise ValueError(f"{shown!r}: the dictionary may have {', '.join(KEYS)}")
    name, target = said.get("name"), said.get("target_val")
    higher = said.get("higher_is_better", False)
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"{shown!r}: the dictionary needs a 'name', which is a text")
    if higher not in (True, False):
        raise ValueError(f"{shown!r}: 'higher_is_better' is True or False")
    return Announcement(name.strip(), bool(higher), _target(target, shown))


def _target(said: Any, shown: str) -> float | None:
    if said is None:
        return None
    if isinstance(said, bool) or not isinstance(said, (int, float)):
        raise ValueError(f"{shown!r}: 'target_val' is a number")  # noqa: TRY004 - of a user's text
    # Hypertune's default, -inf, means: there is none.
    return float(said) if math.isfinite(said) else None


def _dictionary(text: str) -> Any:
    # Python prints an infinity as no Python reads it.
    text = re.sub(r":\s*(-?)inf\b", r": \g<1>1e999", text)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return json.loads(text)


def _number(text: str) -> float | None:
    """The number that a line consists of; None where it is something else, or not finite."""
    text = text.strip()
    if text.startswith("tensor(") and text.endswith(")"):  # a scalar that was printed as it is
        text = text[len("tensor(") : -1].partition(",")[0]
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _give_up(announcement: Announcement | None, instance: int, notes: list[str]) -> None:
    if announcement is not None:
        notes.append(
            f"instance {instance}: no number followed on {MARK} of {announcement.name!r};"
            " print it on a line of its own"
        )
