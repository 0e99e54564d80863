# SPDX-License-Identifier: Apache-2.0
"""Values that a program announces, as scripts written for Intel's hypertune do:

>>> print("@hypertune {'name': 'latency (ms)', 'higher_is_better': False}")
>>> print(latency)

The dictionary is read from the output, not from the source, so any program may print it at run time.
Each instance announces its own values. Other lines may come between the two.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from xlaunch.metrics.live import LINES_AFTER_MARK, LiveLine
from xtune.launches.launch import Goal, Objective, Series

MARK = "@hypertune"
"""Marks a line that announces a value. Before a name: the metric announced under that name."""

KEYS = ("name", "higher_is_better", "target_val")
"""Keys of an announcement. The last one, at which hypertune stopped, is not used."""


class Announcement(NamedTuple):
    """A program's description of the value that it prints next."""

    name: str
    higher_is_better: bool = False

    @property
    def metric(self) -> str:
        """Its name in objectives and series. **Ex.:** ``@hypertune latency (ms)``."""
        return f"{MARK} {self.name}"

    @property
    def objective(self) -> Objective:
        """The objective of finding its best value."""
        return Objective(self.metric, Goal.MAXIMIZE if self.higher_is_better else Goal.MINIMIZE)


class LaunchAnnouncements(NamedTuple):
    announcements: tuple[Announcement, ...] = ()
    """Each name once, in order of first appearance."""
    series: tuple[Series, ...] = ()
    notes: tuple[str, ...] = ()
    """Lines without a value or with an error, and the reason."""
    not_finite: str = ""
    """The first line with an announced value that is NaN or infinite; it is left out."""


def read_announcements(lines: Iterable[LiveLine], began_s: float) -> LaunchAnnouncements:
    """Pair announcements with the numbers after them.

    lines
        Those of all instances that hold `MARK`, and the lines after each.
    began_s
        The start of the launch, on the clock of the lines.
    """
    waiting: dict[tuple[int, str], Announcement] = {}
    lines_left: dict[tuple[int, str], int] = {}
    announced: dict[str, Announcement] = {}
    timed_values: dict[tuple[str, int], list[tuple[float, float]]] = {}
    notes: list[str] = []
    not_finite = ""
    for line in lines:
        source = (line.instance, line.stream)
        if MARK in line.text:
            _give_up(waiting.pop(source, None), line.instance, notes)
            try:
                waiting[source] = parse_announcement(line.text)
            except ValueError as error:
                notes.append(f"instance {line.instance}: {error}")
            lines_left[source] = LINES_AFTER_MARK
            continue
        if source not in waiting:
            continue
        lines_left[source] -= 1
        value = _number(line.text)
        if value is not None and not math.isfinite(value):
            waiting.pop(source)
            not_finite = not_finite or line.text.strip()
        elif value is not None:
            announcement = waiting.pop(source)
            announced.setdefault(announcement.name, announcement)
            values = timed_values.setdefault((announcement.metric, line.instance), [])
            values.append((line.at_s - began_s, value))
        elif lines_left[source] == 0:
            _give_up(waiting.pop(source), line.instance, notes)
    for (instance, _), announcement in waiting.items():
        _give_up(announcement, instance, notes)
    series = [
        Series(instance, metric, tuple(at for at, _ in values), tuple(v for _, v in values))
        for (metric, instance), values in sorted(timed_values.items())
    ]
    return LaunchAnnouncements(
        tuple(announced.values()), tuple(series), tuple(dict.fromkeys(notes)), not_finite
    )


def parse_announcement(line: str) -> Announcement:
    """Parse a line with `MARK`. Raises ValueError with a one-line message."""
    text = line.partition(MARK)[2].strip()
    shown = f"{MARK} {text[:80]}"
    try:
        said = _dictionary(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise ValueError(
            f"{shown!r}: write a dictionary after {MARK}, as in {{'name': 'latency'}}"
        ) from None
    if not isinstance(said, dict) or not set(said) <= set(KEYS):
        raise ValueError(f"{shown!r}: the dictionary may have {', '.join(KEYS)}")
    name = said.get("name")
    higher = said.get("higher_is_better", False)
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"{shown!r}: the dictionary needs a 'name', which is text")
    if higher not in (True, False):
        raise ValueError(f"{shown!r}: 'higher_is_better' is True or False")
    return Announcement(name.strip(), bool(higher))


def _dictionary(text: str) -> Any:
    # Python prints inf, but ast.literal_eval does not read it.
    text = re.sub(r":\s*(-?)inf\b", r": \g<1>1e999", text)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return json.loads(text)


def _number(text: str) -> float | None:
    """The number that is the whole line; None for anything else."""
    text = text.strip()
    if text.startswith("tensor(") and text.endswith(")"):  # a printed scalar tensor
        text = text[len("tensor(") : -1].partition(",")[0]
    try:
        return float(text)
    except ValueError:
        return None


def _give_up(announcement: Announcement | None, instance: int, notes: list[str]) -> None:
    if announcement is not None:
        notes.append(
            f"instance {instance}: no number followed {MARK} of {announcement.name!r};"
            " print it on a line of its own"
        )
