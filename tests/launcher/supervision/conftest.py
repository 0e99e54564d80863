# SPDX-License-Identifier: Apache-2.0
"""Real launches of witnesses: started by a fixture, and ended whatever the test does."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.launcher.launching import WITNESS, Launched, wait_until


class Witnesses(Launched):
    """A launch whose instances note the signals that they get."""

    def log(self, index: int) -> list[str]:
        """What instance `index` has noted so far."""
        path = self.directory / f"{index}.log"
        return path.read_text().split() if path.exists() else []

    def wait_for(self, index: int, word: str) -> None:
        wait_until(lambda: word in self.log(index), f"{word} in instance {index}")

    def child_of(self, index: int) -> int:
        """The process that instance `index` started on its own."""
        return int((self.directory / f"{index}.child").read_text())


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Witnesses]]:
    """Start witnesses under xlaunch and wait until each is ready."""
    with contextlib.ExitStack() as begun:

        def start_witnesses(
            *options: str, count: int = 2, witness: tuple[str, ...] = ()
        ) -> Witnesses:
            program = ("--", sys.executable, str(WITNESS), str(tmp_path), *witness)
            words = ("--supervise", *options, *program)
            run = begun.enter_context(Witnesses(tmp_path, words, count=count))
            for index in range(count):
                run.wait_for(index, "ready")
            return run

        yield start_witnesses
