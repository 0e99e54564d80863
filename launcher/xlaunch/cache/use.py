# SPDX-License-Identifier: Apache-2.0
"""Choose the caches of a launch, their directories, and check that these may be used.

A launch points the variable of each cache to a private directory per key. Inductor's default is under
/tmp with a predictable name, and its entries are loaded as code; the caches of Triton, CUDA and others
are spread over the home directory. xruntime uses the same directory in a process without a launch.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
import time
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from xlaunch.cache import store
from xlaunch.cache.store import (
    DAY_S,
    OTHERS_WRITE,
    SEEDING,
    CacheDirectory,
    Hardware,
    Key,
    Packages,
    applies,
    hold,
    key_of,
    read_hardware,
)
from xlaunch.cache.table import BY_NAME, CACHES, KEEP_NOTHING, PROFILE_VARIABLE, Format, Variable
from xlaunch.errors import UsageError
from xlaunch.files import make_private
from xlaunch.ownership import inspect_ownership

NO_HOME = "there is no home directory"
NAMELESS = (
    "--cache-dir: the directory's name is empty; name a directory, leave the option out for the one below "
    "XDG_CACHE_HOME, or use --no-cache to have none"
)
HEADERS_VARIABLE = "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"

SEED_VARIABLE = "XLAUNCH_CACHE_SEED"
"""The directory of a *seed*: a cache that a container image ships, read-only, for each user to start from."""

CLOCK_STEP_S = 0.1
"""Time stamps of files may be earlier than the clock by a tick of the kernel."""


class UsedCache(NamedTuple):
    """A cache whose directory xlaunch chose, and which it prepares, holds and reports."""

    directory: CacheDirectory
    warmth: str
    """At the start: ``cold`` (empty) or ``used`` (with code of earlier launches)."""


class CacheSettings(NamedTuple):
    """What a launch does about compile caches."""

    variables: tuple[Variable, ...] = ()
    """To be set, unless the user has set them."""
    used: tuple[UsedCache, ...] = ()
    base: str | None = None
    """The directory of all caches; None: each library uses its own default directory."""
    warnings: tuple[str, ...] = ()

    def hold(self) -> list[str]:
        """Protect the caches from pruning while this process or one of its children runs.

        Returns a warning for each cache that cannot be protected.
        """
        paths = [used.directory.path for used in self.used if hold(used.directory) is None]
        if not paths:
            return []
        return [f"not protected from pruning, as its record cannot be locked: {', '.join(paths)}"]


_REASON = "xruntime keeps no compiled models: --no-cache"
NOT_KEPT = CacheSettings((Variable(BY_NAME["optimized"].variable, KEEP_NOTHING, _REASON),))
"""With `--no-cache`."""


def default_directory(environment: Mapping[str, str]) -> str | None:
    """**Ex.:** ``~/.cache/xlaunch/compiled``; None without a home."""
    home = cache_home(environment)
    return None if home is None else os.path.join(home, "compiled")


def cache_home(environment: Mapping[str, str]) -> str | None:
    """**Ex.:** ``~/.cache/xlaunch``; None without a home."""
    base = environment.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the specification says to ignore relative ones
        home = environment.get("HOME", "")
        if not os.path.isabs(home):
            return None
        base = os.path.join(home, ".cache")
    return os.path.join(base, "xlaunch")


def missing_home(environment: Mapping[str, str]) -> str | None:
    """Why `cache_home` may not be made: the home directory does not exist, as for many daemons."""
    home = environment.get("HOME", "")
    if os.path.isabs(environment.get("XDG_CACHE_HOME", "")) or os.path.lexists(home):
        return None
    return f"HOME {home} does not exist"


def cache_settings(
    environment: Mapping[str, str],
    *,
    packages: Packages,
    asked: str | None = None,
    everything: bool = False,
    fixed: Collection[str] = (),
    program: Sequence[str] = (),
    make: bool,
    hardware: Hardware | None = None,
) -> CacheSettings:
    """Choose the directory of every compile cache, and report its state.

    They are below `asked` (`--cache-dir`, see `store.private_base`): a failure is then a `UsageError`. By
    default they are below XDG_CACHE_HOME: a failure is then a warning, and no cache is moved.

    `environment`: the user's own variables; a cache that one of them moves stays there, unless
    `--cache-dir` is given. `fixed`: names of variables that not even `--cache-dir` replaces (those
    of `--env`). `everything`: also set up caches that change what programs do. `make`: create the
    directories, for this user only. `hardware`: None: that of this machine.
    """
    if asked == "":
        raise UsageError(NAMELESS)
    headers, warnings = _header_settings(environment, make=make)
    base = asked or default_directory(environment)
    if base is None:
        return CacheSettings(headers, warnings=(f"{_STAY}: {NO_HOME}", *warnings))
    base, hardware = store.private_base(base), hardware or read_hardware()
    rows = [row for row in CACHES if applies(row, hardware, everything=everything)]
    keys = {row.name: key_of(row, hardware, packages) for row in rows}
    directories = {name: store.directory_of(base, key) for name, key in keys.items()}
    used = []
    for row in rows:
        users_own = environment.get(row.variable)
        is_free = (asked is not None or not users_own) and row.variable not in fixed
        if is_free or users_own == directories[row.name].path:
            used.append(row.name)
    seed = _seed_directory(environment)
    warmth = {name: _warmth(keys[name], base, seed) for name in used}
    places = [directories[name] for name in used]
    try:
        refusal = hardware.why_unknown or _refusal(base, places, None if asked else environment)
        for name in used if make and refusal is None else ():
            prepare(base, keys[name], seed)
    except OSError as error:
        refusal = f"{error.filename or base}: {error.strerror}"
    if refusal is not None:
        if asked is not None:
            raise UsageError(f"--cache-dir {asked}: {refusal}")
        return CacheSettings(headers, warnings=(f"{_STAY}: {refusal}", *warnings))
    option = None if asked is None else f"--cache-dir {asked}"
    variables = [*headers]
    for row in rows:
        reason = _REASONS[warmth.get(row.name, "")]
        path = directories[row.name].path
        variables += [Variable(row.variable, path, reason, option), *row.switches]
    variables += _profile_of(program) if everything else []
    caches = tuple(map(UsedCache, places, warmth.values()))
    return CacheSettings(tuple(variables), caches, base, warnings)


def _warmth(key: Key, base: str, seed: str | None) -> str:
    """See `UsedCache.warmth`; code of the seed counts."""
    sources = [base] if seed is None else [base, seed]
    is_cold = all(store.is_empty(store.directory_of(source, key).path) for source in sources)
    return "cold" if is_cold else "used"


def _refusal(
    base: str, directories: Sequence[CacheDirectory], environment: Mapping[str, str] | None
) -> str | None:
    """Why no cache may be kept in these directories below `base`; None if it may. Raises OSError.

    A command that makes none has to ask. `environment`: it names the home directory of a default `base`.
    """
    refusal = store.why_unusable(base, directories)
    if environment is not None:
        refusal = refusal or missing_home(environment)
    for directory in directories:
        refusal = refusal or store.why_unwritable(directory.path)
    return refusal


_STAY = "compile caches stay where they are"
_WHERE = "compiled code is kept in a private directory for this hardware and these versions"
_REASONS = {
    "": _WHERE,
    "cold": f"{_WHERE}; cold: it is empty",
    "used": f"{_WHERE}; used: it has code of earlier launches",
}
"""Why a launch names the directory of a cache, by `UsedCache.warmth`; empty: it uses another one."""


def _profile_of(program: Sequence[str]) -> list[Variable]:
    """The variable that makes torch keep a profile of `program`."""
    words = [os.path.abspath(word) if os.path.exists(word) else word for word in program]
    job = f"xlaunch-{zlib.crc32(repr(words).encode()):08x}"
    reason = "torch keeps which sizes changed in earlier runs (PGO)"
    return [Variable(PROFILE_VARIABLE, job, reason)]


def _header_settings(
    environment: Mapping[str, str], *, make: bool
) -> tuple[tuple[Variable, ...], tuple[str, ...]]:
    """Keep torch from using precompiled headers of other users: a variable and a warning.

    torch takes them from a directory for temporary files with a predictable name, wherever its cache is
    (see `_HEADER_DIR` in torch/_inductor/codecache.py). `make`: make that directory before others can.
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
        shared = [reason for reason in map(store.why_shared, places) if reason is not None]
    except OSError as error:
        shared = [f"{path}: {error.strerror}"]
    if not shared:
        return (), ()
    reason = f"torch would take precompiled headers from {headers}, but {shared[0]}"
    if environment.get(HEADERS_VARIABLE):
        return (), (f"{reason}; {HEADERS_VARIABLE}=0 prevents it",)
    return (Variable(HEADERS_VARIABLE, "0", reason),), (f"{reason}; it compiles without them",)


