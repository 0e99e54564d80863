# SPDX-License-Identifier: Apache-2.0
"""The hook with which a rank that trains over gloo ends normally, see its ``startup/sitecustomize.py``."""

from __future__ import annotations

import os
import sys

from xlaunch.children import PATH
from xlaunch.environment.contribution import Contribution, ListEntry
from xlaunch.environment.program import Program, interpreter_flags

DIRECTORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup")

MENDED = (3, 14)
"""First version of Python that needs no hook."""


def contribute_rank_hook(program: Program) -> Contribution:
    """The hook, for a rank, or a program that starts ranks, with torch and a Python that needs it."""
    if not _is_needed(program) or os.pathsep in DIRECTORY:
        return Contribution()
    hook = f"{DIRECTORY}/" if program.starts_ranks else DIRECTORY
    reason = (
        "loads a hook that waits for gloo's threads at the end of a rank, and removes itself there"
    )
    return Contribution(entries=[ListEntry(PATH, hook, reason)])


def _is_needed(program: Program) -> bool:
    if sys.platform != "linux" or program.interpreter is None:
        return False
    old = (program.installed.python or MENDED) < MENDED
    reached = all(flag not in "EIS" for flag in interpreter_flags(program))
    return old and reached and program.installed.has("torch")
