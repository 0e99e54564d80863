# SPDX-License-Identifier: Apache-2.0
"""jemalloc, through mallctl. Source: jemalloc(3) of 5.3.0."""

from __future__ import annotations

import contextlib
import functools
from typing import NamedTuple

from xruntime.allocator.controller import Allocator
from xruntime.allocator.loader import LoadedFile
from xruntime.allocator.mallctl import TEXT, Mallctl
from xruntime.allocator.memory import Stats, stats_of
from xruntime.allocator.settings import Setting, Value
from xruntime.errors import ReadOnlySettingError, SettingValueError, UnknownSettingError

ALL_ARENAS = 4096
"""MALLCTL_ARENAS_ALL of jemalloc.h: the arena number that stands for all arenas."""


class _Row(NamedTuple):
    """How one of the settings is read."""

    kind: str
    unit: str | None = None
    writable: bool = False


SETTINGS = {
    "background_thread": _Row("bool", writable=True),
    "arenas.narenas": _Row("unsigned"),
    "arenas.dirty_decay_ms": _Row("ssize_t", "ms", writable=True),
    "arenas.muzzy_decay_ms": _Row("ssize_t", "ms", writable=True),
    "opt.narenas": _Row("unsigned"),
    "opt.dirty_decay_ms": _Row("ssize_t", "ms"),
    "opt.muzzy_decay_ms": _Row("ssize_t", "ms"),
    "opt.oversize_threshold": _Row("size_t", "bytes"),
    "opt.tcache_max": _Row("size_t", "bytes"),
    "opt.percpu_arena": _Row(TEXT),
    "opt.metadata_thp": _Row(TEXT),
    "opt.thp": _Row(TEXT),
    "opt.retain": _Row("bool"),
    "config.stats": _Row("bool"),
    "config.malloc_conf": _Row(TEXT),
}
"""What `settings` shows; `mallctl` reads and writes any name."""


class Jemalloc(Allocator):
    """jemalloc, under whichever prefix its functions have."""

    name = "jemalloc"

    def __init__(self, file: LoadedFile) -> None:
        super().__init__(file)
        self._mallctl = Mallctl(file)

    @property
    def mallctl(self) -> Mallctl:
        return self._mallctl

    @functools.cached_property
    def version(self) -> str | None:
        return str(self.mallctl.read("version", TEXT))

    def stats(self) -> Stats:
        """stats.allocated, .resident, .mapped and .retained of jemalloc(3).

        `free` are dirty and muzzy pages of all arenas, which can be released. A jemalloc that was built
        without statistics (config.stats) reports none of these.
        """
        if not self.mallctl.read("config.stats", "bool"):
            return stats_of()
        with self.mallctl.snapshot() as read:
            allocated, resident, mapped, retained = (
                int(read(f"stats.{name}", "size_t"))
                for name in ("allocated", "resident", "mapped", "retained")
            )
            pages = sum(
                int(read(f"stats.arenas.{ALL_ARENAS}.{name}", "size_t"))
                for name in ("pdirty", "pmuzzy")
            )
        return stats_of(
            allocated=allocated,
            resident=resident,
            mapped=mapped,
            free=pages * int(self.mallctl.read("arenas.page", "size_t")),
            retained=retained,
        )

    def _release(self) -> None:
        # A thread whose cache is off has none to flush.
        with contextlib.suppress(SettingValueError):
            self.mallctl.call("thread.tcache.flush")
        self.mallctl.call(f"arena.{ALL_ARENAS}.purge")

    def settings(self) -> tuple[Setting, ...]:
        settings = []
        for name in SETTINGS:
            # Other versions and builds lack some.
            with contextlib.suppress(UnknownSettingError):
                settings.append(self._setting(name))
        return tuple(settings)

    def read(self, name: str) -> Value:
        """Return one of `SETTINGS`; `mallctl` has all other names."""
        return self.mallctl.read(name, _row(name).kind)

    def write(self, name: str, value: Value) -> Setting:
        """Set one of `SETTINGS`; `mallctl` has all other names."""
        row = _row(name)
        if not row.writable:
            raise ReadOnlySettingError(f"{name}: MALLOC_CONF sets it when the program starts")
        self.mallctl.write(name, value, row.kind)
        return self._setting(name)

    def _setting(self, name: str) -> Setting:
        row = SETTINGS[name]
        note = "for new arenas" if name.startswith("arenas.") and row.writable else None
        return Setting(name, self.mallctl.read(name, row.kind), row.unit, row.writable, note)


def _row(name: str) -> _Row:
    if name not in SETTINGS:
        raise UnknownSettingError(
            f"{name!r} is not one of {', '.join(SETTINGS)}; allocator.current().mallctl"
            " takes any name, with its type"
        )
    return SETTINGS[name]
