# SPDX-License-Identifier: Apache-2.0
"""What xtune says of itself, and what it takes to say it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import xtune
from xtune.cli import COMMANDS, main

HEAVY = ("numpy", "optuna", "rich", "sqlalchemy", "torch", "yaml")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr() == (f"xtune {xtune.__version__}\n", "")


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"]])
def test_help_names_the_other_commands(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Usage: xtune [OPTIONS] [--] PROGRAM [ARGS...]")
    assert all(name in out for name in COMMANDS)
    assert err == ""


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_of_each_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: xtune {name}")


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["resume", "--help"], ["nosuch.py"]])
def test_nothing_heavy_is_imported_before_there_is_something_to_search(words: list[str]) -> None:
    code = f"""
import sys
from xtune.cli import main
main({words!r})
print("loaded:", *[name for name in {HEAVY!r} if name in sys.modules])
"""
    if words == ["nosuch.py"]:
        code = code.replace(repr(HEAVY), repr(("torch",)))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded:"


def test_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "xtune", "--version"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"xtune {xtune.__version__}\n")
