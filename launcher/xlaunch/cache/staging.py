# SPDX-License-Identifier: Apache-2.0
"""Directories that exist while somebody works in the caches, and stay where a kill ends that work."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from xlaunch.cache.daily import DAY_S
from xlaunch.cache.directories import open_below, stored
from xlaunch.cache.table import BY_NAME

# Prefixes of their names:
IMPORTING = ".importing-"  # in the base: files of an import until all of them were checked
SEEDING = ".seeding-"  # the copy of a seed, beside the directory that it becomes
REMOVING = ".removing-"  # what is being pruned
COUNTERS = ".counters-"  # followed by the number of the process that collects in it
PARTIAL = ".partial-"  # in a cache: followed by the number of the process that compiles there


@contextlib.contextmanager
def staging_directory(base: str) -> Iterator[str]:
    """An empty private directory below `base`, removed at the end; waits for other imports to end.

    Raises OSError.
    """
    with _only_import(base, wait=True) as alone:
        for names in _leftovers(base, alone=alone):
            _remove(base, names)
        name = IMPORTING + os.urandom(8).hex()
        path = os.path.join(base, name)
        os.mkdir(path, 0o700)
        try:
            yield path
        finally:
            _remove(base, [name])


def leftovers(base: str) -> list[str]:
    """What nobody works in any more."""
    with contextlib.suppress(OSError), _only_import(base, wait=False) as alone:
        return [os.path.join(base, *names) for names in _leftovers(base, alone=alone)]
    return []


def remove_leftovers(base: str) -> None:
    """Remove what nobody works in any more, and records of earlier versions."""
    with contextlib.suppress(OSError), _only_import(base, wait=False) as alone:
        _remove_command_lines(base)
        for names in _leftovers(base, alone=alone):
            _remove(base, names)


def is_work(path: str) -> bool:
    """Whether a directory has the name of one that somebody works in, or has left."""
    return os.path.basename(path).startswith(_BESIDE_CACHES)


_BESIDE_CACHES = (IMPORTING, SEEDING, REMOVING, COUNTERS)


def _leftovers(base: str, *, alone: bool) -> list[list[str]]:
    """Their paths from `base`, as lists of names."""
    found = []
    places: list[tuple[list[str], tuple[str, ...]]] = [([], _BESIDE_CACHES)]
    places += [([name], _BESIDE_CACHES) for name in BY_NAME]
    places += [([it.cache, it.key], (PARTIAL,)) for it in stored(base)]
    for above, prefixes in places:
        with (
            contextlib.suppress(OSError),
            open_below(base, *above) as descriptor,
            os.scandir(descriptor) as entries,
        ):
            for it in entries:
                ours = it.name.startswith(prefixes) and it.is_dir(follow_symlinks=False)
                if ours and ((alone and it.name.startswith(IMPORTING)) or _is_abandoned(it)):
                    found.append([*above, it.name])
    return found


def _remove(base: str, names: list[str]) -> None:
    import shutil

    with contextlib.suppress(OSError), open_below(base, *names[:-1]) as above:
        shutil.rmtree(names[-1], ignore_errors=True, dir_fd=above)


def _remove_command_lines(base: str) -> None:
    """Remove the records of `xlaunch cache warm` in 0.1: they hold programs with their arguments."""
    import json

    with contextlib.suppress(OSError), open_below(base, "warm") as directory:
        for name in os.listdir(directory):
            with contextlib.suppress(OSError, ValueError, RecursionError):
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
                with open(os.open(name, flags, dir_fd=directory), "rb") as stream:
                    record = json.load(stream)
                if isinstance(record, dict) and record.keys() == {"program", "caches"}:
                    os.unlink(name, dir_fd=directory)
        with open_below(base) as above:
            os.rmdir("warm", dir_fd=above)  # fails if there is anything else


@contextlib.contextmanager
def _only_import(base: str, *, wait: bool) -> Iterator[bool]:
    """Lock `base` against imports; whether that succeeded. Without `wait`, give up if there is one."""
    import fcntl

    with open_below(base) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            alone = True
        except OSError:  # there is an import, or the file system has no locks
            alone = False
        yield alone


def _is_abandoned(entry: os.DirEntry[str]) -> bool:
    """Whether nothing was added for a day, and no process here has its number in the name."""
    number = entry.name.removeprefix(COUNTERS).removeprefix(PARTIAL).partition("-")[0]
    old = time.time() - entry.stat(follow_symlinks=False).st_mtime > DAY_S
    return old and not (number.isdecimal() and os.path.exists(f"/proc/{number}"))
