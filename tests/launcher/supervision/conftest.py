# SPDX-License-Identifier: Apache-2.0
"""Real launches: started by a fixture, and ended whatever the test does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.launcher.launching import Run


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Start witnesses under xlaunch and wait until each is ready."""
    runs: list[Run] = []

    def start_witnesses(*options: str, count: int = 2, witness: tuple[str, ...] = ()) -> Run:
        folder = tmp_path / str(len(runs))
        folder.mkdir()
        layout = ["--instances", str(count), "--ncores", "1", "--oversubscribe"]
        run = Run(folder, [*layout, "--supervise", *options], list(witness))
        runs.append(run)
        for index in range(count):
            run.wait_for(index, "ready")
        return run

    yield start_witnesses
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
            run.process.communicate()
