# SPDX-License-Identifier: Apache-2.0
"""The highest load that a running service takes within the requirements: ``--load c=1..512``.

Loads are doubled or halved from the first one until one holds and another does not. Then the one in the middle,
by ratio, is tried, until the highest that holds is known to a twentieth.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import NamedTuple

from xlaunch.errors import UsageError
from xtune.launches.launch import Outcome
from xtune.launches.services import Load
from xtune.space.user_parameters import LAUNCHER_WORDS

LOAD = "load"
"""Before the name, that of the metric with the highest load. **Ex.:** ``load c``."""

TOLERANCE = 0.05
"""Relative distance of the highest load that holds from one that does not."""

_FORM = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=([0-9]{1,9})\.\.([0-9]{1,9})")


class LoadRange(NamedTuple):
    """The loads that may be tried."""

    name: str
    """In braces in the generator's command. **Ex.:** ``c``, ``rate``."""
    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.name}={self.low}..{self.high}"

    def fill(self, measure: str, level: int) -> str:
        """The generator's command with a load. **Ex.:** ``wrk -c{c}``, ``wrk -c{c/count}``."""
        place = re.compile(rf"\{{{self.name}(/count)?\}}")
        text = place.sub(lambda match: f"{{{level}{match[1] or ''}}}", measure)
        return text.replace(f"{{{level}}}", str(level))

    @property
    def middle(self) -> int:
        """Where to begin without a hint."""
        return max(self.low, round(math.sqrt(self.low * self.high)))


def parse_load(text: str, measure: str) -> LoadRange:
    """Parse --load for a generator's command. Raises `UsageError`."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--load {text!r}: write NAME=LOW..HIGH in whole numbers, as in c=1..512")
    loads = LoadRange(match[1], int(match[2]), int(match[3]))
    if not 1 <= loads.low < loads.high:
        raise UsageError(f"--load {text!r}: write the lower end first, from 1 on")
    if loads.name in (*LAUNCHER_WORDS, "port"):
        raise UsageError(
            f"--load {text!r}: {loads.name!r} means something else; choose another name"
        )
    if loads.fill(measure, 1) == measure:
        raise UsageError(
            f"--load {text!r}: write {{{loads.name}}} in --measure where the load goes, as in wrk -c{{{loads.name}}}"
        )
    return loads


def highest(holds: Callable[[int], bool], loads: LoadRange, start: int | None) -> int | None:
    """The highest load that holds, to `TOLERANCE`; None if the lowest does not.

    `start`: tried first. None: the middle.
    """
    level = min(max(start or loads.middle, loads.low), loads.high)
    good, bad = loads.low - 1, loads.high + 1  # `bad`: the lowest that is known not to hold
    while good < level < bad:
        if holds(level):
            good, level = level, min(2 * level, loads.high)
        else:
            bad, level = level, max(level // 2, loads.low)
        if good >= loads.low and bad <= loads.high:
            break
    while good >= loads.low and bad <= loads.high and bad - good > max(1.0, TOLERANCE * good):
        level = min(max(round(math.sqrt(good * bad)), good + 1), bad - 1)
        if holds(level):
            good = level
        else:
            bad = level
    return good if good >= loads.low else None


class _EndedError(Exception):
    """The service ended, or the time of the launch is over."""


def load_at_limit(
    generate: Callable[[int], Load],
    judge: Callable[[Load], tuple[bool, str]],
    loads: LoadRange,
    *,
    start: int | None,
    tell: Callable[[str], None],
) -> Load:
    """The load at the highest level that holds; at the lowest, if none does.

    If the generator is at its limit before the service is, that is the result.

    generate
        Puts the service under a load.
    judge
        Whether a load is within the requirements, and what was measured.
    tell
        Is told each load that was tried.
    """
    tried: dict[int, tuple[bool, Load]] = {}

    def holds(level: int) -> bool:
        load = generate(level)
        is_met, measured = judge(load)
        tried[level] = is_met, load
        tell(f"{loads.name}={level}: {measured}: {'holds' if is_met else 'too much'}")
        if load.service_ended or load.outcome is Outcome.TIMED_OUT:
            raise _EndedError
        return is_met

    try:
        level = highest(holds, loads, start)
    except _EndedError:
        return tried[next(reversed(tried))][1]
    above = [
        load for at, (is_good, load) in sorted(tried.items()) if not is_good and at > (level or 0)
    ]
    if level is not None and above and above[0].outcome is Outcome.SATURATED:
        return above[0]
    level = level or loads.low
    return tried[level][1]._replace(level=(loads.name, level))
