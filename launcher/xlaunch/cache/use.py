# SPDX-License-Identifier: Apache-2.0
"""Begin to use caches: where they are, whether they may be used, and what is done before the first use.

For launches, and for xruntime in a process that no launch has told where its cache is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping

from xlaunch.cache.directories import (
    CacheDirectory,
    begin_use,
    check_base,
    check_below,
    directory_of,
    hold,
    private_base,
)
from xlaunch.cache.key import Hardware, Key, Packages, key_of, read_hardware
from xlaunch.cache.repair import remove_cut_libraries
from xlaunch.cache.seed import plant, seed_directory
from xlaunch.cache.table import BY_NAME
from xlaunch.errors import UsageError

NO_HOME = "there is no home directory"


def default_directory(environment: Mapping[str, str]) -> str | None:
    """**Ex.:** ``~/.cache/xlaunch/compiled``; None without a home."""
    home = cache_home(environment)
    return None if home is None else os.path.join(home, "compiled")


def cache_home(environment: Mapping[str, str]) -> str | None:
    """**Ex.:** ``~/.cache/xlaunch``; None without a home."""
    base = environment.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the specification has relative ones ignored
        home = environment.get("HOME", "")
        if not os.path.isabs(home):
            return None
        base = os.path.join(home, ".cache")
    return os.path.join(base, "xlaunch")


def why_unusable(
    base: str, directories: Iterable[CacheDirectory], hardware: Hardware
) -> str | None:
    """Why these directories below `base` may not be used; None if they may. Raises OSError."""
    refusal = hardware.why_unknown or check_base(base)
    for directory in directories:
        refusal = refusal or check_below(base, directory.path)
    return refusal


def prepare(base: str, key: Key, seed: str | None) -> CacheDirectory:
    """Make the directory of a cache, from the seed if there is one, or repair it.

    Raises OSError, and `UsageError` for a seed that may not be used.
    """
    if seed is not None:
        plant(seed, base, key)
    directory = directory_of(base, key)
    if os.path.exists(directory.record):
        remove_cut_libraries(directory, directory.last_use_s)
    return begin_use(base, key)


def own_directory(
    name: str, environment: Mapping[str, str], versions: Mapping[str, str]
) -> CacheDirectory:
    """The directory of the cache `name` for this process, as a launch of it would choose and make it.

    It is below `default_directory`, and held until this process, and those that inherit its
    descriptors, have ended: call this once. Where it cannot be locked it is used nevertheless; a
    pruner may then remove files that this process looks for. `versions`: those of the installed
    distributions, of which the cache's key takes what it needs. Raises `UsageError` with the reason in
    one line: there is no home, or one that cannot be written; others may write there; it is unknown
    which instructions this processor has.
    """
    base = default_directory(environment)
    if base is None:
        raise UsageError(NO_HOME)
    base, hardware = private_base(base), read_hardware()
    python = "{}.{}".format(*sys.version_info)
    key = key_of(BY_NAME[name], hardware, Packages(versions, python))
    try:
        refusal = why_unusable(base, [directory_of(base, key)], hardware)
        if refusal is not None:
            raise UsageError(refusal)
        directory = prepare(base, key, seed_directory(environment))
    except OSError as error:
        raise UsageError(f"{error.filename or base}: {error.strerror}") from None
    hold(directory)
    return directory


def check_directory(path: str) -> None:
    """Raise `UsageError` unless a directory for compiled code is this user's own.

    It may not be a link, belong to another user, or be writable by others, nor may one above it. One
    that does not exist yet is judged by the nearest above it that does.
    """
    try:
        refusal = check_base(path)
    except OSError as error:
        refusal = f"{error.filename or path}: {error.strerror}"
    if refusal is not None:
        raise UsageError(refusal)
