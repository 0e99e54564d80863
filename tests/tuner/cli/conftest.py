# SPDX-License-Identifier: Apache-2.0
"""A desk for each test."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tuner.cli.commands import NAP, RATE, Desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """An empty storage, and two programs whose truth is known."""
    desk = Desk(tmp_path)
    desk.write("nap.py", NAP)
    desk.write("rate.py", RATE)
    return desk
