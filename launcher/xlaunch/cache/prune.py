# SPDX-License-Identifier: Apache-2.0
"""Keep the caches within their size: the least recently used are removed first.

Directories go in the order of their last use, and units within them in the order of their last change;
access times are not reliable (noatime, relatime). A cache that is in use loses only units that are older
than a day: libraries compile again what they miss. Once a day, a launch starts the pruner as a process of
its own.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable
from typing import NamedTuple

from xlaunch.cache.contents import IMPORTED, CachedFile, files_of, unit_of
from xlaunch.cache.staging import DAY_S, REMOVING, remove_leftovers
from xlaunch.cache.store import (
    RECORD,
    CacheDirectory,
    named_by_processes,
    not_in_use,
    open_below,
    stored,
)

DEFAULT_MAX_BYTES = 20 << 30
STAMP = "pruned"
"""A file in the base directory; its modification time is the start of the last pruning."""


class Removal(NamedTuple):
    """What was removed from one cache, or would be."""

    directory: CacheDirectory
    files: int
    size_bytes: int
    whole: bool
    """The directory was removed, too."""


def prune(
    base: str,
    *,
    max_bytes: int | None = DEFAULT_MAX_BYTES,
    older_than_s: float | None = None,
    dry_run: bool = False,
) -> list[Removal]:
    """Remove what exceeds `max_bytes` on disk, and caches that no launch used for `older_than_s`.

    Never waits for a launch, nor makes one wait. `dry_run`: remove nothing. Raises OSError if a file
    cannot be removed.
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
    """Remove whole caches, except those in use. Raises OSError."""
    found, named = [], named_by_processes()
    for directory in directories:
        units, now_s = _units(directory), time.time()
        removal = _remove(base, directory, units, now_s, named, whole=True, dry_run=dry_run)
        if removal.whole:
            found.append(removal)
    return found


def _units(directory: CacheDirectory) -> list[list[CachedFile]]:
    """The units of a cache, the oldest first."""
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
    """The first units whose total size reaches `size_bytes`."""
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
    """Remove units, or the `whole` directory; if it is in use, only units that are older than a day."""
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
        import shutil

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


def start_pruner(base: str) -> None:
    """Prune in a detached process, once a day at most."""
    stamp = os.path.join(base, STAMP)
    try:
        due = time.time() - os.stat(stamp).st_mtime > DAY_S
        if not due:
            return
    except FileNotFoundError:
        due = False  # at the first launch there is nothing to prune
    except OSError:
        return
    with contextlib.suppress(OSError):
        os.close(os.open(stamp, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        os.utime(stamp)
        if due:
            _detach([sys.executable, "-P", "-m", "xlaunch", "cache", "prune", "--cache-dir", base])


def _detach(command: list[str]) -> None:
    """Start a command that is neither a child of this process nor attached to its terminal."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            null = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(null, number)
            # Keep neither pipes nor the working directory of the caller in use.
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            os.chdir("/")
            os.nice(19)
            os.execv(command[0], command)
    finally:
        os._exit(0)
