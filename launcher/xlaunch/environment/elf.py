# SPDX-License-Identifier: Apache-2.0
"""Read an ELF file's target machine, loader, soname and needed libraries; a few hundred bytes, see elf(5)."""

from __future__ import annotations

import os
import struct
import sys
from io import BufferedReader
from typing import NamedTuple

from xlaunch.files import open_input

PT_LOAD, PT_DYNAMIC, PT_INTERP = 1, 2, 3
DT_NEEDED, DT_STRTAB, DT_SONAME = 1, 5, 14
ET_DYN = 3

MAX_HEADERS = 256
"""A file with more program headers is refused; real libraries have about ten."""
MAX_DYNAMIC_BYTES = 1 << 16
MAX_NAME_BYTES = 256

MACHINES = {
    3: "x86", 8: "MIPS", 20: "PowerPC", 21: "PowerPC64", 22: "s390x", 40: "Arm", 62: "x86-64",
    183: "AArch64", 243: "RISC-V", 258: "LoongArch",
}  # fmt: skip
"""Names of e_machine, from elf.h."""


class ElfError(Exception):
    """A file is not a complete ELF file. The text continues a sentence that begins with its name."""


class ElfTarget(NamedTuple):
    """What a file was built for. Only files with equal targets can share a process."""

    bits: int
    byte_order: str
    """``"<"`` or ``">"``, as struct has it."""
    machine: int

    def __str__(self) -> str:
        """**Ex.:** ``"64-bit x86-64"``."""
        return f"{self.bits}-bit {MACHINES.get(self.machine, f'machine {self.machine}')}"


class Elf(NamedTuple):
    """A shared library or program."""

    target: ElfTarget
    shared: bool
    """It is a library or a position-independent program."""
    soname: str | None
    needed: tuple[str, ...]
    """Sonames of the libraries that it is linked to."""
    loader: str | None = None
    """A program's dynamic loader. **Ex.:** ``/lib64/ld-linux-x86-64.so.2``."""

    @property
    def static(self) -> bool:
        """As a program, it loads no library."""
        return self.loader is None and not self.needed

    @property
    def c_library(self) -> str | None:
        """``"glibc"`` or ``"musl"``, as the loader's or the C library's name says; else None."""
        for name in (os.path.basename(self.loader or ""), *self.needed):
            if name.startswith(("ld-linux", "libc.so.6")):
                return "glibc"
            # Debian's musl has the soname libc.so, Alpine's libc.musl-x86_64.so.1.
            if name.startswith(("ld-musl-", "libc.musl-")) or name == "libc.so":
                return "musl"
        return None


def read_elf(path: str) -> Elf:
    """Read the file's headers. Raises `ElfError`, also for a truncated file."""
    try:
        with open_input(path) as file:
            return _read(file)
    except struct.error:
        raise ElfError("is truncated") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ElfError(f"cannot be read ({reason})") from None


def read_program(path: str | None) -> Elf | None:
    """Read what loads a program's libraries: its executable, or its Python.

    A script (such as pyenv's shims) counts as the running Python: what it starts has this system's target.
    None if nothing can be read, and on other systems than Linux.
    """
    if sys.platform != "linux":
        return None
    for candidate in (path, sys.executable, "/proc/self/exe"):
        try:
            if candidate:
                return read_elf(candidate)
        except ElfError:
            continue
    return None


def _at(file: BufferedReader, offset: int, length: int) -> bytes:
    """The bytes at an offset; fewer at the end of the file."""
    if offset > os.fstat(file.fileno()).st_size:
        return b""
    return os.pread(file.fileno(), length, offset)


def _target(header: bytes) -> ElfTarget:
    if header[:4] != b"\x7fELF" or len(header) < 20:
        raise ElfError("is not an ELF file")
    bits = {1: 32, 2: 64}.get(header[4])
    order = {1: "<", 2: ">"}.get(header[5])
    if bits is None or order is None:
        raise ElfError("is an ELF file of an unknown class")
    return ElfTarget(bits, order, struct.unpack_from(f"{order}H", header, 18)[0])


def _read(file: BufferedReader) -> Elf:
    header = _at(file, 0, 64)
    target = _target(header)
    order, wide = target.byte_order, target.bits == 64
    (kind,) = struct.unpack_from(f"{order}H", header, 16)
    if wide:
        (start,) = struct.unpack_from(f"{order}Q", header, 32)
        size, count = struct.unpack_from(f"{order}HH", header, 54)
    else:
        (start,) = struct.unpack_from(f"{order}I", header, 28)
        size, count = struct.unpack_from(f"{order}HH", header, 42)
    if size != (56 if wide else 32) or not 0 < count <= MAX_HEADERS:
        raise ElfError("has invalid program headers")
    loaded: list[tuple[int, int, int]] = []  # virtual address, offset in the file, bytes
    dynamic = interpreter = (0, 0)
    headers = _at(file, start, size * count)
    for index in range(count):
        if wide:
            segment, _, offset, address, _, length = struct.unpack_from(
                f"{order}IIQQQQ", headers, index * size
            )
        else:
            segment, offset, address, _, length = struct.unpack_from(
                f"{order}IIIII", headers, index * size
            )
        if segment == PT_LOAD:
            if offset + length > os.fstat(file.fileno()).st_size:
                raise ElfError("is truncated")
            loaded.append((address, offset, length))
        elif segment == PT_DYNAMIC:
            dynamic = offset, min(length, MAX_DYNAMIC_BYTES)
        elif segment == PT_INTERP:
            interpreter = offset, min(length, MAX_NAME_BYTES)
    soname, needed = _names(file, target, dynamic, loaded)
    loader = os.fsdecode(_at(file, *interpreter).split(b"\0")[0]) or None
    return Elf(target, kind == ET_DYN, soname, needed, loader)


def _names(
    file: BufferedReader,
    target: ElfTarget,
    dynamic: tuple[int, int],
    loaded: list[tuple[int, int, int]],
) -> tuple[str | None, tuple[str, ...]]:
    entry = struct.Struct(f"{target.byte_order}{'qQ' if target.bits == 64 else 'iI'}")
    content = _at(file, *dynamic)
    entries = list(entry.iter_unpack(content[: len(content) // entry.size * entry.size]))
    table = next((value for tag, value in entries if tag == DT_STRTAB), None)
    if table is None:
        return None, ()
    strings = next((o + table - a for a, o, n in loaded if a <= table < a + n), None)
    if strings is None:
        raise ElfError("has a string table outside of its segments")

    def name(offset: int) -> str:
        return (
            _at(file, strings + offset, MAX_NAME_BYTES).split(b"\0")[0].decode("utf-8", "replace")
        )

    soname = next((name(value) for tag, value in entries if tag == DT_SONAME), None)
    return soname, tuple([name(value) for tag, value in entries if tag == DT_NEEDED])
