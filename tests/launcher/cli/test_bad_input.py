# SPDX-License-Identifier: Apache-2.0
"""A wrong command line is one line on standard error and an exit code; nothing starts, nothing is made."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.launcher.cli.commands import SHOW, allowed_cpus, one_error_line, xlaunch
from tests.launcher.machine.trees import CPU, write_files

from xlaunch.cli import run

MANY_DIGITS = "9" * 5000
COUNTS = ("0", "000", "1048577", "-1", "1.5", "one", "MAXIMUM", "", " ", "1 ", "+1", "0x2", "1e1", "٣", MANY_DIGITS)  # fmt: skip
LISTS = ("", " ", ",", "1-", "-1", "a", "0-", "0--1", "3-1", "0-3:0", "0:1:2", "0;1", "0,,1", "1.0", "0-3:", "٣", MANY_DIGITS)  # fmt: skip
TIMES = ("", "soon", "-1", "1 x", "1x", "1hm", "nan", "inf", "-inf", "1e999", "s", "1,5", MANY_DIGITS)  # fmt: skip
WORDS = ("", "x", "LATENCIES", "latency ", "no", "\n")

# Options of one kind share the function that reads them, so one of each kind gets all values.
WRONG_VALUES = [
    *(("--ncores", value) for value in COUNTS),
    *(("--cpus", value) for value in LISTS),
    *(("--timeout", value) for value in (*TIMES, "0", "0s", "1_0", "٣", "2 weeks")),
    *(("--mode", value) for value in WORDS),
    ("--instances", "0"),
    ("--reserve-cores", "-1"),
    ("--numa-nodes", "1-"),
    ("--instance-index", "1-"),
    ("--grace", "-1"),
    *((option, "x") for option in ("--place", "--ecores", "--mem-policy", "--on-failure")),
    *(("--env", value) for value in ("", "A", "=", "=1")),
    *(
        ("--python", value)
        for value in ("", "/no/such/python", "no-such-python", "/", "/etc/passwd")
    ),
    ("--cache-dir", ""),
]

UNHAVABLE = [
    ("--cpus", "999999"),
    ("--cpus", "0-999999"),
    ("--numa-nodes", "999999"),
    ("--ncores", "1048576"),
    ("--instances", "1048576"),
    ("--instances", "2", "--ncores", "524288"),
    ("--instances", "max", "--ncores", "1048576"),
    ("--ncores", "max", "--instances", "1048576"),
    ("--instances", "1048576", "--oversubscribe"),
    ("--ncores", "1048576", "--oversubscribe"),
    ("--reserve-cores", "1048576"),
    ("--instance-index", "1"),
    ("--instance-index", "0-1048575"),
    ("--instances", "1", "--ncores", "1", "--instance-index", "0,1"),
]

CONTRADICTIONS = [
    ("--cache-dir", "x", "--no-cache"),
    ("--instances", "max", "--ncores", "max"),
    ("--mode", "latency", "--instances", "2"),
    ("--mode", "throughput", "--ncores", "1"),
    ("--quiet", "--verbose"),
    ("--quiet", "--explain"),
    ("--module", "--no-python"),
    ("--sysroot", "/"),
    ("--sysroot", "/no/such/machine", "--dry-run"),
    ("--synthetic", "core:2"),
    ("--synthetic", "core:2", "--sysroot", "/", "--dry-run"),
    ("--synthetic", "nonsense", "--dry-run"),
]

UNKNOWN = [
    ("--nocores", "--ncores"),
    ("--instance", "--instances"),
    ("--core", "--ncores"),
    ("--time-out", "--timeout"),
    ("--logdir", "--log-dir"),
    ("--explian", "--explain"),
    ("--no-tags", "--no-tag"),
]


@pytest.fixture
def refused(
    no_program_starts: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    """`refused(words, code)`: the text of the one line that a command line is refused with."""
    monkeypatch.chdir(tmp_path)

    def check(words: tuple[str, ...], code: int = 2) -> str:
        before = sorted(tmp_path.rglob("*"))
        assert run(words) == code
        out, err = capfd.readouterr()
        assert out == ""
        assert sorted(tmp_path.rglob("*")) == before
        return one_error_line(err)

    return check


def label(value: object) -> str:
    return (" ".join(value) if isinstance(value, tuple) else str(value))[:40]


@pytest.mark.parametrize(("option", "value"), WRONG_VALUES, ids=label)
def test_wrong_value(refused, option: str, value: str):
    assert option in refused((option, value, str(SHOW)))
    assert option in refused(("plan", f"{option}={value}", str(SHOW)))


def test_empty_name_of_a_directory_is_no_default(refused):
    assert refused(("--cache-dir", "", "true")) == (
        "Invalid value for '--cache-dir': the directory's name is empty; leave the option out for "
        "the default; 'xlaunch --help' lists the options"
    )


@pytest.mark.parametrize("words", UNHAVABLE, ids=label)
def test_what_is_not_to_be_had(refused, words: tuple[str, ...]):
    line = refused((*words, "true"))
    assert refused(("plan", *words)) == line
    assert refused(("--dry-run", *words, "true")) == line


@pytest.mark.parametrize("words", CONTRADICTIONS, ids=label)
def test_contradiction(refused, words: tuple[str, ...]):
    line = refused((*words, "true"))
    if "--sysroot" not in words and "--synthetic" not in words:
        assert refused(("plan", *words, "true")) == line


@pytest.mark.parametrize(("wrong", "right"), UNKNOWN)
def test_unknown_option_gets_the_nearest_name(refused, wrong: str, right: str):
    for words in ((wrong, "4", "true"), (f"{wrong}=4", "true"), ("plan", wrong)):
        line = refused(words)
        assert f"no option {wrong}" in line
        assert right in line.partition("did you mean")[2]


def test_unknown_option_of_a_launch_alone(refused):
    assert "--dry-run" in refused(("--dryrun", "true"))


@pytest.mark.parametrize("wrong", ["--", "---x", "-x", "-qx", "-m7", "--\n", "--é", "--=1", "-é"])
def test_unknown_option_without_a_near_name(refused, wrong: str):
    refused((wrong,))


@pytest.mark.parametrize("option", ["--smt", "--dry-run", "--supervise", "-q", "--tag"])
def test_flag_takes_no_value(refused, option: str):
    refused((f"{option}=1" if option != "-q" else "-q=1", "true"))


@pytest.mark.parametrize("option", ["--instances", "--cpus", "--env", "--report", "--timeout"])
def test_value_is_missing(refused, option: str):
    assert option in refused((option,))
    assert option in refused(("plan", option))


def test_nothing_to_run(refused):
    for words in ((), ("--",), ("-m",), ("--smt",), ("--ncores", "1", "--")):
        assert "usage: xlaunch" in refused(words)


@pytest.mark.parametrize(
    "options",
    [(), ("--supervise", "-q"), ("--instances", "2", "--ncores", "1", "--oversubscribe")],
    ids=["in place", "supervised", "several"],
)
def test_program_cannot_be_run(refused, tmp_path: Path, options: tuple[str, ...]):
    plain = tmp_path / "plain"
    plain.write_text("#!/bin/sh\n")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "directory.py").mkdir()
    for name in (
        *("", "no-such-program", "./gone", "gone.py", "plain/below", "plain/below.py"),
        *("/bin/sh/below.py", "./loop.py/x", "x" * 5000),
    ):
        refused((*options, "--", name), 127)
        refused(("plan", "--", name), 127)
    too_long = f"./{'x' * 300}", f"/{'x' * 5000}"
    for name in (".", "./plain", str(plain), "/", "./loop", "directory.py", *too_long):
        refused((*options, name), 126)


def test_message_names_what_is_wrong_and_what_would_do(refused):
    cpu = allowed_cpus()[-1]
    assert "999999" in refused(("--cpus", f"{cpu},999999", "true"))
    assert "does not exist" in refused(("./gone",), 127)
    assert "is a directory" in refused(("/",), 126)
    assert "chmod +x" in refused(("/etc/passwd",), 126)
    assert "at most" in refused(("--ncores", "1048576", "true"))
    assert "PATH" in refused(("no-such-program",), 127)
    assert "'python -'" in refused(("-",), 127)
    assert "'python -c CODE'" in refused(("-c", "print(1)"))


def test_file_that_lies_in_this_directory_is_hinted_at(refused, tmp_path: Path):
    (tmp_path / "here").write_text("")
    assert "./here" in refused(("here",), 127)


def test_logs_and_report_that_cannot_be_had(refused, tmp_path: Path):
    (tmp_path / "file").write_text("")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "astray").symlink_to("gone/report.json")
    for words in (
        ("--log-dir", "file"),
        ("--log-dir", "file/below"),
        ("--log-dir", ""),
        ("--report", "file/below"),
        ("--report", "."),
        ("--report", "gone/report.json"),
        ("--report", ""),
        ("--report", "circle"),
        ("--report", "astray"),
        ("--report", "x" * 300),
        ("--log-dir", "logs", "--report", "gone/report.json"),
    ):
        assert refused((*words, "true")).startswith(words[-2])


def test_wrong_program_makes_no_log_directory(refused):
    refused(("--log-dir", "logs", "--report", "report.json", "no-such-program"), 127)


def test_topology_refuses_in_one_line_too(refused, tmp_path: Path):
    for words in (
        ("--nonsense",),
        ("word",),
        ("--sysroot",),
        ("--sysroot", ""),
        ("--sysroot", "gone"),
        ("--synthetic", ""),
        ("--synthetic", "core"),
        ("--synthetic", f"core:{MANY_DIGITS}"),
        ("--synthetic", "core:0"),
        ("--sysroot", "/", "--synthetic", "core:1"),
        ("--capture", "gone/file.tar.xz"),
        ("--capture", "."),
        ("--capture", ""),
        ("--capture", "x.tar.xz", "--json"),
    ):
        refused(("topology", *words))


def test_damaged_machine_is_refused_or_shown(refused, tmp_path: Path):
    root = write_files(tmp_path, {f"{CPU}/online": "junk", f"{CPU}/cpu0/": ""})
    assert run(("plan", "--sysroot", root)) in (0, 2)


@pytest.mark.parametrize(
    "words",
    [
        ("--cpus", "999999", "true"),
        (b"--\xff", "true"),
        ("--ncores", b"\xff\n\xfe", "true"),
        ("plan", "--mode", "x"),
    ],
    ids=str,
)
def test_whole_command_says_the_same(tmp_path: Path, words: tuple[str | bytes, ...]):
    """What the tests above ask of a function holds for the process."""
    xlaunch(*words, cwd=tmp_path).refused(2)
    assert not list(tmp_path.iterdir())
