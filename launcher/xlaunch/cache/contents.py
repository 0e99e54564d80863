# SPDX-License-Identifier: Apache-2.0
"""What the caches hold: files by kind, their size on disk, and which of them were imported."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from xlaunch.cache.store import PARTIAL, CacheDirectory
from xlaunch.cache.table import BY_NAME, Entries
from xlaunch.files import write_whole

OTHER = Entries("other files", "*")
UNFINISHED = Entries("unfinished files", "*")
LOCAL_KINDS = frozenset(("locks", UNFINISHED.kind))
"""Locks and unfinished files: never counted as compiled, never exported."""

_TEMPORARY = (".*.tmp", "*.tmp.*", "tmp.pid_*", f"{PARTIAL}*")
"""Names that Inductor, numba, Triton and xruntime give to files while they write them. They never read
such a file, and leave it behind if they are killed."""

IMPORTED = ".imported"
"""Suffix of the record of imported files beside a cache's directory."""


class CachedFile(NamedTuple):
    path: str
    size_bytes: int
    """Its size on disk."""
    changed_s: float
    """Time of its last change, in seconds since the epoch."""


class Usage(NamedTuple):
    """A number of files and their size on disk."""

    files: int
    size_bytes: int


def files_of(path: str) -> Iterator[CachedFile]:
    """Every regular file below a directory. Links are not followed, nor is `path` if it is one."""
    with contextlib.suppress(OSError):  # of `path` itself, which may be being removed
        for here, _, names, descriptor in os.fwalk(path):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        on_disk = status.st_blocks * 512  # whatever the file system's blocks are
                        yield CachedFile(os.path.join(here, name), on_disk, status.st_mtime)


def entries_of(cache: str, relative: str) -> Entries:
    """The kind of a file, by its path relative to the cache's directory."""
    if is_temporary(relative):
        return UNFINISHED
    for entries in BY_NAME[cache].entries:
        if fnmatchcase(relative, entries.pattern):
            return entries
    return OTHER


def is_temporary(relative: str) -> bool:
    """Whether a file, or a directory above it, has the name of an unfinished file."""
    names = relative.split("/")
    return any(fnmatchcase(name, pattern) for name in names for pattern in _TEMPORARY)


def unit_of(cache: str, relative: str) -> str:
    """The text that the paths of all files of one unit share; see `Cache.unit`."""
    unit = BY_NAME[cache].unit
    match = None if unit is None else re.match(unit, relative)
    return relative if match is None else match.group()


def usage_of(directory: CacheDirectory) -> Usage:
    return total(files_of(directory.path))


def total(files: Iterable[CachedFile]) -> Usage:
    """Count files, and sum their sizes."""
    sizes = [file.size_bytes for file in files]
    return Usage(len(sizes), sum(sizes))


def files_by_kind(directory: CacheDirectory) -> dict[str, list[CachedFile]]:
    files: dict[str, list[CachedFile]] = {}
    for file in files_of(directory.path):
        kind = entries_of(directory.cache, os.path.relpath(file.path, directory.path)).kind
        files.setdefault(kind, []).append(file)
    return files


def compiled_files(directory: CacheDirectory) -> Iterator[tuple[str, CachedFile]]:
    """Kind and description of each file in a cache, without locks and unfinished files."""
    for kind, files in files_by_kind(directory).items():
        if kind not in LOCAL_KINDS:
            yield from [(kind, file) for file in files]


class ImportedFile(NamedTuple):
    """One file as it was imported.

    A program may replace it, as numba does when a function gets another signature. It then has another
    modification time, and its SHA-256 is no longer compared.
    """

    sha256: str
    modified_ns: int


def read_imported(directory: CacheDirectory) -> dict[str, ImportedFile]:
    """The imported files of a cache, by their relative paths; none if the record is damaged."""
    import json

    try:
        with open(directory.path + IMPORTED, encoding="utf-8") as stream:
            files = json.load(stream)["files"]
        return {path: ImportedFile(f["sha256"], f["modified_ns"]) for path, f in files.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def write_imported(directory: CacheDirectory, files: Mapping[str, ImportedFile]) -> None:
    """Replace the record of imported files. Raises OSError."""
    import json

    content = {"schema_version": 1, "files": {path: file._asdict() for path, file in files.items()}}
    write_whole(directory.path + IMPORTED, json.dumps(content).encode(), mode=0o600)
