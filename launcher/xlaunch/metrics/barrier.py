# SPDX-License-Identifier: Apache-2.0
"""The start barrier, at which instances wait for each other."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

MAX_HOLD_S = 600.0
FIRST_INTERVAL_S = 0.02
LATER_INTERVAL_S = 0.2
"""Polling intervals, while the barrier is closed and once it is open."""
SHARE_OF_ONE_CPU = 0.0025


class Barrier:
    """The start barrier: one FIFO per instance. Call `look` at the time `due`.

    An instance reaches the barrier when it reads the file that XLAUNCH_BARRIER names to its end, which
    takes one line in any language: ``open(os.environ["XLAUNCH_BARRIER"]).read()``. Each instance has a
    FIFO of its own. Opening it for reading blocks until there is a writer, and opening it for writing
    without blocking succeeds only when there is a reader (see fifo(7)). So one attempt to open it for
    writing shows whether the instance has come, and closing that writer releases it.

    The barrier does not wait for an instance that has ended or that has printed a metric, and so is past
    its warm-up, nor longer than `MAX_HOLD_S` after the first instance has come. Once open it stays open,
    for restarted instances and second reads too.
    """

    def __init__(self, directory: str, indices: Iterable[int], now: float) -> None:
        """Make the FIFOs in `directory`. Raises OSError."""
        self.paths = {index: os.path.join(directory, f"barrier-{index}") for index in indices}
        """The values of XLAUNCH_BARRIER."""
        for path in self.paths.values():
            os.mkfifo(path, 0o600)
        self._held: dict[int, int] = {}
        self._gone: set[int] = set()
        self._first_came: float | None = None
        self.came = False
        """Whether some instance has reached the barrier."""
        self._interval = FIRST_INTERVAL_S
        self.due = now
        self.released_at: float | None = None
        """When it opened; None while it is closed."""
        self.overdue: list[int] = []
        """The instances that had not arrived when it opened after `MAX_HOLD_S`."""

    def look(self, now: float, past_first: Iterable[int], cost_s: float) -> None:
        """Look which instances have arrived, and open the barrier when all have.

        `past_first`: instances that have printed a value. `cost_s`: CPU time of the last look.
        """
        for index, path in self.paths.items():
            if index not in self._held:
                self._try_open(index, path, now)
        if self.released_at is None and self._held:
            missing = self.paths.keys() - self._held.keys() - self._gone - set(past_first)
            assert self._first_came is not None
            if not missing:
                self.release(now)
            elif now >= self._first_came + MAX_HOLD_S:
                self.overdue = sorted(missing)
                self.release(now)
        self.due = now + max(self._interval, cost_s / SHARE_OF_ONE_CPU)

    def gone(self, index: int) -> None:
        """Do not wait for an instance that has ended."""
        self._gone.add(index)
        descriptor = self._held.pop(index, None)
        if descriptor is not None:
            os.close(descriptor)

    def back(self, index: int) -> None:
        """Wait again for an instance that was restarted."""
        self._gone.discard(index)

    def release(self, now: float) -> None:
        """Open the barrier for good."""
        if self.released_at is None:
            self.released_at = now
        self._interval = LATER_INTERVAL_S
        for descriptor in self._held.values():
            os.close(descriptor)
        self._held.clear()

    def _try_open(self, index: int, path: str, now: float) -> None:
        with contextlib.suppress(OSError):  # ENXIO: there is no reader
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if self.released_at is not None:
                os.close(descriptor)
                return
            self._held[index] = descriptor
            self.came = True
            if self._first_came is None:
                self._first_came = now
