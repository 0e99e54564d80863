# SPDX-License-Identifier: Apache-2.0
"""jemalloc's mallctl with types: values in and out are Python's.

    mallctl = allocator.current().mallctl
    mallctl.read("stats.resident", "size_t")
    mallctl.write("background_thread", True, "bool")
    mallctl.call("arena.0.purge")

mallctl checks the size of a value and nothing else, so each call names the type of the value, as
jemalloc(3) has it in brackets after the name. Source: jemalloc(3), mallctl() and RETURN VALUES.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from xruntime.allocator.loader import LoadedFile
from xruntime.allocator.settings import Value, checked_integer
from xruntime.errors import (
    AllocatorError,
    AllocatorUnsupportedError,
    ReadOnlySettingError,
    SettingTypeError,
    SettingValueError,
    UnknownSettingError,
)

PREFIXES = ("", "je_")
"""Prefixes that a build may give to jemalloc's functions: --with-jemalloc-prefix."""

TEXT = "const char *"
TYPES: dict[str, type[Any]] = {
    "bool": ctypes.c_bool,
    "unsigned": ctypes.c_uint,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "int64_t": ctypes.c_int64,
    "size_t": ctypes.c_size_t,
    "ssize_t": ctypes.c_ssize_t,
    TEXT: ctypes.c_char_p,
}

_SIGNED = ("int64_t", "ssize_t")

_MALLCTL = ctypes.CFUNCTYPE(
    *(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p),
    *(ctypes.c_void_p, ctypes.c_size_t),
)


def prefix_of(file: LoadedFile) -> str | None:
    """The prefix of jemalloc's functions in `file`; None if it is not a jemalloc."""
    return next((prefix for prefix in PREFIXES if file.address_of(f"{prefix}mallctl")), None)


class Mallctl:
    """mallctl of one loaded jemalloc. Many threads may use it at once."""

    def __init__(self, file: LoadedFile) -> None:
        function = file.function(f"{prefix_of(file) or ''}mallctl", _MALLCTL)
        if function is None:
            raise AllocatorUnsupportedError(f"{file.path} has no mallctl: it is not a jemalloc")
        self._call = function
        self._refreshing = threading.Lock()

    def read(self, name: str, kind: str) -> Value:
        """Return the value of `name`, which has the C type `kind`, one of `TYPES`.

        Statistics are updated first.
        Raises `UnknownSettingError`, `SettingTypeError` for another type, `ReadOnlySettingError` for a
        name that cannot be read, `AllocatorError` where jemalloc fails.
        """
        if not name.startswith("stats."):
            return self._read(name, kind)
        with self.snapshot() as read:
            return read(name, kind)

    def _read(self, name: str, kind: str) -> Value:
        old = _type(kind)()
        self._exchange(name, old=old)
        value: bool | int | bytes | None = old.value
        if isinstance(value, bool | int):
            return value
        return (value or b"").decode(errors="replace")

    def write(self, name: str, value: Value, kind: str) -> None:
        """Set `name`. Raises as `read` does, and `SettingValueError`."""
        self._exchange(name, new=_converted(name, value, kind), value=value)

    def call(self, name: str) -> None:
        """Run the command `name`, which has no value. Raises as `read` does."""
        self._exchange(name)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[Callable[[str, str], Value]]:
        """Update the statistics, and return a function that reads them without another update."""
        with self._refreshing:
            # Statistics are copies, made when the epoch advances.
            self.write("epoch", 1, "uint64_t")
            yield self._read

    def _exchange(
        self,
        name: str,
        *,
        old: ctypes._CDataType | None = None,
        new: ctypes._CDataType | None = None,
        value: Value | None = None,
    ) -> None:
        size = ctypes.c_size_t(0 if old is None else ctypes.sizeof(old))
        code = self._call(
            name.encode(),
            None if old is None else ctypes.byref(old),
            None if old is None else ctypes.byref(size),
            None if new is None else ctypes.byref(new),
            0 if new is None else ctypes.sizeof(new),
        )
        if code:
            raise _error(code, name, value)


def _error(code: int, name: str, value: Value | None) -> AllocatorError:
    """The error for what mallctl returned, by RETURN VALUES of jemalloc(3)."""
    if code == errno.ENOENT:
        return UnknownSettingError(
            f"{name}: this jemalloc has no such name; jemalloc(3) lists them, MALLCTL NAMESPACE"
        )
    if code == errno.EPERM:
        return ReadOnlySettingError(f"{name}: jemalloc refuses; the name cannot be read or written")
    if code == errno.EINVAL and value is None:
        return SettingTypeError(f"{name}: its type is another; jemalloc(3) has it after the name")
    if code in (errno.EINVAL, errno.EFAULT):
        return SettingValueError(
            f"{name if value is None else f'{name} = {value!r}'}: jemalloc refuses; jemalloc(3) has the"
            " type and the values that the name takes"
        )
    return AllocatorError(f"{name}: jemalloc fails with {code} ({os.strerror(code)})")


def _type(kind: str) -> type[Any]:
    if kind not in TYPES:
        raise SettingTypeError(f"{kind!r} is not a type of mallctl; there are {', '.join(TYPES)}")
    return TYPES[kind]


def _converted(name: str, value: Value, kind: str) -> ctypes._CDataType:
    convert: Callable[[Any], ctypes._CDataType] = _type(kind)
    if kind == "bool":
        if not isinstance(value, bool):
            raise SettingTypeError(f"{name}: {value!r} is neither True nor False")
        return convert(value)
    if kind == TEXT:
        if not isinstance(value, str) or "\0" in value:
            raise SettingTypeError(f"{name}: {value!r} is not text (str) without null characters")
        return convert(value.encode())
    bits = 8 * ctypes.sizeof(TYPES[kind])
    signed = kind in _SIGNED
    low, high = -(2 ** (bits - 1)) if signed else 0, 2 ** (bits - signed) - 1
    return convert(checked_integer(name, value, low, high))
