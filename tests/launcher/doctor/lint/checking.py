# SPDX-License-Identifier: Apache-2.0
"""Checks of a text as if it were a file."""

from __future__ import annotations

import textwrap
from pathlib import Path

from xlaunch.doctor.lint.running import Selection, check_file
from xlaunch.doctor.lint.source import ScriptFinding


def findings_in(text: str, directory: Path, *, hints: bool = False) -> list[ScriptFinding]:
    """The findings in a script."""
    path = directory / "script.py"
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return check_file((str(path), Selection(), hints))[0]


def codes_in(text: str, directory: Path, *, hints: bool = False) -> list[str]:
    """Their codes, in the order of the lines."""
    return [finding.code for finding in findings_in(text, directory, hints=hints)]
