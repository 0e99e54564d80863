# SPDX-License-Identifier: Apache-2.0
"""`python -m xruntime` as a user types it: help, what each command prints, and mistakes in one line."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.runtime_ext.interpreters import start_python

from xruntime import cli
from xruntime.native import LIBRARY_VARIABLE, library_path

LINES = (
    "", "allocator --help", "help device", "kernels -h", "alocator", "help alocator",
    "allocator --jsn", "allocator extra", "--nothing", "device gpu", "device cpu:1", "device ''",
)  # fmt: skip


def test_help_and_mistakes(
    golden: Golden, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = []
    for line in LINES:
        code = cli.run(shlex.split(line))
        said += [f"$ python -m xruntime {line} ({code})", "".join(capsys.readouterr())]
    golden(*said)


def test_help_is_asked_for_by_three_words(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {(cli.run(line.split()), *capsys.readouterr()) for line in ("", "-h", "--help", "help")}
    assert len(shown) == 1


def test_what_the_commands_print(
    golden: Golden,
    native: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their values differ from machine to machine."""
    monkeypatch.setenv(LIBRARY_VARIABLE, str(shutil.copy(library_path(), tmp_path)))
    monkeypatch.delenv("XKERNELS_ISA", raising=False)
    for line, values in (
        ("kernels", r"(?<=version  )\d+|(?<=set    )\S+|(?<=supported          ).*"),
        ("device cpu", r"(?m:(?<=^.{19}).+)"),
        ("allocator", r"\A.*\n.*|(?<=  )[\d.]+ MiB|(?<=  )unknown|(?s:\n\n?(settings|note).*)"),
    ):
        assert cli.run(line.split()) == 0
        golden(capsys.readouterr().out, hide=values)


def test_a_compiler_that_cannot_is_one_line(
    golden: Golden,
    native: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(LIBRARY_VARIABLE, str(shutil.copy(library_path(), tmp_path)))
    for compiler in ("no-such-compiler", "false"):
        monkeypatch.setenv("CXX", compiler)
        assert cli.run(["kernels", "--build"]) != 0
        golden(capsys.readouterr().err, hide=r"(?<=compile )\S+(?=operators.cpp)")
    assert len(list(tmp_path.iterdir())) == 1


def test_without_torch_devices_say_what_to_install(golden: Golden) -> None:
    script = (
        "import sys; sys.modules['torch'] = None; from xruntime.cli import main; main(['device'])"
    )
    done = start_python("-c", script)
    assert (done.returncode, done.stdout) == (2, "")
    golden(done.stderr)
