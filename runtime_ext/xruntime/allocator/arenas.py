# SPDX-License-Identifier: Apache-2.0
"""jemalloc's arenas: parts of the heap that a pool of threads can have for itself.

    pool_arena = allocator.jemalloc.create_arena()
    pool_arena.set_decay(dirty_ms=-1)  # what the pool frees stays with the pool


    def worker():
        with allocator.arena(pool_arena):
            ...

Source: jemalloc(3), thread.arena, arenas.create, arena.<i>.*, stats.arenas.<i>.*.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from xruntime.allocator.controllers.jemalloc import Jemalloc
from xruntime.allocator.serving import current
from xruntime.errors import AllocatorUnsupportedError, ArenaInUseError, SettingValueError


class Decay(NamedTuple):
    """How long freed pages wait before they go back to the system: -1 for ever, 0 not at all."""

    dirty_ms: int
    """Pages as they were freed."""
    muzzy_ms: int
    """Pages whose memory the system may take when it is short of it (MADV_FREE)."""


class ArenaStats(NamedTuple):
    """What one arena holds, in bytes; all of it as of one moment."""

    allocated: int
    """In blocks, those in threads' caches included."""
    active: int
    """In pages that hold blocks."""
    dirty: int
    """In freed pages that still have memory."""
    muzzy: int
    """In freed pages that the system may take."""
    mapped: int
    retained: int
    """Addresses without memory behind them."""
    resident: int
    threads: int
    """Threads that are set to it."""


@dataclass(frozen=True, order=True)
class Arena:
    """One arena of the jemalloc that serves this process, by its number."""

    index: int

    def decay(self) -> Decay:
        """Its decay times."""
        return Decay(*(self._read(f"arena.{self.index}.{kind}_decay_ms") for kind in _KINDS))

    def set_decay(self, *, dirty_ms: int | None = None, muzzy_ms: int | None = None) -> Decay:
        """Change what is given, and tell what it is then. Raises `SettingValueError` below -1."""
        heap = serving_jemalloc()
        for kind, value in zip(_KINDS, (dirty_ms, muzzy_ms), strict=True):
            if value is not None:
                heap.write(f"arena.{self.index}.{kind}_decay_ms", value)
        return self.decay()

    def purge(self) -> None:
        """Give all its unused pages back to the system, now."""
        serving_jemalloc().call(f"arena.{self.index}.purge")

    def stats(self) -> ArenaStats:
        """What it holds. Raises `AllocatorUnsupportedError` for a jemalloc without statistics."""
        heap = serving_jemalloc()
        page = self._read("arenas.page")
        place = f"stats.arenas.{self.index}"
        with heap.snapshot() as mallctl:

            def ask(name: str) -> int:
                return int(mallctl.read(f"{place}.{name}"))

            return ArenaStats(
                allocated=ask("small.allocated") + ask("large.allocated"),
                active=ask("pactive") * page,
                dirty=ask("pdirty") * page,
                muzzy=ask("pmuzzy") * page,
                mapped=ask("mapped"),
                retained=ask("retained"),
                resident=ask("resident"),
                threads=ask("nthreads"),
            )

    def destroy(self, *, discard: bool = False) -> None:
        """Remove it, and whatever is in it.

        Python's own objects above 512 bytes that a thread made while it was set to the arena are
        blocks of it too, and may live long. So this raises `ArenaInUseError` while blocks are in use
        or threads are set to it. `discard` removes it in spite of blocks: what still points to one
        of them then points to nothing, and the process ends with a crash.
        """
        heap = serving_jemalloc()
        heap.flush_thread_cache()
        held = self.stats()
        if held.threads:
            raise ArenaInUseError(
                f"arena {self.index} cannot be destroyed: {held.threads} threads are set to it; "
                "leave their `with allocator.arena(...)` first"
            )
        if held.allocated and not discard:
            raise ArenaInUseError(
                f"arena {self.index} cannot be destroyed: {held.allocated} bytes of it are in use, "
                "or in the caches of threads; free them, let those threads end, or keep the arena"
            )
        heap.call(f"arena.{self.index}.destroy")

    def _read(self, name: str) -> int:
        return int(serving_jemalloc().read(name))


