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


def test_log_directory_is_made_with_its_parents(tmp_path: Path):
    logs = tmp_path / "a" / "b"
    done = xlaunch(*SEVERAL, "--log-dir", logs, "sh", "-c", "echo out; echo err >&2")
    assert done == (0, b"", "")
    assert entries(logs) == ["instance-0.err", "instance-0.out", "instance-1.err", "instance-1.out"]
    assert (logs / "instance-1.out").read_text() == "out\n"
    assert (logs / "instance-1.err").read_text() == "err\n"


def test_log_directory_may_have_any_name(tmp_path: Path):
    name = os.fsencode(tmp_path) + b"/two words\n\xff"
    assert xlaunch("--log-dir", name, "-q", "echo", "out") == (0, b"", "")
    assert sorted(os.listdir(name)) == [b"instance-0.err", b"instance-0.out"]
    with open(name + b"/instance-0.out") as log:
        assert log.read() == "out\n"


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


def test_log_file_that_cannot_be_had_starts_nothing_more(tmp_path: Path):
    (tmp_path / "instance-1.out").write_text("an earlier run")
    (tmp_path / "instance-1.out.1" / "in the way").mkdir(parents=True)
    command = ("sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.05; done")
    done = xlaunch(*SEVERAL, "--log-dir", tmp_path, *command)
    assert done.code == 125
    assert "xlaunch: error: instance 1: " in done.err


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


def test_report_of_arguments_that_are_no_text(tmp_path: Path):
    path = tmp_path / "report.json"
    assert xlaunch("--report", path, "-q", "true", b"\xff", "ü").code == 0
    assert report_of(path)["argv"] == ["true", "\\udcff", "ü"]


def test_report_takes_the_place_of_an_earlier_one(tmp_path: Path):
    path = tmp_path / "report.json"
    path.write_text("x" * 100_000)
    path.chmod(0o600)
    assert xlaunch("--report", path, "-q", "true").code == 0
    assert report_of(path)["exit_code"] == 0


def test_report_through_a_link_leaves_the_link(tmp_path: Path):
    (tmp_path / "kept").mkdir()
    link = tmp_path / "latest.json"
    link.symlink_to("kept/report.json")
    for _ in range(2):
        assert xlaunch("--report", link, "-q", "true").code == 0
        assert link.is_symlink()
        assert report_of(tmp_path / "kept" / "report.json")["exit_code"] == 0
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


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"])
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
        launcher.send_signal(signal.Signals[name])
        assert launcher.wait(PATIENCE_S) == 128 + signal.Signals[name]
    assert not is_alive(supervisor)


def test_report_that_nobody_reads_goes_with_the_launcher(tmp_path: Path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen(
        (*XLAUNCH, "--report", fifo, "-q", "mkdir", tmp_path / "ran"), env=clean_environment()
    ) as launcher:
        wait_until((tmp_path / "ran").is_dir, "the program")
        (supervisor,) = children_of(launcher.pid)
        launcher.kill()
    wait_until(lambda: not is_alive(supervisor), "the end of the supervisor")


def test_report_to_a_descriptor_of_the_shell(tmp_path: Path):
    command = (*XLAUNCH, "-q", "--report", "/dev/fd/7", "echo", "out")
    done = run(("bash", "-c", f'"$@" 7>{tmp_path}/report', "bash", *command))
    assert done.out == b"out\n"
    assert report_of(tmp_path / "report")["exit_code"] == 0


def test_report_to_standard_output_follows_what_the_program_wrote(tmp_path: Path):
    for to in ("/dev/stdout", "/proc/self/fd/1"):
        command = (*XLAUNCH, "-q", "--report", to, "echo", "out")
        piped = run(command).out
        with open(tmp_path / "both", "wb") as file:
            run(command, stdout=file)
        for both in (piped, (tmp_path / "both").read_bytes()):
            first, rest = both.split(b"\n", 1)
            assert first == b"out"
            assert json.loads(rest)["exit_code"] == 0
    assert os.path.islink("/dev/stdout")


def test_report_may_lie_in_the_new_log_directory(tmp_path: Path):
    logs = tmp_path / "new" / "logs"
    for report in (logs / "report.json", tmp_path / "new" / "report.json"):
        assert xlaunch("--log-dir", logs, "--report", report, "-q", "true").code == 0
        assert report_of(report)["exit_code"] == 0


def test_report_that_fails_at_the_end_is_told(tmp_path: Path):
    """Its directory goes while the program runs: that cannot be known before."""
    directory = tmp_path / "directory"
    directory.mkdir()
    done = xlaunch("--report", directory / "report.json", "-q", "rmdir", directory)
    assert done.code == 125
    assert done.err.startswith("xlaunch: --report: ")
    assert len(done.err.splitlines()) == 1
    directory.mkdir()
    command = ("sh", "-c", f"rmdir {directory}; exit 7")
    assert xlaunch("--report", directory / "report.json", "-q", *command).code == 7


# The table and notes


@pytest.mark.parametrize("option", ["-v", "--explain"])
def test_plan_is_shown_before_the_program_runs(option: str):
    command = (*XLAUNCH, option, "sh", "-c", "echo program >&2")
    both = subprocess.run(
        command, stderr=subprocess.PIPE, check=True, text=True, env=clean_environment()
    ).stderr.splitlines()
    assert both[-1] == "program"
    shown = "\n".join(both)
    assert "\ninstance  cores  threads  CPUs" in shown
    assert "OMP_NUM_THREADS=" in shown
    assert ("one thread for each CPU" in shown) == (option == "--explain")


def test_in_place_nothing_is_said_at_all():
    done = xlaunch("echo", "out")
    assert (done.code, done.out) == (0, b"out\n")
    assert all(line.startswith("xlaunch: warning: ") for line in done.err.splitlines())


def test_tags_on_request():
    assert xlaunch("--tag", "-q", "echo", "out").out == b"[0] out\n"
    assert xlaunch(*SEVERAL, "--instance-index", "1", "echo", "out").out == b"[1] out\n"
    assert xlaunch(*SEVERAL, "--no-tag", "echo", "out") == (0, b"out\nout\n", "")
