# SPDX-License-Identifier: Apache-2.0
"""Find the environment that a program's packages are installed in, without running anything."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from xlaunch.cache.store import UNKNOWN, Packages
from xlaunch.files import names_in
from xlaunch.machine.tree import read_file


def interpreter_of(executable: str, environment: Mapping[str, str]) -> str | None:
    """The Python interpreter that runs an executable; None if it is not a Python program.

    Found for ``python`` itself, and by the first line of a script such as those that pip installs.
    """
    if _is_python(executable):
        return executable
    words = shebang_of(executable)
    if words and os.path.basename(words[0]) == "env":
        names = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        directories = environment.get("PATH", os.defpath).split(os.pathsep)
        candidates = [
            os.path.join(directory or ".", name) for name in names[:1] for directory in directories
        ]
        words = [path for path in candidates if os.access(path, os.X_OK)]
    return words[0] if words and _is_python(words[0]) else None


def shebang_of(path: str) -> list[str]:
    """The words of a script's first line after ``#!``; none if it has no such line."""
    line = (read_file(path, max_bytes=256) or b"").split(b"\n")[0]
    return os.fsdecode(line[2:]).split() if line.startswith(b"#!") else []


def prefix_of(interpreter: str) -> str:
    """The interpreter's sys.prefix. **Ex.:** ``/opt/venv/bin/python``: ``/opt/venv``.

    A virtual environment has a pyvenv.cfg, as in site.py; for anything else links are followed.
    """
    near = os.path.dirname(os.path.dirname(os.path.abspath(interpreter)))
    if os.path.isfile(os.path.join(near, "pyvenv.cfg")) or os.path.isdir(
        os.path.join(near, "conda-meta")
    ):
        return near
    return os.path.dirname(os.path.dirname(os.path.realpath(interpreter)))


def base_of(prefix: str) -> str | None:
    """The installation that a virtual environment is based on; None for anything else."""
    home = _venv_settings(prefix).get("home")
    return os.path.dirname(home) if home else None


def site_directories(prefix: str, interpreter: str | None = None) -> tuple[str, ...]:
    """The existing site-packages directories of `prefix`, each followed by those that it names.

    Their ``.pth`` files name directories in lines of their own, see site.py; code in them is not run.
    """
    settings = _venv_settings(prefix)
    pythons = _versions(prefix, interpreter, settings)
    directories = _packages_below(prefix, pythons)
    if settings.get("include-system-site-packages", "").lower() == "true":
        base = base_of(prefix)
        directories += _packages_below(base, pythons) if base is not None else []
    sites = _existing(directories)
    return _existing([path for site in sites for path in (site, *_named_by(site))])


def _named_by(site: str) -> list[str]:
    """The paths in the ``.pth`` files of a site-packages directory."""
    paths = []
    for name in sorted(names_in(site)):
        if name.endswith(".pth") and not name.startswith("."):
            text = read_file(os.path.join(site, name), max_bytes=1 << 20) or b""
            paths += [
                os.path.join(site, line.rstrip())
                for line in os.fsdecode(text).splitlines()
                if line.strip() and not line.startswith(("#", "import ", "import\t"))
            ]
    return [path for path in paths if os.path.isdir(path)]


class InstalledPackages(NamedTuple):
    """What is known about a program's environment, without importing anything."""

    packages: Mapping[str, str] | None = None
    """Version of each installed distribution; None if they are not known."""
    python: tuple[int, int] | None = None
    """None if it is not known."""

    def has(self, *names: str) -> bool:
        """Whether one of these distributions is installed."""
        return self.packages is not None and not self.packages.keys().isdisjoint(names)

    def for_keys(self) -> Packages:
        """The facts that keys of caches are made of."""
        python = None if self.python is None else "{}.{}".format(*self.python)
        return Packages(self.packages, python)


def find_installed(
    prefix: str, interpreter: str, environment: Mapping[str, str] = MappingProxyType({})
) -> InstalledPackages:
    """List the distributions of an environment, by the names of their metadata directories.

    Also those in PYTHONPATH and in the user's site-packages, as `environment` names them.
    """
    sites = [*site_directories(prefix, interpreter)]
    python = python_version(prefix, interpreter)
    home = environment.get("HOME")
    if home and python is not None and "include-system-site-packages" not in _venv_settings(prefix):
        own = f"{home}/.local/lib/python{python[0]}.{python[1]}/site-packages"
        sites += [own, *_named_by(own)]
    versions: dict[str, str] = {}
    for site in [*filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *sites]:
        for name in names_in(site):
            stem, dot, kind = name.rpartition(".")
            if dot and kind in ("dist-info", "egg-info", "egg-link"):
                package, _, version = stem.partition("-")
                package = package.replace("_", "-").replace(".", "-").lower()
                versions.setdefault(package, version.partition("-")[0] or UNKNOWN)
    return InstalledPackages(versions, python)


def _packages_below(prefix: str, pythons: list[str]) -> list[str]:
    directories = [
        os.path.join(prefix, library, python, "site-packages")
        for library in ("lib", "lib64")
        for python in pythons
    ]
    if prefix == "/usr":  # Debian's layout; others put what pip installs under /usr/local as well
        directories += [
            f"/usr/local/lib/{p}/{n}-packages" for p in pythons for n in ("dist", "site")
        ]
        directories.append("/usr/lib/python3/dist-packages")
    return directories


def python_version(prefix: str, interpreter: str | None = None) -> tuple[int, int] | None:
    """Major and minor version of the Python of `prefix`; None if it is ambiguous."""
    names = _versions(prefix, interpreter, _venv_settings(prefix))
    match = re.fullmatch(r"python(\d+)\.(\d+)", names[0]) if len(set(names)) == 1 else None
    return (int(match[1]), int(match[2])) if match else None


def _existing(directories: list[str]) -> tuple[str, ...]:
    directory_of: dict[tuple[int, int], str] = {}
    for directory in directories:
        try:
            status = os.stat(directory)
        except OSError:
            continue
        # lib64 is often a link to lib.
        directory_of.setdefault((status.st_dev, status.st_ino), directory)
    return tuple(directory_of.values())


def _versions(prefix: str, interpreter: str | None, venv_settings: Mapping[str, str]) -> list[str]:
    """Directory names such as ``python3.13``: that of the environment or interpreter, or all that exist."""
    version = venv_settings.get("version_info") or venv_settings.get("version")
    if version:
        return ["python" + ".".join(version.split(".")[:2])]
    name = os.path.basename(os.path.realpath(interpreter)) if interpreter else ""
    if name.startswith("python3.") and name[8:].isdigit():
        return [name]
    names = names_in(os.path.join(prefix, "lib"))
    return sorted([n for n in names if n.startswith("python3.")], reverse=True)


def _venv_settings(prefix: str) -> dict[str, str]:
    text = read_file(os.path.join(prefix, "pyvenv.cfg"), max_bytes=4096) or b""
    pairs = [line.partition("=") for line in text.decode(errors="replace").splitlines()]
    return {key.strip().lower(): value.strip() for key, _, value in pairs}


def _is_python(path: str) -> bool:
    name = os.path.basename(path)
    return name.startswith(("python", "pypy")) or path == sys.executable
