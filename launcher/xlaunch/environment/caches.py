# SPDX-License-Identifier: Apache-2.0
"""The variables that move compile caches to private directories, one for each key of each cache.

Inductor's default is under /tmp with a predictable name, and its entries are loaded as code; the
caches of Triton, CUDA and others are spread over the home directory.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from xlaunch.cache.directories import (
    CacheDirectory,
    Warmth,
    begin_use,
    check_base,
    check_below,
    directory_of,
    hold,
    is_empty,
)
from xlaunch.cache.key import Hardware, Key, Packages, applies, is_used, key_of, read_hardware
from xlaunch.cache.repair import remove_cut_libraries
from xlaunch.cache.seed import plant, seed_directory
from xlaunch.cache.table import CACHES, PROFILE_VARIABLE
from xlaunch.cache.warm import absolute, record_of
from xlaunch.environment.variables import Proposal
from xlaunch.errors import UsageError
from xlaunch.planning.request import Caches, Request

NAMELESS = (
    "--cache-dir: the directory's name is empty; name a directory, leave the option out for the one below "
    "XDG_CACHE_HOME, or use --no-cache to have none"
)


class UsedCache(NamedTuple):
    """A cache that the program of a launch is going to fill and use."""

    directory: CacheDirectory
    warmth: Warmth


class CacheSettings(NamedTuple):
    """What a launch does about compile caches."""

    proposals: tuple[Proposal, ...] = ()
    used: tuple[UsedCache, ...] = ()
    base: str | None = None
    """The directory of all caches; None: they stay where they are."""
    record: str | None = None
    """Where `xlaunch cache warm` records that it has run this program; see `xlaunch.cache.warm`."""
    warning: str | None = None

    def hold(self) -> None:
        """Have the pruner spare the caches while this process or one of its children runs."""
        for used in self.used:
            hold(used.directory)


def cache_settings(
    request: Request,
    inherited: Mapping[str, str],
    *,
    packages: Packages,
    program: Sequence[str] = (),
    threads: int = 1,
    make: bool,
    hardware: Hardware | None = None,
) -> CacheSettings:
    """The variables that move every compile cache below one directory, and what lies there.

    The directory is that of `--cache-dir`; a failure is then a `UsageError`. By default it is below
    XDG_CACHE_HOME; a failure is then a warning, and no cache is moved. `inherited`: the user's own
    variables; a cache that one of them moves is left there. `make`: create the directories, for this
    user only. `hardware`: None: this machine's.
    """
    if request.no_cache:
        return CacheSettings()
    asked = request.cache_dir
    if asked == "":
        raise UsageError(NAMELESS)
    base = asked or default_directory(inherited)
    if base is None:
        return CacheSettings(
            warning="compile caches stay where they are: there is no home directory"
        )
    base = os.path.abspath(base)
    hardware = hardware or read_hardware()
    everything = request.cache is Caches.ALL
    rows = [cache for cache in CACHES if applies(cache, hardware, everything=everything)]
    keys = {row.name: key_of(row, hardware, packages) for row in rows}
    moved = [row for row in rows if asked is not None or not inherited.get(row.variable)]
    used = [
        row for row in moved if is_used(row, packages) and row.variable not in dict(request.env)
    ]
    directories = {row.name: directory_of(base, keys[row.name]) for row in rows}
    try:
        refusal = check_base(base, repair=make)
        for directory in directories.values():
            refusal = refusal or check_below(base, directory.path, repair=make)
        seed = seed_directory(inherited)
        empty = {n for n, it in directories.items() if is_empty(it.path)}
        if seed is not None:
            empty -= {n for n in empty if not is_empty(directory_of(seed, keys[n]).path)}
        if make and refusal is None:
            for row in used:
                _prepare(base, keys[row.name], seed)
    except OSError as error:
        refusal = f"{error.filename or base}: {error.strerror}"
    if refusal is not None:
        if asked is not None:
            raise UsageError(f"--cache-dir {asked}: {refusal}")
        return CacheSettings(warning=f"compile caches stay where they are: {refusal}")
    known = [directories[row.name] for row in used]
    records = [
        record_of(place, program, threads, known) for place in (base, seed) if place is not None
    ]
    warm = any(os.path.exists(record) for record in records)
    found = {
        row.name: UsedCache(directories[row.name], _warmth(row.name in empty, warm)) for row in used
    }
    option = None if asked is None else f"--cache-dir {asked}"
    proposals = [
        Proposal(
            row.variable, directories[row.name].path, _reason(found.get(row.name)), option=option
        )
        for row in rows
    ]
    for row in rows:
        proposals += [Proposal(*switch) for switch in row.switches]
    if everything:
        proposals.append(_profile(program))
    return CacheSettings(tuple(proposals), tuple(found.values()), base, records[0])


def _prepare(base: str, key: Key, seed: str | None) -> None:
    """Make the directory of a cache, from the seed if there is one, or repair it. Raises OSError."""
    if seed is not None:
        plant(seed, base, key)
    directory = directory_of(base, key)
    if os.path.exists(directory.record):
        remove_cut_libraries(directory, directory.last_use_s)
    begin_use(base, key)


def _warmth(empty: bool, warm: bool) -> Warmth:
    if empty:
        return Warmth.COLD
    return Warmth.WARM if warm else Warmth.USED


def _reason(used: UsedCache | None) -> str:
    where = "compiled code is kept in a private directory for this hardware and these versions"
    return where if used is None else f"{where}; {_STATES[used.warmth]}"


_STATES = {
    Warmth.COLD: "cold: it is empty",
    Warmth.USED: "it has code of earlier launches",
    Warmth.WARM: "warm: xlaunch cache warm ran this program",
}


def _profile(program: Sequence[str]) -> Proposal:
    job = f"xlaunch-{zlib.crc32(repr(absolute(program)).encode()):08x}"
    return Proposal(PROFILE_VARIABLE, job, "torch keeps which sizes changed in earlier runs (PGO)")


def default_directory(inherited: Mapping[str, str]) -> str | None:
    """**Ex.:** ``~/.cache/xlaunch/compiled``; None without a home."""
    home = cache_home(inherited)
    return None if home is None else os.path.join(home, "compiled")


def cache_home(inherited: Mapping[str, str]) -> str | None:
    """**Ex.:** ``~/.cache/xlaunch``; None without a home."""
    base = inherited.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the specification has relative ones ignored
        home = inherited.get("HOME", "")
        if not os.path.isabs(home):
            return None
        base = os.path.join(home, ".cache")
    return os.path.join(base, "xlaunch")