_KINDS = ("dirty", "muzzy")


def serving_jemalloc() -> Jemalloc:
    """jemalloc, if that is what serves this process; else `AllocatorUnsupportedError`."""
    heap = current()
    if not isinstance(heap, Jemalloc):
        raise AllocatorUnsupportedError(
            f"this needs jemalloc, and {heap.name} ({heap.path}) serves malloc here; start the "
            "program under it: xlaunch --allocator jemalloc"
        )
    return heap


def create_arena() -> Arena:
    """A new, empty arena, which no thread is given unless it asks for it.

    Raises `AllocatorMemoryError` when there are 4,094 already.
    """
    return Arena(int(serving_jemalloc().read("arenas.create")))


def arenas() -> tuple[Arena, ...]:
    """The arenas that exist, jemalloc's own and created ones, by number."""
    with serving_jemalloc().snapshot() as mallctl:  # the list is part of the statistics
        count = int(mallctl.read("arenas.narenas"))
        return tuple(
            Arena(index) for index in range(count) if mallctl.read(f"arena.{index}.initialized")
        )


def arena_of(address: int) -> Arena:
    """The arena that the block at `address` is of (arenas.lookup, jemalloc 5.1).

    The block must be one that malloc returned and nobody freed: of other addresses jemalloc refuses
    some with `SettingValueError`, and crashes at others.
    """
    return Arena(serving_jemalloc().mallctl.look_up(address))


def thread_arena() -> Arena:
    """The arena that the calling thread allocates from."""
    return Arena(int(serving_jemalloc().read("thread.arena")))


@contextlib.contextmanager
def arena(which: Arena | int | None = None) -> Iterator[Arena]:
    """Inside, the calling thread allocates from arena `which`; None: from a new one.

    Blocks of any size go there, whatever `opt.oversize_threshold` says, and blocks that are freed go
    back to the arena they are of, from any thread. At the end the thread is given its former arena
    again; the arena stays, with the blocks in it. Other threads are not touched, OpenMP's workers
    among them: each thread enters for itself. Raises `AllocatorUnsupportedError` unless jemalloc
    serves the process, `SettingValueError` for an arena that does not exist.
    """
    heap = serving_jemalloc()
    by_cpu = heap.read("opt.percpu_arena")
    if by_cpu != "disabled":
        raise AllocatorUnsupportedError(
            f"arena: the CPU that a thread runs on chooses its arena (opt.percpu_arena is {by_cpu}); "
            "start the program with MALLOC_CONF=percpu_arena:disabled"
        )
    if which is None:
        which = create_arena()
    chosen = Arena(which) if isinstance(which, int) else which
    before = thread_arena()
    _set_thread_arena(heap, chosen)
    try:
        yield chosen
    finally:
        _set_thread_arena(heap, before)


def _set_thread_arena(heap: Jemalloc, chosen: Arena) -> None:
    # jemalloc itself would make an arena anew that was destroyed, and list it twice. Of its own
    # arenas it makes those that no thread has had yet.
    if not 0 <= chosen.index < int(heap.read("opt.narenas")) and not _exists(heap, chosen):
        raise SettingValueError(
            f"thread.arena = {chosen.index}: there is no such arena; there are "
            f"{', '.join(str(known.index) for known in arenas())}; allocator.jemalloc.create_arena() "
            "makes another"
        )
    # What the cache holds is of the arena that the thread leaves, and would be handed out in the next.
    heap.flush_thread_cache()
    heap.mallctl.write("thread.arena", chosen.index)


def _exists(heap: Jemalloc, chosen: Arena) -> bool:
    with heap.snapshot() as mallctl:
        if not 0 <= chosen.index < int(mallctl.read("arenas.narenas")):
            return False
        return bool(mallctl.read(f"arena.{chosen.index}.initialized"))
