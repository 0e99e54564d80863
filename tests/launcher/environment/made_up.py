# SPDX-License-Identifier: Apache-2.0
"""Made-up libraries and environments: files of a few hundred bytes that say of themselves what a
test needs, and directories laid out as Python's, conda's and the system's are."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

X86_64, AARCH64 = 62, 183
HERE = {"x86_64": X86_64, "aarch64": AARCH64}.get(os.uname().machine, X86_64)


def elf_bytes(
    *,
    soname: str | None = None,
    needed: Sequence[str] = (),
    machine: int = HERE,
    bits: int = 64,
    order: str = "<",
    kind: int = 3,
    text: bytes = b"",
) -> bytes:
    """A shared library with one segment, a dynamic section, and `text` at its end; no code."""
    wide = bits == 64
    header_size, entry_size = (64, 56) if wide else (52, 32)
    start = header_size + 2 * entry_size
    strings = b"\0"
    entries = []
    for tag, name in [(14, soname), *((1, name) for name in needed)]:
        if name is not None:
            entries.append((tag, len(strings)))
            strings += name.encode() + b"\0"
    word = struct.Struct(order + ("qQ" if wide else "iI"))
    entries_size = (len(entries) + 2) * word.size
    address = 0x10000  # of the file's first byte, so that addresses are not offsets
    entries.append((5, address + start + entries_size))
    dynamic = b"".join(word.pack(*entry) for entry in [*entries, (0, 0)])
    content = dynamic + strings + text
    size = start + len(content)

    def segment(sort: int, offset: int, length: int) -> bytes:
        place = address + offset
        if wide:
            return struct.pack(f"{order}IIQQQQQQ", sort, 5, offset, place, place, length, length, 1)
        return struct.pack(f"{order}IIIIIIII", sort, offset, place, place, length, length, 5, 1)

    ident = b"\x7fELF" + bytes([2 if wide else 1, 1 if order == "<" else 2, 1]) + bytes(9)
    address_word = "Q" if wide else "I"
    header = ident + struct.pack(
        f"{order}HHI{address_word * 3}IHHHHHH",
        kind, machine, 1, 0, header_size, 0, 0, header_size, entry_size, 2, 0, 0, 0,
    )  # fmt: skip
    return header + segment(1, 0, size) + segment(2, start, len(dynamic)) + content


def library(path: Path, **more: object) -> Path:
    """Write a made-up library, with the directories above it; its soname is its name, unless given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(elf_bytes(**{"soname": path.name, **more}))  # type: ignore[arg-type]
    path.chmod(0o755)
    return path


def environment(prefix: Path, *packages: str, python: str = "3.13.1") -> Path:
    """A virtual environment with `packages` (``name-version``); its site-packages directory."""
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / "python").symlink_to(sys.executable)
    (prefix / "pyvenv.cfg").write_text(f"home = {prefix}-base/bin\nversion = {python}\n")
    version = ".".join(python.split(".")[:2])
    site = prefix / "lib" / f"python{version}" / "site-packages"
    site.mkdir(parents=True)
    for package in packages:
        (site / f"{package}.dist-info").mkdir()
    return site


def with_mkl(site: Path, *, enabled: int = 1) -> None:
    """Write the header by which torch in site-packages says whether it is linked to MKL."""
    header = site / "torch" / "include" / "ATen" / "Config.h"
    header.parent.mkdir(parents=True)
    header.write_text(
        f"#define AT_MKL_ENABLED() {enabled}\n#define AT_MKL_SEQUENTIAL() {1 - enabled}\n"
    )
