# SPDX-License-Identifier: Apache-2.0
"""`xlaunch doctor --device -- PROGRAM`: real programs on this machine, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import ask, clean_environment, xlaunch

DOCTOR = ("doctor", "--device")
VERDICT = re.compile(r"CPUs busy\)|the run was too short to say")
SCRIPT = """
import sys
# One write a line, which `python -u` makes of print() two: xlaunch may write a line in between.
sys.stdout.write("to stdout\\n")
sys.stderr.write("to stderr\\n")
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
    assert any(VERDICT.search(line) for line in lines)
    assert any(line.startswith("xlaunch doctor:   images/s: 12.5") for line in lines)


def test_json_has_stdout_for_itself_and_variables_set_options(script: Path):
    env = clean_environment(XLAUNCH_OPT_NCORES="1", XLAUNCH_OPT_METRIC="images/s")
    done = xlaunch(*DOCTOR, "--json", "--", script, "0", env=env)
    document = json.loads(done.out)
    assert (done.code, document["exit_code"], document["cpus"]) == (0, 0, 1)
    assert VERDICT.search(document["verdict"])
    assert document["metrics"][0]["name"] == "images/s"
    assert {"samples", "advice", "devices", "messages"} <= document.keys()
    assert {"to stdout", "to stderr"} <= set(done.err.splitlines())


def test_what_is_refused(golden: Golden, script: Path):
    said = []
    for words in (
        "--device", "--device --", "--device -- --ncores 1", "--device train.py --epochs 3",
        "--device train.py --json", "--device --sysroot x -- train.py", "--compare cpu,cuda -v -- train.py",
        "--device -- --ncore 2 train.py", "--device -- --nproc-per-node 2 train.py",
        "--device -- --exclusive train.py", "--device -- --ncores none train.py",
        "--compare cpu,gpu -- train.py", "--compare cpu,cuda:x -- train.py", "--compare cpu -- train.py",
        "--compare cpu,cpu -- train.py", "--compare= -- train.py",
    ):  # fmt: skip
        line = ask("doctor", *words.split(), cwd=script.parent).refused()
        said += [f"$ xlaunch doctor {words}", line]
    golden(said)


def test_program_that_does_not_exist():
    assert xlaunch(*DOCTOR, "--", "no-such-program").refused(127)
