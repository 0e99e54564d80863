# SPDX-License-Identifier: Apache-2.0
"""Runs the programs in programs/, which were written for Intel's extension, with one line changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

PROGRAMS = Path(__file__).parent / "programs"

BEFORE = "import intel_extension_for_pytorch as ipex\n"
AFTER = "import xruntime.compat.ipex as ipex\n"

SHORT_COMPILATION = {"TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}
"""Precompiled headers take longer than the few compilations of a program without them."""


class Done(NamedTuple):
    """A program that has ended."""

    code: int
    found: dict[str, Any]
    """The object in the last line of its output."""
    errors: str


def migrate(name: str, directory: Path) -> Path:
    """Copy a program to `directory`, with the one import changed; return its path."""
    text = (PROGRAMS / name).read_text()
    assert text.count(BEFORE) == 1, f"{name} has not one line {BEFORE!r}"
    path = directory / name
    path.write_text(text.replace(BEFORE, AFTER))
    return path


def run(
    name: str, directory: Path, *arguments: str, cpus: Sequence[int] = (), code: int = 0
) -> Done:
    """Run a program in `directory`, on these CPUs as under numactl -C; its exit code has to be `code`."""
    path = migrate(name, directory)
    command = [sys.executable, str(path), *arguments]
    before = os.sched_getaffinity(0)
    try:
        # A child inherits the mask of the thread that starts it.
        os.sched_setaffinity(0, cpus or before)
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=os.environ | SHORT_COMPILATION,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        os.sched_setaffinity(0, before)
    output, errors = process.communicate()
    assert process.returncode == code, errors
    lines = output.splitlines()
    return Done(process.returncode, json.loads(lines[-1]) if lines else {}, errors)
