# SPDX-License-Identifier: Apache-2.0
"""Whether a file of a cache is intact, as far as that can be seen without loading it.

Pickles are walked, never executed; libraries are not opened by the dynamic linker.
"""

from __future__ import annotations

import io
import json
import os
import pickletools
import struct
from typing import IO

from xlaunch.cache.table import Format


def damage(stream: IO[bytes], form: Format) -> str | None:
    """Why the content of a file is not of its format; None if it seems to be. Raises OSError."""
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
"""By the class of the file (32 or 64 bits), from elf(5): where the header has e_phoff, e_shoff, e_phentsize,
e_phnum, e_shentsize and e_shnum."""


def _elf_damage(stream: IO[bytes]) -> str | None:
    """Check that the tables of segments and sections are there: one is the last thing that linkers write."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    start = stream.read(64)
    layout = _ELF_LAYOUTS.get(start[4]) if start[:4] == b"\x7fELF" and len(start) > 5 else None
    if layout is None:
        return "it is no ELF file"
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
