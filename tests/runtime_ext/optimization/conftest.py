# SPDX-License-Identifier: Apache-2.0
"""One thread: models here are so small that threads only wait for each other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def one_thread(native: None) -> Iterator[None]:
    from xruntime.threads.team import team_of

    with team_of(1):
        yield
