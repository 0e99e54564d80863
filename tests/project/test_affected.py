# SPDX-License-Identifier: Apache-2.0
"""`.ci/affected` leaves out only the tests whose results a branch cannot change."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.project.test_release import git

SCRIPT = Path(__file__).parents[2] / ".ci" / "affected"
ALWAYS = ["tests/benchmarks", "tests/examples", "tests/project"]
ALL = ["tests"]


@pytest.fixture
def branch(tmp_path: Path, needs: Callable[[object, str], None]) -> Path:
    """A clone on a branch without commits of its own."""
    needs(shutil.which("git"), "git")
    (tmp_path / ".ci").mkdir()
    shutil.copy(SCRIPT, tmp_path / ".ci")
    git(tmp_path, "init", "-q", "-b", "main")
    commit(tmp_path, ".ci/affected", "launcher.py")
    git(tmp_path, "update-ref", "refs/remotes/origin/main", "HEAD")
    git(tmp_path, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main")
    return tmp_path


def commit(directory: Path, *paths: str) -> None:
    for path in paths:
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        with (directory / path).open("a") as stream:
            stream.write("\n")
    git(directory, "add", "-A")
    git(directory, "commit", "-q", "-m", "Change something")


def affected(directory: Path, *words: str, **variables: str) -> list[str]:
    done = subprocess.run(
        [directory / ".ci" / "affected", *words],
        env={**os.environ, "CI_ALL": "", **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["tuner/xtune/search/session.py"], [*ALWAYS, "tests/tuner"]),
        (["runtime_ext/xruntime/native.py"], [*ALWAYS, "tests/runtime_ext"]),
        (
            ["tuner/xtune/errors.py", "tests/launcher/cli/test_env_command.py"],
            sorted([*ALWAYS, "tests/launcher", "tests/tuner"]),
        ),
        (["README.md", "docs/layout.md"], ALWAYS),
        (["launcher/xlaunch/text.py"], ALL),
        (["kernels/src/runtime/team.cpp"], ALL),
        (["tests/launcher/launching.py"], ALL),  # other tests import it
        (["tests/conftest.py"], ALL),
        (["constraints.txt", "docs/layout.md"], ALL),
        (["a new file"], ALL),
    ],
)
def test_what_a_branch_can_change(branch: Path, paths: list[str], expected: list[str]) -> None:
    commit(branch, *paths)
    assert affected(branch) == expected


def test_all_commits_of_a_branch_count(branch: Path) -> None:
    commit(branch, "tuner/xtune/errors.py")
    commit(branch, "docs/layout.md")
    assert affected(branch) == [*ALWAYS, "tests/tuner"]
    assert affected(branch, "HEAD~1") == ALWAYS
    assert affected(branch, CI_ALL="1") == ALL


def test_without_a_branch_everything_is_affected(branch: Path) -> None:
    assert affected(branch) == ALL
    commit(branch, "docs/layout.md")
    git(branch, "symbolic-ref", "--delete", "refs/remotes/origin/HEAD")
    assert affected(branch) == ALL


def test_where_a_file_was_counts_too(branch: Path) -> None:
    (branch / "docs").mkdir()
    git(branch, "mv", "launcher.py", "docs/launcher.md")
    git(branch, "commit", "-q", "-m", "Rename a file")
    assert affected(branch) == ALL
