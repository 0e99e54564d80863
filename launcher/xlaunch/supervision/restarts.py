# SPDX-License-Identifier: Apache-2.0
"""The restarts of instances that failed, and their delays: `--on-failure restart`."""

from __future__ import annotations

from typing import NamedTuple

from xlaunch.planning.request import MAX, Max

DEFAULT_LIMIT = 3
"""Maximum restarts of one instance without `--max-restarts`."""

FIRST_DELAY_S = 1.0
MAX_DELAY_S = 60.0
STEADY_S = 60.0
"""After a run of at least this length, the delay starts at `FIRST_DELAY_S` again."""


class Restart(NamedTuple):
    """A restart that is scheduled."""

    number: int
    """Its number among the restarts of this instance, from 1."""
    limit: int | Max
    delay_s: float

    def describe(self) -> str:
        """**Ex.:** ``restart 1 of 3 in 1 s``."""
        limit = "" if self.limit is MAX else f" of {self.limit}"
        return f"restart {self.number}{limit} in {self.delay_s:g} s"


class Restarts:
    """Counts restarts and keeps delays, by the position of each instance in the plan."""

    def __init__(self, limit: int | Max | None) -> None:
        """`limit`: maximum restarts of one instance; None: `DEFAULT_LIMIT`."""
        self._limit = DEFAULT_LIMIT if limit is None else limit
        self._counts: dict[int, int] = {}
        self._delays: dict[int, float] = {}
        self._due: dict[int, float] = {}

    @property
    def waiting(self) -> bool:
        """Whether some instance waits for its restart."""
        return bool(self._due)

    @property
    def next_at(self) -> float:
        """When the next restart is due; infinity when none is pending."""
        return min(self._due.values(), default=float("inf"))

    def count(self, position: int) -> int:
        """Restarts of an instance so far, a pending one included."""
        return self._counts.get(position, 0)

    def grant(self, position: int, *, ran_s: float, now: float) -> Restart | None:
        """Schedule the restart of an instance that failed after `ran_s`.

        None when its restarts are used up. The delay doubles from restart to restart, up to
        `MAX_DELAY_S`.
        """
        number = self.count(position) + 1
        if self._limit is not MAX and number > self._limit:
            return None
        before = self._delays.get(position)
        delay_s = FIRST_DELAY_S
        if before is not None and ran_s <= STEADY_S:
            delay_s = min(2 * before, MAX_DELAY_S)
        self._counts[position] = number
        self._delays[position] = delay_s
        self._due[position] = now + delay_s
        return Restart(number, self._limit, delay_s)

    def due(self, now: float) -> list[int]:
        """Positions whose delay is over, the earliest first."""
        return sorted((p for p, at in self._due.items() if at <= now), key=lambda p: self._due[p])

    def postpone(self, position: int, until: float) -> None:
        """Delay a pending restart further."""
        self._due[position] = until

    def take(self, position: int) -> None:
        """Note that a pending restart happens now."""
        del self._due[position]

    def cancel(self) -> list[int]:
        """Cancel pending restarts; return their positions."""
        dropped = list(self._due)
        self._due.clear()
        for position in dropped:
            self._counts[position] -= 1
        return dropped
