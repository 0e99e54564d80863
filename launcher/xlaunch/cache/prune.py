# SPDX-License-Identifier: Apache-2.0
"""Keep the caches within their size: what was not used for longest goes first.

Directories go in the order of their last use, and their files in the order of their last change;
access times are not reliable (noatime, relatime). Files that make sense only together go together. What
a launch uses at the moment loses only files that are older than a day: libraries compile again what they
miss.
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
from xlaunch.cache.staging import REMOVING, remove_leftovers
from xlaunch.cache.usage import CachedFile, files_of, unit_of

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
    units = {it: _units(it) for it in directories}
    excess = 0
    if max_bytes is not None:
        excess = sum([_size(unit) for own in units.values() for unit in own]) - max_bytes
    found, named = [], named_by_processes()
    for directory in directories:
        expired = older_than_s is not None and now_s - directory.last_use_s > older_than_s
        if excess <= 0 and not expired:
            continue
        wanted = units[directory] if expired else _oldest(units[directory], excess)
        whole = len(wanted) == len(units[directory])
        removal = _remove(base, directory, wanted, now_s, named, whole=whole, dry_run=dry_run)
        excess -= removal.size_bytes
        if removal.files or removal.whole:
            found.append(removal)
    return found


def clear(base: str, directories: Iterable[CacheDirectory], *, dry_run: bool) -> list[Removal]:
    """Remove whole caches, but for those in use. Raises OSError."""
    found, named = [], named_by_processes()
    for directory in directories:
        units, now_s = _units(directory), time.time()
        removal = _remove(base, directory, units, now_s, named, whole=True, dry_run=dry_run)
        if removal.whole:
            found.append(removal)
    return found


def _units(directory: CacheDirectory) -> list[list[CachedFile]]:
    """The files of a cache, in lists of those that make sense only together; the oldest first."""
    found: dict[str, list[CachedFile]] = {}
    for file in files_of(directory.path):
        unit = unit_of(directory.cache, os.path.relpath(file.path, directory.path))
        found.setdefault(unit, []).append(file)
    return sorted(found.values(), key=_changed_s)


def _changed_s(unit: list[CachedFile]) -> float:
    return max([file.changed_s for file in unit])


def _size(unit: list[CachedFile]) -> int:
    return sum([file.size_bytes for file in unit])


def _oldest(units: list[list[CachedFile]], size_bytes: int) -> list[list[CachedFile]]:
    """The first units that are at least so large together."""
    total = 0
    for count, unit in enumerate(units):
        if total >= size_bytes:
            return units[:count]
        total += _size(unit)
    return units


def _remove(
    base: str,
    directory: CacheDirectory,
    wanted: list[list[CachedFile]],
    now_s: float,
    named: frozenset[str],
    *,
    whole: bool,
    dry_run: bool,
) -> Removal:
    used_s = directory.last_use_s
    doomed: str | None = None
    with not_in_use(directory, named) as unheld, open_below(base, directory.cache) as above:
        free = unheld and directory.last_use_s == used_s  # a launch may be about to hold it
        whole &= free
        if not free:
            wanted = [unit for unit in wanted if now_s - _changed_s(unit) > DAY_S]
        if whole and not dry_run:
            doomed = REMOVING + os.urandom(4).hex()
            os.rename(directory.key, doomed, src_dir_fd=above, dst_dir_fd=above)
            for suffix in (RECORD, IMPORTED):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(directory.key + suffix, dir_fd=above)
        elif not dry_run:
            for unit in wanted:
                for file in unit:
                    _unlink(base, file.path)
    if doomed is not None:
        with open_below(base, directory.cache) as above:
            shutil.rmtree(doomed, dir_fd=above)
    return Removal(directory, sum(map(len, wanted)), sum(map(_size, wanted)), whole)


def _unlink(base: str, path: str) -> None:
    """Remove a file below `base`, unless it has vanished or is no longer below real directories."""
    *parents, name = os.path.relpath(path, base).split(os.sep)
    with (
        contextlib.suppress(FileNotFoundError, NotADirectoryError),
        open_below(base, *parents) as directory,
    ):
        os.unlink(name, dir_fd=directory)
