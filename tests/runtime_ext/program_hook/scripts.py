# SPDX-License-Identifier: Apache-2.0
"""Programs that know nothing of xlaunch, run by ``xlaunch --optimize``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.launcher.cli.commands import clean_environment
from tests.noise import without_torchao

PREFIX = "xruntime: optimize: "
UNFINISHED = ": the program ended before its code was compiled; "


class Ended(NamedTuple):
    out: str
    reports: list[str]
    """The lines of the hook, without their prefix and without `unfinished`."""

    unfinished: list[str]
    """Those of models whose code was being compiled at the end. Which these are depends on the machine's speed."""


def run_optimized(
    *words: str | Path, precision: str = "fp32", options: tuple[str, ...] = (), **variables: str
) -> Ended:
    """Run a program with the hook; it must succeed, and may write nothing else to standard error."""
    command = (sys.executable, "-m", "xlaunch", "-q", *options, "--optimize", precision, *words)
    done = subprocess.run(
        command,
        env=clean_environment(**variables),
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    lines = without_torchao(done.stderr)
    assert all(PREFIX in line for line in lines), done.stderr
    reports = [line.replace(PREFIX, "", 1) for line in lines]
    unfinished = [line for line in reports if UNFINISHED in line]
    return Ended(done.stdout, [line for line in reports if line not in unfinished], unfinished)
