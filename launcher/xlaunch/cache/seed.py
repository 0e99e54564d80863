# SPDX-License-Identifier: Apache-2.0
"""Seeds: caches that a container image ships, read-only, for each user to start from."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping

from xlaunch.cache.directories import OTHERS_WRITE, directory_of, is_empty
from xlaunch.cache.key import Key
from xlaunch.cache.staging import SEEDING
from xlaunch.errors import UsageError
from xlaunch.ownership import inspect_ownership, make_private

VARIABLE = "XLAUNCH_CACHE_SEED"
"""The directory that was given to `--cache-dir` when the image was built."""


def seed_directory(environment: Mapping[str, str]) -> str | None:
    """The directory that `VARIABLE` names; None if it is not set.

    Raises `UsageError` where it is absent, or where another user than root or this one could have
    changed it.
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
    """Copy the cache of a key from a seed, unless there is one already; whether it was copied.

    The copy appears whole or not at all, also where several launches begin at once. Raises OSError,
    and `UsageError` for a seed that contains links or special files.
    """
    source, target = directory_of(seed, key), directory_of(base, key)
    if is_empty(source.path) or not is_empty(target.path):
        return False
    import shutil

    parent = os.path.dirname(target.path)
    make_private(parent)
    staging = os.path.join(parent, f"{SEEDING}{os.urandom(4).hex()}")
    try:
        _copy(source.path, staging, target.path)
        with contextlib.suppress(OSError):
            os.rename(staging, target.path)  # fails where another launch was first
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return True


def _copy(source: str, target: str, place: str) -> None:
    """Copy a directory to `target`, which is going to be moved to `place`."""
    import shutil

    from xlaunch.cache.relocation import relocate
    from xlaunch.cache.usage import is_temporary

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
