# SPDX-License-Identifier: Apache-2.0
"""jemalloc, through mallctl. Source: jemalloc(3) of 5.3.0."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Iterator

from xruntime.allocator.controller import Allocator, Setting, Value, stats_of
from xruntime.allocator.loader import LoadedFile
from xruntime.allocator.mallctl import Mallctl, prefix_of
from xruntime.allocator.mallctl_names import find_name
from xruntime.allocator.memory import Stats
from xruntime.errors import AllocatorUnsupportedError, SettingTypeError, UnknownSettingError

ALL_ARENAS = 4096
"""MALLCTL_ARENAS_ALL of jemalloc.h: as an arena's number it means all of them."""

SHOWN = (
    ("background_thread", None),
    ("arenas.narenas", None),
    ("arenas.dirty_decay_ms", "ms"),
    ("arenas.muzzy_decay_ms", "ms"),
    ("opt.narenas", None),
    ("opt.dirty_decay_ms", "ms"),
    ("opt.muzzy_decay_ms", "ms"),
    ("opt.oversize_threshold", "bytes"),
    ("opt.tcache_max", "bytes"),
    ("opt.percpu_arena", None),
    ("opt.metadata_thp", None),
    ("opt.thp", None),
    ("opt.retain", None),
    ("opt.prof", None),
    ("config.prof", None),
    ("config.stats", None),
    ("config.malloc_conf", None),
)
"""What `settings` tells, with units; the rest is there by name."""

_NOTES = {
    "arenas.dirty_decay_ms": "for arenas to come; arena.<i>.dirty_decay_ms for each that exists",
    "arenas.muzzy_decay_ms": "for arenas to come; arena.<i>.muzzy_decay_ms for each that exists",
}

_WRITE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)
_PRINT = ctypes.CFUNCTYPE(None, _WRITE, ctypes.c_void_p, ctypes.c_char_p)


class Jemalloc(Allocator):
    """jemalloc, under whichever prefix its functions have."""

    name = "jemalloc"

    def __init__(self, file: LoadedFile) -> None:
        super().__init__(file)
        self.mallctl = Mallctl(file)
        self._snapshot = threading.Lock()

    @functools.cached_property
    def version(self) -> str | None:
        return str(self.mallctl.read("version"))

    @property
    def prefix(self) -> str:
        """What this jemalloc puts before the names of its functions: ``je_`` or nothing."""
        return prefix_of(self._file) or ""

    def stats(self) -> Stats:
        """The sums of jemalloc(3): stats.allocated, .resident, .mapped, .retained, as of now.

        `free` is what can be given back: dirty and muzzy pages of all arenas. Only built without
        statistics (config.stats) does jemalloc not tell.
        """
        if not self.mallctl.read("config.stats"):
            return stats_of()
        with self.snapshot():
            allocated, resident, mapped, retained = (
                self._number(f"stats.{name}")
                for name in ("allocated", "resident", "mapped", "retained")
            )
            pages = sum(
                self._number(f"stats.arenas.{ALL_ARENAS}.{name}") for name in ("pdirty", "pmuzzy")
            )
        return stats_of(
            allocated=allocated,
            resident=resident,
            mapped=mapped,
            free=pages * self._number("arenas.page"),
            retained=retained,
        )

    def _give_back(self) -> None:
        self.flush_thread_cache()
        self.mallctl.call(f"arena.{ALL_ARENAS}.purge")

    def flush_thread_cache(self) -> None:
        """Hand the calling thread's cached blocks back to their arenas."""
        if self.mallctl.read("thread.tcache.enabled"):
            self.mallctl.call("thread.tcache.flush")

    def settings(self) -> tuple[Setting, ...]:
        found = []
        for name, unit in SHOWN:
            row = find_name(name)
            assert row is not None
            try:
                value = self.mallctl.read(name)
            except (UnknownSettingError, AllocatorUnsupportedError):
                continue  # another version, or another build
            found.append(Setting(name, value, unit, "w" in row.access, _NOTES.get(name)))
        return tuple(found)

    def read(self, name: str, kind: str | None = None) -> bool | int | str:
        """The value of a mallctl name; statistics are brought up to date first.

        `kind` is for a name whose type is not known here. Raises `UnknownSettingError`,
        `ReadOnlySettingError` where it cannot be read, `AllocatorUnsupportedError` where this build
        does not have it.
        """
        if not name.startswith("stats."):
            return self.mallctl.read(name, kind)
        with self.snapshot() as mallctl:
            return mallctl.read(name, kind)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[Mallctl]:
        """Bring the statistics up to date; inside they stay as they are.

        No other thread's reading through here can put another moment between two numbers.
        """
        with self._snapshot:
            self.mallctl.refresh()
            yield self.mallctl

    def write(self, name: str, value: Value, kind: str | None = None) -> Setting:
        """Set a mallctl name; raises as `read` does, and for a wrong type or value."""
        if isinstance(value, float):
            raise SettingTypeError(f"{name}: {value!r} is no whole number; jemalloc has no others")
        self.mallctl.write(name, value, kind)
        row = find_name(name)
        readable = kind is not None or (row is not None and "r" in row.access)
        now = self.mallctl.read(name, kind) if readable else value
        unit = "ms" if name.endswith("_ms") else None
        return Setting(name, now, unit, True, _NOTES.get(name))

    def call(self, name: str) -> None:
        """Run a command: a mallctl name without a value. **Ex.:** ``arena.0.purge``"""
        self.mallctl.call(name)

    def report(self) -> str:
        """malloc_stats_print's text."""
        function = self._file.function(f"{self.prefix}malloc_stats_print", _PRINT)
        if function is None:
            raise AllocatorUnsupportedError(f"{self.path} has no malloc_stats_print")
        parts: list[bytes] = []
        keep = _WRITE(lambda _opaque, text: parts.append(text))
        function(keep, None, None)
        return b"".join(parts).decode(errors="replace")

    def _number(self, name: str) -> int:
        value = self.mallctl.read(name)
        assert isinstance(value, int)
        return value
