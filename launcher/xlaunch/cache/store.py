# SPDX-License-Identifier: Apache-2.0
"""Keys and directories of caches. Directories are created for this user alone, stamped when used, locked while in use.

A key says which hardware and versions the entries of a cache are valid for. It leaves out CPU features that no
compiler uses, which a new kernel may add to /proc/cpuinfo, and packages that the cache's row does not name.

The record of a directory lies beside it, ``<key>.json``. It holds the parts of the key, and its
modification time is the last use. Every launch holds a shared lock (flock) on it through a descriptor that
the program inherits, so that the pruner sees which directories are in use.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from xlaunch.cache.table import BY_NAME, CACHES, VARIABLES, Cache, Part
from xlaunch.files import make_private, move_above_shells, try_lock, write_whole
from xlaunch.machine.topology import Gpu
from xlaunch.machine.tree import Tree, parse_fields
from xlaunch.ownership import inspect_ownership

UNKNOWN = "unknown"
ABSENT = "absent"
"""The version of a package that is not installed."""

X86_EXTENSIONS = frozenset(
    (
        "cx16", "popcnt", "pni", "ssse3", "sse4_1", "sse4_2", "sse4a", "lahf_lm", "movbe", "abm",
        "bmi1", "bmi2", "tbm", "xop", "fma4", "fma", "f16c", "adx", "avx", "avx2", "avx_vnni",
        "avx_vnni_int8", "avx_vnni_int16", "avx_ifma", "avx_ne_convert", "avx10", "avx512f",
        "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512ifma", "avx512vbmi",
        "avx512_vbmi2", "avx512_vnni", "avx512_bitalg", "avx512_vpopcntdq", "avx512_bf16",
        "avx512_fp16", "avx512_vp2intersect", "avx512er", "avx512pf", "avx512_4vnniw",
        "avx512_4fmaps", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16", "amx_complex", "aes",
        "vaes", "pclmulqdq", "vpclmulqdq", "gfni", "sha_ni", "sha512", "sm3", "sm4",
    )
)  # fmt: skip
"""Names in /proc/cpuinfo of the extensions that ``-march=native`` of GCC and LLVM may use. See
arch/x86/include/asm/cpufeatures.h of Linux and the list of GCC's x86 options. Instructions that
compilers never choose by themselves, such as clwb and xsave, are left out."""

ARM_NOT_EXTENSIONS = frozenset(("evtstrm", "cpuid", "paca", "pacg", "bti"))
"""Features of Arm processors that compilers do not use."""


class Hardware(NamedTuple):
    """The facts of a machine that keys are made of."""

    architecture: str
    instruction_set: tuple[str, ...]
    cpu_model: str
    gpus: tuple[Gpu, ...]
    gpu_drivers: tuple[str, ...]
    """One for each vendor of `gpus`. **Ex.:** ``("NVIDIA 550.54.15",)``."""
    c_library: str = UNKNOWN
    """**Ex.:** ``"glibc 2.36"``; libraries that were linked against another version may not load."""

    @property
    def why_unknown(self) -> str | None:
        """Why compiled code cannot be kept for this machine; None if it can be."""
        if self.instruction_set or sys.platform != "linux":
            return None
        return "/proc/cpuinfo does not say which instructions this processor has; is /proc mounted?"


class Packages(NamedTuple):
    """The environment of the program, as far as it is known."""

    versions: Mapping[str, str] | None = None
    """Version of each installed distribution; None: not known."""
    python: str | None = None
    """**Ex.:** ``"3.11"``."""


class Key(NamedTuple):
    """What the entries of one cache are valid for."""

    cache: str
    parts: tuple[tuple[str, str], ...]
    """**Ex.:** ``(("architecture", "x86_64"), ..., ("torch", "2.13.0+cpu"))``."""

    @property
    def name(self) -> str:
        """The name of its directory. **Ex.:** ``torch2.13.0+cpu-py3.11-x86_64-5f0c9a21``."""
        return _name_of(self.parts)


@functools.cache
def _name_of(parts: tuple[tuple[str, str], ...]) -> str:
    facts, text_of = set(Part), dict(parts)
    text_of_known = {name: text for name, text in parts if text not in (ABSENT, UNKNOWN)}
    words = [f"{name}{text}" for name, text in text_of_known.items() if name not in facts]
    words += [f"py{text_of_known[Part.PYTHON]}"] if Part.PYTHON in text_of_known else []
    digest = zlib.crc32(repr(parts).encode())
    text = "-".join([*words, text_of[Part.ARCHITECTURE], f"{digest:08x}"])
    return "".join([c if c.isalnum() or c in "+-._" else "_" for c in text])


def is_key_name(name: str) -> bool:
    """Whether a directory has a name that only `Key.name` gives."""
    return re.fullmatch(r".+-[0-9a-f]{8}", name) is not None


def read_hardware(root: str = "/") -> Hardware:
    """Read what keys are made of from /proc and /sys."""
    # Imported here: a program whose cache a launch has chosen needs no key.
    from xlaunch.machine.gpus import gpu_models, read_driver_version, read_gpus
    from xlaunch.machine.sysfs import glibc_version

    tree = Tree(root)
    architecture = os.uname().machine if hasattr(os, "uname") else UNKNOWN
    fields = parse_fields(tree.read_start("/proc/cpuinfo").split("\n\n", 1)[0])
    gpus = gpu_models(read_gpus(tree))
    vendors = dict.fromkeys(gpu.vendor for gpu in gpus)
    glibc = glibc_version()
    return Hardware(
        architecture,
        _instruction_set(architecture, fields, tree),
        " ".join([fields[name] for name in _MODEL if name in fields]) or UNKNOWN,
        gpus,
        tuple([f"{v.value} {read_driver_version(v, tree) or UNKNOWN}" for v in vendors]),
        "glibc {}.{}".format(*glibc) if glibc is not None else "not glibc",
    )


_MODEL = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part", "cpu", "uarch")


def _instruction_set(architecture: str, fields: Mapping[str, str], tree: Tree) -> tuple[str, ...]:
    if "flags" in fields:  # x86
        return tuple(sorted(X86_EXTENSIONS.intersection(fields["flags"].split())))
    if architecture == "aarch64":
        extensions = {*fields.get("Features", "").split()} - ARM_NOT_EXTENSIONS
        if "sve" in extensions:  # the width of its vectors differs between processors
            width = tree.read("/proc/sys/abi/sve_default_vector_length")
            extensions.add(f"sve-{width or UNKNOWN}-bytes")
        return tuple(sorted(extensions))
    names = ("isa", "features", "Features", "cpu", "machine")
    return tuple([fields[name] for name in names if name in fields])


def key_of(cache: Cache, hardware: Hardware, packages: Packages) -> Key:
    """The key of one cache for a machine and a program's environment."""
    facts = {
        Part.ARCHITECTURE: hardware.architecture,
        Part.INSTRUCTION_SET: " ".join(hardware.instruction_set) or UNKNOWN,
        Part.CPU_MODEL: hardware.cpu_model,
        Part.C_LIBRARY: hardware.c_library,
        Part.PYTHON: packages.python or UNKNOWN,
        Part.GPUS: ", ".join([f"{g.vendor.value} {g.model}" for g in hardware.gpus]) or ABSENT,
        Part.GPU_DRIVER: ", ".join(hardware.gpu_drivers) or ABSENT,
    }
    versions = packages.versions
    parts = [(part.value, facts[part]) for part in cache.parts]
    for name in cache.packages:
        version = UNKNOWN if versions is None else versions.get(name, ABSENT)
        if version is not ABSENT or name == cache.packages[0]:
            parts.append((name, version))
    return Key(cache.name, tuple(parts))


