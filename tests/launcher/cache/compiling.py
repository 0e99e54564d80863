# SPDX-License-Identifier: Apache-2.0
"""Programs that compile, and a count of the C++ compiler's runs."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from tests.launcher.cli.commands import clean_environment, program

XLAUNCH = (sys.executable, "-m", "xlaunch")
PATIENCE_S = 240.0
"""How long several cold starts may take on a busy machine. Never waited for in full."""

STAND_IN = """\
import os, pathlib
code = pathlib.Path(os.environ["TORCHINDUCTOR_CACHE_DIR"], "ab", "code.cpp")
if code.exists():
    print("loaded", code.read_bytes() == b"code" * 50000)
else:
    code.parent.mkdir()
    code.write_bytes(b"code" * 50000)
    print("compiled")
"""
"""Compiles one file, without torch, unless it finds it."""

NET = """\
import torch
net = torch.compile(lambda x: torch.sin(x) + 1)
assert torch.allclose(net(torch.ones(8)), torch.sin(torch.ones(8)) + 1)
print("correct")
"""
"""Compiles one kernel."""

NO_PRECOMPILED_HEADERS = {"TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}
"""Precompiled headers lie in /tmp, whatever the directory of Inductor's cache is, and are compiled by the
first start on each machine, also if it compiles nothing else."""

ONE_COMPILATION = {**NO_PRECOMPILED_HEADERS, "TORCHINDUCTOR_VEC_ISA_OK": "0"}
"""The kernel alone is compiled, and no programs that show which vector instructions work."""


class Compiler(NamedTuple):
    """A g++ that writes down its arguments before it runs."""

    path: Path
    log: Path

    def variables(self) -> dict[str, str]:
        """Make torch use it, wherever the program runs."""
        return {"CXX": str(self.path), "COMPILER_LOG": str(self.log)}

    def runs(self) -> list[str]:
        """What was compiled; torch also asks for the version."""
        return [line for line in self.log.read_text().splitlines() if " -o " in line]


def find_compiler(
    directory: Path, needs: Callable[[object, str], None], before: str = ""
) -> Compiler:
    """A compiler for every user; skips the test where torch has none.

    `before`: lines of shell that it runs first.
    """
    needs(find_spec("torch"), "torch")
    found = shutil.which("g++")
    needs(found, "a C++ compiler (Debian: g++)")
    script = f'#!/bin/sh\necho "$*" >> "$COMPILER_LOG"\n{before}exec {found} "$@"\n'
    compiler = Compiler(program(directory / "g++", script), directory / "compiler.log")
    compiler.log.touch()
    compiler.log.chmod(0o666)
    return compiler


def environment(home: Path, **variables: str) -> dict[str, str]:
    """The environment of a user: of its home, and with no settings of other tests."""
    kept = clean_environment(HOME=str(home), TMPDIR=str(home), **variables)
    return {name: value for name, value in kept.items() if not name.startswith("XDG_")}


def files_below(directory: Path) -> dict[str, bytes]:
    """The content of each file by its path from `directory`, without the locks of Inductor."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.parent.name != "locks"
    }


def only_cache(base: Path) -> Path:
    """The directory of Inductor's cache under its only key."""
    (found,) = [path for path in (base / "inductor").iterdir() if path.is_dir()]
    return found


def default_base(home: Path) -> Path:
    return home / ".cache" / "xlaunch" / "compiled"


def is_root() -> bool:
    return os.geteuid() == 0
