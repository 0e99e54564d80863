# SPDX-License-Identifier: Apache-2.0
"""What tests of pages share: a desk, and a browser where there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.tuner.cli.commands import NAP, RATE, Desk
from tests.tuner.page.browser import Browser, find_chromium

from xtune.page.document import require_libraries


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """An empty storage, and two programs whose truth is known."""
    desk = Desk(tmp_path)
    desk.write("nap.py", NAP)
    desk.write("rate.py", RATE)
    return desk


@pytest.fixture(scope="session")
def plotly() -> str:
    """Plotly's script."""
    return require_libraries()


@pytest.fixture(scope="module")
def browser(needs: Callable[[object, str], None]) -> Iterator[Browser]:
    needs(find_chromium(), "chromium (Debian's package)")
    with Browser() as browser:
        yield browser
