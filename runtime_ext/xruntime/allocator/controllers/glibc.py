# SPDX-License-Identifier: Apache-2.0
"""glibc's malloc: mallinfo2, malloc_trim, mallopt, malloc_info.

Sources: the glibc manual, "Malloc Tunable Parameters" and "Memory Allocation Tunables"; mallopt(3),
mallinfo(3), malloc_trim(3), malloc_info(3); malloc/malloc.c and malloc/arena.c of glibc 2.36.
"""

from __future__ import annotations

import ctypes
import threading
from typing import NamedTuple

from xruntime.allocator.controller import (
    Allocator,
    Setting,
    Value,
    start_environment,
    stats_of,
    unknown_setting,
)
from xruntime.allocator.memory import Stats
from xruntime.errors import (
    AllocatorUnsupportedError,
    SettingTypeError,
    SettingValueError,
)

INT_MAX = 2**31 - 1
"""mallopt takes an int; larger thresholds can be had through GLIBC_TUNABLES only."""

_FIELDS = (
    "arena",
    "ordblks",
    "smblks",
    "hblks",
    "hblkhd",
    "usmblks",
    "fsmblks",
    "uordblks",
    "fordblks",
    "keepcost",
)


class _MallInfo2(ctypes.Structure):
    """struct mallinfo2 of malloc.h."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS)


class _MallInfo(ctypes.Structure):
    """struct mallinfo: the same in int, which wraps at 2 GiB."""

    _fields_ = tuple((name, ctypes.c_int) for name in _FIELDS)


class HeapInfo(NamedTuple):
    """What glibc counts, in bytes, summed over all arenas."""

    arenas: int
    """Taken from the system for the arenas, by brk and mmap; mallinfo's `arena`."""
    mapped_blocks: int
    """In blocks above the threshold, each of a mapping of its own; `hblkhd`."""
    used: int
    """In use in the arenas; `uordblks`."""
    free: int
    """Free in the arenas; `fordblks`."""


class Parameter(NamedTuple):
    """A parameter of mallopt."""

    name: str
    number: int
    """M_... of malloc.h."""
    lowest: int
    highest: int
    unit: str | None
    variable: str | None
    """The older variable that sets it at the start, see mallopt(3)."""
    note: str | None = None


_DYNAMIC = (
    "from now on glibc does not adjust mmap_threshold and trim_threshold to the program by itself"
)

PARAMETERS = {
    row.name: row
    for row in (
        Parameter(
            "mmap_threshold", -3, 0, INT_MAX, "bytes", "MALLOC_MMAP_THRESHOLD_", f"{_DYNAMIC}"
        ),
        Parameter(
            "trim_threshold",
            -1,
            -1,
            INT_MAX,
            "bytes",
            "MALLOC_TRIM_THRESHOLD_",
            f"-1: never give back; {_DYNAMIC}",
        ),
        Parameter("top_pad", -2, 0, INT_MAX, "bytes", "MALLOC_TOP_PAD_", _DYNAMIC),
        Parameter(
            "mmap_max",
            -4,
            0,
            INT_MAX,
            None,
            "MALLOC_MMAP_MAX_",
            f"how many blocks may have a mapping of their own; 0: none; {_DYNAMIC}",
        ),
        Parameter(
            "arena_max",
            -8,
            0,
            INT_MAX,
            None,
            "MALLOC_ARENA_MAX",
            "0: eight for each CPU; arenas that exist already stay",
        ),
        Parameter(
            "arena_test",
            -7,
            1,
            INT_MAX,
            None,
            "MALLOC_ARENA_TEST",
            "so many arenas before their number is limited at all; arena_max overrules it",
        ),
        Parameter(
            "mxfast",
            1,
            0,
            80 * ctypes.sizeof(ctypes.c_size_t) // 4,
            "bytes",
            None,
            "blocks up to this size are kept unmerged in lists of their own",
        ),
    )
}

_VERSION = ctypes.CFUNCTYPE(ctypes.c_char_p)
_MALLOPT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int)
_TRIM = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t)
_OPEN_MEMSTREAM = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t)
)
_MALLOC_INFO = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
_CLOSE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_written: dict[str, int] = {}
"""What was set through here: glibc tells nobody what its parameters are."""
_lock = threading.Lock()


