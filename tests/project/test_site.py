# SPDX-License-Identifier: Apache-2.0
"""The pages of the site that docs/site_pages.py makes; `mkdocs build --strict` checks the links."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from tests.launcher.cli.commands import ask

import xlaunch
import xruntime
from xlaunch.cli import cache
from xlaunch.options.definitions import COMMANDS, OPTIONS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site_pages() -> ModuleType:
    """docs/site_pages.py, which is in no package."""
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "docs" / "site_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def pages(site_pages: ModuleType, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The pages, by their path."""
    monkeypatch.setenv("COLUMNS", "80")
    return dict(site_pages.pages())


def test_every_command_has_its_help_on_a_page(pages: dict[str, str]) -> None:
    text = pages["reference/commands/xlaunch.md"]
    assert all(f"--{option.name}" in text for option in OPTIONS)
    subcommands = [f"cache {name}" for name in cache.command.commands]
    for words in (*COMMANDS, *subcommands):
        assert f"## `xlaunch {words}`\n\n```text\n" in text
    assert ask("plan", "--help").out.decode() in text
    assert "## `xtune report`" in pages["reference/commands/xtune.md"]
    assert "allocator" in pages["reference/commands/python--m-xruntime.md"]


def test_every_public_name_has_a_place(pages: dict[str, str]) -> None:
    for module in (xlaunch, xruntime):
        text = pages[f"reference/python/{module.__name__}.md"]
        missing = [name for name in module.__all__ if f"{module.__name__}.{name}" not in text]
        assert missing == []


def test_every_example_is_shown_whole(pages: dict[str, str]) -> None:
    for path in (ROOT / "examples").glob("*.py"):
        assert f"## `{path.name}`" in pages["examples.md"]
        assert path.read_text().splitlines()[-1] in pages["examples.md"]


@pytest.mark.parametrize(
    ("source", "page", "link", "becomes"),
    [
        ("docs/tuning.md", "tuning.md", "caches.md#keys", "caches.md#keys"),
        ("docs/a.md", "a.md", "../examples/serve.py", "examples.md#servepy"),
        ("docs/a.md", "a.md", "../tests/README.md", "project/tests.md"),
        ("docs/a.md", "a.md", "../README.md", "index.md"),
        ("CONTRIBUTING.md", "project/contributing.md", "tests/README.md", "tests.md"),
        ("CHANGELOG.md", "project/changelog.md", "docs/int8.md", "../int8.md"),
        ("docs/a.md", "a.md", "../launcher", "launcher"),
    ],
)
def test_links_of_the_repository_become_links_of_the_site(
    site_pages: ModuleType, source: str, page: str, link: str, becomes: str
) -> None:
    """The last one has no page, and mkdocs complains about it."""
    assert site_pages.relinked(f"see [it]({link}).", source, page) == f"see [it]({becomes})."


def test_links_to_other_places_stay(site_pages: ModuleType) -> None:
    text = "[a](https://example.org/x.md) [b](#part) `[c]` (d)"
    assert site_pages.relinked(text, "docs/a.md", "a.md") == text
