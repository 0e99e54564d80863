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
import time
from collections.abc import Iterable
from typing import NamedTuple

from xlaunch.cache import contents, store
from xlaunch.cache.contents import IMPORTED, CachedFile
from xlaunch.cache.staging import HeldSignals, remove_leftovers
from xlaunch.cache.store import DAY_S, RECORD, REMOVING, CacheDirectory
from xlaunch.errors import XLaunchError

DEFAULT_MAX_BYTES = 20 << 30


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

    No launch has to wait. `dry_run`: remove nothing. Raises `XLaunchError` if a file cannot be removed.
    """
    remover = _Remover(base, dry_run)
    if not dry_run:
        remove_leftovers(base)
    directories = sorted(store.stored(base), key=lambda directory: directory.last_use_s)
    units = {directory: _units(directory) for directory in directories}
    excess = 0
    if max_bytes is not None:
        excess = sum([unit.size_bytes for own in units.values() for unit in own]) - max_bytes
    removals = []
    for directory, own in units.items():
        expired = older_than_s is not None and remover.now_s - directory.last_use_s > older_than_s
        if excess > 0 or expired:
            removal = remover.remove(directory, own if expired else _oldest(own, excess), len(own))
            excess -= removal.size_bytes
            removals.append(removal)
    return [removal for removal in removals if removal.files or removal.whole]


def clear(base: str, directories: Iterable[CacheDirectory], *, dry_run: bool) -> list[Removal]:
    """Remove whole caches, except those in use. Raises `XLaunchError` as `prune` does."""
    remover, removals = _Remover(base, dry_run), []
    for directory in directories:
        units = _units(directory)
        removals.append(remover.remove(directory, units, len(units)))
    return [removal for removal in removals if removal.whole]


class _Unit(NamedTuple):
    changed_s: float
    size_bytes: int
    files: tuple[CachedFile, ...]


def _units(directory: CacheDirectory) -> list[_Unit]:
    """The units of a cache, the oldest first."""
    files_by_unit: dict[str, list[CachedFile]] = {}
    for file in contents.files_of(directory.path):
        unit = contents.unit_of(directory.cache, os.path.relpath(file.path, directory.path))
        files_by_unit.setdefault(unit, []).append(file)
    units = []
    for files in files_by_unit.values():
        changed_s = max([file.changed_s for file in files])
        units.append(_Unit(changed_s, contents.total(files).size_bytes, tuple(files)))
    return sorted(units, key=lambda unit: unit.changed_s)


def _oldest(units: list[_Unit], size_bytes: int) -> list[_Unit]:
    """The first units whose total size reaches `size_bytes`."""
    total = 0
    for count, unit in enumerate(units):
        if total >= size_bytes:
            return units[:count]
        total += unit.size_bytes
    return units


class _Remover:
    """Removes units and directories of caches that are not in use."""

    def __init__(self, base: str, dry_run: bool) -> None:
        self.now_s = time.time()
        self._base = base
        self._dry_run = dry_run
        self._named = store.named_by_processes()

    def remove(self, directory: CacheDirectory, wanted: list[_Unit], count: int) -> Removal:
        """Remove the `wanted` units of `count`; of a cache in use only those older than a day."""
        used_s = directory.last_use_s
        with HeldSignals():  # what is set aside is removed
            with store.not_in_use(directory, self._named) as unheld:
                free = unheld and directory.last_use_s == used_s  # a launch may be about to hold it
                whole = free and len(wanted) == count
                if not free:
                    wanted = [unit for unit in wanted if self.now_s - unit.changed_s > DAY_S]
                set_aside = None
                if whole and not self._dry_run:
                    set_aside = self._set_aside(directory)
                elif not self._dry_run:
                    self._remove_all([file.path for unit in wanted for file in unit.files])
            if set_aside is not None:  # no launch has to wait for this
                self._remove_all([set_aside])
        files = sum([len(unit.files) for unit in wanted])
        return Removal(directory, files, sum([unit.size_bytes for unit in wanted]), whole)

    def _remove_all(self, paths: Iterable[str]) -> None:
        for path in paths:
            if not store.remove_below(self._base, path):
                raise XLaunchError(f"{path} cannot be removed")

    def _set_aside(self, directory: CacheDirectory) -> str:
        """Rename a directory, so that launches do not find it, and remove its records."""
        name = REMOVING + os.urandom(4).hex()
        with store.open_below(self._base, directory.cache) as above:
            os.rename(directory.key, name, src_dir_fd=above, dst_dir_fd=above)
            for suffix in (RECORD, IMPORTED):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(directory.key + suffix, dir_fd=above)
        return os.path.join(self._base, directory.cache, name)
