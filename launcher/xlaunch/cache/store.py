# SPDX-License-Identifier: Apache-2.0
"""Directories of caches: created for this user alone, stamped when used, locked while in use.

The record of a directory lies beside it, ``<key>.json``. It holds the parts of the key, and its
modification time is the last use. Every launch holds a shared lock (flock) on it through a descriptor that
the program inherits, so that the pruner sees which directories are in use.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from xlaunch.cache.key import Key, is_key_name
from xlaunch.cache.table import BY_NAME, VARIABLES
from xlaunch.files import make_private, move_above_shells, try_lock, write_whole
from xlaunch.ownership import inspect_ownership

RECORD = ".json"
"""Suffix of the record beside a cache's directory."""

HOLD_TIMEOUT_S = 2.0
"""Maximum time that a launch waits while a pruner works in a cache."""

DAY_S = 86_400.0

# Prefixes of the names of staging directories:
IMPORTING = ".importing-"  # in the base: files of an import until all of them are checked
SEEDING = ".seeding-"  # the copy of a seed, beside the directory that it becomes
REMOVING = ".removing-"  # a cache that is being pruned
COUNTERS = ".counters-"  # in the base: followed by the PID of the launch that collects in it
PARTIAL = ".partial-"  # in a cache: followed by the PID of the process that compiles there

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


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
        """Start of the last launch that used it, in seconds since the epoch, or its last change."""
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


@functools.cache
def directory_of(base: str, key: Key) -> CacheDirectory:
    """Where the cache of a key is."""
    return CacheDirectory(key.cache, key.name, os.path.join(base, key.cache, key.name))


def stored(base: str) -> list[CacheDirectory]:
    """The cache directories below `base` that xlaunch created, sorted by cache and key."""
    return [directory for directory, reason in _found(base) if reason is None]


def foreign(base: str) -> list[str]:
    """Directories and links among the caches that xlaunch did not create: path and reason of each."""
    return [f"{directory.path} {reason}" for directory, reason in _found(base) if reason]


def _found(base: str) -> Iterator[tuple[CacheDirectory, str | None]]:
    """Directories and links among the caches, with a reason where xlaunch did not create them.

    Links are not followed.
    """
    for cache in BY_NAME:
        place = os.path.join(base, cache)
        try:
            reason = _why_not_own(place)
            if reason is not None:
                yield CacheDirectory(cache, "", place), reason
                continue
            with open_below(base, cache) as descriptor, os.scandir(descriptor) as entries:
                names = [it.name for it in entries if not it.is_file(follow_symlinks=False)]
        except OSError:
            continue
        for name in sorted([name for name in names if not name.startswith(".")]):
            directory = CacheDirectory(cache, name, os.path.join(place, name))
            with contextlib.suppress(FileNotFoundError):
                reason = _why_not_own(directory.path)
                if reason is None and not is_key_name(name):
                    reason = "is not named by a key of xlaunch"
                yield directory, reason


@contextlib.contextmanager
def open_below(base: str, *names: str, make: bool = False) -> Iterator[int]:
    """Open the directory ``base/names[0]/...`` during the block, and yield its descriptor.

    No link below `base` is followed. `make`: create absent directories. Raises OSError.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    here = os.open(base, flags)
    try:
        for name in names:
            above = here
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=above)
            here = os.open(name, flags, dir_fd=above)
            os.close(above)
        yield here
    finally:
        os.close(here)


def remove_below(base: str, path: str) -> bool:
    """Remove a file or a whole directory below `base`. Returns whether it is gone.

    No link below `base` is followed.
    """
    import shutil

    *parents, name = os.path.relpath(path, base).split(os.sep)
    with contextlib.suppress(OSError), open_below(base, *parents) as above:
        if stat.S_ISDIR(os.lstat(name, dir_fd=above).st_mode):
            shutil.rmtree(name, ignore_errors=True, dir_fd=above)
        else:
            os.unlink(name, dir_fd=above)
    return not os.path.lexists(path)


def private_base(path: str) -> str:
    """The base directory of caches for a `path` that the user names.

    It is `path`, except in a sticky directory that others may write, such as /tmp: there it is
    ``xlaunch-UID`` in it.
    """
    path = os.path.abspath(path)
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return path
    shared = stat.S_ISDIR(mode) and mode & stat.S_ISVTX and mode & OTHERS_WRITE
    return os.path.join(path, f"xlaunch-{os.geteuid()}") if shared else path


def why_unusable(base: str, directories: Iterable[CacheDirectory] = ()) -> str | None:
    """Why no cache may be kept below `base`, or in these directories there; None if it may.

    Caches are loaded as code: no directory may be a link, belong to another user or be writable by
    others, nor may one above `base`. Nothing is changed. Raises OSError.
    """
    above = base = os.path.abspath(base)
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    refusal = _refusal(base)
    if refusal is None and not os.path.isdir(above):
        refusal = f"{above} is not a directory"
    refusal = refusal or why_shared(above)
    for directory in directories:
        refusal = refusal or _refusal(os.path.dirname(directory.path)) or _refusal(directory.path)
    return refusal


def why_unwritable(path: str) -> str | None:
    """Why a directory, or the nearest one above it, cannot be written; None if it can."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return None if os.access(path, os.W_OK | os.X_OK) else f"{path} is not writable"


