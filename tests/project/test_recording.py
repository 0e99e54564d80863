# SPDX-License-Identifier: Apache-2.0
"""docs/recording.py draws what a command shows in a terminal, and nothing of one that fails."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "docs" / "recording.py"
PROGRAM = """
import sys
print("\\033[1mbold\\033[0m", sys.stdout.isatty())
print("10 %\\r100 %")
print("x" * 119)
"""


def record(picture: Path, *command: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, SCRIPT, picture, *command]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_lines_are_those_that_a_terminal_shows(tmp_path: Path) -> None:
    picture = tmp_path / "recording.svg"
    done = record(picture, sys.executable, "-c", PROGRAM)
    assert (done.returncode, done.stderr) == (0, "")
    command, *lines = ET.parse(picture).getroot().findall("{http://www.w3.org/2000/svg}text")
    assert "".join(command.itertext()).startswith(f"$ {sys.executable} -c ")
    assert [line.text for line in lines] == ["bold True", "100 %", "x" * 118, "x"]
    assert all(line.get("style", "").startswith("animation-delay: ") for line in lines)


def test_a_command_that_fails_leaves_no_picture(tmp_path: Path) -> None:
    done = record(tmp_path / "none.svg", "false")
    assert done.returncode == 1
    assert done.stderr == "false ended with 1\n"
    assert list(tmp_path.iterdir()) == []
