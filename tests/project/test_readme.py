# SPDX-License-Identifier: Apache-2.0
"""README: its session prints what it shows, and its links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.launcher.cli.commands import ask
from tests.project.test_code_blocks import check_console, commands_of

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text()


def test_session_prints_what_it_shows() -> None:
    (session,) = re.findall(r"^```console\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    (command,) = commands_of(session).splitlines()
    program, *words = shlex.split(command)
    assert program == "xlaunch"
    check_console(session, ask(*words).out.decode())


def test_links_lead_to_files() -> None:
    links = re.findall(r"\]\(([^)#:]+)[^)]*\)", TEXT)
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).is_file()] == []
