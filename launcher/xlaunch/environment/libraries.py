# SPDX-License-Identifier: Apache-2.0
"""Find allocators and OpenMP runtimes in the program's own environment, then on the system.

Distributions ship these libraries under versioned names alone (``libjemalloc.so.2``); pip's
intel-openmp puts libiomp5.so into PREFIX/lib; wheels carry copies in their own directories. A file
is used only if it was built for the program's interpreter and passes `inspect_ownership`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from xlaunch.environment.elf import Elf, ElfError, read_elf
from xlaunch.environment.python_environment import base_of, site_directories
from xlaunch.errors import UsageError
from xlaunch.files import names_in
from xlaunch.machine.tree import read_file
from xlaunch.ownership import inspect_ownership


class _Kind(NamedTuple):
    """A library that can be requested."""

    pattern: str
    """Matches its complete file name. Other major versions have other settings."""
    version: bytes | None
    """Matches the text in the file that holds its version."""
    distribution: str | None
    """The Python package that contains it; its version is the library's."""
    install: str


_KINDS = {
    "jemalloc": _Kind(
        r"libjemalloc\.so(\.2(\.\d+)*)?",
        rb"\0(\d+\.\d+\.\d+)-\d+-g[0-9a-f]{40}\0",
        "jemalloc",
        "apt-get install libjemalloc2, dnf install jemalloc, or conda install -c conda-forge jemalloc",
    ),
    "tcmalloc": _Kind(
        r"libtcmalloc(_minimal)?\.so(\.4(\.\d+)*)?",
        rb"gperftools (\d+\.\d+(?:\.\d+)?)\0",
        "gperftools",
        "apt-get install libtcmalloc-minimal4, dnf install gperftools-libs, or "
        "conda install -c conda-forge gperftools",
    ),
    "mimalloc": _Kind(
        r"libmimalloc\.so(\.[23](\.\d+)*)?",
        None,
        "mimalloc",
        "apt-get install libmimalloc2.0, dnf install mimalloc, or conda install -c conda-forge mimalloc",
    ),
    "intel": _Kind(r"libiomp5\.so", None, "intel-openmp", "pip install intel-openmp (x86-64 only)"),
    "llvm": _Kind(
        r"libomp(-[0-9a-f]{6,})?\.so(\.5)?",
        None,
        "llvm-openmp",
        "apt-get install libomp5, dnf install libomp, or conda install -c conda-forge llvm-openmp",
    ),
    "gnu": _Kind(
        r"libgomp(-[0-9a-f]{6,})?\.so(\.1(\.\d+)*)?",
        None,
        "libgomp",
        "apt-get install libgomp1, or dnf install libgomp",
    ),
}

NAMES = tuple(_KINDS)
"""Every library that can be requested."""
OPENMP = ("intel", "llvm", "gnu")
ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc")

SYSTEM_DIRECTORIES = "XLAUNCH_SYSTEM_LIBRARY_DIRS"
"""A variable: directories to search instead of the system's, separated by colons."""

_PRIVATE_COPY = re.compile(r"-[0-9a-f]{6,}\.so")
_MULTIARCH = re.compile(r"[a-z0-9_]+-linux-[a-z0-9_]+")


class Library(NamedTuple):
    """A file with the name of a library."""

    name: str
    """One of `NAMES`."""
    path: str
    """With all symbolic links resolved."""
    version: str | None
    """None if it is not known."""
    origin: str
    """Where it was found. **Ex.:** ``"the program's prefix"``, ``"a system directory"``."""
    refusal: str | None = None
    """Why it cannot be used; None: it can."""
    note: str | None = None
    """What the user should know if it is used."""


class SearchedDirectory(NamedTuple):
    origin: str
    place: str


def kind_of(path: str) -> str | None:
    """Which of `NAMES` a file's name stands for. **Ex.:** ``"/x/libiomp5.so"``: ``"intel"``."""
    name = os.path.basename(path)
    return next((k for k, kind in _KINDS.items() if re.fullmatch(kind.pattern, name)), None)


