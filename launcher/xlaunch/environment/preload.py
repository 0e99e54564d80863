# SPDX-License-Identifier: Apache-2.0
"""Preload libraries: the value of LD_PRELOAD, and a test that a library can be preloaded.

If the loader cannot preload a library, it prints a line and continues without it. So each library is
tried once in a child process that runs the program's interpreter. The result is stored by the
identity of both files, so only the first launch pays for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from xlaunch.cache.store import why_unwritable
from xlaunch.cache.use import NO_HOME, cache_home, missing_home
from xlaunch.environment.variables import PRELOAD
from xlaunch.errors import UsageError
from xlaunch.files import make_private
from xlaunch.machine.tree import read_file
from xlaunch.ownership import inspect_ownership

if TYPE_CHECKING:
    from xlaunch.environment.libraries import Library
    from xlaunch.environment.program import Program

CHILD_TIMEOUT_S = 60.0
"""Timeout of the child; on a loaded machine it takes up to a second."""
MAX_PROOFS = 64
"""Stored results; the oldest are dropped first."""

_CHILD = """
import sys
with open("/proc/self/maps", "rb") as maps:
    sys.stdout.buffer.write(maps.read())
"""


class Proof(NamedTuple):
    """The result of trying to preload a library."""

    refusal: str | None
    """Why it cannot be preloaded; None: it can."""
    note: str | None = None
    """Why the result could not be stored, so that the next launch has to try again."""


class PreloadChoice(NamedTuple):
    """The result of trying several libraries."""

    library: Library | None
    """The first that can be preloaded."""
    notes: tuple[str, ...]
    refused: tuple[str, ...]
    """Path and reason of those that cannot be; empty with a `library`."""


class LibraryVerdict(NamedTuple):
    """A library with the verdict of `judge`."""

    library: Library
    chosen: bool
    """Whether the allocator or OpenMP profile of this name would preload this file."""
    verdict: str
    """Why it is used or not."""


def preload_list(inherited: str | None, libraries: Sequence[str]) -> str:
    """The value of LD_PRELOAD: the inherited entries, then the `libraries` that are not among them.

    **Ex.:** ``preload_list("/a/libx.so", ["/b/liby.so", "/a/libx.so"])``: ``/a/libx.so:/b/liby.so``.
    """
    value = (inherited or "").strip(": ")
    for library in libraries:
        if not any(_same(entry, library) for entry in preloaded(value)):
            value = f"{value}:{library}" if value else library
    return value


def preloaded(value: str | None) -> list[str]:
    """The entries of LD_PRELOAD, separated by colons or spaces, see ld.so(8)."""
    return [entry for entry in re.split("[: ]", value or "") if entry]


def preloaded_of(environment: Mapping[str, str], kinds: Collection[str]) -> list[str]:
    """The entries of LD_PRELOAD that are libraries of these `kinds`."""
    from xlaunch.environment.libraries import kind_of

    return [entry for entry in preloaded(environment.get(PRELOAD)) if kind_of(entry) in kinds]


def _same(entry: str, library: str) -> bool:
    if "/" in entry:
        return os.path.realpath(entry) == os.path.realpath(library)
    # A bare soname, for which the loader searches. libx.so.4 and libx.so.4.5.10 are one library.
    names = (os.path.basename(library), os.path.basename(os.path.realpath(library)))
    return any(name == entry or name.startswith(f"{entry}.") for name in names)


class UsersPreloads(NamedTuple):
    """The entries of an inherited LD_PRELOAD that a program will load."""

    value: str
    """LD_PRELOAD without the allocators and OpenMP runtimes that cannot be loaded."""
    refused: tuple[tuple[str, str], ...]
    """Those, each with the reason."""


def prove_entries(
    environment: Mapping[str, str], prover: str | None, *, keep: bool = False
) -> UsersPreloads:
    """Try the allocators and OpenMP runtimes in an inherited LD_PRELOAD, as those that xlaunch chooses.

    The loader skips an entry that it cannot load, with a line. `prover`: a Python; None: nothing can be
    tried, and all count. `keep`: see `prove_preload`.
    """
    from xlaunch.environment.libraries import ALLOCATORS, OPENMP, kind_of

    kept, refused = list[str](), list[tuple[str, str]]()
    for entry in preloaded(environment.get(PRELOAD)):
        refusal = None
        if prover is not None and kind_of(entry) in (*ALLOCATORS, *OPENMP):
            if "/" in entry and "$" not in entry:
                path = os.path.abspath(entry)
                missing = None if os.path.exists(path) else "there is no such file"
                refusal = missing or prove_preload(path, prover, environment, keep=keep).refusal
            else:  # only the loader knows which file it is
                refusal, _ = _try(entry, prover, environment)
        if refusal is None:
            kept.append(entry)
        else:
            refused.append((entry, refusal))
    return UsersPreloads(":".join(kept), tuple(refused))


def prover_of(program: Program) -> str | None:
    """The Python with which libraries for `program` are tried; None: it has another C library, or nothing may
    be started.

    Only Python can list its own libraries. For any other program our own is tried.
    """
    import sys

    from xlaunch.environment.elf import read_program

    if program.untried is not None:
        return None
    if program.interpreter is not None:
        return program.interpreter
    loads, own = program.loads, read_program(sys.executable)
    return None if loads and own and loads.c_library != own.c_library else sys.executable


def other_allocator(environment: Mapping[str, str], library: str | None = None) -> str | None:
    """The allocator that LD_PRELOAD names already, unless it is `library`; None if there is none."""
    from xlaunch.environment.libraries import ALLOCATORS

    entries = preloaded_of(environment, ALLOCATORS)
    return next((entry for entry in entries if not (library and _same(entry, library))), None)


def refuse_second_allocator(library: str, environment: Mapping[str, str]) -> None:
    """Raise `UsageError` if LD_PRELOAD names another allocator: a process can use only one."""
    if entry := other_allocator(environment, library):
        raise UsageError(
            f"--allocator: LD_PRELOAD already names the allocator {entry}; "
            "take it out of LD_PRELOAD, or leave --allocator out"
        )


def find_preloadable(
    option: str, name: str, program: Program, environment: Mapping[str, str], *, keep: bool = True
) -> PreloadChoice:
    """The first library `name` that a Python program can preload. `keep`: see `prove_preload`."""
    from xlaunch.environment.libraries import find_libraries

    assert program.interpreter is not None
    libraries = find_libraries((name,), program.prefix, environment, loads=program.loads)
    return _first_preloadable(
        option, libraries, program.interpreter, environment, program.untried, keep=keep
    )


def require_library(
    option: str, wanted: str, program: Program, environment: Mapping[str, str], *, keep: bool = True
) -> tuple[Library, tuple[str, ...]]:
    """Find the first library `wanted`, a name or a path, that can be preloaded; and notes.

    `option` is what asked for it. `keep`: see `prove_preload`. The library must fit the program's Python, or else its executable.
    Raises `UsageError` that says where it was looked for, what was refused, and how to install it.
    """
    import sys

    from xlaunch.environment.libraries import (
        find_libraries,
        how_to_install,
        inspect_library,
        kind_of,
        places,
    )

    if not sys.platform.startswith("linux"):
        raise UsageError(f"{option}: libraries can be preloaded on Linux only")
    prefix, loads = program.prefix, program.loads
    if "/" in wanted:
        path = os.path.abspath(wanted)
        libraries: tuple[Library, ...] = (
            inspect_library(
                kind_of(path) or "", path, loads, origin="named by the user", named=True
            ),
        )
    else:
        libraries = find_libraries((wanted,), prefix, environment, loads=loads)
    prover = prover_of(program)
    if prover is None and program.untried is None:
        fitting = next((library for library in libraries if library.refusal is None), None)
        if fitting:
            note = f"{option}: {fitting.path} was not tried: xlaunch's Python has another C library"
            return fitting, (note,)
    library, notes, refused = _first_preloadable(
        option, libraries, prover or sys.executable, environment, program.untried, keep=keep
    )
    if library is not None:
        return library, notes
    if "/" in wanted:
        raise UsageError(f"{option}: {'; '.join(refused)}")
    looked = ", ".join([searched.place for searched in places(prefix, environment)])
    problem = f"refused: {'; '.join(refused)}" if refused else f"no such library in {looked}"
    if refused and loads is not None and loads.c_library != "glibc":
        raise UsageError(f"{option}: {problem}; leave the option out, or name a library's path")
    raise UsageError(f"{option}: {problem}. To install it: {how_to_install(wanted)}")


def _first_preloadable(
    option: str,
    libraries: Sequence[Library],
    prover: str,
    environment: Mapping[str, str],
    untried: str | None,
    *,
    keep: bool,
) -> PreloadChoice:
    refused = []
    for library in libraries:
        reason = library.refusal
        if reason is None:
            proof = Proof(None, f"{option}: {library.path} was not tried")
            if untried is None:
                proof = prove_preload(library.path, prover, environment, keep=keep)
            if proof.refusal is None:
                note = None if library.note is None else f"{option}: {library.note}"
                notes = tuple(text for text in (note, proof.note) if text is not None)
                return PreloadChoice(library, notes, ())
            reason = proof.refusal
        # The option may contain the path already.
        named = option.endswith(f" {library.path}")
        refused.append(reason if named else f"{library.path}: {reason}")
    return PreloadChoice(None, (), tuple(refused))


def judge(
    libraries: Sequence[Library], interpreter: str
) -> tuple[tuple[LibraryVerdict, ...], tuple[str, ...]]:
    """Decide which of the libraries are used; and notes, each once. Only shown, so nothing is kept."""
    judged: list[LibraryVerdict] = []
    notes: dict[str, None] = {}
    taken: set[str] = set()
    for library in libraries:
        refusal = library.refusal
        if refusal is None:
            proof = prove_preload(library.path, interpreter, keep=False)
            refusal = proof.refusal
            if proof.note is not None:
                notes[proof.note] = None
        if refusal is not None:
            judged.append(LibraryVerdict(library, False, f"refused: {refusal}"))
        elif library.name in taken:
            judged.append(LibraryVerdict(library, False, "usable; another comes first"))
        else:
            taken.add(library.name)
            if library.note is not None:
                notes[f"{library.path}: {library.note}"] = None
            judged.append(LibraryVerdict(library, True, "chosen: the first that works"))
    return tuple(judged), tuple(notes)


def prove_preload(
    library: str,
    interpreter: str,
    environment: Mapping[str, str] | None = None,
    *,
    keep: bool = True,
) -> Proof:
    """Try whether `interpreter` starts with `library` preloaded.

    `environment` is what the program will inherit (None: `os.environ`); the answer is kept below
    its XDG_CACHE_HOME or HOME, and without `keep` in this process only. `library` and `interpreter` are
    paths.
    """
    environment = os.environ if environment is None else environment
    try:
        key = _key(library, interpreter, environment)
    except (OSError, ValueError) as error:
        return Proof(f"cannot be checked ({getattr(error, 'strerror', None) or error})")
    directory, problem = _private_directory(environment, make=keep)
    kept = _read(directory) if directory is not None else {}
    if key in kept:
        return Proof(kept[key], None)
    if not keep and key in _tried:
        return Proof(_tried[key], _not_kept(problem))
    refusal, sure = _try(library, interpreter, environment)
    if sure and not keep:
        _tried[key] = refusal
    elif sure and directory is not None:
        kept = {**dict(list(kept.items())[1 - MAX_PROOFS :]), key: refusal}
        problem = _write(directory, kept)
    return Proof(refusal, _not_kept(problem))


_tried: dict[str, str | None] = {}
"""The answers that are not kept, as those of a command that only shows something."""


def _try(library: str, interpreter: str, environment: Mapping[str, str]) -> tuple[str | None, bool]:
    """Why the library cannot be preloaded, or None; and whether the result is reproducible."""
    import subprocess

    variables = {name: environment[name] for name in _KEPT_VARIABLES if name in environment}
    variables |= {PRELOAD: library, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            (interpreter, "-I", "-S", "-c", _CHILD),
            env=variables,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=CHILD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{interpreter} with it preloaded did not end within {CHILD_TIMEOUT_S:g} s", False
    except OSError as error:
        return f"{interpreter} cannot be started to try it ({error.strerror})", False
    complaint = " ".join(done.stderr.decode(errors="replace").split())
    if done.returncode != 0:
        how = f"ends with {done.returncode}" if done.returncode > 0 else "is killed"
        said = f": {complaint[:300]}" if complaint else ""
        return f"{interpreter} {how} when it is preloaded{said}", done.returncode > 0
    if complaint:
        return f"preloading it says: {complaint[:300]}", True
    mapped = b" " + os.fsencode(os.path.realpath(library))
    files = done.stdout.splitlines()
    if "/" in library and "$" not in library:
        is_mapped = any(line.endswith(mapped) for line in files)
    else:
        name = os.fsencode(f"/{os.path.basename(library)}")
        is_mapped = any(name in line for line in files)
    if not is_mapped:
        return f"{interpreter} starts without it, though it is in LD_PRELOAD", True
    return None, True


_KEPT_VARIABLES = ("PATH", "HOME", "LD_LIBRARY_PATH")
"""The variables that the child inherits: enough for the loader and for an interpreter that is a
script. With others, such as MALLOC_CONF, a library might print a warning about a setting."""


def _key(library: str, interpreter: str, environment: Mapping[str, str]) -> str:
    """The identity of what is tried: both files and the loader's search path."""
    parts = []
    for path in (library, interpreter):
        real = os.path.realpath(path)
        status = os.stat(real)
        parts.append(f"{real} {status.st_size} {status.st_mtime_ns} {status.st_ino}")
    parts += [interpreter, environment.get("LD_LIBRARY_PATH", "")]
    return "\n".join(parts)


