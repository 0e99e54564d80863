# SPDX-License-Identifier: Apache-2.0
"""Private mappings of files in this process, such as those in which safetensors loads weights."""

from __future__ import annotations

import bisect
import functools
from pathlib import Path
from typing import Final, NamedTuple

_OWN_PAGES: Final = ("Anonymous:", "Swap:")


class FileMapping(NamedTuple):
    """A private mapping of a file: addresses begin to end - 1."""

    begin: int
    end: int
    offset: int
    """Where it begins in the file."""

    inode: int
    path: str


class MappedFiles:
    """The private mappings of files that the process has now (proc_pid_maps(5))."""

    def __init__(self) -> None:
        self._mappings = list(filter(None, map(_mapping, lines("self/maps"))))
        self._begins = [mapping.begin for mapping in self._mappings]

    def holding(self, begin: int, end: int) -> FileMapping | None:
        """Return the mapping that has all these addresses, begin to end - 1; None if there is none."""
        at = bisect.bisect(self._begins, begin) - 1
        return self._mappings[at] if at >= 0 and end <= self._mappings[at].end else None

    def is_unchanged(self, mapping: FileMapping) -> bool:
        """Whether all its pages are the file's: dropped ones are read again, where changed ones would be lost."""
        return mapping.begin in self._unchanged

    @functools.cached_property
    def _unchanged(self) -> set[int]:
        begins: set[int] = set()
        begin = 0
        for line in lines("self/smaps"):
            words = line.split(maxsplit=2)
            if not words[0].endswith(":"):
                begin = int(words[0].partition("-")[0], 16)
            elif words[0] in _OWN_PAGES and words[1] != "0":
                begins.discard(begin)
            elif words[0] == "Size:":  # the first line of a mapping
                begins.add(begin)
        return begins


def _mapping(line: str) -> FileMapping | None:
    words = line.split(maxsplit=5)
    if len(words) < 6 or not words[1].endswith("p") or not words[5].startswith("/"):
        return None
    begin, end = (int(address, 16) for address in words[0].split("-"))
    return FileMapping(begin, end, int(words[2], 16), int(words[4]), words[5])


def lines(name: str) -> list[str]:
    """Return the lines of a file of /proc; none if it cannot be read."""
    try:
        return Path("/proc", name).read_text().splitlines()
    except OSError:
        return []
