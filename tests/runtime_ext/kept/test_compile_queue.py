# SPDX-License-Identifier: Apache-2.0
"""What is shown while a program waits for the compiler, and what happens when the program ends first."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from xruntime.kept.compile_queue import CLEAR_LINE, compile_queue


@pytest.fixture(autouse=True)
def shown_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xruntime.kept.compile_queue.SILENT_S", 0.0)


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
        compile_queue.run(lambda: assert_set(compiled), "Net")
        reader.join()
        seen.extend(os.read(reading, 1024))
    os.close(reading)
    assert seen.decode().startswith(f"{CLEAR_LINE}xruntime: compiling Net: 0 s")
    assert seen.decode().endswith(CLEAR_LINE)


def test_a_line_that_is_printed_meanwhile_replaces_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.openpty()
    shown = f"{CLEAR_LINE}xruntime: compiling Net: 0 s"
    seen = bytearray()

    def report() -> None:
        while shown.encode() not in seen:
            seen.extend(os.read(reading, 1024))
        compile_queue.clear_line()
        print("compiled", file=sys.stderr, flush=True)

    with open(writing, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        compile_queue.run(report, "Net")
        while b"compiled\r\n" not in seen:
            seen.extend(os.read(reading, 1024))
    os.close(reading)
    assert f" s{CLEAR_LINE}compiled\r\n" in seen.decode()


def test_nothing_else_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    compile_queue.run(lambda: time.sleep(0.05), "Net")
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]


def assert_set(event: threading.Event) -> None:
    assert event.wait(timeout=60)


ENDING = """
import fcntl, os, sys, threading, time
import torch
from xruntime.kept.compile_queue import compile_queue

begun = threading.Event()

def computes():
    end, x = time.monotonic() + 0.5, torch.ones(1)
    begun.set()
    while time.monotonic() < end:
        x.is_inference()
    print("done", flush=True)

def waits():
    first, second = (os.open(sys.argv[0], os.O_RDONLY) for _ in range(2))
    fcntl.flock(first, fcntl.LOCK_EX)
    begun.set()
    try:
        compile_queue.wait_for_lock(second)
    except InterruptedError:
        print("done", flush=True)

def has_child():
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        time.sleep(600)
    os.close(writing)
    with compile_queue.child(process):
        begun.set()
        os.read(reading, 1)
    print("done", flush=True)

compile_queue.start(globals()[sys.argv[1]])
compile_queue.start(lambda: print("another", flush=True))
begun.wait()
"""


@pytest.mark.long
@pytest.mark.parametrize("what", ["computes", "waits", "has_child"])
def test_the_end_of_the_program_waits_for_torch_s_code_only(tmp_path: Path, what: str) -> None:
    script = tmp_path / "ending.py"
    script.write_text(ENDING)
    done = subprocess.run(
        [sys.executable, script, what], capture_output=True, text=True, check=False, timeout=250
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
