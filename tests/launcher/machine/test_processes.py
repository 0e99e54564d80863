# SPDX-License-Identifier: Apache-2.0
"""What /proc says of processes, on the live system."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from xlaunch.machine.processes import process_name
from xlaunch.machine.tree import Tree, read_file

LONG = "/proc/self/maps"
"""More than a page, and handed out in whole lines of less than a page."""


@pytest.mark.parametrize(
    "read",
    [lambda: str(Tree("/").read(LONG)), lambda: str(read_file(LONG), "utf-8")],
    ids=["machine", "run"],
)
def test_long_file_of_procfs_is_read_to_its_end(read: Callable[[], str]):
    whole = Path(LONG).read_text()
    assert len(whole) > 2 * 4096
    assert read().splitlines()[-1] == whole.splitlines()[-1]


def test_name_of_a_process_is_fit_for_a_terminal():
    """Any user may name a process of theirs so."""
    code = (
        "import pathlib, sys; pathlib.Path('/proc/self/comm').write_bytes(b'\\x1b[2Ja\\xffb\\n')\n"
        "print(flush=True); sys.stdin.read()"
    )
    command = (sys.executable, "-c", code)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert process_name(process.pid) == "?[2Ja\ufffdb"
        process.communicate()
    assert process_name(process.pid) == ""
