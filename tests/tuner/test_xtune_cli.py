# SPDX-License-Identifier: Apache-2.0
"""xtune says what it is, and does not pretend to search."""

from __future__ import annotations

import subprocess
import sys

import pytest

import xtune
from xtune.cli import main


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr() == (f"xtune {xtune.__version__}\n", "")


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_names_the_tool_that_works(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([flag]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Usage: xtune")
    assert "xlaunch --instances" in out
    assert err == ""


@pytest.mark.parametrize(
    "arguments", [[], ["infer.py"], ["run", "infer.py"], ["--trials", "3"], ["--version", "x"]]
)
def test_anything_else_is_refused_in_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "not part of version" in err
    assert "xlaunch" in err


def test_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "xtune", "infer.py"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
