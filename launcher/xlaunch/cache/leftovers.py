# SPDX-License-Identifier: Apache-2.0
"""Directories that exist while somebody works in the caches, and stay where a kill ends that work."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from xlaunch.cache.daily import DAY_S
from xlaunch.cache.table import BY_NAME

# Prefixes of their names:
IMPORTING = ".importing-"  # in the base: files of an import until all of them were checked
SEEDING = ".seeding-"  # the copy of a seed, beside the directory that it becomes
REMOVING = ".removing-"  # what is being pruned
COUNTERS = ".counters-"  # followed by the number of the process that collects in it


@contextlib.contextmanager
def staging_directory(base: str) -> Iterator[str]:
    """An empty private directory below `base`, removed at the end; waits for other imports to end.

    Raises OSError.
    """
    import shutil

    with _only_import(base, wait=True) as alone:
        for left in _leftovers(base, alone=alone):
            shutil.rmtree(left, ignore_errors=True)
        path = os.path.join(base, IMPORTING + os.urandom(8).hex())
        os.mkdir(path, 0o700)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


def leftovers(base: str) -> list[str]:
    """What nobody works in any more."""
    with contextlib.suppress(OSError), _only_import(base, wait=False) as alone:
        return _leftovers(base, alone=alone)
    return []


def is_work(path: str) -> bool:
    """Whether a directory has the name of one that somebody works in, or has left."""
    return os.path.basename(path).startswith((IMPORTING, SEEDING, REMOVING, COUNTERS))


def _leftovers(base: str, *, alone: bool) -> list[str]:
    found = []
    for place in (base, *[os.path.join(base, name) for name in BY_NAME]):
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            for it in entries:
                over = (alone and it.name.startswith(IMPORTING)) or _is_abandoned(it)
                if is_work(it.path) and it.is_dir(follow_symlinks=False) and over:
                    found.append(it.path)
    return found


@contextlib.contextmanager
def _only_import(base: str, *, wait: bool) -> Iterator[bool]:
    """Lock `base` against imports; whether that succeeded. Without `wait`, give up if there is one."""
    import fcntl

    descriptor = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        alone = True
    except OSError:  # there is an import, or the file system has no locks
        alone = False
    try:
        yield alone
    finally:
        os.close(descriptor)


def _is_abandoned(entry: os.DirEntry[str]) -> bool:
    """Whether nothing was added for a day, and no process here has its number in the name."""
    number = entry.name.removeprefix(COUNTERS).partition("-")[0]
    old = time.time() - entry.stat(follow_symlinks=False).st_mtime > DAY_S
    return old and not (number.isdecimal() and os.path.exists(f"/proc/{number}"))
