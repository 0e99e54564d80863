# SPDX-License-Identifier: Apache-2.0
"""gperftools' tcmalloc, full and minimal, through MallocExtension.

Sources: gperftools/malloc_extension_c.h, src/tcmalloc.cc (TCMallocImplementation::GetNumericProperty)
and docs/tcmalloc.html of 2.10 and 2.16. Google's newer tcmalloc, which is linked into programs, has
another interface and is reported as unknown.
"""

from __future__ import annotations

import ctypes
import functools
import re

from xruntime.allocator.controller import Allocator
from xruntime.allocator.memory import Stats, stats_of
from xruntime.allocator.settings import Setting, Value, checked_integer
from xruntime.errors import ReadOnlySettingError, SettingValueError, UnknownSettingError

WRITABLE = {
    "tcmalloc.aggressive_memory_decommit": None,
    "tcmalloc.heap_limit_mb": "MiB",
    "tcmalloc.max_total_thread_cache_bytes": "bytes",
}
"""The properties that SetNumericProperty takes in 2.10 and later, with their units."""

_VERSION = ctypes.CFUNCTYPE(ctypes.c_char_p, *(ctypes.c_void_p,) * 3)
_GET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_size_t))
_SET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
_RELEASE = ctypes.CFUNCTYPE(None)


class Tcmalloc(Allocator):
    """tcmalloc with heap profiler and checker."""

    name = "tcmalloc"

    @functools.cached_property
    def version(self) -> str | None:
        text = self._function("tc_version", _VERSION)(None, None, None).decode()
        match = re.search(r"\d+(\.\d+)+", text)
        return match[0] if match else text

    def stats(self) -> Stats:
        """generic.current_allocated_bytes, .total_physical_bytes and .heap_size.

        `free` is in the page heap and in the caches (thread, central, transfer); `retained` are
        spans whose memory was returned and whose addresses stay; `mapped` includes them.
        """
        read = self.read
        return stats_of(
            allocated=read("generic.current_allocated_bytes"),
            resident=read("generic.total_physical_bytes"),
            mapped=read("generic.heap_size"),
            free=sum(
                read(f"tcmalloc.{where}_free_bytes")
                for where in ("pageheap", "thread_cache", "central_cache", "transfer_cache")
            ),
            retained=read("tcmalloc.pageheap_unmapped_bytes"),
        )

    def _release(self) -> None:
        self._function("MallocExtension_ReleaseFreeMemory", _RELEASE)()

    def settings(self) -> tuple[Setting, ...]:
        return tuple(Setting(name, self.read(name), WRITABLE[name], True) for name in WRITABLE)

    def read(self, name: str) -> int:
        """Return any property of MallocExtension. Raises `UnknownSettingError`."""
        value = ctypes.c_size_t()
        get = self._function("MallocExtension_GetNumericProperty", _GET)
        if not get(name.encode(), ctypes.byref(value)):
            raise UnknownSettingError(
                f"{name!r} is not a property of tcmalloc {self.version}; GetNumericProperty in its"
                " malloc_extension.h lists them"
            )
        return value.value

    def write(self, name: str, value: Value) -> Setting:
        """Set a property. Raises `SettingValueError` where tcmalloc would take another value instead."""
        before = self.read(name)
        if name not in WRITABLE:
            raise ReadOnlySettingError(f"{name} is read-only; {', '.join(WRITABLE)} can be written")
        maximum = 1 if name == "tcmalloc.aggressive_memory_decommit" else ctypes.c_size_t(-1).value
        number = checked_integer(name, value, 0, maximum)
        put = self._function("MallocExtension_SetNumericProperty", _SET)
        if not put(name.encode(), number):
            raise ReadOnlySettingError(f"{name} cannot be written in tcmalloc {self.version}")
        now = self.read(name)
        if now != number:
            put(name.encode(), before)
            raise SettingValueError(
                f"{name}: tcmalloc would replace {number} by its limit, {now}; it stays {before}"
            )
        return Setting(name, now, WRITABLE[name], True)


class TcmallocMinimal(Tcmalloc):
    """tcmalloc without heap profiler and checker; the interface is the same."""

    name = "tcmalloc_minimal"
