# SPDX-License-Identifier: Apache-2.0
"""Lookup, through the dynamic loader, of the file that defines a function, and of its functions.

LD_PRELOAD says what was requested; only the loader knows what was loaded.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

Function = Callable[..., Any]
Prototype = Callable[[int], Function]
"""A type that ctypes.CFUNCTYPE made: called with an address, it returns a function."""

PROGRAM = "/proc/self/exe"

RTLD_DEFAULT = None
RTLD_DL_SYMENT = 1
"""The flag with which dladdr1 returns the entry of the symbol table, see dlfcn.h of glibc."""


class _DlInfo(ctypes.Structure):
    """Dl_info of dlfcn.h."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


class _ProgramHeaders(ctypes.Structure):
    """The beginning of struct dl_phdr_info of link.h."""

    _fields_ = (("base", ctypes.c_void_p), ("name", ctypes.c_char_p))


_VISIT = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(_ProgramHeaders), ctypes.c_size_t, ctypes.c_void_p
)
_ARGUMENTS = {
    "dlsym": (ctypes.c_void_p, ctypes.c_char_p),
    "dladdr": (ctypes.c_void_p, ctypes.c_void_p),
    "dladdr1": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int),
    "dl_iterate_phdr": (_VISIT, ctypes.c_void_p),
}
"""The loader's functions, which are in libc, or in libdl before glibc 2.34; Python is linked to both."""


class LoadedFile(NamedTuple):
    """A program or library of this process, found by a function that it defines.

    **Ex.:** ``LoadedFile(name="/lib/x86_64-linux-gnu/libc.so.6", base=139872, path="/usr/lib/...")``
    """

    name: str
    """The name that the loader has for it; for the program, the name that it was started by."""

    base: int
    """The address at which it begins."""

    path: str
    """The file, links resolved. ``... (deleted)`` if it was removed or replaced since."""

    @property
    def is_program(self) -> bool:
        """Whether it is the main executable, not a library."""
        try:
            return os.readlink(PROGRAM) == self.path
        except OSError:
            return False

    def address_of(self, symbol: str) -> int | None:
        """The address of `symbol` in this file; None if the file does not define or export it."""
        try:
            # dlsym also searches the files that this one depends on, see dlsym(3).
            handle = ctypes.CDLL(None if self.is_program else self.name, mode=os.RTLD_NOLOAD)
        except OSError:
            return None
        address = _dlsym(handle._handle, symbol)  # noqa: SLF001 - ctypes has no public name
        if address is None:
            return None
        symbol_info = _dladdr(address)
        return address if symbol_info is not None and symbol_info.base == self.base else None

    def function(self, symbol: str, prototype: Prototype) -> Function | None:
        """`symbol` of this file, as a function of that type; None if the file does not define it."""
        address = self.address_of(symbol)
        return None if address is None else prototype(address)


def file_in_use(symbol: str) -> LoadedFile | None:
    """Find the file whose `symbol` this process uses: the first in the loader's order that defines it."""
    address = _dlsym(RTLD_DEFAULT, symbol)
    if address is None:
        return None
    if _is_only_a_reference(address):
        # A program at a fixed address that takes the function's address has an entry of that name,
        # which jumps to the definition elsewhere.
        address = _first_definition(symbol)
        if address is None:
            return None
    symbol_info = _dladdr(address)
    if symbol_info is None:
        return None
    name = os.fsdecode(symbol_info.file or b"")
    return LoadedFile(name, symbol_info.base or 0, _mapped_at(address) or os.path.realpath(name))


@functools.cache
def _loader(name: str) -> Any:
    """A function of the loader. Raises AttributeError if it has none of that name."""
    function = getattr(ctypes.CDLL(None), name)
    function.argtypes = _ARGUMENTS[name]
    function.restype = ctypes.c_void_p if name == "dlsym" else ctypes.c_int
    return function


def _dlsym(handle: int | None, symbol: str) -> int | None:
    address: int | None = _loader("dlsym")(handle, symbol.encode())
    return address


def _dladdr(address: int) -> _DlInfo | None:
    symbol_info = _DlInfo()
    return symbol_info if _loader("dladdr")(address, ctypes.byref(symbol_info)) else None


def _is_only_a_reference(address: int) -> bool:
    """Whether the symbol at `address` is undefined in its file: st_shndx is SHN_UNDEF, elf(5).

    musl has no dladdr1, and its dlsym never returns a reference.
    """
    symbol_info, entry = _DlInfo(), ctypes.c_void_p()
    try:
        ask = _loader("dladdr1")
    except AttributeError:
        return False
    if not ask(address, ctypes.byref(symbol_info), ctypes.byref(entry), RTLD_DL_SYMENT):
        return False
    if not entry.value or symbol_info.address != address:
        return False
    offset = 6 if ctypes.sizeof(ctypes.c_void_p) == 8 else 14
    return ctypes.c_uint16.from_address(entry.value + offset).value == 0


def _first_definition(symbol: str) -> int | None:
    for name in _loaded_names():
        try:
            handle = ctypes.CDLL(name, mode=os.RTLD_NOLOAD)
        except OSError:
            continue
        address = _dlsym(handle._handle, symbol)  # noqa: SLF001
        if address is None or _is_only_a_reference(address):
            continue
        symbol_info = _dladdr(address)
        if symbol_info is not None and os.fsdecode(symbol_info.file or b"") == name:
            return address
    return None


def _loaded_names() -> list[str]:
    """The libraries in the order in which the loader searches them: preloaded ones first."""
    names: list[str] = []

    def visit(headers: ctypes._Pointer[_ProgramHeaders], _size: int, _data: int) -> int:
        name = headers.contents.name
        if name:  # the program itself has none
            names.append(os.fsdecode(name))
        return 0

    _loader("dl_iterate_phdr")(_VISIT(visit), None)
    return names


def _mapped_at(address: int) -> str | None:
    """The file that is mapped at `address`, see proc_pid_maps(5)."""
    try:
        with open("/proc/self/maps", "rb") as maps:
            for line in maps:
                fields = line.rstrip(b"\n").split(None, 5)
                begin, _, end = fields[0].partition(b"-")
                if int(begin, 16) <= address < int(end, 16):
                    return os.fsdecode(fields[5]) if len(fields) > 5 else None
    except OSError:
        return None
    return None
