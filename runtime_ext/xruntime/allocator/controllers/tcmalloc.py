# SPDX-License-Identifier: Apache-2.0
"""gperftools' tcmalloc, full and minimal, through MallocExtension.

Sources: gperftools/malloc_extension_c.h, src/tcmalloc.cc (TCMallocImplementation::GetNumericProperty)
and docs/tcmalloc.html of 2.10 and 2.16, NEWS of 2.14. Google's newer tcmalloc, which is linked into programs, has
another interface and is told as unknown.
"""

from __future__ import annotations

import ctypes
import functools
import math
import re
from collections.abc import Callable

from xruntime.allocator.controller import (
    Allocator,
    Setting,
    Value,
    stats_of,
    unknown_setting,
)
from xruntime.allocator.loader import Function, LoadedFile, Prototype
from xruntime.allocator.memory import Stats
from xruntime.errors import (
    AllocatorUnsupportedError,
    ReadOnlySettingError,
    SettingTypeError,
    SettingValueError,
)

RELEASE_RATE = "tcmalloc.release_rate"
"""Our name for what MallocExtension has a function of its own for."""

PROPERTIES: dict[str, str | None] = {
    "generic.current_allocated_bytes": "bytes",
    "generic.heap_size": "bytes",
    "generic.total_physical_bytes": "bytes",
    "tcmalloc.aggressive_memory_decommit": None,
    "tcmalloc.central_cache_free_bytes": "bytes",
    "tcmalloc.current_total_thread_cache_bytes": "bytes",
    "tcmalloc.heap_limit_mb": "MiB",
    "tcmalloc.max_total_thread_cache_bytes": "bytes",
    "tcmalloc.min_per_thread_cache_bytes": "bytes",
    "tcmalloc.pageheap_commit_count": None,
    "tcmalloc.pageheap_committed_bytes": "bytes",
    "tcmalloc.pageheap_decommit_count": None,
    "tcmalloc.pageheap_free_bytes": "bytes",
    "tcmalloc.pageheap_reserve_count": None,
    "tcmalloc.pageheap_scavenge_count": None,
    "tcmalloc.pageheap_total_commit_bytes": "bytes",
    "tcmalloc.pageheap_total_decommit_bytes": "bytes",
    "tcmalloc.pageheap_total_reserve_bytes": "bytes",
    "tcmalloc.pageheap_unmapped_bytes": "bytes",
    "tcmalloc.slack_bytes": "bytes",
    "tcmalloc.thread_cache_free_bytes": "bytes",
    "tcmalloc.transfer_cache_free_bytes": "bytes",
}
"""Names with units, of 2.10; min_per_thread_cache_bytes came later."""

WRITABLE = {
    "tcmalloc.aggressive_memory_decommit": "1: give every freed span back at once; 0: keep them",
    "tcmalloc.heap_limit_mb": "0: no limit; above it allocations fail",
    "tcmalloc.max_total_thread_cache_bytes": None,
    "tcmalloc.min_per_thread_cache_bytes": None,
}

_RATE_NOTE = "0: never give back by itself; 1: slowly; 10: fast"

_VERSION = ctypes.CFUNCTYPE(ctypes.c_char_p, *(ctypes.c_void_p,) * 3)
_GET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_size_t))
_SET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
_RELEASE = ctypes.CFUNCTYPE(None)
_GET_RATE = ctypes.CFUNCTYPE(ctypes.c_double)
_SET_RATE = ctypes.CFUNCTYPE(None, ctypes.c_double)
_INSTANCE = ctypes.CFUNCTYPE(ctypes.c_void_p)
_GET_RATE_OF = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p)
_SET_RATE_OF = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_double)
_GET_STATS = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_int)

REPORT_BYTES = 1 << 16


