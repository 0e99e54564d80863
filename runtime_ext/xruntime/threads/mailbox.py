# SPDX-License-Identifier: Apache-2.0
"""A counter of work items, by which submitters wake one worker and wait for it without the GIL."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from xruntime.native import mailbox_functions, quick_library

SPIN_US: Final = 50 if len(os.sched_getaffinity(0)) > 1 else 0
"""How long a waiting thread spins before it sleeps, in microseconds.

Waking a sleeping thread takes about as long on a virtual machine. On a single CPU spinning would only
keep the other thread from working.
"""

GRACE_US: Final = 20
"""How long a worker with an item waits for its submitter to release the GIL, in microseconds."""


class Mailbox:
    """Counts the items that were posted to one worker, and those that are done.

    The items themselves are in a separate queue. The ticket of an item is its number, from 1.
    xkernels.h documents the functions. Raises KernelsUnavailableError without the native library,
    MemoryError without memory.
    """

    __slots__ = ("_close", "_destroy", "_handle", "next", "post", "wait")

    post: Callable[[], int]
    """``post()``: add an item; returns its ticket, or CLOSED."""

    next: Callable[[int], int]
    """``next(done)``: the worker reports that items up to `done` are done, and waits for another.

    Returns the number of items posted so far, CLOSED if there will be no more, or INTERRUPTED.
    """

    wait: Callable[[int, int], int]
    """``wait(ticket, timeout_us)``: returns 0 if the item is done, TIMED_OUT or INTERRUPTED."""

    def __init__(self) -> None:
        kernels = quick_library()
        self._handle = kernels.xk_mailbox_create(SPIN_US, GRACE_US)
        if not self._handle:
            raise MemoryError("no memory for a mailbox")
        self.post, self.next, self.wait = mailbox_functions(self._handle)
        self._close = kernels.xk_mailbox_close
        self._destroy = kernels.xk_mailbox_destroy

    def close(self) -> None:
        """Refuse further posts; the worker still gets the earlier ones."""
        self._close(self._handle)

    def __del__(self) -> None:
        # A waiting thread holds a reference, so none waits now.
        handle = getattr(self, "_handle", None)
        if handle:
            self._destroy(handle)
