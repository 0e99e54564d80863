# SPDX-License-Identifier: Apache-2.0
"""Find allocators and OpenMP runtimes: in the program's own environment first, then on the system.

Distributions ship these libraries under versioned names alone (``libjemalloc.so.2``); pip's
intel-openmp puts libiomp5.so into PREFIX/lib; wheels carry copies in folders of their own. What
is found is used only when it was built for the program's interpreter, and when nobody but root, the
user and the user's groups could have put it there.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from xlaunch.environment.elf import ElfError, Target, read_elf, read_target
from xlaunch.environment.ownership import inspect_ownership
from xlaunch.environment.prefix import base_of, site_folders
from xlaunch.errors import UsageError


class _Kind(NamedTuple):
    """One library that can be asked for."""

    pattern: str
    """Of its file names, in full. Other major versions have other settings."""
    version: bytes | None
    """Of the text in the file that tells its version."""
    distribution: str | None
    """The package that carries it in a Python environment; its version is the library's."""
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
"""Every library that can be asked for."""
OPENMP = ("intel", "llvm", "gnu")
ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc")

_PRIVATE_COPY = re.compile(r"-[0-9a-f]{6,}\.so")
_MULTIARCH = re.compile(r"[a-z0-9_]+-linux-[a-z0-9_]+")


class Library(NamedTuple):
    """A file that may be a library which was asked for."""

    name: str
    """One of `NAMES`."""
    path: str
    """With every symbolic link resolved."""
    version: str | None
    """None where the file does not tell."""
    origin: str
    """Why it was looked at. **Ex.:** ``"the program's prefix"``, ``"a system folder"``."""
    refusal: str | None = None
    """Why it cannot be used; None: it can."""
    note: str | None = None
    """What the user should know of one that is used."""


class Searched(NamedTuple):
    """A place where libraries were looked for."""

    origin: str
    place: str
    """A folder."""


def kind_of(path: str) -> str | None:
    """Which of `NAMES` a file is by its own name. **Ex.:** ``"/x/libiomp5.so"``: ``"intel"``."""
    name = os.path.basename(path)
    return next((k for k, kind in _KINDS.items() if re.fullmatch(kind.pattern, name)), None)


def how_to_install(name: str) -> str:
    """Commands that install the library `name`, for messages."""
    return _KINDS[name].install


def find_library(
    name: str,
    prefix: str | None,
    environment: Mapping[str, str],
    *,
    interpreter: str | None = None,
    root: str = "/",
) -> Library | None:
    """The first of `find_libraries` that can be used; None when there is none."""
    found = find_libraries((name,), prefix, environment, interpreter=interpreter, root=root)
    return next((library for library in found if library.refusal is None), None)


def find_libraries(
    names: Sequence[str],
    prefix: str | None,
    environment: Mapping[str, str],
    *,
    interpreter: str | None = None,
    root: str = "/",
) -> tuple[Library, ...]:
    """All files that could be the libraries `names`, those of each name best first.

    First come those that can be used, in the order of `places`; then those that cannot, with the
    reason. `prefix`: the environment of the program, None when it has none. `interpreter`: the
    program that they must fit; None: the prefix's Python, else the one that runs here. `root`:
    where the system's folders begin. Raises `UsageError` for a name that is none.
    """
    for name in names:
        if name not in _KINDS:
            raise UsageError(f"there is no library {name!r} here; there are {', '.join(NAMES)}")
    wanted = re.compile("|".join(f"(?P<{name}>{_KINDS[name].pattern})" for name in names))
    target = _target_of(interpreter or _python_in(prefix))
    found: dict[tuple[str, str], Library] = {}
    for origin, folder, file in _files(wanted, prefix, environment, root):
        match = wanted.fullmatch(file)
        name = str(match.lastgroup) if match else ""
        if not match or name not in names:
            continue
        path = os.path.join(folder, file)
        real = os.path.realpath(path)
        if (name, real) not in found and os.path.exists(real):
            found[name, real] = inspect_library(name, path, target, origin=origin)
    order = {name: index for index, name in enumerate(names)}
    return tuple(sorted(found.values(), key=lambda it: (order[it.name], it.refusal is not None)))


def inspect_library(
    name: str, path: str, target: Target | None, *, origin: str, named: bool = False
) -> Library:
    """The library at `path`, and whether a program built for `target` can use it.

    `named`: the user typed its path, see `inspect_ownership`.
    """
    real = os.path.realpath(path)
    try:
        elf = read_elf(real)
    except ElfError as error:
        return Library(name, real, None, origin, str(error))
    refusal, note = None, None
    if target is not None and elf.target != target:
        refusal = f"built for {elf.target}; the program is {target}"
    elif not elf.shared:
        refusal = "a program, not a library"
    elif any(character in real for character in ": $"):
        refusal = "LD_PRELOAD cannot hold a path with a space, a colon or a dollar sign"
    elif _PRIVATE_COPY.search(elf.soname or os.path.basename(real)):
        refusal = f"a wheel's private copy: its soname is {elf.soname}"
    else:
        refusal, note = inspect_ownership(path, named=named)
    return Library(name, real, _version(name, real), origin, refusal, note)


