# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the command's tests."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest


@pytest.fixture
def no_program_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the command line, this process runs on alone.

    Only an interpreter that tries whether a library can be preloaded is let through.
    """

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("something was started")

    class Trial(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *words: Any, **options: Any) -> None:
            if "LD_PRELOAD" not in (options.get("env") or {}):
                refuse()
            super().__init__(*words, **options)

    monkeypatch.setattr(os, "execve", refuse)
    monkeypatch.setattr(os, "fork", refuse)
    monkeypatch.setattr(subprocess, "Popen", Trial)
