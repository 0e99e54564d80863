# SPDX-License-Identifier: Apache-2.0
"""jemalloc's mallctl with types: values in and out are Python's, errors say what to do.

Source: jemalloc(3), mallctl() and RETURN VALUES.
"""

from __future__ import annotations

import ctypes
import errno
import os

from xruntime.allocator.loader import LoadedFile
from xruntime.allocator.mallctl_names import (
    INTEGERS,
    NAMES,
    SIGNED,
    TEXT,
    VALUE_TYPES,
    Name,
    find_name,
)
from xruntime.errors import (
    AllocatorError,
    AllocatorMemoryError,
    AllocatorUnsupportedError,
    ReadOnlySettingError,
    SettingTypeError,
    SettingValueError,
    UnknownSettingError,
)

PREFIXES = ("", "je_")
"""How a jemalloc may be built to call its own functions: --with-jemalloc-prefix."""

_MALLCTL = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_size_t),
    ctypes.c_void_p,
    ctypes.c_size_t,
)

_WORDS = {"r": "read", "w": "written", "c": "called"}

# What each name that is only there in some builds depends on.
_BUILT_IN = {
    "config.prof": ("prof.", "thread.prof.", "opt.prof", "opt.lg_prof"),
    "config.stats": ("stats.", "thread.allocated", "thread.deallocated", "thread.peak."),
    "config.fill": ("opt.junk", "opt.zero"),
    "config.utrace": ("opt.utrace",),
    "config.xmalloc": ("opt.xmalloc",),
}

Value = bool | int | str


def prefix_of(file: LoadedFile) -> str | None:
    """What is put before the names of jemalloc's functions in `file`; None: it is no jemalloc."""
    return next((prefix for prefix in PREFIXES if file.address_of(f"{prefix}mallctl")), None)


class Mallctl:
    """mallctl of one loaded jemalloc. Safe to use from many threads at once."""

    def __init__(self, file: LoadedFile) -> None:
        prefix = prefix_of(file)
        function = None if prefix is None else file.function(f"{prefix}mallctl", _MALLCTL)
        if function is None:
            raise AllocatorUnsupportedError(f"{file.path} has no mallctl: it is no jemalloc")
        self._call = function

    def read(self, name: str, kind: str | None = None) -> Value:
        """The value of `name`. Statistics are as of the last `refresh`.

        `kind` (`VALUE_TYPES`) is for names that the table does not have. Raises `UnknownSettingError`,
        `ReadOnlySettingError` where it cannot be read, `AllocatorError` where jemalloc fails.
        """
        row = _row(name, kind, "r")
        if row.kind == TEXT:
            text = ctypes.c_char_p()
            self._exchange(name, row, old=text)
            return (text.value or b"").decode(errors="replace")
        value = ctypes.c_bool() if row.kind == "bool" else INTEGERS[row.kind]()
        self._exchange(name, row, old=value)
        return value.value

    def write(self, name: str, value: Value, kind: str | None = None) -> None:
        """Set `name`. Raises as `read` does, and `SettingTypeError`, `SettingValueError`."""
        row = _row(name, kind, "w")
        self._exchange(name, row, new=_to_c(name, row.kind, value), value=value)

    def call(self, name: str) -> None:
        """Run the command `name`. Raises as `read` does."""
        self._exchange(name, _row(name, None, "c"))

    def refresh(self) -> None:
        """Bring the statistics up to date: they are copies, made when the epoch advances."""
        self.write("epoch", 1)

    def look_up(self, address: int) -> int:
        """The number of the arena that the block at `address` is of (arenas.lookup, jemalloc 5.1)."""
        arena = ctypes.c_uint()
        row = Name("arenas.lookup", "unsigned", "r")
        self._exchange("arenas.lookup", row, old=arena, new=ctypes.c_void_p(address), value=address)
        return arena.value

    def _exchange(
        self,
        name: str,
        row: Name,
        *,
        old: ctypes._CDataType | None = None,
        new: ctypes._CDataType | None = None,
        value: Value | None = None,
    ) -> None:
        size = ctypes.c_size_t(0 if old is None else ctypes.sizeof(old))
        code = self._call(
            name.encode(),
            None if old is None else ctypes.cast(ctypes.byref(old), ctypes.c_void_p),
            None if old is None else ctypes.byref(size),
            None if new is None else ctypes.cast(ctypes.byref(new), ctypes.c_void_p),
            0 if new is None else ctypes.sizeof(new),
        )
        if code:
            raise self._error(code, name, row, value)

    def _error(self, code: int, name: str, row: Name, value: Value | None) -> AllocatorError:
        """What jemalloc's error means, by errno(3) as jemalloc(3) uses it."""
        what = name if value is None else f"{name} = {value!r}"
        if code == errno.ENOENT:
            return self._absent(name)
        if code == errno.EINVAL and row.pattern == "arenas.lookup":
            return SettingValueError(f"{what}: there is no block of jemalloc's at that address")
        if code == errno.EINVAL and value is not None and self._is_of_its_type(name, row):
            return SettingValueError(f"{what}: jemalloc does not take that{_why_not(row)}")
        if code == errno.EINVAL:
            return SettingTypeError(
                f"{what}: this jemalloc has another type for it than {row.kind}; "
                f"name its type, kind=..., one of {', '.join(VALUE_TYPES)}"
            )
        if code == errno.EPERM:
            return ReadOnlySettingError(
                f"{what}: jemalloc refuses; it is read-only here, or, for thread.arena, "
                "opt.percpu_arena chooses the arena"
            )
        if code == errno.EAGAIN:
            return AllocatorMemoryError(
                f"{what}: jemalloc is out of memory, or, for arenas.create, out of its 4,094 arenas"
            )
        if code == errno.EFAULT:
            return SettingValueError(f"{what}: jemalloc cannot do that{_why_not(row)}")
        return AllocatorError(f"{what}: jemalloc fails with {code} ({os.strerror(code)})")

    def _is_of_its_type(self, name: str, row: Name) -> bool:
        """Whether `name` can be read as what it was written as; then not the type was wrong."""
        try:
            self.read(name, row.kind)
        except AllocatorError:
            return False
        return True

    def _absent(self, name: str) -> AllocatorError:
        for switch, beginnings in _BUILT_IN.items():
            if name.startswith(beginnings) and self.read(switch) is False:
                return AllocatorUnsupportedError(
                    f"{name}: this jemalloc, {self.read('version')}, is built without it "
                    f"({switch} is false); use one that is built with it"
                )
        return UnknownSettingError(
            f"{name}: jemalloc {self.read('version')} knows no such name, or no such number in it; "
            "its names are in jemalloc(3), MALLCTL NAMESPACE, its arenas those below arenas.narenas"
        )


