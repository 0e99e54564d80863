# SPDX-License-Identifier: Apache-2.0
"""A launch under test: its processes, what its instances noted, how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

WITNESS = Path(__file__).with_name("witness.py")
PATIENCE_S = 20.0
"""How long to wait for what must happen. Never waited for in full unless the test fails."""


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Wait for `condition`; fail, naming `what`, when it does not come true."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {PATIENCE_S:g} s in vain for: {what}")
        time.sleep(0.005)


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def children_of(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        return [int(word) for word in path.read_text().split()]
    except OSError:
        return []


class Run:
    """One `xlaunch` process with instances of the witness program."""

    def __init__(self, folder: Path, options: list[str], witness_options: list[str]) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "xlaunch", *options, "--", sys.executable, str(WITNESS)]
        self.process = subprocess.Popen(
            [*command, str(folder), *witness_options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def log(self, index: int) -> list[str]:
        """What instance `index` has noted so far."""
        path = self.folder / f"{index}.log"
        return path.read_text().split() if path.exists() else []

    def wait_for(self, index: int, word: str) -> None:
        wait_until(lambda: word in self.log(index), f"{word} in instance {index}")

    @property
    def supervisor(self) -> int:
        (pid,) = children_of(self.process.pid)
        return pid

    @property
    def instances(self) -> list[int]:
        return children_of(self.supervisor)

    def child_of(self, index: int) -> int:
        """The process that instance `index` started on its own."""
        return int((self.folder / f"{index}.child").read_text())

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> tuple[int, str]:
        """Wait for the launcher: its exit code and its standard error."""
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, errors.decode()
