# SPDX-License-Identifier: Apache-2.0
"""The variables that move compile caches to private directories, one for each key of each cache.

Inductor's default is under /tmp with a predictable name, and its entries are loaded as code; the
caches of Triton, CUDA and others are spread over the home directory.
"""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from xlaunch.cache.directories import (
    CacheDirectory,
    directory_of,
    hold,
    is_empty,
    private_base,
    why_shared,
)
from xlaunch.cache.key import Hardware, Packages, applies, key_of, read_hardware
from xlaunch.cache.seed import seed_directory
from xlaunch.cache.table import BY_NAME, CACHES, KEEP_NOTHING, PROFILE_VARIABLE
from xlaunch.cache.use import NO_HOME, default_directory, prepare, why_unusable
from xlaunch.environment.variables import Proposal
from xlaunch.errors import UsageError
from xlaunch.planning.request import Caches, ProgramRequest

NAMELESS = (
    "--cache-dir: the directory's name is empty; name a directory, leave the option out for the one below "
    "XDG_CACHE_HOME, or use --no-cache to have none"
)

HEADERS_VARIABLE = "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"


class UsedCache(NamedTuple):
    """A cache that the variables of a launch move, which is recorded and held."""

    directory: CacheDirectory
    warmth: str
    """At the start: ``cold`` (empty) or ``used`` (with code of earlier launches)."""


class CacheSettings(NamedTuple):
    """What a launch does about compile caches."""

    proposals: tuple[Proposal, ...] = ()
    used: tuple[UsedCache, ...] = ()
    base: str | None = None
    """The directory of all caches; None: they stay where they are."""
    warnings: tuple[str, ...] = ()

    def hold(self) -> list[str]:
        """Have the pruner spare the caches while this process or one of its children runs.

        A line for the user where that fails.
        """
        paths = [used.directory.path for used in self.used if hold(used.directory) is None]
        if not paths:
            return []
        return [f"not protected from pruning, as its record cannot be locked: {', '.join(paths)}"]


def cache_settings(
    request: ProgramRequest,
    inherited: Mapping[str, str],
    *,
    packages: Packages,
    program: Sequence[str] = (),
    make: bool,
    hardware: Hardware | None = None,
) -> CacheSettings:
    """The variables that move every compile cache below one directory, and what lies there.

    The directory is that of `--cache-dir`, see `private_base`; a failure is then a `UsageError`. By
    default it is below XDG_CACHE_HOME; a failure is then a warning, and no cache is moved. With
    `--no-cache` none is, and xruntime keeps nothing.
    `inherited`: the user's own variables; a cache that one of them moves is left there. `make`:
    create the directories, for this user only. `hardware`: None: this machine's.
    """
    if request.no_cache:
        return CacheSettings((_NOTHING_KEPT,))
    headers, warnings = _header_settings(inherited, make=make)
    stay = "compile caches stay where they are"
    asked = request.cache_dir
    if asked == "":
        raise UsageError(NAMELESS)
    base = asked or default_directory(inherited)
    if base is None:
        return CacheSettings(headers, warnings=(f"{stay}: {NO_HOME}", *warnings))
    base = private_base(base)
    hardware = hardware or read_hardware()
    everything = request.cache is Caches.ALL
    rows = [cache for cache in CACHES if applies(cache, hardware, everything=everything)]
    keys = {row.name: key_of(row, hardware, packages) for row in rows}
    directories = {row.name: directory_of(base, keys[row.name]) for row in rows}
    moved = [
        row
        for row in rows
        if (asked is not None or not inherited.get(row.variable))
        and row.variable not in dict(request.env)
    ]
    try:
        refusal = why_unusable(base, [directories[row.name] for row in moved], hardware)
        seed = seed_directory(inherited)
        empty = {n for n, it in directories.items() if is_empty(it.path)}
        if seed is not None:
            empty -= {n for n in empty if not is_empty(directory_of(seed, keys[n]).path)}
        if make and refusal is None:
            for row in moved:
                prepare(base, keys[row.name], seed)
    except OSError as error:
        refusal = f"{error.filename or base}: {error.strerror}"
    if refusal is not None:
        if asked is not None:
            raise UsageError(f"--cache-dir {asked}: {refusal}")
        return CacheSettings(headers, warnings=(f"{stay}: {refusal}", *warnings))
    option = None if asked is None else f"--cache-dir {asked}"
    proposals = [*headers]
    for row in rows:
        state = _COLD if row.name in empty else _USED
        reason = f"{_WHERE}; {state}" if row in moved else _WHERE
        proposals.append(Proposal(row.variable, directories[row.name].path, reason, option=option))
        proposals += [Proposal(*switch) for switch in row.switches]
    if everything:
        proposals.append(_profile(program))
    used = [
        UsedCache(directories[row.name], "cold" if row.name in empty else "used") for row in moved
    ]
    return CacheSettings(tuple(proposals), tuple(used), base, warnings)


_WHERE = "compiled code is kept in a private directory for this hardware and these versions"
_COLD = "cold: it is empty"
_USED = "used: it has code of earlier launches"
_NOTHING_KEPT = Proposal(
    BY_NAME["optimized"].variable, KEEP_NOTHING, "xruntime keeps no compiled models: --no-cache"
)


def _header_settings(
    environment: Mapping[str, str], *, make: bool
) -> tuple[tuple[Proposal, ...], tuple[str, ...]]:
    """Keep torch from precompiled headers that others may have made: a setting, and a warning.

    Wherever its cache is, torch takes them from a directory of a known name for temporary files (see
    `_HEADER_DIR` in torch/_inductor/codecache.py). `make`: make that directory before others can.
    """
    if environment.get(HEADERS_VARIABLE) == "0" or not hasattr(os, "getuid"):
        return (), ()
    path = _torch_directory(environment)
    headers = os.path.join(path, "precompiled_headers")
    try:
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
        places = [place for place in (path, headers) if os.path.lexists(place)]
        shared = [reason for reason in map(why_shared, places) if reason is not None]
    except OSError as error:
        shared = [f"{path}: {error.strerror}"]
    if not shared:
        return (), ()
    reason = f"torch would take precompiled headers from {headers}, but {shared[0]}"
    if environment.get(HEADERS_VARIABLE):
        return (), (f"{reason}; {HEADERS_VARIABLE}=0 prevents it",)
    setting = Proposal(HEADERS_VARIABLE, "0", reason)
    return (setting,), (f"{reason}; it compiles without them",)


def _torch_directory(environment: Mapping[str, str]) -> str:
    """Where torch keeps temporary files, as `getpass` and `tempfile` find user and place."""
    names = [environment.get(name) for name in ("LOGNAME", "USER", "LNAME", "USERNAME")]
    user = next(filter(None, names), None)
    if user is None:
        import pwd

        try:
            user = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            user = f"uid_{os.getuid()}"
    named = [environment.get(name) for name in ("TMPDIR", "TEMP", "TMP")]
    places = [*filter(None, named), "/tmp", "/var/tmp", "/usr/tmp", "."]  # noqa: S108
    place = next((it for it in places if os.access(it, os.W_OK | os.X_OK)), ".")
    user = re.sub(r'[\\/:*?"<>|]', "_", user)
    return os.path.join(os.path.abspath(place), f"torchinductor_{user}")


def _profile(program: Sequence[str]) -> Proposal:
    words = [os.path.abspath(word) if os.path.exists(word) else word for word in program]
    job = f"xlaunch-{zlib.crc32(repr(words).encode()):08x}"
    return Proposal(PROFILE_VARIABLE, job, "torch keeps which sizes changed in earlier runs (PGO)")
