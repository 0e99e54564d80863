# SPDX-License-Identifier: Apache-2.0
"""jemalloc's own controls, for a process that it serves; elsewhere `AllocatorUnsupportedError`.

    from xruntime.allocator import jemalloc

    jemalloc.read("stats.resident")
    jemalloc.write("background_thread", True)
    jemalloc.call("arena.0.purge")

The names are those of jemalloc(3), MALLCTL NAMESPACE; each has its type, so what comes out is a bool,
an int or a str, and what goes in is checked. Statistics are brought up to date before they are read.
"""

from __future__ import annotations

from xruntime.allocator.arenas import (
    Arena,
    ArenaStats,
    Decay,
    arena_of,
    arenas,
    create_arena,
    serving_jemalloc,
    thread_arena,
)
from xruntime.allocator.controller import Setting
from xruntime.allocator.controllers.jemalloc import ALL_ARENAS
from xruntime.allocator.heap_profile import dump_profile, profiling, set_profiling

__all__ = [
    "ALL_ARENAS",
    "Arena",
    "ArenaStats",
    "Decay",
    "arena_of",
    "arenas",
    "call",
    "create_arena",
    "dump_profile",
    "profiling",
    "read",
    "set_profiling",
    "thread_arena",
    "write",
]


def read(name: str, kind: str | None = None) -> bool | int | str:
    """The value of a mallctl name.

    `kind` (bool, unsigned, uint32, uint64, int64, size, ssize, text) is for a name that is not known
    here. Raises `UnknownSettingError`, `ReadOnlySettingError` for one that cannot be read,
    `AllocatorUnsupportedError` for one that this build does not have, `AllocatorMemoryError`.
    """
    return serving_jemalloc().read(name, kind)


def write(name: str, value: bool | int | str, kind: str | None = None) -> Setting:
    """Set a mallctl name, and tell what it is then.

    Raises as `read` does; `SettingTypeError` for a value of another type, `SettingValueError` for one
    out of range or that jemalloc refuses, `ReadOnlySettingError` for what cannot be written.
    """
    return serving_jemalloc().write(name, value, kind)


def call(name: str) -> None:
    """Run a mallctl name that is a command: ``arena.<i>.purge``, ``thread.tcache.flush``."""
    serving_jemalloc().call(name)
