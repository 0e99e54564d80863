# SPDX-License-Identifier: Apache-2.0
"""README: its session prints what it shows, and its links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

from tests.launcher.cli.commands import ask
from tests.project.test_code_blocks import check_console, commands_of
from tests.project.test_project import PROJECT

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


def test_links_are_absolute_where_an_index_shows_it() -> None:
    spec = importlib.util.spec_from_file_location("package_readme", ROOT / "docs/package_readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = "[a](docs/a.md#b) ![p](docs/p.svg) [c](#d) [e](https://example.org/f)"
    assert module.absolute(text, "https://r", "1.0") == (
        "[a](https://r/blob/v1.0/docs/a.md#b) ![p](https://r/raw/v1.0/docs/p.svg) "
        "[c](#d) [e](https://example.org/f)"
    )
    repository = PROJECT["project"]["urls"]["Repository"]
    whole = module.dynamic_metadata("readme")["text"]
    links = re.findall(r"\]\(([^)]*)\)", whole)
    assert len(links) > 10
    assert [link for link in links if not link.startswith(f"{repository}/")] == []
