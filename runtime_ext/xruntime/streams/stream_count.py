# SPDX-License-Identifier: Apache-2.0
"""The search for the fastest number of streams, on a module's first batches."""

from __future__ import annotations

import math

VISITS = 3
"""Batches for each number; the first one, which warms up, does not count.

This many batches in a row that are too small for the remaining numbers end the search."""


class StreamCountSearch:
    """Proposes numbers to try and records their rates, until `best` is known.

    Not thread-safe: batches measured at the same time would disturb each other.
    """

    def __init__(self, counts: tuple[int, ...]) -> None:
        self._visits = dict.fromkeys(counts, 0)
        self._rates = dict.fromkeys(counts, 0.0)
        self._too_small = 0

    def next_count(self, items: int) -> int | None:
        """Return the number of streams for a batch of `items`; None without an item for each stream."""
        open_counts = [n for n, visits in self._visits.items() if visits < VISITS and n <= items]
        self._too_small = 0 if open_counts else self._too_small + 1
        # All batches of one number in a row, while its streams are warm.
        return open_counts[0] if open_counts else None

    def record(self, count: int, items: int, seconds: float) -> None:
        """Record that a batch of `items` took `seconds` on `count` streams."""
        self._visits[count] += 1
        if self._visits[count] > 1:
            # The best batch counts: disturbances only slow one.
            self._rates[count] = max(self._rates[count], items / seconds)

    @property
    def best(self) -> int | None:
        """The number with the highest rate; None until all that batches have items for were tried."""
        unfinished = any(visits < VISITS for visits in self._visits.values())
        if (unfinished and self._too_small < VISITS) or not any(self._rates.values()):
            return None
        return max(self._rates, key=lambda count: self._rates[count])

    @property
    def measured(self) -> dict[int, float]:
        """Items per second of each number so far, in the order tried."""
        return {count: rate for count, rate in self._rates.items() if rate}


def counts_to_try(cores: int) -> tuple[int, ...]:
    """Return the numbers to try: one stream for each core, then half as many in each step, down to one.

    **Ex.:** ``counts_to_try(6) == (6, 3, 2, 1)``: only numbers that give every stream the same number
    of cores, which compiled modules need.
    """
    halves = {max(1, cores >> shift) for shift in range(math.ceil(math.log2(cores)) + 1)}
    fitting = {max(n for n in range(1, half + 1) if cores % n == 0) for half in halves}
    return tuple(sorted(fitting, reverse=True))
