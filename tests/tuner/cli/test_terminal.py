# SPDX-License-Identifier: Apache-2.0
"""A search in a terminal, and signals that end it."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pexpect
import pytest
from tests.launcher.launching import wait_until
from tests.tuner.cli.commands import RATE, XTUNE, Desk

PATIENCE_S = 90
NAPS = ",".join(["0.3", *[f"0.{number}" for number in range(10, 29, 2)]])
LONG = ("--only-params", "--param", f"t={NAPS}", "--budget", "2000", "nap.py", "{t}")
"""A search that takes longer than any test, and many launches until its final begins."""


def spawn(desk: Desk, *words: str, columns: int = 140) -> pexpect.spawn[str]:
    return pexpect.spawn(
        XTUNE[0],
        [*XTUNE[1:], *words],
        cwd=str(desk.directory),
        env={**desk.environment, "TERM": "xterm"},  # type: ignore[arg-type]
        timeout=PATIENCE_S,
        encoding="utf-8",
        dimensions=(40, columns),
    )


def test_ctrl_c_in_a_terminal_gives_the_verdict_so_far(desk: Desk) -> None:
    child = spawn(desk, *LONG)
    child.expect("11 configurations")
    child.expect("of up to 2,000 launches, .* left")
    child.expect("running")
    child.expect("best")
    # A terminal's other lines may name the setting too, but no value of it.
    child.expect(r"t=0\.[12]\d?: [^\r\n]*times the bare command")
    child.sendintr()
    child.expect("inconclusive: neither a gain nor its absence is established")
    child.expect("interrupted before the final")
    child.expect("(the best so far is|most promising, but not proven:) t=0")
    child.expect("to continue: xtune resume")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130
    (listed,) = desk.xtune("list", "--json").found
    assert listed["launches"] > 1
    assert listed["verdict"] == "inconclusive", child.before


@pytest.mark.long
def test_ctrl_z_stops_the_launch_too_and_it_is_made_again(desk: Desk) -> None:
    began, go = desk.directory / "began", desk.directory / "go"
    desk.write(
        "wait.py",
        "import os, time\n"
        "open('began', 'a').write('.')\n"
        "while not os.path.exists('go'): time.sleep(0.01)\n",
    )
    shell = pexpect.spawn(
        "bash",
        ["--norc", "--noprofile", "-i"],
        cwd=str(desk.directory),
        env={**desk.environment, "PS1": "ready> ", "TERM": "xterm"},
        timeout=PATIENCE_S,
        encoding="utf-8",
        dimensions=(40, 140),
    )
    searched = "--only-params --param t=1,2 --budget 3 wait.py {t}"
    shell.sendline(f"{' '.join(XTUNE)} {searched}")
    wait_until(began.exists, "the first launch")
    shell.sendcontrol("z")
    shell.expect_exact("Stopped")
    assert not any("wait.py\0001" in words for words in _commands(desk))
    go.touch()
    shell.sendline("fg")
    shell.expect_exact("the launch that Ctrl-Z ended does not count and is made again")
    shell.expect_exact("inconclusive")
    shell.expect_exact("ready> ")
    shell.close(force=True)
    (listed,) = desk.xtune("list", "--json").found
    assert len(began.read_text()) == 1 + listed["launches"] == 4


def test_a_narrow_terminal_gets_whole_words_and_whole_commands(desk: Desk) -> None:
    desk.write("rate.py", RATE)
    program = "rate.py", "{n}", "an argument that makes the command longer than a line"
    only = "--metric", "items/s", "--only-params", "--param", "n=1,2", "--budget", "2"
    child = spawn(desk, *only, *program, columns=60)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    lines = child.before.split("inconclusive")[1].splitlines()
    commands = ("run it:", "details:", "xtune resume")
    others = [line for line in lines if not any(word in line for word in commands)]
    assert max(map(len, others)) <= 60
    (command,) = [line for line in lines if line.startswith("  run it: ")]
    assert command.endswith("rate.py 1 'an argument that makes the command longer than a line'")


@pytest.mark.parametrize(
    "numbers",
    [
        (signal.SIGINT, signal.SIGTERM),
        pytest.param((signal.SIGTERM,), marks=pytest.mark.long),
        pytest.param((signal.SIGHUP,), marks=pytest.mark.long),
    ],
)
def test_a_signal_gives_the_verdict_so_far(numbers: tuple[int, ...], desk: Desk) -> None:
    with subprocess.Popen(
        [*XTUNE, "--json", *LONG],
        cwd=desk.directory,
        env=desk.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        for line in process.stderr:
            if "searching" in line:
                break
        process.send_signal(signal.SIGSTOP)  # so that several arrive in one instant
        for number in numbers:
            process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + numbers[0], err
    assert '"verdict": "inconclusive"' in out
    assert "Traceback" not in err


@pytest.mark.long
def test_nothing_is_left_running(desk: Desk) -> None:
    desk.write("long.py", "import time\nprint('1 items/s', flush=True)\ntime.sleep(500)\n")
    searched = ("--metric", "items/s", "--only-params", "--param", "n=1,2")
    child = spawn(desk, *searched, "long.py", "{n}")
    child.expect("the bare command, for [1-9]")
    running = _commands(desk)
    assert any("long.py\0001" in words for words in running)
    child.sendintr()
    child.expect("interrupted before the final")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130
    assert _commands(desk) == []


def _commands(desk: Desk) -> list[str]:
    """The command lines of all processes that were started at the desk: they inherited its name."""
    mark = f"XDG_RUNTIME_DIR={desk.directory}"
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                inherited = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                if mark.encode() in inherited:
                    found.append(Path(f"/proc/{name}/cmdline").read_text())
            except OSError:
                continue
    return [words for words in found if words]  # a zombie has none
