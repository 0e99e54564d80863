# SPDX-License-Identifier: Apache-2.0
"""How many streams serve a module best, found on the first batches that it is given."""

from __future__ import annotations

import math
from typing import NamedTuple

VISITS = 3
"""Batches that each count is given; the first of them, which warms up, does not count.

So many batches in a row that are too small for what is left to try end the search."""


class Measured(NamedTuple):
    """What a count of streams achieved."""

    streams: int
    items_per_s: float
    """The best of its batches that count: what disturbs a batch only slows it."""


class StreamCountSearch:
    """Hands out counts to try and takes what they achieved; then `best` is known.

    Not thread-safe: one batch at a time is measured, or they would disturb each other.
    """

    def __init__(self, counts: tuple[int, ...]) -> None:
        self._visits = dict.fromkeys(counts, 0)
        self._rates = dict.fromkeys(counts, 0.0)
        self._too_small = 0

    def next_count(self, items: int) -> int | None:
        """The count that a batch of `items` shall be run on; None where it is too small to tell.

        A count is tried only on batches that have an item for each of its streams.
        """
        open_counts = [n for n, visits in self._visits.items() if visits < VISITS and n <= items]
        self._too_small = 0 if open_counts else self._too_small + 1
        # All batches of one count in a row: its streams are warm then.
        return open_counts[0] if open_counts else None

    def record(self, count: int, items: int, seconds: float) -> None:
        """A batch of `items` took `seconds` on `count` streams."""
        self._visits[count] += 1
        if self._visits[count] > 1:
            self._rates[count] = max(self._rates[count], items / seconds)

    @property
    def best(self) -> int | None:
        """The count with the highest rate; None until all were tried that batches have items for."""
        unfinished = any(visits < VISITS for visits in self._visits.values())
        if (unfinished and self._too_small < VISITS) or not any(self._rates.values()):
            return None
        return max(self._rates, key=lambda count: self._rates[count])

    @property
    def measured(self) -> tuple[Measured, ...]:
        """What was seen so far, in the order tried."""
        return tuple(Measured(n, rate) for n, rate in self._rates.items() if rate)


def counts_to_try(cores: int) -> tuple[int, ...]:
    """One stream a core, then half as many at each step, to one stream on all cores.

    **Ex.:** ``counts_to_try(6) == (6, 3, 2, 1)``: only counts that give every stream the same number
    of cores, which is what compiled modules need.
    """
    halves = {max(1, cores >> shift) for shift in range(math.ceil(math.log2(cores)) + 1)}
    fitting = {max(n for n in range(1, half + 1) if cores % n == 0) for half in halves}
    return tuple(sorted(fitting, reverse=True))
