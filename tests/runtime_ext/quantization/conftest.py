# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator

import pytest

from xruntime.threads.team import team_of


@pytest.fixture(scope="module", autouse=True)
def every_test_in_one_thread(native: None) -> Iterator[None]:
    """Models here are so small that threads only wait for each other; fixtures of a module compile, too."""
    with team_of(1):
        yield
