# SPDX-License-Identifier: Apache-2.0
"""Tells and steers the allocator that serves this process.

    from xruntime import allocator

    allocator.current()  # <glibc 2.36 from /usr/lib/x86_64-linux-gnu/libc.so.6>
    allocator.stats().allocated
    allocator.release()  # gives unused memory back; by how many bytes the process shrank

`xlaunch --allocator` chooses the allocator before the program starts; afterwards it cannot change.
Importing this imports neither torch nor anything else that is heavy.
"""

from __future__ import annotations

from xruntime.allocator.arenas import Arena, arena
from xruntime.allocator.controller import Allocator, Setting
from xruntime.allocator.memory import Stats
from xruntime.allocator.serving import current

__all__ = ["Allocator", "Arena", "Setting", "Stats", "arena", "current", "release", "stats"]


def stats() -> Stats:
    """Memory in use and kept, in bytes, now. Raises `AllocatorUnsupportedError` as `current` does."""
    return current().stats()


def release() -> int:
    """Give unused memory back to the system; the bytes by which the resident set fell, 0 or more.

    What the calling thread's cache holds goes back as well under jemalloc; under mimalloc other
    threads' heaps are theirs alone and stay. Raises `AllocatorUnsupportedError` where the allocator
    has no such call.
    """
    return current().release()
