# SPDX-License-Identifier: Apache-2.0
"""Formats of cached files: whether a file is intact, and what to rewrite when it moves.

Nothing is loaded: pickles are parsed, never executed; the dynamic linker opens no library.
"""

from __future__ import annotations

import contextlib
import fnmatch
import io
import json
import os
import pickletools
import struct
from typing import IO

from xlaunch.cache.table import Format


def damage(stream: IO[bytes], form: Format) -> str | None:
    """How the content of a file violates its format; None if no damage is found. Raises OSError."""
    if form is Format.ELF:
        return _elf_damage(stream)
    if form is Format.PICKLE:
        return _pickle_damage(stream)
    if form is Format.JSON:
        try:
            json.load(stream)
        except (ValueError, RecursionError):
            return "it is not complete JSON"
    return None


_ELF_LAYOUTS = {1: "28xII6xHHHH", 2: "32xQQ6xHHHH"}
"""Layout of e_phoff, e_shoff, e_phentsize, e_phnum, e_shentsize and e_shnum in the header, by the class of the
file (32 or 64 bits); see elf(5)."""


def _elf_damage(stream: IO[bytes]) -> str | None:
    """Check that the file contains its tables of segments and sections; linkers write one of them last."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    start = stream.read(64)
    layout = _ELF_LAYOUTS.get(start[4]) if start[:4] == b"\x7fELF" and len(start) > 5 else None
    if layout is None:
        return "it is not an ELF file"
    try:
        fields = struct.unpack_from((">" if start[5] == 2 else "<") + layout, start)
    except struct.error:
        return "its ELF header is not complete"
    segments, sections, segment_size, segment_count, section_size, section_count = fields
    end = segments + segment_size * segment_count
    if sections:
        end = max(end, sections + section_size * max(section_count, 1))  # a count of 0 means many
    return f"it ends after {size} of at least {end} bytes" if end > size else None


def _pickle_damage(stream: IO[bytes]) -> str | None:
    data = io.BytesIO(stream.read())  # reading from this cannot allocate more than there is
    size = len(data.getbuffer())
    if size == 0:
        return "it is empty"
    try:
        while data.tell() < size:  # indices of numba are two pickles
            for _ in pickletools.genops(data):
                pass
    except (ValueError, OverflowError):
        return "it is not a complete pickle"
    return None


GROUP = "__grp__*.json"
"""Triton's lists of a kernel's files by their absolute paths. It ignores those that do not exist; see
FileCacheManager in triton/runtime/cache.py. Inductor keeps what Triton compiles in its own cache."""


def relocate(path: str, place: str) -> None:
    """Rewrite the paths in the file at `path`, which will be moved to `place`, if its name matches `GROUP`.

    Other content is left as it is. Raises OSError.
    """
    if not fnmatch.fnmatchcase(os.path.basename(place), GROUP):
        return
    home = os.path.dirname(place)
    damaged = (ValueError, LookupError, TypeError, RecursionError)
    with open(path, "r+b") as stream, contextlib.suppress(*damaged):
        content = json.loads(stream.read())
        names = dict(content["child_paths"])
        children = {name: os.path.join(home, os.path.basename(name)) for name in names}
        data = json.dumps(content | {"child_paths": children}).encode()
        stream.seek(0)
        stream.write(data)
        stream.truncate()
