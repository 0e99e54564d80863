# SPDX-License-Identifier: Apache-2.0
"""The budget of a search, and the part of it that is reserved for the final."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from xtune.errors import BudgetError
from xtune.evidence.verdicts import MIN_PAIRS

UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}

SHARE_OF_FINAL = 1 / 3
"""Maximum share of all launches that the final may have."""

MIN_LAUNCHES = 2
"""The bare command and one configuration."""

MIN_SEARCHED = 5
"""Minimum launches before a final: with fewer, what it compares is seldom worth it."""

MIN_BLOCKS = {3: 10, 2: 7, 1: MIN_PAIRS}
"""Minimum blocks for each number of finalists. A few blocks cannot separate finalists that the search
could not; then one finalist and more search launches are better."""

MAX_BLOCKS = 12

MAX_BLOCKS_OF_REST = 60
"""The same if nothing else is left to launch."""

_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([smh])(?![a-z])")
_LAUNCHES = re.compile(r"(\d+)\s*(?:launch(?:es)?)?")


class Budget(NamedTuple):
    """The limits of a search; the first one reached ends it. **Ex.:** ``10m``, ``40 launches``."""

    launches: int | None = None
    time_s: float | None = None

    def __str__(self) -> str:
        parts = [] if self.launches is None else [f"{self.launches} launches"]
        parts += [] if self.time_s is None else [_duration(self.time_s)]
        return ", ".join(parts)

    def left(self, launches: int, time_s: float, launch_s: float | None) -> float:
        """The launches left after `launches` launches and `time_s` seconds. `launch_s`: of one, if known."""
        launches_left = math.inf if self.launches is None else float(self.launches - launches)
        if self.time_s is not None:
            rest_s = self.time_s - time_s
            if rest_s <= 0.0:
                return 0.0
            launches_left = min(launches_left, rest_s / launch_s) if launch_s else launches_left
        return max(launches_left, 0.0)


def parse_budget(text: str) -> Budget:
    """Parse ``90s``, ``10m``, ``1h30m``, ``40 launches``, ``40``, or two of them.

    Raises BudgetError for anything else, and for fewer than two launches.
    """
    launches: int | None = None
    time_s: float | None = None
    for part in re.split(r"\s*,\s*|\s+or\s+", text.strip()):
        if match := _LAUNCHES.fullmatch(part):
            launches = int(match[1]) if launches is None else min(launches, int(match[1]))
        elif part and not _PART.sub("", part).strip():
            seconds = sum(float(count) * UNITS_S[unit] for count, unit in _PART.findall(part))
            time_s = seconds if time_s is None else min(time_s, seconds)
        else:
            raise BudgetError(
                f"--budget {text!r} cannot be read; write a time (90s, 10m, 1h30m), a number of"
                " launches (40 launches), or both with a comma between them"
            )
    if launches is not None and launches < MIN_LAUNCHES:
        raise BudgetError(
            f"--budget {text!r}: a search needs at least {MIN_LAUNCHES} launches, one of the bare"
            " command and another; try 40"
        )
    if time_s is not None and time_s <= 0.0:
        raise BudgetError(f"--budget {text!r}: the time must be above 0; try 10m")
    return Budget(launches, time_s)


class FinalSize(NamedTuple):
    finalists: int
    blocks: int

    @property
    def launches(self) -> int:
        """Maximum number of launches: finalists may drop out, and a final may end early."""
        return (self.finalists + 1) * self.blocks

    def with_rest(self, left: float) -> FinalSize:
        """The same with as many blocks as fit into `left` launches."""
        fitting = math.floor(min(left, 1e6)) // (self.finalists + 1)
        return self._replace(blocks=max(self.blocks, min(fitting, MAX_BLOCKS_OF_REST)))

    def with_blocks(self, limit: int) -> FinalSize:
        """The same with at most `limit` blocks, but enough for the first look."""
        return self._replace(blocks=max(min(self.blocks, limit), MIN_PAIRS))


MIN_FINAL = FinalSize(1, MIN_PAIRS)
"""One finalist, and enough pairs for a first look."""

MIN_WITH_FINAL = MIN_SEARCHED + MIN_FINAL.launches


def final_size(total: float, earlier: int = 0) -> FinalSize | None:
    """The final for a search of `total` launches; None if there are too few.

    The smallest one may exceed its share: a search without a final proves nothing.

    `earlier`: launches of earlier searches without a final: they count as this search's.
    """
    if total < min_launches_for_final(earlier):
        return None
    share = max((total + earlier) * SHARE_OF_FINAL, MIN_FINAL.launches)
    room = math.floor(min(share, total, 1e6))
    for finalists, minimum in MIN_BLOCKS.items():
        blocks = min(room // (finalists + 1), MAX_BLOCKS)
        if blocks >= minimum:
            return FinalSize(finalists, blocks)
    raise AssertionError("there is room for MIN_FINAL")


def min_launches_for_final(earlier: int) -> int:
    """Minimum launches for a final, after `earlier` launches of earlier searches."""
    return max(MIN_FINAL.launches, MIN_WITH_FINAL - earlier)


def _duration(time_s: float) -> str:
    hours, seconds_left = divmod(round(time_s), 3600)
    minutes, seconds = divmod(seconds_left, 60)
    parts = (hours, "h"), (minutes, "m"), (seconds, "s")
    return "".join([f"{count}{unit}" for count, unit in parts if count]) or f"{time_s:g}s"
