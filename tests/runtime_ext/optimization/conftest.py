# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def every_test_in_one_thread(one_thread: None) -> None:
    """Models here are so small that threads only wait for each other."""


@pytest.fixture(autouse=True)
def optimized_forms_are_not_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models here are so small that most of their forms are: the input would be returned as it is."""
    monkeypatch.setattr("xruntime.compilation.judge.Trial.is_slower", False)
