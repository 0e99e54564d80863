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
"""Maximum share of all launches. With 20 launches, a final would leave only a dozen for the search."""

MIN_WITH_FINAL = round(2 * MIN_PAIRS / SHARE_OF_FINAL)
"""Launches of a search that can have a final: one finalist, and pairs enough for a first look."""

MIN_BLOCKS = {3: 10, 2: 7, 1: MIN_PAIRS}
"""So many finalists only where there are so many blocks. Few blocks cannot tell finalists apart that
the search could not; then one finalist and more of the search find more."""

MAX_BLOCKS = 12

MAX_BLOCKS_OF_REST = 60
"""Where nothing else is left to launch, a final may use what the search did not need."""

MIN_LAUNCHES = 2
"""The bare command and something else."""

_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([smh])(?![a-z])")
_LAUNCHES = re.compile(r"(\d+)\s*(?:launch(?:es)?)?")


class Budget(NamedTuple):
    """What a search may cost; whichever limit is reached first ends it. **Ex.:** ``10m``, ``40 launches``."""

    launches: int | None = None
    time_s: float | None = None

    def __str__(self) -> str:
        parts = [] if self.launches is None else [f"{self.launches} launches"]
        return ", ".join([*parts, *([] if self.time_s is None else [_duration(self.time_s)])])

    def left(self, launches: int, time_s: float, launch_s: float | None) -> float:
        """Launches that are left after so many launches and so much time.

        launch_s
            What a launch takes, as far as that is known.
        """
        left = math.inf if self.launches is None else float(self.launches - launches)
        if self.time_s is not None:
            rest_s = self.time_s - time_s
            if rest_s <= 0.0:
                return 0.0
            left = min(left, rest_s / launch_s) if launch_s else left
        return max(left, 0.0)


def parse_budget(text: str) -> Budget:
    """A budget as it is written: ``90s``, ``10m``, ``1h30m``, ``40 launches``, ``40``, or two of them.

    Raises BudgetError for anything else, and for less than two launches.
    """
    launches: int | None = None
    time_s: float | None = None
    for part in re.split(r"\s*,\s*|\s+or\s+", text.strip()):
        if found := _LAUNCHES.fullmatch(part):
            launches = int(found[1]) if launches is None else min(launches, int(found[1]))
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
            f"--budget {text!r}: at least {MIN_LAUNCHES} launches are needed, the bare command's"
            " and another; 40 are a good start"
        )
    if time_s is not None and time_s <= 0.0:
        raise BudgetError(f"--budget {text!r}: no time at all; 10m is a good start")
    return Budget(launches, time_s)


class FinalSize(NamedTuple):
    """How large a paired final is."""

    finalists: int
    blocks: int

    @property
    def launches(self) -> int:
        """If nobody drops out, nor is it over early."""
        return (self.finalists + 1) * self.blocks

    def with_rest(self, left: float) -> FinalSize:
        """The same, with as many blocks as fit into so many launches."""
        fitting = math.floor(min(left, 1e6)) // (self.finalists + 1)
        return self._replace(blocks=max(self.blocks, min(fitting, MAX_BLOCKS_OF_REST)))

    def with_blocks(self, most: int) -> FinalSize:
        """The same, with at most so many blocks, but no fewer than the first look needs."""
        return self._replace(blocks=max(min(self.blocks, most), MIN_PAIRS))


MIN_FINAL = FinalSize(1, MIN_PAIRS)


def final_size(total: float, earlier: int = 0) -> FinalSize | None:
    """The final of a search of so many launches; None where there are too few for one.

    earlier
        Launches of earlier searches that no final has followed: they count as this one's.
    """
    room = math.floor(min((total + earlier) * SHARE_OF_FINAL, total, 1e6))
    for finalists, fewest in MIN_BLOCKS.items():
        blocks = min(room // (finalists + 1), MAX_BLOCKS)
        if blocks >= fewest:
            return FinalSize(finalists, blocks)
    return None


def fewest_with_final(earlier: int) -> int:
    """Launches of a search that can have a final, after so many of earlier ones."""
    return max(MIN_FINAL.launches, MIN_WITH_FINAL - earlier)


def _duration(time_s: float) -> str:
    hours, rest = divmod(round(time_s), 3600)
    minutes, seconds = divmod(rest, 60)
    parts = [
        f"{hours}h" * bool(hours),
        f"{minutes}m" * bool(minutes),
        f"{seconds}s" * bool(seconds),
    ]
    return "".join(parts) or f"{time_s:g}s"
