# SPDX-License-Identifier: Apache-2.0
"""What xlaunch does inside a Python program before the program itself, see ``startup/sitecustomize.py``."""

from __future__ import annotations

import os
import sys

from xlaunch.children import PATH
from xlaunch.environment.contribution import Contribution, ListEntry
from xlaunch.environment.program import Program, interpreter_flags

DIRECTORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup")
NOT_INHERITED = "XLAUNCH_NOT_INHERITED"
"""For the hook: names of variables that the program's libraries read and its child processes do not get."""
NOT_FOR_DASK = "XLAUNCH_NOT_FOR_DASK"
"""For the hook: variables that Dask's workers do not get, ``NAME=VALUE;...`` with the user's own values."""

MENDED = (3, 14)
"""First version of Python whose ranks need no hook at their end."""


def reaches(program: Program) -> bool:
    """Whether Python's module `site` would import the hook when `program` starts."""
    if sys.platform != "linux" or program.interpreter is None or os.pathsep in DIRECTORY:
        return False
    return all(flag not in "EIS" for flag in interpreter_flags(program))


def hook_entry(reason: str, *, slash: bool = False) -> ListEntry:
    """The hook on PYTHONPATH. `slash`: it is passed on to ranks."""
    return ListEntry(PATH, f"{DIRECTORY}/" if slash else DIRECTORY, reason)


def contribute_rank_hook(program: Program) -> Contribution:
    """The hook, for a rank, or a program that starts ranks, with torch and a Python that needs it."""
    old = (program.installed.python or MENDED) < MENDED
    if not old or not reaches(program) or not program.installed.has("torch"):
        return Contribution()
    reason = (
        "loads a hook that waits for gloo's threads at the end of a rank, and removes itself there"
    )
    return Contribution(entries=[hook_entry(reason, slash=program.starts_ranks)])