class Tcmalloc(Allocator):
    """tcmalloc with heap profiler and checker."""

    name = "tcmalloc"

    def __init__(self, file: LoadedFile) -> None:
        super().__init__(file)
        self._get_property = self._function("MallocExtension_GetNumericProperty", _GET)
        self._set_property = self._function("MallocExtension_SetNumericProperty", _SET)

    @functools.cached_property
    def version(self) -> str | None:
        said = self._function("tc_version", _VERSION)(None, None, None).decode()
        found = re.search(r"\d+(\.\d+)+", said)
        return found[0] if found else said

    def stats(self) -> Stats:
        """generic.current_allocated_bytes, .total_physical_bytes and .heap_size.

        `free` is in the page heap and in the caches (thread, central, transfer); `retained` are
        spans that were given back, whose addresses stay in the heap: `mapped` counts them too.
        """
        ask = self._number
        return stats_of(
            allocated=ask("generic.current_allocated_bytes"),
            resident=ask("generic.total_physical_bytes"),
            mapped=ask("generic.heap_size"),
            free=sum(
                ask(f"tcmalloc.{where}_free_bytes")
                for where in ("pageheap", "thread_cache", "central_cache", "transfer_cache")
            ),
            retained=ask("tcmalloc.pageheap_unmapped_bytes"),
        )

    def _give_back(self) -> None:
        self._function("MallocExtension_ReleaseFreeMemory", _RELEASE)()

    def settings(self) -> tuple[Setting, ...]:
        found = [
            Setting(name, value, PROPERTIES[name], True, note)
            for name, note in WRITABLE.items()
            if (value := self._ask(name)) is not None
        ]
        if self._rate() is not None:
            found.append(self._rate_setting())
        return tuple(found)

    def read(self, name: str) -> Value:
        """A property of MallocExtension, or `RELEASE_RATE`. Raises `UnknownSettingError`."""
        return self._read_rate() if name == RELEASE_RATE else self._number(name)

    def write(self, name: str, value: Value) -> Setting:
        """Set a property, or `RELEASE_RATE` (0 or more; a float).

        Raises `SettingValueError` where tcmalloc would take another value instead.
        """
        if name == RELEASE_RATE:
            return self._write_rate(value)
        before = self._number(name)
        if name not in WRITABLE:
            raise ReadOnlySettingError(
                f"{name} can only be read; {', '.join([*WRITABLE, RELEASE_RATE])} can be written"
            )
        number = _whole_number(name, value)
        if name == "tcmalloc.aggressive_memory_decommit" and number > 1:
            raise SettingValueError(f"{name}: {value!r} is no switch; allowed are 0 and 1")
        if not self._set_property(name.encode(), number):
            raise ReadOnlySettingError(f"{name} cannot be written in tcmalloc {self.version}")
        now = self._number(name)
        if now != number:
            self._set_property(name.encode(), before)
            raise SettingValueError(
                f"{name}: tcmalloc would make {now} of {number}, which is out of range; "
                f"allowed on that side is {now}; it stays {before}"
            )
        return Setting(name, now, PROPERTIES[name], True, WRITABLE[name])

    def report(self) -> str:
        """MallocExtension_GetStats' text."""
        text = ctypes.create_string_buffer(REPORT_BYTES)
        self._function("MallocExtension_GetStats", _GET_STATS)(text, REPORT_BYTES)
        return text.value.decode(errors="replace")

    def _function(self, symbol: str, prototype: Prototype) -> Function:
        function = self._file.function(symbol, prototype)
        if function is None:
            raise AllocatorUnsupportedError(f"{self.path} has no {symbol}")
        return function

    def _ask(self, name: str) -> int | None:
        value = ctypes.c_size_t()
        known = self._get_property(name.encode(), ctypes.byref(value))
        return value.value if known else None

    def _number(self, name: str) -> int:
        value = self._ask(name)
        if value is None:
            known = tuple(known for known in PROPERTIES if self._ask(known) is not None)
            raise unknown_setting(name, f"tcmalloc {self.version}", (*known, RELEASE_RATE))
        return value

    # The rate at which it gives memory back by itself. The C interface has it since 2.14; before, it
    # is a method of a class whose symbols the library exports.

    def _rate(self) -> tuple[Callable[[], float], Callable[[float], None]] | None:
        get = self._file.function("MallocExtension_GetMemoryReleaseRate", _GET_RATE)
        change = self._file.function("MallocExtension_SetMemoryReleaseRate", _SET_RATE)
        if get and change:
            return get, change
        instance = self._file.function("_ZN15MallocExtension8instanceEv", _INSTANCE)
        get_of = self._file.function(
            "_ZN22TCMallocImplementation20GetMemoryReleaseRateEv", _GET_RATE_OF
        )
        set_of = self._file.function(
            "_ZN22TCMallocImplementation20SetMemoryReleaseRateEd", _SET_RATE_OF
        )
        if not (instance and get_of and set_of):
            return None
        this = instance()
        return functools.partial(get_of, this), functools.partial(set_of, this)

    def _functions_of_the_rate(self) -> tuple[Callable[[], float], Callable[[float], None]]:
        rate = self._rate()
        if rate is None:
            raise AllocatorUnsupportedError(
                f"{RELEASE_RATE}: tcmalloc {self.version} does not export it; set the variable "
                "TCMALLOC_RELEASE_RATE at the program's start"
            )
        return rate

    def _read_rate(self) -> float:
        return self._functions_of_the_rate()[0]()

    def _rate_setting(self) -> Setting:
        return Setting(RELEASE_RATE, self._read_rate(), None, True, _RATE_NOTE)

    def _write_rate(self, value: Value) -> Setting:
        if isinstance(value, (bool, str)):
            raise SettingTypeError(
                f"{RELEASE_RATE}: {value!r} is no number; allowed are 0 and above"
            )
        if not (math.isfinite(value) and value >= 0):
            raise SettingValueError(f"{RELEASE_RATE}: {value!r} is out of range; {_RATE_NOTE}")
        self._functions_of_the_rate()[1](value)
        return self._rate_setting()


class TcmallocMinimal(Tcmalloc):
    """tcmalloc without heap profiler and checker; the interface is the same."""

    name = "tcmalloc_minimal"


def _whole_number(name: str, value: Value) -> int:
    if not isinstance(value, int):
        raise SettingTypeError(f"{name}: {value!r} is no whole number")
    if not 0 <= value <= ctypes.c_size_t(-1).value:
        raise SettingValueError(f"{name}: {value} is out of range; allowed are 0 and above")
    return int(value)
