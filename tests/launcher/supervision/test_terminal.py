# SPDX-License-Identifier: Apache-2.0
"""Job control in a real shell on a real terminal: Ctrl-C, Ctrl-Z, fg, and who may read."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest
from tests.tiers import quick_first

PROMPT = "ready> "
# Words that a test waits for are written so that the shell's echo of its command line does not
# show them: star""ted.
XLAUNCH = f"{sys.executable} -m xlaunch"
SEVERAL = "--instances 2 --ncores 1 --oversubscribe"

STUBBORN = """
import signal, time
signal.signal(signal.SIGINT, lambda *_: print("not yet", flush=True))
print("started", flush=True)
while True: time.sleep(0.05)
"""


@pytest.fixture
def shell() -> Iterator[pexpect.spawn]:
    """An interactive bash."""
    env = {**os.environ, "PS1": PROMPT, "BASH_SILENCE_DEPRECATION_WARNING": "1", "TERM": "dumb"}
    words = ["--norc", "--noprofile", "-i"]
    with pexpect.spawn("bash", words, env=env, timeout=20, encoding="utf-8") as bash:
        bash.setwinsize(40, 200)
        bash.expect_exact(PROMPT)
        yield bash
        bash.sendeof()
        bash.close(force=True)


@pytest.fixture
def stubborn(tmp_path: Path) -> Path:
    """A program that outlives Ctrl-C."""
    script = tmp_path / "stubborn.py"
    script.write_text(STUBBORN)
    return script


def press_ctrl_c_twice(shell: pexpect.spawn, *, programs: int) -> None:
    """Two within a millisecond reach a busy process as one: then, as a user would, once more."""
    shell.sendintr()
    for _ in range(programs):
        shell.expect_exact("not yet")
    for _ in range(5):
        shell.sendintr()
        if shell.expect_exact([PROMPT, pexpect.TIMEOUT], timeout=4) == 0:
            shell.sendline()  # a prompt for whoever waits for one
            return
    pytest.fail("five times Ctrl-C, and the program runs on")


def exit_code(shell: pexpect.spawn) -> int:
    shell.expect_exact(PROMPT)
    shell.sendline("echo code=$?")
    shell.expect(r"code=(\d+)")
    return int(shell.match.group(1))


LAYOUTS = {"--supervise": 1, SEVERAL: 2}
"""Options, and how many instances they start."""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_second_ctrl_c_kills(shell, stubborn, layout):
    shell.sendline(f"{XLAUNCH} {layout} -q {stubborn}")
    for _ in range(LAYOUTS[layout]):
        shell.expect_exact("started")
    press_ctrl_c_twice(shell, programs=LAYOUTS[layout])
    assert exit_code(shell) == 137


def test_ctrl_c_at_a_prompt_is_a_key_of_the_program(shell):
    shell.sendline(f"{XLAUNCH} --supervise -q -- {sys.executable} -q")
    shell.expect_exact(">>> ")
    for _ in range(3):
        shell.sendintr()
        shell.expect_exact("KeyboardInterrupt")
        shell.expect_exact(">>> ")
    shell.sendline("6 * 7")
    shell.expect_exact("42")
    shell.sendline("exit(5)")
    assert exit_code(shell) == 5


@pytest.mark.parametrize("layout", quick_first(LAYOUTS))
def test_ctrl_z_suspends_and_fg_goes_on(shell, tmp_path, layout):
    program = tmp_path / "program.py"
    program.write_text(
        "import time\n"
        "print('started', flush=True)\n"
        "while time.process_time() < 1: pass\n"
        "print('finished', flush=True)\n"
    )
    shell.sendline(f"{XLAUNCH} {layout} -q {program}")
    shell.expect_exact("started")
    shell.sendcontrol("z")
    shell.expect_exact("Stopped")
    shell.expect_exact(PROMPT)
    shell.sendline("sleep 1.2; jobs; echo still here")
    shell.expect_exact("Stopped")
    shell.expect_exact("still here")
    assert "finished" not in shell.before
    shell.expect_exact(PROMPT)
    shell.sendline("fg")
    shell.expect_exact("finished")
    assert exit_code(shell) == 0


def test_background_job_that_reads_the_terminal_stops_and_fg_lets_it_read(shell):
    shell.sendline(f"{XLAUNCH} --supervise -q -- sh -c 'read line; echo g\"\"ot $line' &")
    shell.expect_exact(PROMPT)
    shell.sendline("until jobs | grep Stop; do sleep 0.05; done")
    shell.expect_exact("Stopped")
    shell.expect_exact(PROMPT)
    shell.sendline("fg")
    shell.expect_exact("read line")
    shell.sendline("a word")
    shell.expect_exact("got a word")
    assert exit_code(shell) == 0


def test_one_of_several_that_reads_the_terminal_is_reported_as_stopped(shell):
    shell.sendline(f"{XLAUNCH} {SEVERAL} -q -- sh -c 'read line </dev/tty'")
    shell.expect("instance [01] is stopped: it uses the terminal, which several instances cannot")
    shell.sendintr()
    assert exit_code(shell) == 130


def test_terminal_is_the_program_s_own(shell):
    code = "import os, sys; print(sys.stdin.isatty(), os.tcgetpgrp(0) == os.getpgrp())"
    for supervise in ("", "--supervise"):
        shell.sendline(f'{XLAUNCH} {supervise} -q -- {sys.executable} -c "{code}"')
        shell.expect_exact("True True")
        assert exit_code(shell) == 0


def test_ctrl_c_ends_a_script_not_just_one_of_its_commands(shell, tmp_path):
    script = tmp_path / "script.sh"
    program = tmp_path / "program.py"
    program.write_text("import time; print('started', flush=True)\nwhile True: time.sleep(0.05)")
    for layout, count in LAYOUTS.items():
        script.write_text(f"{XLAUNCH} {layout} -q {program}\necho went on\n")
        shell.sendline(f"bash {script}")
        for _ in range(count):
            shell.expect_exact("started")
        shell.sendintr()
        assert exit_code(shell) == 130
        assert "went on" not in shell.before


def test_ctrl_c_ends_the_wait_for_a_restart(shell):
    shell.sendline(f"{XLAUNCH} --on-failure restart --max-restarts max -- sh -c 'exit 3'")
    shell.expect_exact("restart 1 in 1 s")
    shell.sendintr()
    shell.expect_exact("SIGINT came while instance 0 waited for its restart")
    assert exit_code(shell) == 130


def test_ctrl_c_is_no_failure_to_restart_after(shell):
    code = (
        "import time; print('star' + 'ted', flush=True); [time.sleep(0.05) for _ in iter(int, 1)]"
    )
    shell.sendline(f'{XLAUNCH} --on-failure restart -q -- {sys.executable} -c "{code}"')
    shell.expect_exact("started")
    shell.sendintr()
    shell.expect_exact(PROMPT)
    assert "restart 1" not in shell.before
    shell.sendline("echo code=$?")
    shell.expect_exact("code=130")


def test_instance_that_is_started_anew_has_the_terminal(shell, tmp_path):
    once = f"test -e {tmp_path}/once || {{ touch {tmp_path}/once; exit 3; }}"
    shell.sendline(
        f"{XLAUNCH} --on-failure restart -q -- "
        f'sh -c \'{once}; echo a""sk; read line; echo g""ot $line\''
    )
    shell.expect_exact("restart 1 of 3")
    shell.expect_exact("ask")
    shell.sendline("a word")
    shell.expect_exact("got a word")
    assert exit_code(shell) == 0


def test_terminal_is_given_back(shell):
    shell.sendline(f"{XLAUNCH} --supervise -q true; read -p 'wo\"\"rd? ' word; echo word=$word")
    shell.expect_exact('wo""rd? ')
    shell.expect_exact('wo""rd? ')
    shell.sendline("given")
    shell.expect_exact("word=given")


@pytest.fixture(params=["session leader", "PID 1"])
def without_shell(
    request: pytest.FixtureRequest, needs: Callable[[object, str], None]
) -> Iterator[Callable[..., pexpect.spawn]]:
    """Start xlaunch as the session leader of a terminal or, as in a container, as PID 1."""
    words = [*XLAUNCH.split(), "-q"]
    if request.param == "PID 1":
        unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
        done = subprocess.run([*unshare, "true"], capture_output=True, check=False)
        needs(done.returncode == 0, "unshare (util-linux), as root")
        words = [*unshare, *words]
    spawned = []

    def start(layout: str, program: str) -> pexpect.spawn:
        options = [*words[1:], *layout.split(), "sh", "-c", program]
        spawned.append(pexpect.spawn(words[0], options, timeout=20, encoding="utf-8"))
        for _ in range(LAYOUTS[layout]):
            spawned[-1].expect_exact("started")
        return spawned[-1]

    yield start
    for child in spawned:
        child.close(force=True)


def ended_by_interrupt(child: pexpect.spawn) -> bool:
    child.expect(pexpect.EOF)
    child.wait()
    return child.signalstatus == 2 or child.exitstatus == 130


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ctrl_c_without_a_shell(without_shell, layout):
    child = without_shell(layout, "echo started; exec sleep 600")
    child.sendintr()
    assert ended_by_interrupt(child)
    assert "supervisor was ended" not in child.before


def test_ctrl_z_without_a_shell_does_not_stop_one(without_shell):
    child = without_shell("--supervise", "echo started; read line; echo got $line")
    child.sendcontrol("z")
    child.sendline("a word")
    child.expect_exact("got a word")
    child.expect(pexpect.EOF)
    assert child.wait() == 0


def test_ctrl_z_without_a_shell_does_not_stop_several(without_shell):
    child = without_shell(SEVERAL, "echo started; exec sleep 600")
    child.sendcontrol("z")
    child.sendintr()
    assert ended_by_interrupt(child)
