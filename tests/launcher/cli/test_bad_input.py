# SPDX-License-Identifier: Apache-2.0
"""A wrong command line is one line on standard error and an exit code; nothing starts, nothing is made."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import SHOW, allowed_cpus, one_error_line, xlaunch
from tests.launcher.machine.trees import CPU, write_files

from xlaunch.cli import run

MANY_DIGITS = "9" * 5000

# Options of one kind share the function that reads them, so one of each kind gets all values.
WRONG_VALUES = {
    "--ncores": ("0", "000", "1048577", "-1", "1.5", "one", "MAXIMUM", "", " ", "1 ", "+1", "0x2", "1e1", "٣", MANY_DIGITS),
    "--cpus": ("", " ", ",", "1-", "-1", "a", "0-", "0--1", "3-1", "0-3:0", "0:1:2", "0;1", "0,,1", "1.0", "0-3:", "٣", MANY_DIGITS),
    "--timeout": ("", "soon", "-1", "1 x", "1x", "1hm", "nan", "inf", "-inf", "1e999", "s", "1,5", "0", "0s", "1_0", "٣", "2 weeks", MANY_DIGITS),
    "--mode": ("", "x", "LATENCIES", "latency ", "no", "\n"),
    "--env": ("", "A", "=", "=1"),
    "--python": ("", "/no/such/python", "no-such-python", "/", "/etc/passwd"),
    "--cache-dir": ("",),
    "--instances": ("0",), "--reserve-cores": ("-1",), "--numa-nodes": ("1-",), "--instance-index": ("1-",),
    "--grace": ("-1",), "--place": ("x",), "--ecores": ("x",), "--mem-policy": ("x",), "--on-failure": ("x",),
}  # fmt: skip

UNHAVABLE = (
    "--cpus 999999", "--cpus 0-99999", "--numa-nodes 999999", "--ncores 1048576", "--instances 1048576",
    "--instances 2 --ncores 524288", "--instances max --ncores 1048576", "--ncores max --instances 1048576",
    "--instances 1048576 --oversubscribe", "--ncores 1048576 --oversubscribe", "--reserve-cores 1048576",
    "--instance-index 1", "--instance-index 0-99999", "--instances 1 --ncores 1 --instance-index 0,1",
)  # fmt: skip
CONTRADICTIONS = (
    "--cache-dir x --no-cache", "--instances max --ncores max", "--mode latency --instances 2",
    "--mode throughput --ncores 1", "--quiet --verbose", "--quiet --explain", "--module --no-python",
)  # fmt: skip
OF_OTHER_MACHINES = (
    "--sysroot /", "--sysroot /no/such/machine --dry-run", "--synthetic core:2",
    "--synthetic core:2 --sysroot / --dry-run", "--synthetic nonsense --dry-run",
)  # fmt: skip

OF_PYTHON = (
    ["--cache-dir", "a\0b", "true"], ["--log-dir=a\0b", "true"], ["--report", "a\0b", "true"],
    ["--preset", "a\0b", "true"], ["--python", "a\0b", "true"], ["--sysroot", "a\0b", "--dry-run"],
    ["--env", "A=a\0b", "true"], ["true", "a\0b"], ["plan", "--sysroot", "a\0b"],
    ["topology", "--capture", "a\0b.tar.xz"], ["cache", "ls", "--cache-dir", "a\0b"],
    ["cache", "import", "a\0b"], ["doctor", "a\0b.py"], ["--cache-dir", "a\ud800b", "true"],
)  # fmt: skip
"""Command lines that only a caller within Python can give."""

UNKNOWN = (
    "--nocores", "--instance", "--core", "--time-out", "--logdir", "--explian", "--dryrun", "--no-tags", "--no-smtt",
    # By meaning:
    "--membind", "--cpunodebind", "--physcpubind", "--nproc", "--num_threads", "--gpus", "--disable-numa", "-C",
    "-e", "--doctor", "--topology",
    # A wrong guess is worse than none:
    "--shell", "--port", "--frobnicate",
)  # fmt: skip
ANSWERS = (
    "--optimize hi.py", "-np 2 hi.py", "-c 0-1 hi.py", "--cores=0-1 hi.py", "--rdzv-backend c10d hi.py", "--int8 hi.py",
    "--bind-to core hi.py", "--trials 10 hi.py", "--port 80 hi.py", "run hi.py", "plan --trials 10",
    "topology --cpunodebind 0",
)  # fmt: skip
"""Mistakes that have an answer of their own."""

NOT_FOUND = (
    "list", "status", "tune hi.py", "hi.yp", "h.py", "hi", "./hi.pyy", "'python hi.py'", "gone/hi.py",
)  # fmt: skip
"""The same, of programs that do not exist."""

Refused = Callable[..., str]


@pytest.fixture
def refused(
    no_program_starts: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Refused:
    """`refused(words, code)`: the text of the one line that a command line is refused with."""
    monkeypatch.chdir(tmp_path)

    def check(words: tuple[str, ...], code: int = 2) -> str:
        before = sorted(tmp_path.rglob("*"))
        assert run(words) == code, words
        out, err = capfd.readouterr()
        assert out == "", words
        assert sorted(tmp_path.rglob("*")) == before, words
        return one_error_line(err)

    return check


@pytest.mark.parametrize("option", WRONG_VALUES)
def test_wrong_value(refused: Refused, option: str):
    for value in WRONG_VALUES[option]:
        assert option in refused((option, value, str(SHOW)))
        assert option in refused(("plan", f"{option}={value}", str(SHOW)))


@pytest.mark.parametrize("words", OF_PYTHON)
def test_what_no_path_and_no_argument_can_hold(refused: Refused, words: list[str]):
    line = refused(words)
    assert line.endswith(("holds a null character", "cannot be written in this system's encoding"))


@pytest.mark.parametrize("options", [*UNHAVABLE, *CONTRADICTIONS])
def test_what_is_not_to_be_had(refused: Refused, options: str):
    words = (*options.split(), "true")
    assert refused(words) == refused(("plan", *words)) == refused(("--dry-run", *words))


def test_another_machine_is_for_plans_only(refused: Refused):
    for options in OF_OTHER_MACHINES:
        line = refused((*options.split(), "true"))
        assert ("--dry-run" in line) or ("--dry-run" in options)


def test_unknown_option_gets_the_nearest_name(golden: Golden, refused: Refused):
    lines = [refused((wrong, "4", "true")) for wrong in UNKNOWN]
    golden(lines)
    for wrong, line in zip(UNKNOWN, lines, strict=True):
        assert line == refused((f"{wrong}=4", "true"))
        assert refused(("plan", wrong)).startswith(line.partition(";")[0])


def test_known_mistakes_are_answered(
    golden: Golden, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "hi.py").write_text("")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    said = [(words, refused(tuple(shlex.split(words)))) for words in ANSWERS]
    said += [(words, refused(tuple(shlex.split(words)), 127)) for words in NOT_FOUND]
    golden([f"$ xlaunch {words}\n{line}" for words, line in said])


def test_xlaunch_alone_shows_what_to_type(capfd: pytest.CaptureFixture[str]):
    assert run(()) == 2
    out, err = capfd.readouterr()
    assert out == ""
    for words in ("xlaunch train.py", "xlaunch doctor", "xlaunch --help"):
        assert f"\n  {words}  " in err
    assert max(map(len, err.splitlines())) <= 80


def test_what_is_no_option_flag_or_value(refused: Refused):
    for wrong in ("--", "---x", "-x", "-qx", "-m7", "--\n", "--é", "--=1", "-é"):
        refused((wrong,))
    for flag in ("--smt", "--dry-run", "--supervise", "-q", "--tag"):
        refused((f"{flag}=1", "true"))
    for option in ("--instances", "--cpus", "--env", "--report", "--timeout"):
        assert option in refused((option,))
        assert option in refused(("plan", option))
    for words in (("--",), ("-m",), ("--smt",), ("--ncores", "1", "--")):
        assert "usage: xlaunch" in refused(words)


@pytest.mark.parametrize(
    "options", ["", "--supervise -q", "--instances 2 --ncores 1 --oversubscribe"]
)
def test_program_cannot_be_run(refused: Refused, tmp_path: Path, options: str):
    for name in ("plain", "here", "script.py"):
        (tmp_path / name).write_text("#!/bin/sh\n")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "directory.py").mkdir()
    for name in (
        "", "no-such-program", "./gone", "gone.py", "plain/below", "plain/below.py", "script.py/below.py",
        "/bin/sh/below.py", "./loop.py/x", "x" * 5000, "nul\0byte", "./nul\0byte", "nul\0byte.py", "\udc80.py",
    ):  # fmt: skip
        refused((*options.split(), "--", name), 127)
        refused(("plan", "--", name), 127)
    too_long = f"./{'x' * 300}", f"/{'x' * 5000}"
    for name in (".", "./plain", str(tmp_path / "plain"), "/", "./loop", "directory.py", *too_long):
        refused((*options.split(), name), 126)


def test_message_names_what_is_wrong_and_what_would_do(
    golden: Golden, refused: Refused, tmp_path: Path
):
    (tmp_path / "here").touch()
    assert "999999" in refused(("--cpus", f"{allowed_cpus()[-1]},999999", "true"), 2)
    assert "at most" in refused(("--ncores", "1048576", "true"), 2)
    said = []
    for words, code in (
        (("--cache-dir", "", "true"), 2), (("./gone",), 127), (("no-such-program",), 127), (("here",), 127),
        (("/",), 126), (("/etc/passwd",), 126), (("-",), 127), (("-c", "print(1)"), 2),
    ):  # fmt: skip
        said += [f"$ xlaunch {shlex.join(words)} ({code})", refused(words, code)]
    golden(said)


def test_a_named_pipe_is_refused_at_once(
    golden: Golden, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pipe, settings = tmp_path / "pipe", tmp_path / "xlaunch/config.toml"
    settings.parent.mkdir()
    for path in (pipe, settings):
        os.mkfifo(path, 0o700)
    for words in (
        ("plan", "--preset", "./pipe"), ("plan", "--sysroot", "pipe"), ("doctor", "--sysroot", "pipe"),
        ("cache", "import", "pipe"), ("--allocator", str(pipe), "true"), ("--omp", str(pipe), "true"),
    ):  # fmt: skip
        golden(refused(words))
    golden(refused(("./pipe",), 126))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    golden(refused(("true",)))


def test_logs_and_report_that_cannot_be_had(refused: Refused, tmp_path: Path):
    (tmp_path / "file").write_text("")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "astray").symlink_to("gone/report.json")
    reports = ("file/below", ".", "gone/report.json", "", "-", "circle", "astray", "x" * 300)
    for option, paths in (("--log-dir", ("file", "file/below", "")), ("--report", reports)):
        for path in paths:
            assert refused((option, path, "true")).startswith(option), path
    # Nor is the one made before the other is looked at, or the program.
    both = ("--log-dir", "logs", "--report")
    assert refused((*both, "gone/report.json", "true")).startswith("--report")
    refused((*both, "report.json", "no-such-program"), 127)


def test_topology_refuses_in_one_line_too(refused: Refused):
    for words in (
        ("--nonsense",), ("word",), ("--sysroot",), ("--sysroot", ""), ("--sysroot", "gone"),
        ("--synthetic", ""), ("--synthetic", "core"), ("--synthetic", f"core:{MANY_DIGITS}"),
        ("--synthetic", "core:0"), ("--sysroot", "/", "--synthetic", "core:1"), ("--capture", ""),
        ("--capture", "gone/file.tar.xz"), ("--capture", "."), ("--capture", "x.tar.xz", "--json"),
    ):  # fmt: skip
        refused(("topology", *words))


def test_damaged_machine_is_refused_or_shown(refused: Refused, tmp_path: Path):
    root = write_files(tmp_path, {f"{CPU}/online": "junk", f"{CPU}/cpu0/": ""})
    assert run(("plan", "--sysroot", root)) in (0, 2)


def test_whole_command_says_the_same(tmp_path: Path):
    """What the tests above ask of a function holds for the process."""
    for words in (("--cpus", "999999", "true"), ("--ncores", b"\xff\n\xfe", "true")):
        xlaunch(*words, cwd=tmp_path).refused(2)
    assert not list(tmp_path.iterdir())
