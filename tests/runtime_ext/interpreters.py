# SPDX-License-Identifier: Apache-2.0
"""Interpreters of their own, for what a process does once, at its start or at its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def start_python(
    *arguments: object, cwd: str | Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """An interpreter that was given these arguments, and has ended."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def python(*arguments: object, cwd: str | Path | None = None, **variables: str) -> str:
    """What an interpreter prints; it must succeed."""
    done = start_python(*arguments, cwd=cwd, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
