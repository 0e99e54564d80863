# SPDX-License-Identifier: Apache-2.0
"""Keep the caches within their size: what was not used for longest goes first.

Directories go in the order of their last use, and their files in the order of their last change;
access times are not reliable (noatime, relatime). What a launch uses at the moment loses only files
that are older than a day: libraries compile again what they miss.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterable
from typing import NamedTuple

from xlaunch.cache.daily import DAY_S
from xlaunch.cache.directories import (
    RECORD,
    CacheDirectory,
    named_by_processes,
    not_in_use,
    open_below,
    stored,
)
from xlaunch.cache.imported import IMPORTED
from xlaunch.cache.leftovers import REMOVING, remove_leftovers
from xlaunch.cache.usage import CachedFile, files_of

DEFAULT_MAX_BYTES = 20 << 30


class Removal(NamedTuple):
    """What was removed of one cache, or would be."""

    directory: CacheDirectory
    files: int
    size_bytes: int
    whole: bool
    """The directory went, too."""


def prune(
    base: str,
    *,
    max_bytes: int | None = DEFAULT_MAX_BYTES,
    older_than_s: float | None = None,
    dry_run: bool = False,
) -> list[Removal]:
    """Remove what exceeds `max_bytes` on disk, and caches that no launch used for `older_than_s`.

    Never waits for a launch, nor makes one wait. `dry_run`: remove nothing. Raises OSError where a
    file cannot be removed.
    """
    now_s = time.time()
    if not dry_run:
        remove_leftovers(base)
    directories = sorted(stored(base), key=lambda it: it.last_use_s)
    files = {it: sorted(files_of(it.path), key=lambda file: file.changed_s) for it in directories}
    excess = 0
    if max_bytes is not None:
        excess = sum([file.size_bytes for own in files.values() for file in own]) - max_bytes
    found, named = [], named_by_processes()
    for directory in directories:
        expired = older_than_s is not None and now_s - directory.last_use_s > older_than_s
        if excess <= 0 and not expired:
            continue
        wanted = files[directory] if expired else _oldest(files[directory], excess)
        removal = _remove(
            base, directory, wanted, len(files[directory]), now_s, named, dry_run=dry_run
        )
        excess -= removal.size_bytes
        if removal.files or removal.whole:
            found.append(removal)
    return found


def clear(base: str, directories: Iterable[CacheDirectory], *, dry_run: bool) -> list[Removal]:
    """Remove whole caches, but for those in use. Raises OSError."""
    found, named = [], named_by_processes()
    for directory in directories:
        files = list(files_of(directory.path))
        removal = _remove(base, directory, files, len(files), time.time(), named, dry_run=dry_run)
        if removal.whole:
            found.append(removal)
    return found


def _oldest(files: list[CachedFile], size_bytes: int) -> list[CachedFile]:
    """The first files that are at least so large together."""
    total = 0
    for count, file in enumerate(files):
        if total >= size_bytes:
            return files[:count]
        total += file.size_bytes
    return files


def _remove(
    base: str,
    directory: CacheDirectory,
    wanted: list[CachedFile],
    count: int,
    now_s: float,
    named: frozenset[str],
    *,
    dry_run: bool,
) -> Removal:
    used_s = directory.last_use_s
    doomed: str | None = None
    with not_in_use(directory, named) as unheld, open_below(base, directory.cache) as above:
        free = unheld and directory.last_use_s == used_s  # a launch may be about to hold it
        whole = free and len(wanted) == count
        if not free:
            wanted = [file for file in wanted if now_s - file.changed_s > DAY_S]
        if whole and not dry_run:
            doomed = REMOVING + os.urandom(4).hex()
            os.rename(directory.key, doomed, src_dir_fd=above, dst_dir_fd=above)
            for suffix in (RECORD, IMPORTED):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(directory.key + suffix, dir_fd=above)
        elif not dry_run:
            for file in wanted:
                _unlink(base, file.path)
    if doomed is not None:
        with open_below(base, directory.cache) as above:
            shutil.rmtree(doomed, dir_fd=above)
    size_bytes = sum([file.size_bytes for file in wanted])
    return Removal(directory, len(wanted), size_bytes, whole)


def _unlink(base: str, path: str) -> None:
    """Remove a file below `base`, unless it has vanished or is no longer below real directories."""
    *parents, name = os.path.relpath(path, base).split(os.sep)
    with (
        contextlib.suppress(FileNotFoundError, NotADirectoryError),
        open_below(base, *parents) as directory,
    ):
        os.unlink(name, dir_fd=directory)
