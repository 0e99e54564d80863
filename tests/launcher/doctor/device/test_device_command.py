# SPDX-License-Identifier: Apache-2.0
"""`xlaunch doctor --device -- PROGRAM`: real programs on this machine, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.launcher.cli.commands import XLAUNCH, ask, clean_environment, one_error_line, xlaunch
from tests.launcher.launching import PATIENCE_S

DOCTOR = ("doctor", "--device")
SCRIPT = """
import sys
print("to stdout")
print("to stderr", file=sys.stderr)
print("12.5 images/s")
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_verdict_is_on_stderr_and_the_exit_code_is_the_programs(script: Path):
    done = xlaunch(*DOCTOR, "--", "--ncores", "1", "--metric", "images/s", script, "4")
    assert (done.code, done.out) == (4, b"to stdout\n12.5 images/s\n")
    lines = done.err.splitlines()
    assert "to stderr" in lines
    assert "xlaunch doctor: instance 0 failed with exit code 4" in lines
    assert any("CPUs busy)" in line for line in lines)
    assert any(line.startswith("xlaunch doctor:   images/s: 12.5") for line in lines)


def test_json_has_stdout_for_itself_and_variables_set_options(script: Path):
    env = clean_environment(XLAUNCH_OPT_NCORES="1", XLAUNCH_OPT_METRIC="images/s")
    done = xlaunch(*DOCTOR, "--json", "--", script, "0", env=env)
    document = json.loads(done.out)
    assert (done.code, document["exit_code"], document["cpus"]) == (0, 0, 1)
    assert "CPUs busy" in document["verdict"]
    assert document["metrics"][0]["name"] == "images/s"
    assert {"samples", "advice", "devices", "messages"} <= document.keys()
    assert {"to stdout", "to stderr"} <= set(done.err.splitlines())


def test_ctrl_c_ends_the_program_and_the_verdict_is_printed():
    code = "import time; print('up', flush=True); time.sleep(100)"
    words = (*XLAUNCH, *DOCTOR, "--", "--ncores", "1", sys.executable, "-c", code)
    with subprocess.Popen(
        words,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        # As a terminal does: to the group of the foreground.
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGINT
    assert "CPUs busy)" in err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--device",), "there is none"),
        (("--device", "--"), "there is none"),
        (("--device", "--", "--ncores", "1"), "there is none"),
        (("--device", "train.py", "--epochs", "3"), "there is no option --epochs; put -- before"),
        (("--device", "train.py", "--json"), "put -- before the program"),
        (("--device", "-v", "--", "train.py"), "-v does not go with that"),
        (("--device", "--", "--ncore", "2", "train.py"), "there is no option --ncore;"),
        (
            ("--device", "--", "--nproc-per-node", "2", "train.py"),
            "there is no option --nproc-per-node;",
        ),
        (("--device", "--", "--exclusive", "train.py"), "there is no option --exclusive;"),
        (("--device", "--", "--ncores", "none", "train.py"), "'none' is not a count"),
        (("--compare", "cpu,gpu", "--", "train.py"), "'gpu' is not a device; write cpu, cuda, xpu"),
        (("--compare", "cpu,cuda:x", "--", "train.py"), "'cuda:x' is not a device"),
        (("--compare", "cpu", "--", "train.py"), "name two different devices or more"),
        (("--compare", "cpu,cpu", "--", "train.py"), "name two different devices or more"),
        (("--compare", "", "--", "train.py"), "'' is not a device"),
    ],
)  # fmt: skip
def test_what_is_refused(script: Path, words: tuple[str, ...], text: str):
    done = ask("doctor", *words, cwd=script.parent)
    assert (done.code, done.out) == (2, b"")
    assert text in one_error_line(done.err)


def test_program_that_does_not_exist():
    assert xlaunch(*DOCTOR, "--", "no-such-program").refused(127)
