# SPDX-License-Identifier: Apache-2.0
"""The directories of the caches: made for this user alone, stamped when used, held while in use.

A directory's record lies beside it, ``<key>.json``. It holds the parts of the key, its time stamp is
the last use, and every launch keeps a shared lock (flock) on it through a descriptor that the program
inherits, so that the pruner sees which directories are in use.
"""

from __future__ import annotations

import contextlib
import enum
import os
import stat
import sys
from collections.abc import Iterator
from typing import NamedTuple

from xlaunch.cache.key import Key
from xlaunch.cache.table import BY_NAME
from xlaunch.ownership import inspect_ownership, make_private
from xlaunch.whole_files import write_whole

RECORD = ".json"
"""Suffix of the record beside a cache's directory."""

MIN_DESCRIPTOR = 100
"""The descriptors of `hold` have this number at least."""

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Warmth(enum.Enum):
    """What a cache holds when a launch begins."""

    COLD = "cold"
    """Nothing."""
    USED = "used"
    """Code of earlier launches, perhaps of other programs."""
    WARM = "warm"
    """All that this program needs: `xlaunch cache warm` ran it with these settings."""


class CacheDirectory(NamedTuple):
    """One cache under one key."""

    cache: str
    key: str
    path: str

    @property
    def record(self) -> str:
        return self.path + RECORD

    @property
    def last_use_s(self) -> float:
        """Time of the last launch that used it, in seconds since the epoch; else of its last change."""
        for path in (self.record, self.path):
            with contextlib.suppress(OSError):
                return os.stat(path).st_mtime
        return 0.0

    def parts(self) -> dict[str, str] | None:
        """The parts of its key; None if its record is absent or cannot be read."""
        import json

        try:
            with open(self.record, encoding="utf-8") as stream:
                parts = json.load(stream)["parts"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return {str(k): str(v) for k, v in parts.items()} if isinstance(parts, dict) else None


def directory_of(base: str, key: Key) -> CacheDirectory:
    """Where the cache of a key is."""
    return CacheDirectory(key.cache, key.name, os.path.join(base, key.cache, key.name))


def stored(base: str) -> list[CacheDirectory]:
    """Every cache directory below `base`, by cache and key."""
    return [
        CacheDirectory(name, key, os.path.join(base, name, key))
        for name in BY_NAME
        for key in sorted(_subdirectories(os.path.join(base, name)))
    ]


def _subdirectories(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [e.name for e in entries if e.is_dir() and not e.name.startswith(".")]
    except OSError:
        return []


def check_base(base: str, *, repair: bool = True) -> str | None:
    """Why no cache may be kept below `base`; None if it may be.

    Caches are loaded as code: neither the directory nor one above it may belong to another user or be
    writable by others, and it may not be a link. `repair`: of a directory that is ours, take the right
    to write from others. Raises OSError when that fails.
    """
    here = os.path.abspath(base)
    if not os.path.lexists(here):
        while not os.path.lexists(here):
            here = os.path.dirname(here)
        return why_shared(here)
    return _check_own(here, repair=repair) or why_shared(os.path.dirname(here))


def why_shared(path: str) -> str | None:
    """Why others may change what is at `path`; a group that this process is in counts as others."""
    found = inspect_ownership(path)
    return found.refusal or found.note


def check_below(base: str, directory: str, *, repair: bool = True) -> str | None:
    """Why a directory below `base` may not be used: it is a link, or another user's; None if it may."""
    path = base
    for name in os.path.relpath(directory, base).split(os.sep):
        path = os.path.join(path, name)
        if not os.path.lexists(path):
            return None
        refusal = _check_own(path, repair=repair)
        if refusal is not None:
            return refusal
    return None


def _check_own(path: str, *, repair: bool) -> str | None:
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return f"{path} is a symbolic link; name the directory that it leads to"
    if not stat.S_ISDIR(status.st_mode):
        return f"{path} is no directory"
    if hasattr(os, "geteuid"):
        if status.st_uid != os.geteuid():
            return f"{path} belongs to another user"
        if status.st_mode & OTHERS_WRITE and repair:
            os.chmod(path, status.st_mode & ~OTHERS_WRITE & 0o777)
    return None


def begin_use(base: str, key: Key) -> CacheDirectory:
    """Make a cache's directory, with its record, and stamp it as used now. Raises OSError."""
    directory = directory_of(base, key)
    make_private(directory.path)
    if not os.path.exists(directory.record):
        import json

        text = json.dumps({"parts": dict(key.parts)}, indent=1)
        write_whole(directory.record, text.encode(), mode=0o600)
    else:
        os.utime(directory.record)
    return directory


def is_empty(path: str) -> bool:
    """Whether a cache has no files yet."""
    try:
        with os.scandir(path) as entries:
            return next(entries, None) is None
    except OSError:
        return True


def hold(directory: CacheDirectory) -> int | None:
    """Mark a directory as in use until the last process that inherits the descriptor has ended.

    None where the record cannot be opened, or its file system has no locks.
    """
    return _lock(directory, exclusive=False)


@contextlib.contextmanager
def not_in_use(directory: CacheDirectory) -> Iterator[bool]:
    """Whether nobody uses a directory; if so nobody is going to during the block."""
    descriptor = _lock(directory, exclusive=True)
    try:
        yield descriptor is not None or not os.path.exists(directory.record)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _lock(directory: CacheDirectory, *, exclusive: bool) -> int | None:
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        descriptor = os.open(directory.record, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        mode = fcntl.LOCK_EX | fcntl.LOCK_NB if exclusive else fcntl.LOCK_SH
        fcntl.flock(descriptor, mode)
    except OSError:
        os.close(descriptor)
        return None
    if not exclusive:
        # Far from the low numbers, which shell scripts use.
        high = fcntl.fcntl(descriptor, fcntl.F_DUPFD, MIN_DESCRIPTOR)
        os.close(descriptor)
        return high
    return descriptor