def _torch_directory(environment: Mapping[str, str]) -> str:
    """Torch's directory for temporary files, with user and place as `getpass` and `tempfile` find them."""
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
    place = next((place for place in places if os.access(place, os.W_OK | os.X_OK)), ".")
    user = re.sub(r'[\\/:*?"<>|]', "_", user)
    return os.path.join(os.path.abspath(place), f"torchinductor_{user}")


def prepare(base: str, key: Key, seed: str | None) -> CacheDirectory:
    """Make or repair the directory of a cache, from a seed if there is one. Raises OSError, `UsageError`."""
    if seed is not None:
        plant(seed, base, key)
    directory = store.directory_of(base, key)
    if os.path.exists(directory.record):
        _remove_cut_libraries(directory, directory.last_use_s)
    return store.begin_use(base, key)


def _seed_directory(environment: Mapping[str, str]) -> str | None:
    """The directory that `SEED_VARIABLE` names; None if it is not set.

    Raises `UsageError` if it is absent, or if another user than root or this one could have changed it.
    """
    path = environment.get(SEED_VARIABLE)
    if not path:
        return None
    if not os.path.isdir(path):
        raise UsageError(f"{SEED_VARIABLE}={path}: there is no such directory")
    refusal = inspect_ownership(path, private=True).refusal
    if refusal is not None:
        raise UsageError(f"{SEED_VARIABLE}={path}: {refusal}")
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
                raise UsageError(f"{SEED_VARIABLE}: {entry.path} is neither a file nor a directory")
            if status.st_uid not in (0, os.geteuid()) or status.st_mode & OTHERS_WRITE:
                raise UsageError(
                    f"{SEED_VARIABLE}: others than root and this user may change {entry.path}"
                )
            if stat.S_ISDIR(status.st_mode):
                _copy(entry.path, path, os.path.join(place, entry.name))
            else:
                shutil.copy2(entry.path, path)
                os.chmod(path, 0o700 if status.st_mode & stat.S_IXUSR else 0o600)
                relocate(path, os.path.join(place, entry.name))