def how_to_install(name: str) -> str:
    """Commands that install the library `name`, for messages."""
    return _KINDS[name].install


def find_libraries(
    names: Sequence[str],
    prefix: str | None,
    environment: Mapping[str, str],
    *,
    loads: Elf | None,
    root: str = "/",
) -> tuple[Library, ...]:
    """All files that could be the libraries `names`; for each name, the best first.

    Usable ones come first, in the order of `places`, then the others with the reason. `prefix`: the
    program's environment, or None. `loads`: what they must fit, see `read_program`; None: anything.
    `root`: root of the system's directories. Raises `UsageError` for an unknown name.
    """
    for name in names:
        if name not in _KINDS:
            raise UsageError(f"unknown library {name!r}; there are {', '.join(NAMES)}")
    wanted = re.compile("|".join(f"(?P<{name}>{_KINDS[name].pattern})" for name in names))
    libraries: dict[tuple[str, str], Library] = {}
    for origin, directory in places(prefix, environment, root=root):
        matches = [match for file in names_in(directory) if (match := wanted.fullmatch(file))]
        # libtcmalloc_minimal before libtcmalloc, whose profiler needs libunwind; versioned names
        # first, because the others belong to development packages.
        for match in sorted(
            matches, key=lambda m: ("_minimal" not in m[0], m[0].endswith(".so"), m[0])
        ):
            name, path = str(match.lastgroup), os.path.join(directory, match[0])
            real = os.path.realpath(path)
            if (name, real) not in libraries and os.path.exists(real):
                libraries[name, real] = inspect_library(name, path, loads, origin=origin)
    order = {name: index for index, name in enumerate(names)}
    return tuple(
        sorted(libraries.values(), key=lambda lib: (order[lib.name], lib.refusal is not None))
    )


def inspect_library(
    name: str, path: str, program: Elf | None, *, origin: str, named: bool = False
) -> Library:
    """Check whether `program` can load the library at `path`.

    `named`: the user typed its path, see `inspect_ownership`.
    """
    real = os.path.realpath(path)
    try:
        elf = read_elf(real)
    except ElfError as error:
        return Library(name, real, None, origin, str(error))
    refusal, note = None, None
    if program is not None and (problem := _mismatch(elf, program)):
        refusal = problem
    elif not elf.shared:
        refusal = "a program, not a library"
    elif any(character in real for character in ": $"):
        refusal = "LD_PRELOAD cannot hold a path with a space, a colon or a dollar sign"
    elif _PRIVATE_COPY.search(elf.soname or os.path.basename(real)):
        refusal = f"a wheel's private copy: its soname is {elf.soname}"
    else:
        refusal, note = inspect_ownership(path, named=named)
    return Library(name, real, _version(name, real), origin, refusal, note)


def _mismatch(library: Elf, program: Elf) -> str | None:
    """Why the two cannot share a process."""
    if library.target != program.target:
        return f"built for {library.target}; the program is {program.target}"
    if program.static:
        return "the program is linked statically, and loads no library"
    c_libraries = {library.c_library, program.c_library} - {None}
    if len(c_libraries) > 1:
        return f"linked to {library.c_library}; the program is linked to {program.c_library}"
    return None


