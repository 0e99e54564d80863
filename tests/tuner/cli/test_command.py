# SPDX-License-Identifier: Apache-2.0
"""What xtune says of itself, and what it takes to say it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.golden import Golden

from xtune.cli import COMMANDS, COMPLETE, main

HEAVY = ("numpy", "optuna", "rich", "sqlalchemy", "torch", "yaml")


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
    for words in ([name, "--help"], ["help", name]):
        assert main(words) == 0
        assert capsys.readouterr().out.startswith(f"Usage: xtune {name}")


def test_misspelt_command(golden: Golden, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reprot"]) == 127
    golden(capsys.readouterr().err)
    assert main(["help", "reprot"]) == 2
    golden(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("words", "offered"),
    [(["rep"], "report"), (["--goal", "max"], "maximize"), (["--place", "s"], "scatter")],
)
def test_completion(
    words: list[str],
    offered: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(COMPLETE, "bash_complete")
    monkeypatch.setenv("COMP_WORDS", " ".join(["xtune", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    assert main([]) == 0
    assert capsys.readouterr().out == f"plain,{offered}\n"


def test_completion_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    assert f"{COMPLETE}=bash_complete" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["resume", "--help"], ["nosuch.py"]])
def test_nothing_heavy_is_imported_before_there_is_something_to_search(words: list[str]) -> None:
    heavy = ("torch",) if words == ["nosuch.py"] else HEAVY
    code = f"""
import sys
from xtune.cli import main
main({words!r})
print("loaded:", *[name for name in {heavy!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded:"
