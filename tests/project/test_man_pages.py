# SPDX-License-Identifier: Apache-2.0
"""The manual pages that docs/man_pages.py writes, as roff shows them."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from xlaunch import cli as xlaunch_cli
from xlaunch.cli import cache
from xlaunch.options.definitions import COMMANDS
from xtune import cli as xtune_cli

ROOT = Path(__file__).parents[2]
WRITER = ROOT / "docs" / "man_pages.py"
PAGES: dict[str, str] = dict(runpy.run_path(str(WRITER))["pages"]())


def test_every_command_has_a_page() -> None:
    expected = {
        *("xlaunch", *(f"xlaunch-{name}" for name in COMMANDS)),
        *(f"xlaunch-cache-{name}" for name in cache.command.commands),
        *("xtune", *(f"xtune-{name}" for name in xtune_cli.COMMANDS)),
    }
    assert set(PAGES) == {f"{name}.1" for name in expected}


@pytest.mark.parametrize("name", sorted(PAGES))
def test_page_shows_what_help_does(
    name: str,
    needs: Callable[[object, str], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needs(shutil.which("groff"), "groff (Debian: groff-base)")
    program, *words = name.removesuffix(".1").split("-")
    shown = subprocess.run(
        ["groff", "-ww", "-man", "-Tascii", "-P-cbou", "-rLL=200n"],
        input=PAGES[name],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stderr == ""
    monkeypatch.setenv("COLUMNS", "200")
    (xtune_cli if program == "xtune" else xlaunch_cli).run([*words, "--help"])
    missing = spoken(capsys.readouterr().out.replace("-\n  ", "-")) - spoken(shown.stdout)
    assert missing <= {"USAGE"}


@pytest.mark.parametrize("name", sorted(PAGES))
def test_help_fits_a_terminal_of_80_columns(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    program, *words = name.removesuffix(".1").split("-")
    (xtune_cli if program == "xtune" else xlaunch_cli).run([*words, "--help"])
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80] == []


def spoken(text: str) -> set[str]:
    """The words of a text; headings have capitals in one form and colons in the other."""
    return {word.rstrip(":") for word in text.upper().split()}


def test_lines_of_examples_stay_lines() -> None:
    assert "\nxlaunch doctor train.py src/" in PAGES["xlaunch-doctor.1"]
    assert "\\-\\-" in PAGES["xlaunch.1"]


def test_writing_needs_no_package_but_click(tmp_path: Path) -> None:
    """The Python that builds a wheel has no other."""
    absent = ("numpy", "optuna", "packaging", "psutil", "rich", "scipy", "torch")
    code = (
        f"import runpy, sys; sys.modules.update(dict.fromkeys({absent!r})); "
        f"sys.argv = ['man_pages.py', {str(tmp_path)!r}]; "
        f"runpy.run_path({str(WRITER)!r}, run_name='__main__')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == PAGES