def places(
    prefix: str | None, environment: Mapping[str, str], *, root: str = "/"
) -> tuple[SearchedDirectory, ...]:
    """The existing directories that are searched, in this order, each once."""
    conda = environment.get("CONDA_PREFIX")
    candidates: list[tuple[str, str]] = []
    sites: tuple[str, ...] = ()
    if prefix is not None:
        origin = "conda" if os.path.isdir(f"{prefix}/conda-meta") else "the program's prefix"
        candidates += [(origin, f"{prefix}/{library}") for library in ("lib", "lib64")]
        sites = site_directories(prefix)
    for site in sites:
        candidates += [("a package's lib directory", f"{site}/{name}") for name in _LIB_DIRECTORIES]
        candidates += [
            ("a wheel's .libs", f"{site}/{n}")
            for n in sorted(names_in(site))
            if n.endswith(".libs")
        ]
    if conda and os.path.isabs(conda):
        candidates.append(("conda", f"{conda}/lib"))
    base = base_of(prefix) if prefix is not None else None
    if base is not None:
        candidates.append(("what the program's environment was made from", f"{base}/lib"))
    # pip puts a wheel's libraries into PREFIX/lib; a .pth file may name the packages of another prefix.
    candidates += [
        ("the prefix of some of its packages", os.path.dirname(os.path.dirname(site)))
        for site in sites
        if re.search("/lib(64)?/python[^/]*/site-packages$", site)
    ]
    for directory in re.split("[:;]", environment.get("LD_LIBRARY_PATH", "")):
        if os.path.isabs(directory):
            candidates.append(("LD_LIBRARY_PATH", directory))
    named = environment.get(SYSTEM_DIRECTORIES)
    system = _system_directories(root) if named is None else filter(os.path.isabs, named.split(":"))
    candidates += [("a system directory", directory) for directory in system]
    searched: dict[str, SearchedDirectory] = {}
    for origin, directory in candidates:
        if os.path.isdir(directory):
            searched.setdefault(os.path.realpath(directory), SearchedDirectory(origin, directory))
    return tuple(searched.values())


_LIB_DIRECTORIES = ("torch/lib", "jemalloc/lib", "mimalloc/lib", "intel_openmp/lib")
"""Below site-packages."""


def _system_directories(root: str) -> list[str]:
    """The directories of /etc/ld.so.conf.d, see ldconfig(8), then the common ones."""
    base = root.rstrip("/")
    directories = []
    for name in sorted(names_in(f"{base}/etc/ld.so.conf.d")):
        if name.endswith(".conf"):
            words = _content(f"{base}/etc/ld.so.conf.d/{name}").decode(errors="replace").split()
            directories += [f"{base}{word}" for word in words if word.startswith("/")]
    for library in ("/usr/local/lib", "/usr/lib", "/lib"):
        names = sorted(names_in(base + library))
        directories += [f"{base}{library}/{name}" for name in names if _MULTIARCH.fullmatch(name)]
        directories += [f"{base}{library}64", f"{base}{library}"]
    llvm = [name for name in names_in(f"{base}/usr/lib") if re.fullmatch(r"llvm-\d+", name)]
    llvm.sort(key=lambda name: -int(name[5:]))
    directories += [f"{base}/usr/lib/{name}/lib" for name in llvm]
    directories.append(f"{base}/opt/intel/oneapi/compiler/latest/lib")
    return directories


def _version(name: str, path: str) -> str | None:
    """The version, from the file's text, its package, its name or its directory."""
    kind = _KINDS.get(name)
    if kind is None:
        return None
    if kind.version is not None:
        match = re.search(kind.version, _content(path))
        if match:
            return match[1].decode()
    lib = os.path.dirname(path)
    if kind.distribution is not None and os.path.basename(lib) in ("lib", "lib64"):
        version = _packaged_version(os.path.dirname(lib), kind.distribution)
        if version is not None:
            return version
    numbers = re.search(r"\.so\.(\d+(?:\.\d+)+)$", path) or re.search(r"/llvm-(\d+)/", path)
    return numbers[1] if numbers else None


def _content(path: str) -> bytes:
    return read_file(path, max_bytes=1 << 24) or b""


def _packaged_version(prefix: str, distribution: str) -> str | None:
    """The version of a pip or conda package, from the name of its metadata."""
    normal = distribution.replace("-", "_")
    for site in site_directories(prefix) if os.path.isdir(f"{prefix}/bin") else ():
        for name in names_in(site):
            if name.lower().startswith(f"{normal}-") and name.endswith(".dist-info"):
                return name[len(normal) + 1 : -len(".dist-info")]
    for name in names_in(f"{prefix}/conda-meta"):
        match = re.fullmatch(rf"{re.escape(distribution)}-([^-]+)-[^-]+\.json", name)
        if match:
            return match[1]
    return None
