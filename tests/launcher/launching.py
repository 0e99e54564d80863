# SPDX-License-Identifier: Apache-2.0
"""A launch under test: its processes, how it ended, its report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

WITNESS = Path(__file__).with_name("witness.py")
"""A program that notes the signals it gets."""
PATIENCE_S = 20.0
"""How long to wait for what must happen. Never waited for in full unless the test fails."""


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Wait for `condition`; fail, naming `what`, when it does not come true."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {PATIENCE_S:g} s in vain for: {what}")
        time.sleep(0.005)


def state_of(pid: int) -> str:
    """The letter that /proc has for the state of a process; X where there is none."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "X"
    return status.rpartition(")")[2].split()[0]


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    return state_of(pid) not in "ZX"


def children_of(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        return [int(word) for word in path.read_text().split()]
    except OSError:
        return []


class Launched:
    """A launch that has begun, with instances of one CPU each in a directory of its own."""

    command: Sequence[str] = (sys.executable, "-m", "xlaunch")

    def __init__(
        self, directory: Path, words: Sequence[str], *, count: int, **variables: str
    ) -> None:
        """`words`: further options, and the program."""
        self.directory = directory
        layout = ("--instances", str(count), "--ncores", "1", "--oversubscribe")
        self.process = subprocess.Popen(
            [*self.command, *layout, *words],
            cwd=directory,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()

    @property
    def supervisor(self) -> int:
        (pid,) = children_of(self.process.pid)
        return pid

    @property
    def instances(self) -> list[int]:
        return children_of(self.supervisor)

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> tuple[int, str, str]:
        """Wait for the launcher: its exit code, standard output and standard error."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out.decode(), err.decode()

    def report(self) -> dict[str, Any]:
        """What `--report report.json` wrote."""
        values: dict[str, Any] = json.loads((self.directory / "report.json").read_text())
        return values
