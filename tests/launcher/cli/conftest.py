# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the command's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.launcher.cli import commands


@pytest.fixture
def no_program_starts() -> Iterator[None]:
    with commands.no_program_starts():
        yield
