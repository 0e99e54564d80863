# SPDX-License-Identifier: Apache-2.0
"""Which instances are to be started anew, and when: `--on-failure restart`."""

from __future__ import annotations

from typing import NamedTuple

from xlaunch.planning.request import MAX, Max

DEFAULT_MOST = 3
"""Restarts of one instance where `--max-restarts` is not given."""

FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 60.0
STEADY_S = 60.0
"""A run longer than this was not broken from the start: the next wait is the first one again."""


class Restart(NamedTuple):
    """A restart that was granted."""

    number: int
    """Of this instance, from 1."""
    delay_s: float


class Restarts:
    """Counts restarts and waits, for each instance by its position in the plan."""

    def __init__(self, most: int | Max | None) -> None:
        """`most`: restarts of one instance; None: `DEFAULT_MOST`."""
        self.most = DEFAULT_MOST if most is None else most
        self._counts: dict[int, int] = {}
        self._delays: dict[int, float] = {}
        self._due: dict[int, float] = {}

    @property
    def waiting(self) -> bool:
        """Whether some instance waits to be started anew."""
        return bool(self._due)

    @property
    def next_at(self) -> float:
        """When the next one is due; infinity when none waits."""
        return min(self._due.values(), default=float("inf"))

    def count(self, position: int) -> int:
        """Restarts of an instance so far, with one that it waits for."""
        return self._counts.get(position, 0)

    def grant(self, position: int, *, ran_s: float, now: float) -> Restart | None:
        """Let an instance that failed after `ran_s` wait for its restart; None: it has had its last.

        The wait doubles from restart to restart, up to `LONGEST_DELAY_S`.
        """
        number = self.count(position) + 1
        if self.most is not MAX and number > self.most:
            return None
        before = self._delays.get(position)
        delay_s = FIRST_DELAY_S
        if before is not None and ran_s <= STEADY_S:
            delay_s = min(2 * before, LONGEST_DELAY_S)
        self._counts[position] = number
        self._delays[position] = delay_s
        self._due[position] = now + delay_s
        return Restart(number, delay_s)

    def due(self, now: float) -> list[int]:
        """Those whose wait is over, in the order in which it ended."""
        return sorted((p for p, at in self._due.items() if at <= now), key=lambda p: self._due[p])

    def postpone(self, position: int, until: float) -> None:
        """Let one wait longer."""
        self._due[position] = until

    def take(self, position: int) -> None:
        """One is being started: it waits no more."""
        del self._due[position]

    def cancel(self) -> list[int]:
        """Nobody waits any more; those who did."""
        dropped = list(self._due)
        self._due.clear()
        for position in dropped:
            self._counts[position] -= 1
        return dropped
