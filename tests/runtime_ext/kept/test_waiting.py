# SPDX-License-Identifier: Apache-2.0
"""What is shown while a program waits for the compiler."""

from __future__ import annotations

import io
import os
import sys
import threading
import time

import pytest

from xruntime.kept import model_libraries
from xruntime.kept.model_libraries import CLEAR_LINE, turn


@pytest.fixture(autouse=True)
def shown_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_libraries, "SILENT_S", 0.0)


def test_a_terminal_shows_the_wait_and_is_clean_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.openpty()
    compiled, seen = threading.Event(), bytearray()

    def read() -> None:
        while b"compiling Net: 0 s" not in seen:
            seen.extend(os.read(reading, 1024))
        compiled.set()

    reader = threading.Thread(target=read)
    with open(writing, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        reader.start()
        turn.run(lambda: assert_set(compiled), "Net")
        reader.join()
        seen.extend(os.read(reading, 1024))
    os.close(reading)
    assert seen.decode().startswith(f"{CLEAR_LINE}xruntime: compiling Net: 0 s")
    assert seen.decode().endswith(CLEAR_LINE)


def test_nothing_else_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    turn.run(lambda: time.sleep(0.05), "Net")
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]


def assert_set(event: threading.Event) -> None:
    assert event.wait(timeout=60)