# The stored results.


def _private_directory(
    environment: Mapping[str, str], *, make: bool
) -> tuple[str | None, str | None]:
    """Our cache directory, which no other user can write; or None and why. `make`: create it."""
    directory = cache_home(environment)
    reason = NO_HOME if directory is None else missing_home(environment)
    if directory is None or reason is not None:
        return None, reason
    if not make and not os.path.lexists(directory):
        return None, why_unwritable(directory)
    try:
        make_private(directory)
    except (OSError, ValueError) as error:
        return None, f"{directory}: {getattr(error, 'strerror', None) or error}"
    refusal = inspect_ownership(directory, private=True).refusal
    return (directory if refusal is None else None), refusal


def _not_kept(problem: str | None) -> str | None:
    """The note about a problem of the cache directory, if there is one."""
    if problem is None:
        return None
    return f"whether a library can be preloaded is tried at every launch: {problem}"


# Keys and refusals, each ended by a null byte; an empty refusal is None. Reading JSON would import a
# package in every launch.


def _read(directory: str) -> dict[str, str | None]:
    """The stored results; none if the file is missing or not whole."""
    content = read_file(os.path.join(directory, "preloads")) or b""
    words = content.decode("utf-8", "surrogateescape").split("\0")
    if len(words) % 2 == 0 or words[-1]:
        return {}
    return {key: refusal or None for key, refusal in zip(words[::2], words[1::2], strict=False)}


def _write(directory: str, kept: dict[str, str | None]) -> str | None:
    """Replace the file atomically; why that fails, or None."""
    from xlaunch.files import write_whole

    path = os.path.join(directory, "preloads")
    words = [word for key, refusal in kept.items() for word in (key, refusal or "")]
    text = "".join([word.replace("\0", " ") + "\0" for word in words])
    try:
        write_whole(path, text.encode("utf-8", "surrogateescape"), mode=0o600)
    except (OSError, ValueError) as error:
        return f"{path}: {getattr(error, 'strerror', None) or error}"
    return None
