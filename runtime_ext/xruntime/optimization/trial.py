# SPDX-License-Identifier: Apache-2.0
"""Times two forms of a model by the program's own calls, each of which one form computes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


class Trial:
    """The forms take turns. The shortest time of each counts, since other work may delay any call.

    **Ex.:** ``Trial("modules", "code", calls=20, seconds=1.0)``

    calls, seconds
        The trial ends after so many calls of each, or when calls have taken so long and each form has a time.
    """

    def __init__(self, one: str, other: str, *, calls: int, seconds: float) -> None:
        self.names = (one, other)
        self.times: dict[str, float] = {}
        """The shortest time of each in seconds."""

        self.calls = 0
        self._max_calls = 2 * calls
        self._left_s = seconds

    @property
    def turn(self) -> str:
        """The form whose turn is next."""
        return self.names[self.calls % 2]

    @property
    def is_over(self) -> bool:
        enough = self.calls >= self._max_calls or self._left_s <= 0
        return enough and len(self.times) == 2

    def note(self, name: str, seconds: float) -> None:
        """Take the time of a call into account that was no turn."""
        self.times[name] = min(self.times.get(name, float("inf")), seconds)

    @contextlib.contextmanager
    def timed(self) -> Iterator[str]:
        """Take a turn: time the block, which calls the form of the name that it gets."""
        name, began = self.turn, time.perf_counter()
        yield name
        seconds = time.perf_counter() - began
        self.note(name, seconds)
        self.calls += 1
        self._left_s -= seconds

    @property
    def ratio(self) -> float:
        """How many times as fast the second form is."""
        one, other = self.names
        return self.times[one] / max(self.times[other], 1e-9)
