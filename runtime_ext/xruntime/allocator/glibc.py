# SPDX-License-Identifier: Apache-2.0
"""glibc's malloc: mallinfo2, malloc_trim, mallopt.

Sources: the glibc manual, "Malloc Tunable Parameters" and "Memory Allocation Tunables"; mallopt(3),
mallinfo(3), malloc_trim(3); malloc/malloc.c of glibc 2.36.
"""

from __future__ import annotations

import ctypes
import threading
from typing import NamedTuple

from xruntime.allocator.controller import Allocator
from xruntime.allocator.memory import Stats, stats_of
from xruntime.allocator.settings import Setting, Value, checked_integer, start_environment
from xruntime.errors import AllocatorUnsupportedError, SettingValueError, UnknownSettingError

INT_MAX = 2**31 - 1
"""The largest value that mallopt takes; GLIBC_TUNABLES takes larger thresholds."""

_FIELDS = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class _MallInfo2(ctypes.Structure):
    """struct mallinfo2 of malloc.h."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS)


class _MallInfo(ctypes.Structure):
    """struct mallinfo: the same fields as unsigned int, which wrap at 4 GiB."""

    _fields_ = tuple((name, ctypes.c_uint) for name in _FIELDS)


class MalloptParameter(NamedTuple):
    number: int
    """M_... of malloc.h."""
    minimum: int
    unit: str | None


PARAMETERS = {
    "trim_threshold": MalloptParameter(-1, -1, "bytes"),
    "top_pad": MalloptParameter(-2, 0, "bytes"),
    "mmap_threshold": MalloptParameter(-3, 0, "bytes"),
    "mmap_max": MalloptParameter(-4, 0, None),
    "arena_max": MalloptParameter(-8, 0, None),
}

_VERSION = ctypes.CFUNCTYPE(ctypes.c_char_p)
_MALLOPT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int)
_TRIM = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t)

_written: dict[str, int] = {}
"""Values set through `write`: glibc has no function that reads its parameters."""
_lock = threading.Lock()


class Glibc(Allocator):
    """glibc's own malloc."""

    name = "glibc"

    @property
    def version(self) -> str | None:
        version: bytes = self._function("gnu_get_libc_version", _VERSION)()
        return version.decode()

    @property
    def notes(self) -> tuple[str, ...]:
        if self._file.address_of("mallinfo2"):
            return super().notes
        return (
            *super().notes,
            "this glibc is older than 2.33 and counts in 32 bits: numbers above 4 GiB are wrong",
        )

    def stats(self) -> Stats:
        """Sums over all arenas; blocks in a thread's tcache count as allocated, see malloc/malloc.c.

        `release` does not change `free`: it returns the pages inside free blocks, but keeps the
        addresses.
        """
        stats = self._stats("mallinfo2", _MallInfo2) or self._stats("mallinfo", _MallInfo)
        if stats is None:
            raise AllocatorUnsupportedError(f"{self.path} has neither mallinfo2 nor mallinfo")
        return stats

    def _stats(self, symbol: str, structure: type[ctypes.Structure]) -> Stats | None:
        ask = self._file.function(symbol, ctypes.CFUNCTYPE(structure))
        if ask is None:
            return None
        info = ask()
        allocated, mapped = info.uordblks + info.hblkhd, info.arena + info.hblkhd
        return stats_of(allocated=allocated, mapped=mapped, free=info.fordblks)

    def _release(self) -> None:
        self._function("malloc_trim", _TRIM)(0)

    def settings(self) -> tuple[Setting, ...]:
        """Return the parameters that were written here, and the tunables that the process began with.

        glibc does not report its parameters, nor whether it accepted a variable.
        """
        with _lock:
            written = dict(_written)
        settings = [_setting(name, value) for name, value in written.items()]
        settings += [
            Setting(name, value, None, False, "requested at the start; glibc does not report it")
            for name, value in _start_settings().items()
        ]
        return tuple(settings)

    def read(self, name: str) -> Value:
        """Return what was written here; AllocatorUnsupportedError if nothing: glibc reports none itself."""
        _parameter(name)
        with _lock:
            if name in _written:
                return _written[name]
        tunable = _start_settings().get(f"glibc.malloc.{name}")
        asked = f"; GLIBC_TUNABLES requested {tunable} at the start" if tunable else ""
        raise AllocatorUnsupportedError(
            f"{name}: glibc does not report its parameters, and nothing was written here{asked}"
        )

    def write(self, name: str, value: Value) -> Setting:
        """Call mallopt."""
        parameter = _parameter(name)
        number = checked_integer(name, value, parameter.minimum, INT_MAX)
        with _lock:
            # mallopt accepts values that it does not use, so the range is checked above. Before 2.35 it
            # refuses an mmap_threshold above 32 MiB.
            if not self._function("mallopt", _MALLOPT)(parameter.number, number):
                raise SettingValueError(f"{name}: glibc {self.version} refuses {value}")
            _written[name] = number
        return _setting(name, number)


def _start_settings() -> dict[str, str]:
    """Malloc's tunables and variables that the process started with; of two equal names the last."""
    variables = start_environment()
    pairs = (entry.partition("=") for entry in variables.get("GLIBC_TUNABLES", "").split(":"))
    tunables = {name: value for name, _, value in pairs if name.startswith("glibc.malloc.")}
    return tunables | {
        name: value for name, value in variables.items() if name.startswith("MALLOC_")
    }


def _parameter(name: str) -> MalloptParameter:
    if name not in PARAMETERS:
        raise UnknownSettingError(
            f"{name!r} is not a setting of glibc's malloc; there are {', '.join(PARAMETERS)}"
        )
    return PARAMETERS[name]


def _setting(name: str, value: int) -> Setting:
    note = None
    if name != "arena_max":
        note = "glibc no longer adjusts mmap_threshold and trim_threshold to the program"
    return Setting(name, value, PARAMETERS[name].unit, True, note)