def applies(cache: Cache, hardware: Hardware, *, everything: bool = False) -> bool:
    """Whether a launch sets up this cache. `everything`: also if it changes what programs do."""
    if cache.changes_behaviour and not everything:
        return False
    return cache.vendor is None or cache.vendor in {gpu.vendor for gpu in hardware.gpus}


def fingerprint(hardware: Hardware, packages: Packages) -> dict[str, Any]:
    """The keys of all caches with their parts, as plain values: ``xlaunch cache fingerprint``."""
    keys = [key_of(cache, hardware, packages) for cache in CACHES]
    return {
        "schema_version": 1,
        "caches": {key.cache: {"key": key.name, "parts": dict(key.parts)} for key in keys},
    }


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Why two sets of parts are not the same key, a line for each part.

    **Ex.:** ``instruction_set: only the first has amx_bf16``. Two unknown instruction sets may differ.
    """
    lines = []
    for name in dict.fromkeys([*one, *other]):
        left, right = one.get(name, ABSENT), other.get(name, ABSENT)
        instructions = name == Part.INSTRUCTION_SET
        unknown = instructions and {left, right} & {UNKNOWN, ""}
        if left == right and not unknown:
            continue
        if unknown or not instructions:
            lines.append(f"{name}: {left}; {right}")
            continue
        words, others = set(left.split()), set(right.split())
        halves = [("the first", words - others), ("the second", others - words)]
        lines += [f"{name}: only {w} has {' '.join(sorted(own))}" for w, own in halves if own]
    return lines


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
    """Directories and links among the caches, unfollowed, with a reason where xlaunch did not create them."""
    for cache in BY_NAME:
        place = os.path.join(base, cache)
        try:
            reason = _why_not_own(place)
            if reason is not None:
                yield CacheDirectory(cache, "", place), reason
                continue
            with open_below(base, cache) as descriptor, os.scandir(descriptor) as entries:
                names = [
                    entry.name for entry in entries if not entry.is_file(follow_symlinks=False)
                ]
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
    """Remove a file or directory below `base`, following no link; return whether it is gone."""
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

    `path` itself; in a sticky directory that others may write, such as /tmp, ``xlaunch-UID`` in it.
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
            paths |= {entry.partition(b"=")[2] for entry in entries if entry.startswith(prefixes)}
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
