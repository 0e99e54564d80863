# SPDX-License-Identifier: Apache-2.0
"""The hand-over of work from any thread to one worker, which waits without the interpreter's lock."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from xruntime.native import mailbox_functions, quick_library

SPIN_US: Final = 50 if len(os.sched_getaffinity(0)) > 1 else 0
"""How long who waits spins before it sleeps, in microseconds.

Waking a sleeper costs about as much on a virtual machine; where there is one CPU, who spins keeps the
other from working.
"""

GRACE_US: Final = 20
"""How long a worker that has an item waits for its submitter to let go of the interpreter's lock."""


class Mailbox:
    """Counts the items that were handed to one worker, and those it has done.

    It holds no items: a queue beside it does. Item number t, its ticket, is the t-th post, t >= 1.
    See xkernels.h, whose functions these are. Raises KernelsUnavailableError where the native library
    is absent, MemoryError when there is no room.
    """

    __slots__ = ("_close", "_destroy", "_handle", "next", "post", "wait")

    post: Callable[[], int]
    """``post()``: one item more; returns its ticket, or CLOSED."""

    next: Callable[[int], int]
    """``next(done)``: the worker says that items up to `done` are done, and waits for another.

    Returns how many were posted so far, more than `done`; CLOSED when none will be; INTERRUPTED.
    """

    wait: Callable[[int, int], int]
    """``wait(ticket, timeout_us)``: 0 when that item is done; TIMED_OUT; INTERRUPTED."""

    def __init__(self) -> None:
        kernels = quick_library()
        self._handle = kernels.xk_mailbox_create(SPIN_US, GRACE_US)
        if not self._handle:
            raise MemoryError("there is no memory for a mailbox")
        self.post, self.next, self.wait = mailbox_functions(self._handle)
        self._close = kernels.xk_mailbox_close
        self._destroy = kernels.xk_mailbox_destroy

    def close(self) -> None:
        """Take no more posts; the worker still gets those that were made."""
        self._close(self._handle)

    def __del__(self) -> None:
        # Whoever waits on a mailbox holds a reference to it, so nobody does.
        handle = getattr(self, "_handle", None)
        if handle:
            self._destroy(handle)
