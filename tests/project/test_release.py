# SPDX-License-Identifier: Apache-2.0
"""The release checklist stops at what does not agree, and builds and installs what does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.project.test_project import PROJECT, ROOT

VERSION = PROJECT["project"]["version"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one commit of this working tree."""
    files = git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard").split("\n")
    directory = tmp_path / "checkout"
    for name in filter(None, files):
        if (ROOT / name).is_file():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, directory / name)
    git(directory, "init", "-q")
    commit(directory)
    return directory


def git(directory: Path, *words: str) -> str:
    identity = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.org")
    done = subprocess.run(
        ["git", "-C", directory, *identity, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit(directory: Path) -> None:
    git(directory, "add", "-A")
    git(directory, "commit", "-q", "-m", "State a test")


def release(directory: Path, *words: str, timeout_s: float = 60.0, **environment: str):

    return subprocess.run(
        [directory / ".ci" / "release", *words],
        env={**os.environ, "PYTHON": sys.executable, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )


def test_it_stops_at_what_does_not_agree(checkout, needs) -> None:
    needs(shutil.which("git"), "git")
    for change, problem in (
        (lambda: None, f"pyproject.toml has version {VERSION}, not 9.9.9"),
        (
            lambda: replace(
                checkout / "pyproject.toml", f'version = "{VERSION}"', 'version = "9.9.9"'
            ),
            "CHANGELOG.md has no section '## [9.9.9] - YYYY-MM-DD'",
        ),
        (
            lambda: replace(
                checkout / "CHANGELOG.md", "## [Unreleased]", "## [9.9.9] - 2026-01-31"
            ),
            "the last commit has no tag v9.9.9: git tag -a v9.9.9",
        ),
        (lambda: git(checkout, "tag", "v9.9.9"), "CITATION.cff has another version than 9.9.9"),
    ):
        change()
        if git(checkout, "status", "--porcelain"):
            commit(checkout)
        done = release(checkout, "9.9.9")
        assert done.returncode == 1
        assert done.stderr.strip() == f".ci/release: {problem}"
    # Every other file agrees; addresses are still to come.
    replace(checkout / "CITATION.cff", f"version: {VERSION}", "version: 9.9.9")
    commit(checkout)
    git(checkout, "tag", "--force", "v9.9.9")
    done = release(checkout, "9.9.9")
    assert done.returncode == 1
    assert "placeholders stand for addresses" in done.stderr
    assert "pyproject.toml" in done.stderr
    (checkout / "new.txt").write_text("not committed")
    assert "changes that are not committed" in release(checkout, "9.9.9").stderr


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_wheel_works_where_there_is_no_compiler(checkout, tmp_path) -> None:
    done = release(checkout, timeout_s=1700.0, OUT=str(tmp_path / "out"))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "nothing was uploaded" in done.stdout
    wheel, sdist = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert wheel.startswith(f"xlaunch-{VERSION}-py3-none-")
    assert sdist == f"xlaunch-{VERSION}.tar.gz"