def _row(name: str, kind: str | None, access: str) -> Name:
    """The row of `name`, which must allow `access`."""
    if kind is not None:
        if kind not in VALUE_TYPES:
            raise SettingTypeError(f"kind={kind!r} is no type; there are {', '.join(VALUE_TYPES)}")
        return Name(name, kind, "rw")
    row = find_name(name)
    if row is None:
        import difflib

        near = difflib.get_close_matches(name, NAMES, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise UnknownSettingError(
            f"{name!r}{hint}: the type of this mallctl name is not known here; where jemalloc has it "
            f"nevertheless, name its type, kind=..., one of {', '.join(VALUE_TYPES)}"
        )
    if access not in row.access:
        can = " and ".join(_WORDS[letter] for letter in row.access)
        raise ReadOnlySettingError(f"{name} cannot be {_WORDS[access]}; it can be {can}")
    return row


def _to_c(name: str, kind: str, value: Value) -> ctypes._CDataType:
    if kind == "bool":
        if not isinstance(value, bool):
            raise SettingTypeError(f"{name}: {value!r} is neither True nor False")
        return ctypes.c_bool(value)
    if kind == TEXT:
        if not isinstance(value, str):
            raise SettingTypeError(f"{name}: {value!r} is no text (str)")
        if "\0" in value:
            raise SettingValueError(
                f"{name}: {value!r} has a null character in it, which C ends at"
            )
        return ctypes.c_char_p(value.encode())
    if isinstance(value, bool) or not isinstance(value, int):
        raise SettingTypeError(f"{name}: {value!r} is no whole number (int)")
    number = INTEGERS[kind](value)
    if number.value != value:
        bits = 8 * ctypes.sizeof(number)
        signed = kind in SIGNED
        low = -(2 ** (bits - 1)) if signed else 0
        high = 2 ** (bits - signed) - 1
        raise SettingValueError(f"{name}: {value} is out of range; allowed are {low} to {high}")
    return number


def _why_not(row: Name) -> str:
    """jemalloc(3) has one code, EFAULT, for all that can be wrong with a value or a moment."""
    reasons = {
        "thread.arena": "; the arena must exist: allocator.jemalloc.arenas() lists them",
        "arena.<i>.destroy": "; only an arena that was created, and that no thread is set to, can go",
        "arena.<i>.reset": "; only an arena that was created can be reset",
        "arena.<i>.dss": "; there are disabled, primary, secondary",
        "max_background_threads": "; allowed are numbers up to opt.max_background_threads",
        "prof.dump": "; heap profiling must be on (opt.prof) and the file writable",
        "thread.tcache.flush": "; the thread has no cache (thread.tcache.enabled is false)",
    }
    if row.pattern.endswith("decay_ms"):
        return "; allowed are -1 (never), 0 (at once), and milliseconds above; and the arena must exist"
    return reasons.get(
        row.pattern, "; the value or the moment is wrong, jemalloc does not say which"
    )
