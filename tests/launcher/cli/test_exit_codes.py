# SPDX-License-Identifier: Apache-2.0
"""Exit codes: the program's own wherever it ran, and a code of its own for each reason it did not."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import XLAUNCH, program, run, xlaunch
from tests.tiers import quick_first

SEVERAL = ("--instances", "2", "--ncores", "1", "--oversubscribe", "-q")
HOW = pytest.mark.parametrize(
    "options",
    [(), ("--supervise", "-q"), ("--tag", "-q"), SEVERAL],
    ids=["in place", "supervised", "relayed", "several"],
)


@HOW
def test_program_s_own(options: tuple[str, ...]):
    """Also if it is one that xlaunch uses."""
    assert xlaunch(*options, "sh", "-c", "exit 125").code == 125


@pytest.mark.parametrize(
    "options", [("--cache-dir", "d"), ("--allocator", "./l.so"), ("--report", "r.json")]
)
def test_paths_below_a_working_directory_that_was_removed(
    golden: Golden, tmp_path: Path, options: tuple[str, str]
):
    here = tmp_path / "here"
    here.mkdir()
    done = run(("sh", "-c", 'rmdir "$PWD"; exec "$@"', "sh", *XLAUNCH, *options, "true"), cwd=here)
    assert done.code == 2
    golden(done.err)


@HOW
@pytest.mark.parametrize("number", quick_first([signal.SIGKILL, signal.SIGRTMIN + 3]))
def test_signal(options: tuple[str, ...], number: int):
    """128 + n as a shell tells it; in place there is nobody in between to say so."""
    done = xlaunch(*options, "sh", "-c", f"kill -{number} $$")
    assert done.code == (128 + number if options else -number)


@pytest.mark.parametrize("options", [(), SEVERAL], ids=["in place", "several"])
def test_interpreter_that_a_script_names_is_gone(
    golden: Golden, tmp_path: Path, options: tuple[str, ...]
):
    for line in ("#!/no/such/interpreter -x\n", "#!/bin/sh\r\n"):
        script = program(tmp_path / "script", line)
        done = xlaunch(*options, script)
        assert done.code == 127
        # The first of several that fails may stop another before it does.
        golden(done.err.splitlines()[0], hide=r"instance \d: ")


STUBBORN = "trap '' TERM; while :; do sleep 0.05; done"


@pytest.mark.parametrize(
    ("options", "line", "said"),
    [
        (("-q", "--timeout", "200ms"), "exec sleep 600", ()),
        ((*SEVERAL, "--timeout", "200ms"), "exec sleep 600", ()),
        (("--timeout", "300ms", "--grace", "200ms"), STUBBORN, ("timeout after 0.3 s", "SIGKILL")),
        (("--timeout", "300ms", "--grace", "0", "-q"), STUBBORN, ()),
    ],
    ids=["one", "several", "killed after grace", "killed at once"],
)
def test_timeout_is_124(options: tuple[str, ...], line: str, said: tuple[str, ...]):
    done = xlaunch(*options, "sh", "-c", line)
    assert done.code == 124
    assert all(words in done.err for words in said)


def test_program_that_ends_in_time_knows_no_timeout():
    assert xlaunch("--timeout", "1h", "-q", "sh", "-c", "exit 4").code == 4


@pytest.mark.parametrize(
    ("options", "instance_1", "instance_0", "ended_by_itself"),
    [
        ((), "exit 5", "sleep 600; exit 6", False),
        # The others end by themselves, well or later; the code is still that of the first failure.
        (("--on-failure", "continue"), "exit 5", "touch end", True),
        (
            ("--on-failure", "continue"),
            "touch first; exit 5",
            "until test -e first; do sleep 0.05; done; sleep 0.2; touch end; exit 6",
            True,
        ),
    ],
    ids=["the others are ended", "the other ends well", "the other fails later"],
)
def test_first_failure_is_the_exit_code(
    tmp_path: Path, options: tuple[str, ...], instance_1: str, instance_0: str, ended_by_itself: bool
):  # fmt: skip
    line = f"if test $XLAUNCH_INSTANCE_INDEX = 1; then {instance_1}; else {instance_0}; fi"
    done = xlaunch(*SEVERAL, *options, "sh", "-c", line, cwd=tmp_path)
    assert (done.code, (tmp_path / "end").exists()) == (5, ended_by_itself)


def test_in_place_means_in_place():
    """The process that was started is the program: no wrapper stays."""
    line = '"$@" & wait $!; echo $!'
    command = (sys.executable, "-m", "xlaunch", "sh", "-c", "echo $$")
    first, second = run(("bash", "-c", line, "bash", *command)).out.split()
    assert first == second
