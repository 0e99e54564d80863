# SPDX-License-Identifier: Apache-2.0
"""The allocator that serves this process: its name, statistics, settings, and release of memory.

    from xruntime import allocator

    allocator.current()  # <glibc 2.36 from /usr/lib/x86_64-linux-gnu/libc.so.6>
    allocator.stats().allocated
    allocator.release()  # returns unused memory to the system

`xlaunch --allocator` chooses the allocator before the program starts; it cannot change afterwards.
Importing this package imports neither torch nor any other large module.
"""

from __future__ import annotations

from xruntime.allocator.controller import Allocator
from xruntime.allocator.detection import current
from xruntime.allocator.memory import Stats
from xruntime.allocator.settings import Setting

__all__ = ["Allocator", "Setting", "Stats", "current", "release", "stats"]


def stats() -> Stats:
    """Return memory in use and kept, in bytes. Raises `AllocatorUnsupportedError` as `current` does."""
    return current().stats()


def release() -> int:
    """Return unused memory to the system, and the number of bytes by which the resident set fell.

    jemalloc also flushes the calling thread's cache; mimalloc cannot release other threads' heaps.
    Raises `AllocatorUnsupportedError` where the allocator has no such call.
    """
    return current().release()
