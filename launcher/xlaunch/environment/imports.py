# SPDX-License-Identifier: Apache-2.0
"""Whether a Python program loads torch, by the import statements of its files. Nothing of it is executed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from xlaunch.environment.program import Program, invoked
from xlaunch.environment.python_environment import site_directories
from xlaunch.files import names_in
from xlaunch.machine.tree import read_file

MAX_FILES = 200
MAX_FILE_BYTES = 1 << 20
TORCH = frozenset(("torch", "xruntime"))
"""Top-level modules that are torch, or load it."""

_STATEMENT = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<base>\.*[\w.]*)[ \t]+import[ \t]+\(?(?P<names>[\w, \t]*)"
    r"|import[ \t]+(?P<modules>[\w., \t]+))",
    re.MULTILINE,
)
_REQUIRES_TORCH = re.compile(
    r"""^Requires-Dist: torch\b(?!-)(?:[^;\n]*|.*extra == ["']torch["'].*)$""", re.MULTILINE
)
_SCRIPT_SUFFIXES = ("", ".py", ".pyw")


def loads_torch(program: Program, environment: Mapping[str, str]) -> bool:
    """Whether files of `program` import torch, or a package that requires it (by its metadata, also as the extra torch).

    Read are the script or module, scripts and modules among its arguments (``accelerate launch train.py``,
    ``uvicorn service:app``), and what these import from their own directories. Imports that no statement names
    (importlib, a notebook's) are not seen.
    """
    if program.interpreter is None or not program.installed.has("torch"):
        return False
    return _Search(program, environment).finds_torch()


class _Search:
    def __init__(self, program: Program, environment: Mapping[str, str]) -> None:
        self._program = program
        self._roots = [os.curdir, *filter(None, environment.get("PYTHONPATH", "").split(":"))]
        self._files: dict[str, None] = {}
        """Files to read, and those that were read; in order."""
        self._packages: set[str] = set()

    def finds_torch(self) -> bool:
        if any(self._is_torch(module) for module in self._named()):
            return True
        position = 0
        while position < min(len(self._files), MAX_FILES):
            path = [*self._files][position]
            position += 1
            if any(self._is_torch(module) for module in _imported(_read(path), path)):
                return True
        return False

    def _named(self) -> Iterator[str]:
        """Modules that the command names; adds the files that it names."""
        command = self._program.command
        for path in command:
            is_script = os.path.splitext(path)[1] in _SCRIPT_SUFFIXES and os.path.isfile(path)
            if is_script and path != self._program.interpreter:
                self._files.setdefault(path)
                self._roots.append(os.path.dirname(path) or os.curdir)
        name, arguments = invoked(command)
        if name == os.path.basename(command[0]) and "-c" in command[1:-1]:
            code = command[command.index("-c") + 1]
            yield from _imported(code, os.curdir)
        for word in (name, *arguments):
            module = word.partition(":")[0]  # uvicorn service:app
            if re.fullmatch(r"[A-Za-z_][\w.]*", module):
                yield module
                yield f"{module}.__main__"

    def _is_torch(self, module: str) -> bool:
        """Whether importing a module, or the file of a local one (``/path/module``), loads torch."""
        if os.path.isabs(module):
            self._add(module)
            return False
        top, *_ = module.split(".")
        if top in TORCH:
            return True
        for root in self._roots:
            parts = module.split(".")
            for end in range(1, len(parts) + 1):
                self._add(os.path.join(root, *parts[:end]))
        if top in self._packages:
            return False
        self._packages.add(top)
        return self._requires_torch(top)

    def _add(self, stem: str) -> None:
        for path in (f"{stem}.py", os.path.join(stem, "__init__.py")):
            if path not in self._files and os.path.isfile(path):
                self._files[path] = None

    def _requires_torch(self, package: str) -> bool:
        """Whether an installed distribution of that name requires torch, also as an extra."""
        program, name = self._program, package.replace("_", "-").lower()
        if not program.installed.has(name) or program.prefix is None or program.interpreter is None:
            return False
        for site in site_directories(program.prefix, program.interpreter):
            for entry in names_in(site):
                stem, _, version = entry.partition("-")
                if stem.replace("_", "-").lower() == name and version.endswith(".dist-info"):
                    return bool(_REQUIRES_TORCH.search(_read(f"{site}/{entry}/METADATA")))
        return False


def _imported(text: str, path: str) -> Iterator[str]:
    """The modules that a file's statements import; a relative one as a path without its suffix."""
    for statement in _STATEMENT.finditer(text):
        base, names = statement["base"], re.split(r"[\s,]+", (statement["names"] or "").strip())
        if base is None:
            yield from (
                words.split()[0] for words in statement["modules"].split(",") if words.split()
            )
            continue
        module = base.lstrip(".")
        if level := len(base) - len(module):
            directory = os.path.dirname(os.path.abspath(path))
            for _ in range(level - 1):
                directory = os.path.dirname(directory)
            module = os.path.join(directory, *module.split("."))
        yield module
        joint = "/" if level else "."
        yield from (f"{module}{joint}{name}" for name in names if name)


def _read(path: str) -> str:
    return (read_file(path, max_bytes=MAX_FILE_BYTES) or b"").decode(errors="replace")
