# SPDX-License-Identifier: Apache-2.0
"""Which libraries the dynamic loader knows by name: its cache, read without calling ldconfig.

The format is glibc's, from its dl-cache.h: tables of fixed entries with offsets into strings. musl
has no such file.
"""

from __future__ import annotations

import struct
import sys
from typing import NamedTuple

PATH = "/etc/ld.so.cache"

_OLD = b"ld.so-1.7.0\0"
_NEW = b"glibc-ld.so.cache1.1"
_OLD_HEADER, _OLD_ENTRY = 16, 12
_NEW_HEADER, _NEW_ENTRY = 48, 24
_BIG_ENDIAN, _LITTLE_ENDIAN = 3, 2


class CachedLibrary(NamedTuple):
    """One entry of the cache."""

    name: str
    """The soname that programs ask for."""
    path: str


def read_loader_cache(path: str = PATH) -> tuple[CachedLibrary, ...]:
    """The entries of the loader's cache; none where there is no such file or it is damaged."""
    try:
        with open(path, "rb") as stream:
            return parse_loader_cache(stream.read())
    except (OSError, ValueError):
        return ()


def parse_loader_cache(content: bytes) -> tuple[CachedLibrary, ...]:
    """The entries that any processor of the architecture can use, in the cache's order.

    What is not a cache, or is cut short, has none: half a cache is not believed. Builds for newer
    processors (``glibc-hwcaps``) are left out, since the cache does not say which can run here.
    """
    try:
        return _parse(content)
    except struct.error:
        return ()


def _parse(content: bytes) -> tuple[CachedLibrary, ...]:
    start = 0
    if content.startswith(_OLD):
        # Kept for libc5; the table that counts comes behind it, 8-byte aligned.
        (count,) = struct.unpack_from("=I", content, 12)
        end = _OLD_HEADER + count * _OLD_ENTRY
        start = (end + 7) & ~7
        if not content.startswith(_NEW, start):
            return _entries(content, "=iII", _OLD_HEADER, count, strings=end)
    if not content.startswith(_NEW, start):
        return ()
    order = {_BIG_ENDIAN: ">", _LITTLE_ENDIAN: "<"}.get(
        content[start + 28] & 3 if len(content) > start + 28 else 0,
        "<" if sys.byteorder == "little" else ">",
    )
    count, length = struct.unpack_from(f"{order}II", content, start + 20)
    table = start + _NEW_HEADER
    if table + count * _NEW_ENTRY + length > len(content):
        return ()
    return _entries(content, f"{order}iIIIQ", table, count, strings=start)


def _entries(
    content: bytes, layout: str, table: int, count: int, *, strings: int
) -> tuple[CachedLibrary, ...]:
    entry = struct.Struct(layout)
    end = table + count * entry.size
    if end > len(content):
        return ()
    found = []
    for _, key, value, *more in entry.iter_unpack(content[table:end]):
        if more and more[1]:  # wants certain features of the processor
            continue
        name, path = _string(content, strings + key), _string(content, strings + value)
        if name and path.startswith("/"):
            found.append(CachedLibrary(name, path))
    return tuple(found)


def _string(content: bytes, offset: int) -> str:
    end = content.find(b"\0", offset) if offset < len(content) else -1
    return content[offset:end].decode("utf-8", "surrogateescape") if end >= 0 else ""
