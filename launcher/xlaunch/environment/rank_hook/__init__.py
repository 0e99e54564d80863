# SPDX-License-Identifier: Apache-2.0
"""The hook with which a rank that trains over gloo ends normally, see its ``startup/sitecustomize.py``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from xlaunch.environment.program import Program, interpreter_flags
from xlaunch.environment.variables import Proposal

PATH = "PYTHONPATH"
DIRECTORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup")

MENDED = (3, 14)
"""First version of Python that needs no hook."""


def with_rank_hook(
    proposals: Sequence[Proposal], program: Program, environment: Mapping[str, str]
) -> list[Proposal]:
    """Add the hook to the proposal for PYTHONPATH, if `program` has torch and a Python that needs it.

    `program`: a rank, or a program that starts ranks. `environment`: what it inherits, with --env.
    """
    if not _is_needed(program) or os.pathsep in DIRECTORY:
        return [*proposals]
    before = [proposal for proposal in proposals if proposal.name == PATH]
    others = [proposal for proposal in proposals if proposal.name != PATH]
    inherited = before[-1].value if before else environment.get(PATH)
    hook = f"{DIRECTORY}/" if program.starts_ranks else DIRECTORY
    value = f"{hook}{os.pathsep}{inherited}" if inherited else hook
    reason = (
        "loads a hook that waits for gloo's threads at the end of a rank, and removes itself there"
    )
    reasons = "; ".join([*(proposal.reason for proposal in before), reason])
    return [*others, Proposal(PATH, value, reasons, merged=True)]


def _is_needed(program: Program) -> bool:
    if sys.platform != "linux" or program.interpreter is None:
        return False
    old = (program.installed.python or MENDED) < MENDED
    reached = all(flag not in "EIS" for flag in interpreter_flags(program))
    return old and reached and program.installed.has("torch")
