# SPDX-License-Identifier: Apache-2.0
"""What the caches hold: files by kind, and their size on disk."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from xlaunch.cache.directories import CacheDirectory
from xlaunch.cache.staging import PARTIAL
from xlaunch.cache.table import BY_NAME, Entries

OTHER = Entries("other files", "*")
UNFINISHED = Entries("unfinished files", "*")
LOCAL_KINDS = frozenset(("locks", UNFINISHED.kind))
"""The kinds of files that say nothing about what was compiled, and have no meaning elsewhere."""

_TEMPORARY = (".*.tmp", "*.tmp.*", "tmp.pid_*", f"{PARTIAL}*")
"""Names that Inductor, numba, Triton and xruntime give to what they are writing. They never read such
a file, and one is left where they are killed."""


class CachedFile(NamedTuple):
    """One file of a cache."""

    path: str
    size_bytes: int
    """Its size on disk."""
    changed_s: float
    """Time of its last change, in seconds since the epoch."""


class Usage(NamedTuple):
    """A number of files and their size on disk."""

    files: int = 0
    size_bytes: int = 0

    def plus(self, file: CachedFile) -> Usage:
        return Usage(self.files + 1, self.size_bytes + file.size_bytes)


def files_of(path: str) -> Iterator[CachedFile]:
    """Every regular file below a directory. Links are not followed, nor is `path` if it is one."""
    with contextlib.suppress(OSError):  # of `path` itself, which may be being removed
        for here, _, names, descriptor in os.fwalk(path):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        place = os.path.join(here, name)
                        yield CachedFile(place, _on_disk(status), status.st_mtime)


def _on_disk(status: os.stat_result) -> int:
    blocks: int = getattr(status, "st_blocks", 0)  # of 512 bytes, whatever the file system's are
    return blocks * 512


def entries_of(cache: str, relative: str) -> Entries:
    """The kind of a file, by its path from the cache's directory."""
    if is_temporary(relative):
        return UNFINISHED
    for entries in BY_NAME[cache].entries:
        if fnmatchcase(relative, entries.pattern):
            return entries
    return OTHER


def is_temporary(relative: str) -> bool:
    """Whether a file, or a directory that it is in, has the name of something not yet complete."""
    names = relative.split("/")
    return any(fnmatchcase(name, pattern) for name in names for pattern in _TEMPORARY)


def unit_of(cache: str, relative: str) -> str:
    """What the files that make sense only together have in common, see `Cache.together`."""
    together = BY_NAME[cache].together
    found = None if together is None else re.match(together, relative)
    return relative if found is None else found.group()


def usage_of(directory: CacheDirectory) -> Usage:
    """All files of a cache."""
    total = Usage()
    for file in files_of(directory.path):
        total = total.plus(file)
    return total


def usage_by_kind(directory: CacheDirectory, since_s: float = 0.0) -> dict[str, Usage]:
    """The files of a cache by kind; those changed at `since_s` (seconds since the epoch) or later."""
    found: dict[str, Usage] = {}
    for file in files_of(directory.path):
        if file.changed_s >= since_s:
            kind = entries_of(directory.cache, os.path.relpath(file.path, directory.path)).kind
            found[kind] = found.get(kind, Usage()).plus(file)
    return found
