# SPDX-License-Identifier: Apache-2.0
"""Exit codes: the program's own wherever it ran, and a code of its own for each reason it did not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.launcher.cli.commands import XLAUNCH, ask, program, run, xlaunch
from tests.tiers import quick_first

SEVERAL = ("--instances", "2", "--ncores", "1", "--oversubscribe", "-q")
HOW = pytest.mark.parametrize(
    "options",
    [(), ("--supervise", "-q"), ("--tag", "-q"), SEVERAL],
    ids=["in place", "supervised", "relayed", "several"],
)


@HOW
@pytest.mark.parametrize("code", quick_first([2, 0, 125]))
def test_program_s_own(options: tuple[str, ...], code: int):
    assert xlaunch(*options, "sh", "-c", f"exit {code}").code == code


def test_program_s_own_where_the_working_directory_was_removed(tmp_path: Path):
    done = xlaunch("--report", "r.json", "-q", "sh", "-c", 'rmdir "$PWD"; exit 3', cwd=tmp_path)
    assert (done.code, done.err) == (3, "xlaunch: --report: [Errno 2] No such file or directory\n")


@pytest.mark.parametrize("options", [("--cache-dir", "d"), ("--allocator", "./l.so")])
def test_paths_below_a_working_directory_that_was_removed(tmp_path: Path, options: tuple[str, str]):
    here = tmp_path / "here"
    here.mkdir()
    done = run(("sh", "-c", 'rmdir "$PWD"; exec "$@"', "sh", *XLAUNCH, *options, "true"), cwd=here)
    assert done.code == 2
    assert "error: the working directory has been removed" in done.err


@HOW
@pytest.mark.parametrize("name", quick_first(["KILL", "TERM", "SEGV", "RTMIN+3"]))
def test_signal(options: tuple[str, ...], name: str):
    """128 + n as a shell tells it; in place there is nobody in between to say so."""
    number = int(run(("bash", "-c", f"kill -l {name}")).out)
    line = f"ulimit -c 0; kill -{number} $$"
    if options:
        assert xlaunch(*options, "sh", "-c", line).code == 128 + number
    else:
        assert xlaunch("sh", "-c", line).code == -number


@HOW
def test_program_that_does_not_exist(tmp_path: Path, options: tuple[str, ...]):
    gone = str(tmp_path / "gone")
    for name in ("no-such-program", gone, f"{gone}.py", f"{gone}/below", "/bin/sh/below.py", ""):
        ask(*options, "--", name).refused(127)


@HOW
def test_program_that_cannot_be_run(tmp_path: Path, options: tuple[str, ...]):
    plain = tmp_path / "plain"
    plain.write_text("#!/bin/sh\n")
    (tmp_path / "directory.py").mkdir()
    for name in (plain, tmp_path, f"{tmp_path}/", tmp_path / "directory.py", "."):
        ask(*options, name, cwd=tmp_path).refused(126)


@HOW
def test_interpreter_that_a_script_names_is_gone(tmp_path: Path, options: tuple[str, ...]):
    script = program(tmp_path / "script", "#!/no/such/interpreter\n")
    done = xlaunch(*options, script)
    assert done.code == 127
    assert "the interpreter that it names" in done.err


def test_name_too_long_for_the_system():
    ask("x" * 5000).refused(127)
    ask(f"/{'x' * 5000}").refused(126)


def test_usage_is_2():
    ask().refused(2)
    ask("--instances", "nought", "true").refused(2)


@pytest.mark.parametrize("options", [("-q",), SEVERAL])
def test_timeout_is_124(options: tuple[str, ...]):
    assert xlaunch(*options, "--timeout", "200ms", "sleep", "600").code == 124


def test_timeout_kills_after_grace():
    stubborn = ("sh", "-c", "trap '' TERM; while :; do sleep 0.05; done")
    done = xlaunch("--timeout", "300ms", "--grace", "200ms", *stubborn)
    assert done.code == 124
    assert "timeout after 0.3 s" in done.err
    assert "SIGKILL" in done.err


def test_grace_of_nothing_kills_at_once():
    stubborn = ("sh", "-c", "trap '' TERM; while :; do sleep 0.05; done")
    assert xlaunch("--timeout", "300ms", "--grace", "0", "-q", *stubborn).code == 124


def test_program_that_ends_in_time_knows_no_timeout():
    assert xlaunch("--timeout", "1h", "-q", "sh", "-c", "exit 4").code == 4


FIRST_FAILS = "test $XLAUNCH_INSTANCE_INDEX = 1 && exit 5; "


def test_first_failure_ends_the_others_and_is_the_exit_code():
    done = xlaunch(*SEVERAL, "sh", "-c", f"{FIRST_FAILS} sleep 600; exit 6")
    assert done.code == 5


def test_failure_that_ends_nobody(tmp_path: Path):
    """The others end by themselves, well; the code is still that of the first failure."""
    line = f"{FIRST_FAILS} until mkdir {tmp_path}/end 2>&-; do sleep 0.05; done; exit 0"
    done = xlaunch(*SEVERAL, "--on-failure", "continue", "sh", "-c", line)
    assert (done.code, (tmp_path / "end").is_dir()) == (5, True)


def test_first_of_several_failures_is_the_exit_code(tmp_path: Path):
    line = (
        f"test $XLAUNCH_INSTANCE_INDEX = 1 && {{ mkdir {tmp_path}/first; exit 5; }};"
        f"until test -d {tmp_path}/first; do sleep 0.05; done; sleep 0.2; exit 6"
    )
    assert xlaunch(*SEVERAL, "--on-failure", "continue", "sh", "-c", line).code == 5


def test_python_program_s_own(tmp_path: Path):
    for text, code in (("raise SystemExit(9)", 9), ("1 / 0", 1)):
        (tmp_path / "program.py").write_text(text)
        assert xlaunch(tmp_path / "program.py").code == code


def test_in_place_means_in_place():
    """The process that was started is the program: no wrapper stays."""
    line = '"$@" & wait $!; echo $!'
    command = (sys.executable, "-m", "xlaunch", "sh", "-c", "echo $$")
    first, second = run(("bash", "-c", line, "bash", *command)).out.split()
    assert first == second
