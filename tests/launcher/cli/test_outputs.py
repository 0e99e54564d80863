# SPDX-License-Identifier: Apache-2.0
"""What a run leaves: logs and reports where they were asked for, and nothing where they cannot be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import PATIENCE_S, XLAUNCH, clean_environment, run, xlaunch
from tests.launcher.launching import children_of, is_alive, wait_until

SEVERAL = ("--instances", "2", "--ncores", "1", "--oversubscribe", "-q")
# CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH leave the bounding set: root is held to permissions as
# anybody else is; whoever is not root does not have them anyway.
DROP_POWERS = """
import ctypes, os, sys
for power in (1, 2):
    ctypes.CDLL(None).prctl(24, power, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
WITHOUT_ROOT_S_POWERS = (sys.executable, "-c", DROP_POWERS)


def report_of(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def entries(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


# Logs


def test_log_directory_is_made_with_its_parents_and_may_have_any_name(tmp_path: Path):
    logs = os.fsencode(tmp_path) + b"/two words\n\xff/below"
    done = xlaunch(*SEVERAL, "--log-dir", logs, "sh", "-c", "echo out; echo err >&2")
    assert done == (0, b"", "")
    found = {name.name: Path(name.path).read_text() for name in os.scandir(os.fsdecode(logs))}
    assert found == {
        f"instance-{index}.{stream}": f"{stream}\n" for index in (0, 1) for stream in ("out", "err")
    }


def test_what_this_user_may_not_write_is_told_before_anything_starts(tmp_path: Path):
    """Other mistakes in these options are in test_bad_input.py."""
    locked, file = tmp_path / "locked", tmp_path / "file"
    locked.mkdir(mode=0o555)
    file.touch(0o444)
    for option, path in (
        ("--log-dir", locked),
        ("--log-dir", locked / "below"),
        ("--report", locked / "new"),
        ("--report", file),
    ):
        command = (*WITHOUT_ROOT_S_POWERS, *XLAUNCH, option, path, "touch", tmp_path / "ran")
        assert run(command).refused().startswith(f"{option}: "), path
    assert entries(tmp_path) == ["file", "locked"]


def test_log_file_that_cannot_be_had_starts_nothing_more(golden: Golden, tmp_path: Path):
    (tmp_path / "instance-1.out").write_text("an earlier run")
    (tmp_path / "instance-1.out.1" / "in the way").mkdir(parents=True)
    command = ("sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.05; done")
    done = xlaunch(*SEVERAL, "--log-dir", tmp_path, *command)
    assert done.code == 125
    golden(done.err)


# Reports


@pytest.mark.parametrize("options", [(), SEVERAL])
def test_report(tmp_path: Path, options: tuple[str, ...]):
    path = tmp_path / "report.json"
    # The failure of one ends the others by default, perhaps before they have ended by themselves.
    options = ("--on-failure", "continue", *options)
    done = xlaunch(*options, "-q", "--report", path, "sh", "-c", "exit $XLAUNCH_INSTANCE_INDEX")
    values = report_of(path)
    assert (done.code, done.err) == (values["exit_code"], "")
    assert [one["exit_code"] for one in values["instances"]] == [0, 1][: len(values["instances"])]
    assert len(values["instances"]) == (2 if "--instances" in options else 1)
    assert entries(tmp_path) == ["report.json"]


def test_report_takes_the_place_of_an_earlier_one_through_a_link(tmp_path: Path):
    (tmp_path / "kept").mkdir()
    link, file = tmp_path / "latest.json", tmp_path / "kept" / "report.json"
    link.symlink_to("kept/report.json")
    for earlier in ("", '{"schema_version": 1, "argv": []' + " " * 100_000):
        if earlier:
            file.write_text(earlier)
        assert xlaunch("--report", link, "-q", "true", b"\xff", "ü").code == 0
        assert link.is_symlink()
        assert report_of(file)["argv"] == ["true", "\\udcff", "ü"]
    assert entries(tmp_path) == ["kept", "kept/report.json", "latest.json"]


def test_report_to_a_fifo(tmp_path: Path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(fifo.read_text()))
    reader.start()
    done = xlaunch("--report", fifo, "-q", "true")
    reader.join()
    assert done.code == 0
    assert json.loads(read[0])["exit_code"] == 0


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGKILL"])
def test_report_that_nobody_reads_is_not_waited_for_for_ever(tmp_path: Path, name: str):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen(
        (*XLAUNCH, "--report", fifo, "-q", "mkdir", tmp_path / "ran"),
        env=clean_environment(),
        start_new_session=True,
    ) as launcher:
        wait_until((tmp_path / "ran").is_dir, "the program")
        (supervisor,) = children_of(launcher.pid)
        # Its threads: the second one is held up by the pipe.
        wait_until(lambda: len(os.listdir(f"/proc/{supervisor}/task")) == 2, "the report")
        number = signal.Signals[name]
        launcher.send_signal(number)
        code = launcher.wait(PATIENCE_S)
    assert code == (-number if name == "SIGKILL" else 128 + number)
    wait_until(lambda: not is_alive(supervisor), "the end of the supervisor")


def test_report_to_a_descriptor_follows_what_the_program_wrote(tmp_path: Path):
    file = tmp_path / "file"
    for to, line in (
        ("/dev/stdout", '"$@"'),
        ("/proc/self/fd/1", f'"$@" > {file}; cat {file}'),
        ("/dev/fd/7", f'"$@" 7>{file}; cat {file}'),
    ):
        command = (*XLAUNCH, "-q", "--report", to, "echo", "out")
        first, rest = run(("bash", "-c", line, "bash", *command)).out.split(b"\n", 1)
        assert (first, json.loads(rest)["exit_code"]) == (b"out", 0)
    assert os.path.islink("/dev/stdout")


def test_report_may_lie_in_the_new_log_directory(tmp_path: Path):
    logs = tmp_path / "new" / "logs"
    assert xlaunch("--log-dir", logs, "--report", logs / "report.json", "-q", "true").code == 0
    assert report_of(logs / "report.json")["exit_code"] == 0


def test_report_that_fails_at_the_end_is_told(tmp_path: Path):
    """Its directory, which may be the current one, goes while the program runs."""
    for path, code, ends_with in (("./gone/report.json", 0, 125), ("report.json", 3, 3)):
        directory = tmp_path / str(code)
        (directory / "gone").mkdir(parents=True)
        line = f'rmdir gone "$PWD"; exit {code}'
        done = xlaunch("--report", path, "-q", "sh", "-c", line, cwd=directory)
        told = "xlaunch: --report: [Errno 2] No such file or directory"
        assert (done.code, done.err.startswith(told), done.err.count("\n")) == (ends_with, True, 1)


# The table and notes


@pytest.mark.parametrize("option", ["-v", "--explain"])
def test_plan_is_shown_before_the_program_runs(option: str):
    shown = xlaunch(option, "sh", "-c", "echo program >&2").err
    assert shown.endswith("\nprogram\n")
    assert "\ninstance  cores  threads  CPUs" in shown
    assert "TRITON_CACHE_DIR=" in shown
    assert ("libraries count the CPUs of the mask" in shown) == (option == "--explain")


def test_in_place_nothing_is_said_at_all():
    done = xlaunch("echo", "out")
    assert (done.code, done.out) == (0, b"out\n")
    assert all(line.startswith("xlaunch: warning: ") for line in done.err.splitlines())


def test_tags_on_request():
    assert xlaunch("--tag", "-q", "echo", "out").out == b"[0] out\n"
    assert xlaunch(*SEVERAL, "--instance-index", "1", "echo", "out").out == b"[1] out\n"
    assert xlaunch(*SEVERAL, "--no-tag", "echo", "out") == (0, b"out\nout\n", "")