def why_shared(path: str) -> str | None:
    """Why other users may change `path`; members of this process's groups count as others."""
    ownership = inspect_ownership(path)
    return ownership.refusal or ownership.note


def _refusal(path: str) -> str | None:
    reason = _why_not_own(path) if os.path.lexists(path) else None
    return None if reason is None else f"{path} {reason}"


def _why_not_own(path: str) -> str | None:
    """Why a path is not a directory that this user alone may write; None if it is. Raises OSError."""
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return "is a symbolic link; name the directory that it leads to"
    if not stat.S_ISDIR(status.st_mode):
        return "is not a directory"
    if hasattr(os, "geteuid"):
        if status.st_uid != os.geteuid():
            return "belongs to another user"
        sticky = status.st_mode & stat.S_ISVTX  # others may have put files in it
        if status.st_mode & OTHERS_WRITE and (sticky or why_shared(path) is not None):
            return "may be written by others, whose code may be in it; use another directory"
    return None


def begin_use(base: str, key: Key) -> CacheDirectory:
    """Make a cache's directory and record if they are absent, and stamp it as used now. Raises OSError."""
    directory = directory_of(base, key)
    make_private(directory.path)
    if os.path.islink(directory.record):
        raise OSError(errno.ELOOP, "is a symbolic link", directory.record)
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
    """Mark a directory as in use until this process and all that inherit the descriptor have ended.

    None if the record cannot be opened or locked within `HOLD_TIMEOUT_S`.
    """
    descriptor = _lock(directory, shared=True, timeout_s=HOLD_TIMEOUT_S)
    if descriptor is None:
        return None
    descriptor = move_above_shells(descriptor)
    os.set_inheritable(descriptor, True)
    return descriptor


@contextlib.contextmanager
def not_in_use(directory: CacheDirectory, named: frozenset[str] | None = None) -> Iterator[bool]:
    """Yield whether a directory is unused. If so, no launch can begin to use it during the block.

    `named`: the result of `named_by_processes`; None: it is called here.
    """
    descriptor = _lock(directory)
    try:
        free = descriptor is not None or not os.path.exists(directory.record)
        if free:
            named = named_by_processes() if named is None else named
            free = os.path.realpath(directory.path) not in named
        yield free
    finally:
        if descriptor is not None:
            os.close(descriptor)


def named_by_processes() -> frozenset[str]:
    """The cache directories that environments of other processes name, with links resolved.

    A daemon, or a program such as sudo, closes the descriptors of `hold` and keeps using the cache.
    """
    prefixes = tuple([f"{name}=".encode() for name in VARIABLES])
    paths = set()
    try:
        numbers = [name for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        numbers = []
    for number in numbers:
        if int(number) == os.getpid():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{number}/environ", "rb") as stream:
            entries = stream.read().split(b"\0")
            paths |= {it.partition(b"=")[2] for it in entries if it.startswith(prefixes)}
    return frozenset([os.path.realpath(os.fsdecode(path)) for path in paths if path])


def _lock(directory: CacheDirectory, *, shared: bool = False, timeout_s: float = 0.0) -> int | None:
    """Open and lock the record. None if that fails, or if a pruner has just removed it."""
    try:
        descriptor = os.open(directory.record, os.O_RDONLY | os.O_NOFOLLOW)
    except (OSError, AttributeError):  # Windows has no O_NOFOLLOW
        return None
    if try_lock(descriptor, shared=shared, timeout_s=timeout_s) and os.fstat(descriptor).st_nlink:
        return descriptor
    os.close(descriptor)
    return None