def _remove_cut_libraries(directory: CacheDirectory, since_s: float) -> None:
    """Remove truncated libraries that were linked after `since_s` (seconds since the epoch).

    Linkers write into the final file, and Inductor loads any file of that name: with one that is too
    short every later start would fail (see `_worker_compile_cpp` in torch/_inductor/cpp_builder.py).
    They are at most one directory deep, and stay while another program uses the cache. Raises OSError.
    """
    if Format.ELF not in [entries.format for entries in BY_NAME[directory.cache].entries]:
        return
    since_s -= CLOCK_STEP_S
    with os.scandir(directory.path) as entries:
        changed = [
            entry.path
            for entry in entries
            if entry.is_dir(follow_symlinks=False) and _since(entry, since_s)
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


def own_directory(
    name: str, environment: Mapping[str, str], versions: Mapping[str, str]
) -> CacheDirectory:
    """The directory of the cache `name` for this process, as a launch would choose and make it.

    It is below `default_directory`, and held until this process, and those that inherit its
    descriptors, have ended: call this once. If it cannot be locked, it is used anyway, and a pruner may
    remove files that this process looks for. `versions`: those of the installed distributions. Raises
    `UsageError` with the reason in one line: there is no home, or one that cannot be written; others may
    write there; it is unknown which instructions this processor has.
    """
    base = default_directory(environment)
    if base is None:
        raise UsageError(NO_HOME)
    base, hardware = store.private_base(base), read_hardware()
    key = key_of(BY_NAME[name], hardware, Packages(versions, "{}.{}".format(*sys.version_info)))
    try:
        refusal = hardware.why_unknown or store.why_unusable(base, [store.directory_of(base, key)])
        seed = _seed_directory(environment)
        refusal = refusal or missing_home(environment)
        if refusal is not None:
            raise UsageError(refusal)
        directory = prepare(base, key, seed)
    except OSError as error:
        raise UsageError(f"{error.filename or base}: {error.strerror}") from None
    hold(directory)
    return directory


def check_directory(path: str) -> None:
    """Raise `UsageError` unless a directory for compiled code is this user's own.

    It may not be a link, belong to another user, or be writable by others, nor may one above it. If it
    does not exist yet, the nearest existing directory above it is checked.
    """
    try:
        refusal = store.why_unusable(path)
    except OSError as error:
        refusal = f"{error.filename or path}: {error.strerror}"
    if refusal is not None:
        raise UsageError(refusal)


STAMP = "pruned"
"""A file in the base directory; its modification time is the start of the last pruning."""


def start_pruner(base: str) -> None:
    """Prune in a detached process, once a day at most."""
    stamp = os.path.join(base, STAMP)
    try:
        due = time.time() - os.stat(stamp).st_mtime > DAY_S
        if not due:
            return
    except FileNotFoundError:
        due = False  # at the first launch there is nothing to prune
    except OSError:
        return
    with contextlib.suppress(OSError):
        os.close(os.open(stamp, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        os.utime(stamp)
        if due:
            _detach([sys.executable, "-P", "-m", "xlaunch", "cache", "prune", "--cache-dir", base])


def _detach(command: list[str]) -> None:
    """Start a command that is neither a child of this process nor attached to its terminal."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            null = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(null, number)
            # Keep neither pipes nor the working directory of the caller in use.
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            os.chdir("/")
            os.nice(19)
            os.execv(command[0], command)
    finally:
        os._exit(0)