class Glibc(Allocator):
    """glibc's own malloc."""

    name = "glibc"

    @property
    def version(self) -> str | None:
        ask = self._file.function("gnu_get_libc_version", _VERSION)
        return ask().decode() if ask else None

    @property
    def notes(self) -> tuple[str, ...]:
        if self._file.address_of("mallinfo2"):
            return super().notes
        return (
            *super().notes,
            "this glibc is older than 2.33 and counts in 32 bits: numbers above 2 GiB are wrong",
        )

    def heap_info(self) -> HeapInfo:
        """mallinfo2, or before glibc 2.33 mallinfo, whose numbers wrap at 2 GiB."""
        return self._heap_info("mallinfo2", _MallInfo2) or self._old_heap_info()

    def _old_heap_info(self) -> HeapInfo:
        info = self._heap_info("mallinfo", _MallInfo)
        if info is None:
            raise AllocatorUnsupportedError(f"{self.path} has neither mallinfo2 nor mallinfo")
        return HeapInfo(*(number % 2**32 for number in info))

    def _heap_info(self, symbol: str, structure: type[ctypes.Structure]) -> HeapInfo | None:
        ask = self._file.function(symbol, ctypes.CFUNCTYPE(structure))
        if ask is None:
            return None
        info = ask()
        return HeapInfo(info.arena, info.hblkhd, info.uordblks, info.fordblks)

    def stats(self) -> Stats:
        """Sums over all arenas; blocks in a thread's tcache count as allocated, see malloc/malloc.c.

        After `release`, `free` stays as it was, because the pages inside free blocks are given back
        and the addresses are not.
        """
        info = self.heap_info()
        return stats_of(
            allocated=info.used + info.mapped_blocks,
            mapped=info.arenas + info.mapped_blocks,
            free=info.free,
        )

    def _give_back(self) -> None:
        trim = self._file.function("malloc_trim", _TRIM)
        if trim is None:
            raise AllocatorUnsupportedError(f"{self.path} has no malloc_trim")
        trim(0)

    def settings(self) -> tuple[Setting, ...]:
        """What was written here, then what the start-up variables asked for.

        glibc does not tell its parameters, nor whether it took a variable.
        """
        with _lock:
            written = dict(_written)
        found = [_setting(PARAMETERS[name], value) for name, value in written.items()]
        found += [
            Setting(
                f"glibc.{name}",
                int(value) if value.isdecimal() else value,
                None,
                False,
                "as GLIBC_TUNABLES asked at the start; glibc does not tell whether it was taken",
            )
            for name, value in start_tunables().items()
        ]
        variables = start_environment()
        found += [
            Setting(
                parameter.variable,
                variables[parameter.variable],
                parameter.unit,
                False,
                "as the variable asked at the start; glibc does not tell whether it was taken",
            )
            for parameter in PARAMETERS.values()
            if parameter.variable is not None and parameter.variable in variables
        ]
        return tuple(found)

    def read(self, name: str) -> Value:
        """The value that was written here before.

        Raises `AllocatorUnsupportedError` for one that was not: glibc does not tell its parameters.
        """
        parameter = _parameter(name)
        with _lock:
            if name in _written:
                return _written[name]
        tunable = start_tunables().get(f"malloc.{name}")
        asked = f"; GLIBC_TUNABLES asked for {tunable} at the start" if tunable else ""
        raise AllocatorUnsupportedError(
            f"{name}: glibc does not tell its parameters, and nothing was written here{asked}; "
            f"write it (mallopt, M_{parameter.name.upper()}) to know it"
        )

    def write(self, name: str, value: Value) -> Setting:
        """Calls mallopt. The note of the answer tells what else the change brings."""
        parameter = _parameter(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise SettingTypeError(
                f"{name}: {value!r} is no whole number; allowed are {parameter.lowest} to "
                f"{parameter.highest}{_in_units(parameter)}"
            )
        if not parameter.lowest <= value <= parameter.highest:
            tunable = (
                f"; GLIBC_TUNABLES=glibc.malloc.{name}=... at the start takes more"
                if parameter.highest == INT_MAX and value > INT_MAX
                else ""
            )
            raise SettingValueError(
                f"{name}: {value} is out of range; allowed are {parameter.lowest} to "
                f"{parameter.highest}{_in_units(parameter)}{tunable}"
            )
        mallopt = self._file.function("mallopt", _MALLOPT)
        if mallopt is None:
            raise AllocatorUnsupportedError(f"{self.path} has no mallopt")
        with _lock:
            # It says yes even to numbers that it does not know, so the range is checked above. Before
            # 2.35 it says no to an mmap_threshold above 32 MiB.
            if not mallopt(parameter.number, value):
                raise SettingValueError(
                    f"{name}: glibc {self.version} refuses {value}{_in_units(parameter)}; "
                    "an mmap_threshold is limited to 33554432 bytes before glibc 2.35"
                )
            _written[name] = value
        return _setting(parameter, value)

    def report(self) -> str:
        """malloc_info's XML: every arena, its sizes of free blocks, and sums."""
        calls = [
            self._file.function(symbol, prototype)
            for symbol, prototype in (
                ("open_memstream", _OPEN_MEMSTREAM),
                ("malloc_info", _MALLOC_INFO),
                ("fclose", _CLOSE),
                ("free", _FREE),
            )
        ]
        open_memstream, malloc_info, close, free = calls
        if not (open_memstream and malloc_info and close and free):
            raise AllocatorUnsupportedError(f"{self.path} has no malloc_info")
        text = ctypes.c_void_p()
        size = ctypes.c_size_t()
        stream = open_memstream(ctypes.byref(text), ctypes.byref(size))
        if not stream:
            raise AllocatorUnsupportedError("malloc_info: there is no memory for its text")
        malloc_info(0, stream)
        close(stream)  # only now `text` points to all of it, see open_memstream(3)
        try:
            return ctypes.string_at(text.value or 0, size.value).decode()
        finally:
            free(text)


def start_tunables() -> dict[str, str]:
    """The malloc part of GLIBC_TUNABLES that the process started with; of two alike the last.

    **Ex.:** ``{"malloc.arena_max": "1"}``
    """
    entries = start_environment().get("GLIBC_TUNABLES", "").split(":")
    pairs = (entry.partition("=") for entry in entries if "=" in entry)
    return {
        name.removeprefix("glibc."): value
        for name, _, value in pairs
        if name.startswith("glibc.malloc.")
    }


def _parameter(name: str) -> Parameter:
    if name not in PARAMETERS:
        raise unknown_setting(name, "glibc's malloc", tuple(PARAMETERS))
    return PARAMETERS[name]


def _in_units(parameter: Parameter) -> str:
    return f" {parameter.unit}" if parameter.unit else ""


def _setting(parameter: Parameter, value: int) -> Setting:
    note = "as written here; glibc does not tell its parameters"
    if parameter.note:
        note = f"{note}; {parameter.note}"
    return Setting(parameter.name, value, parameter.unit, True, note)
