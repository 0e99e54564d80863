# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def every_test_in_one_thread(one_thread: None) -> None:
    """Spinning takes long on busy CPUs."""
