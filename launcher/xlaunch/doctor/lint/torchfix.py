# SPDX-License-Identifier: Apache-2.0
"""The findings of TorchFix, where its command is installed.

TorchFix knows the calls that torch removed or deprecated, and unsafe ones. It is run as a command
and never imported: it holds libcst at one version, and may belong to another environment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence

from xlaunch.children import without_current_directory
from xlaunch.doctor.lint.source import ScriptFinding
from xlaunch.environment.program import find_interpreter

CODES = re.compile(r"TOR\d{0,3}")
_LINE = re.compile(r"(?P<path>.+):(?P<line>\d+):(?P<column>\d+): (?P<code>TOR\d+) (?P<message>.+)")
_FILES_AT_ONCE = 500
_TIMEOUT_S = 600


def run_torchfix(paths: Sequence[str]) -> tuple[list[ScriptFinding], tuple[str, ...]]:
    """Its findings in `paths`, with notes about what went wrong; nothing where it is not installed."""
    command = find_torchfix()
    if command is None or not paths:
        return [], ()
    findings: list[ScriptFinding] = []
    for start in range(0, len(paths), _FILES_AT_ONCE):
        # A path may begin with a dash.
        given = {os.path.abspath(path): path for path in paths[start : start + _FILES_AT_ONCE]}
        try:
            done = subprocess.run(
                [command, *given],
                env=without_current_directory(os.environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return findings, (f"TorchFix: {error}",)
        output = done.stdout.decode(errors="replace")
        findings += _read(output, given)
        if b"Finished checking" not in done.stderr:
            last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            return findings, (f"TorchFix ended with code {done.returncode}: {last}",)
    return findings, ()


def find_torchfix() -> str | None:
    """The command of the active environment, else the one in PATH."""
    interpreter, _ = find_interpreter(None, os.environ)
    beside = os.path.join(os.path.dirname(interpreter), "torchfix")
    return beside if os.access(beside, os.X_OK) else shutil.which("torchfix")


def _read(output: str, given: dict[str, str]) -> Iterator[ScriptFinding]:
    for line in output.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:  # the differences that it proposes
            continue
        # It shortens paths below the working directory.
        path = given.get(os.path.abspath(match["path"]))
        if path is not None:
            place = (int(match["line"]), int(match["column"]))
            message = match["message"].removeprefix("[*] ")
            yield ScriptFinding(path, *place, *place, match["code"], message)
