# SPDX-License-Identifier: Apache-2.0
"""Prepare a cache's directory before its use: copy a seed, and repair what a killed run left.

A *seed* is a cache that a container image ships, read-only, for each user to start from.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping

from xlaunch.cache import store
from xlaunch.cache.key import Key
from xlaunch.cache.staging import SEEDING
from xlaunch.cache.store import OTHERS_WRITE, CacheDirectory
from xlaunch.cache.table import BY_NAME, Format
from xlaunch.errors import UsageError
from xlaunch.files import make_private
from xlaunch.ownership import inspect_ownership

VARIABLE = "XLAUNCH_CACHE_SEED"
"""The directory that was given to `--cache-dir` when the image was built."""

CLOCK_STEP_S = 0.1
"""Time stamps of files may be earlier than the clock by a tick of the kernel."""


def prepare(base: str, key: Key, seed: str | None) -> CacheDirectory:
    """Make the directory of a cache, from the seed if there is one, or repair it.

    Raises OSError, and `UsageError` for a seed that may not be used.
    """
    if seed is not None:
        plant(seed, base, key)
    directory = store.directory_of(base, key)
    if os.path.exists(directory.record):
        remove_cut_libraries(directory, directory.last_use_s)
    return store.begin_use(base, key)


def seed_directory(environment: Mapping[str, str]) -> str | None:
    """The directory that `VARIABLE` names; None if it is not set.

    Raises `UsageError` if it is absent, or if another user than root or this one could have changed it.
    """
    path = environment.get(VARIABLE)
    if not path:
        return None
    if not os.path.isdir(path):
        raise UsageError(f"{VARIABLE}={path}: there is no such directory")
    refusal = inspect_ownership(path, private=True).refusal
    if refusal is not None:
        raise UsageError(f"{VARIABLE}={path}: {refusal}")
    return os.path.abspath(path)


def plant(seed: str, base: str, key: Key) -> bool:
    """Copy the cache of a key from a seed unless it exists. Returns whether it was copied.

    The copy appears whole or not at all, even if several launches begin at once. Raises OSError,
    and `UsageError` for a seed that contains links or special files.
    """
    source, target = store.directory_of(seed, key), store.directory_of(base, key)
    if store.is_empty(source.path) or not store.is_empty(target.path):
        return False
    import shutil

    parent = os.path.dirname(target.path)
    make_private(parent)
    staging = os.path.join(parent, f"{SEEDING}{os.urandom(4).hex()}")
    try:
        _copy(source.path, staging, target.path)
        with contextlib.suppress(OSError):  # another launch was first
            os.rename(staging, target.path)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return True


def _copy(source: str, target: str, place: str) -> None:
    """Copy a directory to `target`, which will be moved to `place`."""
    import shutil

    from xlaunch.cache.contents import is_temporary
    from xlaunch.cache.formats import relocate

    os.mkdir(target, 0o700)
    with os.scandir(source) as entries:
        for entry in entries:
            if is_temporary(entry.name):
                continue
            path = os.path.join(target, entry.name)
            status = entry.stat(follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode) and not stat.S_ISREG(status.st_mode):
                raise UsageError(f"{VARIABLE}: {entry.path} is neither a file nor a directory")
            if status.st_uid not in (0, os.geteuid()) or status.st_mode & OTHERS_WRITE:
                raise UsageError(
                    f"{VARIABLE}: others than root and this user may change {entry.path}"
                )
            if stat.S_ISDIR(status.st_mode):
                _copy(entry.path, path, os.path.join(place, entry.name))
            else:
                shutil.copy2(entry.path, path)
                os.chmod(path, 0o700 if status.st_mode & stat.S_IXUSR else 0o600)
                relocate(path, os.path.join(place, entry.name))


def remove_cut_libraries(directory: CacheDirectory, since_s: float) -> None:
    """Remove truncated libraries that were linked after `since_s` (seconds since the epoch).

    Linkers write into the final file, and Inductor loads any file of that name: with one that is too
    short every later start would fail (see `_worker_compile_cpp` in torch/_inductor/cpp_builder.py).
    Caches keep libraries at most one directory deep. Nothing is removed while another program uses the
    cache. Raises OSError.
    """
    if not any(entries.format is Format.ELF for entries in BY_NAME[directory.cache].entries):
        return
    since_s -= CLOCK_STEP_S
    with os.scandir(directory.path) as entries:
        changed = [
            it.path for it in entries if it.is_dir(follow_symlinks=False) and _since(it, since_s)
        ]
    if not changed:
        return
    from xlaunch.cache.formats import damage

    with store.not_in_use(directory) as free:
        for path in changed if free else ():
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.name.endswith(".so") and entry.is_file(follow_symlinks=False):
                        with contextlib.suppress(FileNotFoundError):
                            if not _since(entry, since_s):
                                continue
                            descriptor = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW)
                            with open(descriptor, "rb") as stream:
                                is_cut = damage(stream, Format.ELF) is not None
                            if is_cut:
                                os.unlink(entry.path)


def _since(entry: os.DirEntry[str], since_s: float) -> bool:
    return entry.stat(follow_symlinks=False).st_mtime >= since_s