def places(
    prefix: str | None, environment: Mapping[str, str], *, root: str = "/"
) -> tuple[Searched, ...]:
    """Where libraries are looked for, in this order, the same folder once."""
    found: dict[str, Searched] = {}
    for origin, folder in _folders(prefix, environment, root):
        found.setdefault(os.path.realpath(folder), Searched(origin, folder))
    return tuple(found.values())


def program_target(prefix: str | None, interpreter: str | None = None) -> Target | None:
    """What libraries must be built for, to be loaded by the program's interpreter."""
    return _target_of(interpreter or _python_in(prefix))


def _python_in(prefix: str | None) -> str | None:
    path = os.path.join(prefix, "bin", "python") if prefix else ""
    if path and not os.path.exists(path):
        path += "3"
    return path if path and os.path.exists(path) else None


def _target_of(interpreter: str | None) -> Target | None:
    # A script in an interpreter's place (pyenv's shims) leads to one of this system's.
    for path in (interpreter, sys.executable, "/proc/self/exe"):
        try:
            if path:
                return read_target(path)
        except ElfError:
            continue
    return None


def _files(
    wanted: re.Pattern[str], prefix: str | None, environment: Mapping[str, str], root: str
) -> Iterator[tuple[str, str, str]]:
    """Origin, folder and name of each file that is named like what is wanted."""
    seen: set[str] = set()
    for origin, folder in _folders(prefix, environment, root):
        real = os.path.realpath(folder)
        if real in seen:
            continue
        seen.add(real)
        # libtcmalloc_minimal before libtcmalloc, whose profiler needs libunwind; and the
        # versioned names first, since those without come with headers alone.
        for name in sorted(
            _listed(folder), key=lambda n: ("_minimal" not in n, n.endswith(".so"), n)
        ):
            if wanted.fullmatch(name):
                yield origin, folder, name


def _folders(
    prefix: str | None, environment: Mapping[str, str], root: str
) -> Iterator[tuple[str, str]]:
    """Origin and path of each folder that exists, in the order of preference."""
    conda = environment.get("CONDA_PREFIX")
    candidates: list[tuple[str, str]] = []
    sites: tuple[str, ...] = ()
    if prefix is not None:
        origin = "conda" if os.path.isdir(f"{prefix}/conda-meta") else "the program's prefix"
        candidates += [(origin, f"{prefix}/{library}") for library in ("lib", "lib64")]
        sites = site_folders(prefix)
    for site in sites:
        candidates += [("a package's lib folder", f"{site}/{name}") for name in _LIB_FOLDERS]
        candidates += [
            ("a wheel's .libs", f"{site}/{n}") for n in sorted(_listed(site)) if n.endswith(".libs")
        ]
    if conda and os.path.isabs(conda):
        candidates.append(("conda", f"{conda}/lib"))
    base = base_of(prefix) if prefix is not None else None
    if base is not None:
        candidates.append(("what the program's environment was made from", f"{base}/lib"))
    for folder in re.split("[:;]", environment.get("LD_LIBRARY_PATH", "")):
        if os.path.isabs(folder):
            candidates.append(("LD_LIBRARY_PATH", folder))
    candidates += [("a system folder", folder) for folder in _system_folders(root)]
    return iter([entry for entry in candidates if os.path.isdir(entry[1])])


_LIB_FOLDERS = ("torch/lib", "jemalloc/lib", "mimalloc/lib", "intel_openmp/lib")
"""Below site-packages."""


def _system_folders(root: str) -> list[str]:
    """What the loader is configured to search, see ldconfig(8), then its own directories."""
    base = root.rstrip("/")
    folders = []
    for name in sorted(_listed(f"{base}/etc/ld.so.conf.d")):
        if name.endswith(".conf"):
            words = _content(f"{base}/etc/ld.so.conf.d/{name}").decode(errors="replace").split()
            folders += [f"{base}{word}" for word in words if word.startswith("/")]
    for library in ("/usr/local/lib", "/usr/lib", "/lib"):
        names = sorted(_listed(base + library))
        folders += [f"{base}{library}/{name}" for name in names if _MULTIARCH.fullmatch(name)]
        folders += [f"{base}{library}64", f"{base}{library}"]
    llvm = [name for name in _listed(f"{base}/usr/lib") if re.fullmatch(r"llvm-\d+", name)]
    llvm.sort(key=lambda name: -int(name[5:]))
    folders += [f"{base}/usr/lib/{name}/lib" for name in llvm]
    folders.append(f"{base}/opt/intel/oneapi/compiler/latest/lib")
    return folders


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _version(name: str, path: str) -> str | None:
    """The version by the text in the file, the package that it came in, its name or its folder."""
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
    try:
        with open(path, "rb") as stream:
            return stream.read(1 << 24)
    except OSError:
        return b""


def _packaged_version(prefix: str, distribution: str) -> str | None:
    """The version of a package of pip's or conda's, by the name of its folder or file."""
    normal = distribution.replace("-", "_")
    for site in site_folders(prefix) if os.path.isdir(f"{prefix}/bin") else ():
        for name in _listed(site):
            if name.lower().startswith(f"{normal}-") and name.endswith(".dist-info"):
                return name[len(normal) + 1 : -len(".dist-info")]
    for name in _listed(f"{prefix}/conda-meta"):
        match = re.fullmatch(rf"{re.escape(distribution)}-([^-]+)-[^-]+\.json", name)
        if match:
            return match[1]
    return None
