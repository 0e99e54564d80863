# SPDX-License-Identifier: Apache-2.0
"""Small caches with files as the real programs write them, and the machine that they are for."""

from __future__ import annotations

import os
import pickle
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xlaunch.cache.store import (
    CacheDirectory,
    Hardware,
    Packages,
    begin_use,
    directory_of,
    hold,
    key_of,
)
from xlaunch.cache.table import BY_NAME

HARDWARE = Hardware("x86_64", ("avx2", "fma"), "GenuineIntel 6 143", (), ())
PACKAGES = Packages(
    {"torch": "2.13.0", "triton": "3.7.0", "numba": "0.68.1", "xlaunch": "0.1.0"}, "3.11"
)


def elf(code: bytes = b"code") -> bytes:
    """A 64-bit ELF file with nothing but one section header, at its end."""
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    fields = (3, 62, 1, 0, 0, 64 + len(code), 0, 64, 56, 0, 64, 1, 0)
    return ident + struct.pack("<HHIQQQIHHHHHH", *fields) + code + bytes(64)


def numba_index(*signatures: str) -> bytes:
    """An index as numba writes it: its version, then the names of the functions by signature."""
    names = {name: f"f-1.py311.{number}.nbc" for number, name in enumerate(signatures, 1)}
    return pickle.dumps("0.68.1") + pickle.dumps(((1.0, 2), names))


CONTENT: dict[str, dict[str, bytes]] = {
    "inductor": {
        "24/c24.so": elf(b"c24"),
        "24/c24.cpp": b"int f();",
        "fxgraph/wc/fwc/w3o": pickle.dumps({"graph": "x" * 5000}),
        "aotautograd/a1/h2": pickle.dumps(["y"] * 100),
        "gu/k.best_config": b'{"XBLOCK": 64}',
        "dynamo/code_state_1.pkl": pickle.dumps({}),
        "dynamo/code_state_1.pkl.lock": b"",
        "locks/c24.lock": b"",
        "fxgraph/wc/fwc/.12.34.tmp": b"half",
    },
    "numba": {
        "m_1/f-1.py311.nbi": numba_index("int64"),
        "m_1/f-1.py311.1.nbc": pickle.dumps("int64"),
    },
    "triton": {
        "QX/k.cubin": elf(b"cubin"),
        "QX/k.json": b'{"name": "k"}',
        "QX/__grp__k.json": b'{"child_paths": {"k.json": "/nowhere/QX/k.json"}}',
    },
    "optimized": {
        "0123abcd/model.so": elf(b"weights"),
        "0123abcd/description.json": b'{"shapes": [[1, 3]]}',
        "0123abcd.lock": b"",
        ".partial-7-x/model.so": b"half",
    },
}
"""By cache and path."""

SHIPPED = {"inductor": 6, "numba": 2, "triton": 3, "optimized": 2}
"""The number of files that go into a bundle: no locks, nothing half written."""


WITH_TESTS = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
"""The environment of a process that imports these tests too."""


def fill(base: Path, *caches: str) -> list[CacheDirectory]:
    """Make caches."""
    base.mkdir(mode=0o700, exist_ok=True)
    directories = []
    for name in caches or CONTENT:
        directory = begin_use(str(base), key_of(BY_NAME[name], HARDWARE, PACKAGES))
        for path, data in CONTENT[name].items():
            put(Path(directory.path, path), data)
        directories.append(directory)
    return directories


def place(base: Path, cache: str = "inductor") -> CacheDirectory:
    """Where a cache is in `base`, made or not."""
    return directory_of(str(base), key_of(BY_NAME[cache], HARDWARE, PACKAGES))


@contextmanager
def held(directory: CacheDirectory) -> Iterator[None]:
    """Hold a cache, as a program does that uses it."""
    descriptor = hold(directory)
    assert descriptor is not None
    try:
        yield
    finally:
        os.close(descriptor)


def put(path: Path, data: bytes) -> Path:
    """Write a file, executable if it is a library, in directories for this user only."""
    for parent in reversed(path.parents):
        if not parent.exists():
            parent.mkdir(0o700)
    path.write_bytes(data)
    path.chmod(0o700 if path.suffix == ".so" else 0o600)
    os.utime(path, ns=(10**18, 10**18))
    return path


def files(base: Path) -> dict[str, bytes]:
    """The content of the files that programs read, by their paths from the base."""
    return {
        str(path.relative_to(base)): path.read_bytes()
        for path in _walk(base)
        if path.suffix not in (".imported", ".lock") and len(path.relative_to(base).parts) > 2
    }


def _walk(base: Path) -> Iterator[Path]:
    for path in sorted(base.iterdir()):
        if path.name.startswith(".") or path.is_symlink():
            continue
        if path.is_dir():
            yield from _walk(path)
        elif path.is_file():
            yield path
