# SPDX-License-Identifier: Apache-2.0
"""The start barrier: instances that are warm wait until all are, and then measure together.

An instance calls for it by reading the file that XLAUNCH_BARRIER names to its end, which takes one
line of any language: ``open(os.environ["XLAUNCH_BARRIER"]).read()``. The file is a FIFO of its own.
Opening it blocks until there is a writer, and a writer that does not block can be had only when a
reader is there (see fifo(7)): so one attempt to open it for writing tells whether the instance has
come, and its end of file, when that writer is closed, lets it go on.

Nothing waits for ever. Not waited for is an instance that has ended, or has printed a metric and so
is past its warm-up; nor anybody for more than `LONGEST_HOLD_S` after the first has come. Once open,
the barrier holds nobody any more: not an instance that was started anew, not a second call.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

LONGEST_HOLD_S = 600.0
FIRST_INTERVAL_S = 0.02
LATER_INTERVAL_S = 0.2
"""Between looks, while the barrier is closed and once it is open."""
SHARE_OF_ONE_CPU = 0.0025


class Barrier:
    """One FIFO for each instance. `due` says when the next look is wanted."""

    def __init__(self, folder: str, indices: Iterable[int], now: float) -> None:
        """Make the FIFOs in `folder`. Raises OSError."""
        self._paths = {index: os.path.join(folder, f"barrier-{index}") for index in indices}
        for path in self._paths.values():
            os.mkfifo(path, 0o600)
        self._held: dict[int, int] = {}
        self._gone: set[int] = set()
        self._first_came: float | None = None
        self.came = False
        """Somebody was, or is, held."""
        self._interval = FIRST_INTERVAL_S
        self.due = now
        self.released_at: float | None = None
        """When it opened; None while it is closed."""
        self.overdue: list[int] = []
        """Instances that were waited for in vain, when it opened because the time was over."""

    def path(self, index: int) -> str:
        """What XLAUNCH_BARRIER is for an instance."""
        return self._paths[index]

    def look(self, now: float, past_first: Iterable[int], cost_s: float) -> None:
        """See who has come, and open when nobody is missing. `cost_s`: of the last look."""
        for index, path in self._paths.items():
            if index not in self._held:
                self._knock(index, path, now)
        if self.released_at is None and self._held:
            missing = self._paths.keys() - self._held.keys() - self._gone - set(past_first)
            assert self._first_came is not None
            if not missing:
                self.release(now)
            elif now >= self._first_came + LONGEST_HOLD_S:
                self.overdue = sorted(missing)
                self.release(now)
        self.due = now + max(self._interval, cost_s / SHARE_OF_ONE_CPU)

    def gone(self, index: int) -> None:
        """An instance has ended: nobody waits for it."""
        self._gone.add(index)
        descriptor = self._held.pop(index, None)
        if descriptor is not None:
            os.close(descriptor)

    def back(self, index: int) -> None:
        """An instance that had ended was started anew."""
        self._gone.discard(index)

    def release(self, now: float) -> None:
        """Let everybody go on, now and from now on."""
        if self.released_at is None:
            self.released_at = now
        self._interval = LATER_INTERVAL_S
        for descriptor in self._held.values():
            os.close(descriptor)
        self._held.clear()

    def _knock(self, index: int, path: str, now: float) -> None:
        with contextlib.suppress(OSError):  # ENXIO: nobody reads
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if self.released_at is not None:
                os.close(descriptor)
                return
            self._held[index] = descriptor
            self.came = True
            if self._first_came is None:
                self._first_came = now
