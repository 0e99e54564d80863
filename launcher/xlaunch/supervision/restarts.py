# SPDX-License-Identifier: Apache-2.0
"""The restarts of instances, and the delays of those that failed: `--on-failure restart`."""

from __future__ import annotations

import math
from typing import NamedTuple

from xlaunch.errors import UsageError
from xlaunch.planning.request import MAX, Max, RestartLimit

DEFAULT_LIMIT = RestartLimit(3)
"""Of one instance without `--max-restarts`."""

FIRST_DELAY_S = 1.0
MAX_DELAY_S = 60.0
STEADY_S = 60.0
"""After a run of at least this length, the delay starts at `FIRST_DELAY_S` again."""


class Restart(NamedTuple):
    """A restart that is scheduled."""

    number: int
    """Its number among the restarts of this instance within the window of its limit, from 1."""
    limit: int | Max
    delay_s: float

    def describe(self) -> str:
        """**Ex.:** ``restart 1 of 3 in 1 s``."""
        limit = "" if self.limit is MAX else f" of {self.limit}"
        return f"restart {self.number}{limit} in {self.delay_s:g} s"


def largest_reachable(window_s: float) -> int | Max:
    """The largest number of restarts that an instance which fails at once can use up in a window.

    A larger one never stops it: its delays spread the restarts over more than the window.
    """
    if math.isinf(window_s):
        return MAX
    restarts, at_s, delay_s = 0, 0.0, FIRST_DELAY_S
    while at_s + delay_s <= window_s and delay_s < MAX_DELAY_S:
        restarts, at_s, delay_s = restarts + 1, at_s + delay_s, min(2 * delay_s, MAX_DELAY_S)
    return restarts + max(0, int((window_s - at_s) // MAX_DELAY_S))


def check_limit(limit: RestartLimit | int | Max | None) -> None:
    """Raise `UsageError` for a limit that an instance which fails at once never reaches."""
    if limit is None or limit is MAX:
        return
    limit = RestartLimit(limit) if isinstance(limit, int) else limit
    largest = largest_reachable(limit.window_s)
    if largest is not MAX and limit.restarts > largest:
        window = limit.window()
        instead = f"{largest}/{window}" if largest else "1/1s"
        raise UsageError(
            f"{limit}: an instance that fails at once is restarted after 1 s, 2 s, 4 s and so on up to a minute, so "
            f"{largest} times in {window}, and this limit would never stop it; "
            f"write {instead} or less, or {limit.restarts}/all for its whole life"
        )


class Restarts:
    """Counts restarts and keeps delays, by the position of each instance in the plan."""

    def __init__(self, limit: RestartLimit | int | Max | None) -> None:
        """`limit`: maximum restarts of one instance; None: `DEFAULT_LIMIT`."""
        self._limit = RestartLimit(limit) if isinstance(limit, int) else limit or DEFAULT_LIMIT
        self._granted: dict[int, list[float]] = {}
        """When the restarts of each instance that count were granted."""
        self._delays: dict[int, float] = {}
        self._due: dict[int, float] = {}
        self._replaced: set[int] = set()
        """Positions in `_due` that have no delay and do not count."""

    @property
    def waiting(self) -> bool:
        """Whether some instance waits for its restart."""
        return bool(self._due)

    @property
    def all_delayed(self) -> bool:
        """Whether some wait, and each for the end of its delay."""
        return bool(self._due) and not self._replaced

    @property
    def next_at(self) -> float:
        """When the next restart is due; infinity when none is pending."""
        return min(self._due.values(), default=float("inf"))

    def count(self, position: int) -> int:
        """Restarts of an instance after failures so far, a pending one included."""
        return len(self._granted.get(position, ()))

    def grant(self, position: int, *, ran_s: float, now: float) -> Restart | None:
        """Schedule the restart of an instance that failed after `ran_s`.

        None when its restarts within the window are used up. The delay doubles from restart to
        restart, up to `MAX_DELAY_S`.
        """
        granted = self._granted.setdefault(position, [])
        limit, window_s = (MAX, math.inf) if self._limit is MAX else self._limit
        number = 1 + sum(at >= now - window_s for at in granted)
        if limit is not MAX and number > limit:
            return None
        before = self._delays.get(position)
        delay_s = FIRST_DELAY_S
        if before is not None and ran_s <= STEADY_S:
            delay_s = min(2 * before, MAX_DELAY_S)
        granted.append(now)
        self._delays[position] = delay_s
        self._due[position] = now + delay_s
        return Restart(number, limit, delay_s)

    def replace(self, position: int, now: float) -> None:
        """Schedule the start of an instance that was ended on purpose: at once, and not counted."""
        self._due[position] = now
        self._replaced.add(position)

    def due(self, now: float) -> list[int]:
        """Positions whose delay is over, the earliest first."""
        return sorted((p for p, at in self._due.items() if at <= now), key=lambda p: self._due[p])

    def is_waiting(self, position: int) -> bool:
        """Whether an instance waits for its restart."""
        return position in self._due

    def postpone(self, position: int, until: float) -> None:
        """Delay a pending restart further."""
        self._due[position] = until

    def take(self, position: int) -> None:
        """Note that a pending restart happens now."""
        del self._due[position]
        self._replaced.discard(position)

    def cancel(self) -> list[int]:
        """Cancel pending restarts; return their positions."""
        dropped = list(self._due)
        self._due.clear()
        for position in dropped:
            if position not in self._replaced:
                self._granted[position].pop()
        self._replaced.clear()
        return dropped
