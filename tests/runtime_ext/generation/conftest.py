# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def installed(native: None, needs: Any) -> None:
    needs(find_spec("transformers"), "pip install transformers")


@pytest.fixture(autouse=True)
def single_thread(one_thread: None) -> None:
    """Spinning takes long on busy CPUs."""


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The batch size of each step that was computed natively."""
    from xruntime.generation.decode_step import DecodeStep

    found: list[int] = []
    original = DecodeStep._computed

    def counting(self: Any, call: Any, threads: int) -> Any:
        found.append(call.view.batch)
        return original(self, call, threads)

    monkeypatch.setattr(DecodeStep, "_computed", counting)
    return found
