# SPDX-License-Identifier: Apache-2.0
"""`--pty`: instances that write to a terminal, though the launcher passes it on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pexpect
import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import XLAUNCH, Done, ask, xlaunch
from tests.launcher.launching import PATIENCE_S, wait_until

PLAIN = "import os; print(*map(os.isatty, (0, 1, 2)))"
TWO = ["--instances", "2", "--ncores", "1", "--oversubscribe"]


def launched(*words: str, code: str) -> Done:
    done = xlaunch("-q", *words, "--", sys.executable, "-c", code)
    assert done.code == 0, done.err
    return done


@pytest.mark.parametrize("layout", [TWO, []], ids=["several", "one"])
def test_output_is_a_terminal_and_input_is_none(layout: list[str]):
    code = "import os; print(*map(os.isatty, (0, 1, 2)), os.get_terminal_size(1))"
    lines = launched("--pty", "--no-tag", *layout, code=code).out.splitlines()
    expected = b"False True True os.terminal_size(columns=80, lines=24)"
    assert lines == [expected] * (2 if layout else 1)
    lines = launched("--no-tag", *TWO, code=PLAIN).out.splitlines()
    assert lines == [b"False False False"] * 2


def test_lines_are_tagged_and_streams_stay_apart():
    code = (
        "import os; [print(n) for n in range(20000)]; os.write(2, b'err\\nlast'); print(end='end')"
    )
    done = launched("--pty", *TWO, code=code)
    for index in (0, 1):
        tag = f"[{index}] "
        out, err = (
            [line.removeprefix(tag) for line in text.splitlines() if line.startswith(tag)]
            for text in (done.out.decode(), done.err)
        )
        assert out == [*map(str, range(20000)), "end"]
        assert err == ["err", "last"]
    assert "\r" not in done.out.decode() + done.err


def test_only_instance_s_bytes_pass_unchanged():
    data = bytes(range(256)) * 1000 + b"\n\r\n\x04\x03 no newline"
    code = "import os\nd = bytes(range(256)) * 1000 + b'\\n\\r\\n\\x04\\x03 no newline'\nwhile d: d = d[os.write(1, d):]"
    assert launched("--pty", code=code).out == data


def test_metrics_are_read_from_a_terminal_too():
    code = "print('\\x1b[32m 10 x/s\\x1b[0m\\r', end=''); print('\\x1b[1m20\\x1b[0m x/s')"
    done = xlaunch("--pty", "--metric", "x/s", "--", sys.executable, "-c", code)
    assert done.out == b"\x1b[32m 10 x/s\x1b[0m\r\x1b[1m20\x1b[0m x/s\n"
    assert "x/s: 15 in total" in done.err or "x/s: 20 in total" in done.err


def test_python_needs_not_be_told_to_write_at_once():
    assert launched("--pty", code="import os; print('PYTHONUNBUFFERED' in os.environ)").out == (
        b"False\n"
    )


def test_window_s_size_is_passed_on_and_follows(tmp_path: Path):
    code = f"""
import os, signal, time
def show(*_):
    path = f"{tmp_path}/size.{{os.environ['XLAUNCH_INSTANCE_INDEX']}}"
    with open(path + ".new", "w") as file: file.write(f"{{os.get_terminal_size(1)}}")
    os.rename(path + ".new", path)
signal.signal(signal.SIGWINCH, show)
show()
while True: time.sleep(0.05)
"""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (33, 111))
    run = subprocess.Popen(
        [*XLAUNCH, "-q", "--pty", *TWO, "--", sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    try:
        for size in ((33, 111), (44, 222)):
            if size[0] == 44:
                termios.tcsetwinsize(theirs, size)
                run.send_signal(signal.SIGWINCH)
            expected = str(os.terminal_size((size[1], size[0])))
            for index in (0, 1):
                path = tmp_path / f"size.{index}"
                wait_until(lambda p=path, e=expected: p.exists() and p.read_text() == e, expected)
        run.terminate()
        assert run.wait(PATIENCE_S) == 143
    finally:
        run.kill()
        run.wait()
        os.close(ours)
        os.close(theirs)


SHOW_SIZE = """
import os, signal, sys, time
def show(*_): print(os.get_terminal_size(1).columns, file=sys.stderr, flush=True)
signal.signal(signal.SIGWINCH, show)
print("ready", os.ttyname(1) == os.ttyname(0), file=sys.stderr, flush=True)
while True: time.sleep(0.05)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SHOW_SIZE)
    return path


def test_only_instance_keeps_the_real_terminal(script: Path):
    words = [*XLAUNCH[1:], "-q", "--pty", str(script)]
    with pexpect.spawn(XLAUNCH[0], words, timeout=PATIENCE_S) as run:
        run.expect_exact("ready True")
        run.setwinsize(40, 123)
        run.expect_exact("123")
        run.sendintr()
        run.expect(pexpect.EOF)
        run.close()
        assert run.signalstatus == signal.SIGINT


def test_size_follows_where_only_input_is_the_real_terminal(script: Path, tmp_path: Path):
    err = tmp_path / "err"
    err.touch()
    command = f"exec {' '.join(XLAUNCH)} -q --pty {script} > {tmp_path}/out 2> {err}"
    with pexpect.spawn("sh", ["-c", command], timeout=PATIENCE_S) as run:
        wait_until(lambda: "ready False" in err.read_text(), "the program's start")
        run.setwinsize(40, 123)
        wait_until(lambda: "123" in err.read_text(), "the new size")
        run.sendintr()
        run.expect(pexpect.EOF)
        run.close()
        assert run.signalstatus == signal.SIGINT


def test_log_files_are_no_terminals(golden: Golden, tmp_path: Path):
    refused = ask("--pty", "--log-dir", tmp_path / "logs", "true").refused()
    golden(refused)
    assert os.listdir(tmp_path) == []
