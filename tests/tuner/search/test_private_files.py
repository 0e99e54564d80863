# SPDX-License-Identifier: Apache-2.0
"""What may hold a command line or a variable's value is made for this user only, whatever the umask."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from xtune.search.storage import open_storage


@pytest.fixture(params=[0o000, 0o022], ids=["umask 0", "umask 022"], autouse=True)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(directory: Path) -> dict[str, int]:
    """The modes of all files and directories below a directory."""
    return {
        str(path.relative_to(directory)): stat.S_IMODE(path.lstat().st_mode)
        for path in directory.rglob("*")
    }


def test_the_default_storage(tmp_path: Path) -> None:
    with closing(open_storage(None, {"XDG_STATE_HOME": str(tmp_path / "state")})) as storage:
        storage.backend.create_new_study([], "secret")
        database = tmp_path / "state" / "xtune" / "studies.db"
        with closing(sqlite3.connect(database)) as connection:
            connection.execute(
                "UPDATE studies SET study_name = 'other'"
            )  # SQLite's own file appears
            found = modes(tmp_path)
    assert found == {
        "state": 0o700,
        "state/xtune": 0o700,
        "state/xtune/studies.db": 0o600,
        "state/xtune/studies.db.lock": 0o600,
        "state/xtune/studies.db-journal": 0o600,
    }


def test_a_journal(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "studies.journal"))
    storage.backend.create_new_study([], "secret")
    assert modes(tmp_path) == {"studies.journal": 0o600}


def test_a_file_of_the_user_keeps_its_mode_and_its_lock_has_the_same(
    tmp_path: Path, umask: int
) -> None:
    """A group may share the studies that it was let to."""
    for mode in (0o660, 0o640):
        path = tmp_path / f"{mode:o}.db"
        path.touch()
        path.chmod(mode)
        open_storage(str(path)).close()
        assert stat.S_IMODE(path.stat().st_mode) == mode
        lock = stat.S_IMODE(Path(f"{path}.lock").stat().st_mode)
        assert lock == mode & ~umask


def test_a_directory_of_the_user_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "xtune").mkdir()
    (tmp_path / "xtune").chmod(0o755)
    open_storage(None, {"XDG_STATE_HOME": str(tmp_path)}).close()
    found = modes(tmp_path)
    assert (found["xtune"], found["xtune/studies.db"]) == (0o755, 0o600)


def test_a_link_to_nothing_is_followed(tmp_path: Path) -> None:
    (tmp_path / "studies.db").symlink_to("kept.db")
    open_storage(str(tmp_path / "studies.db")).close()
    assert modes(tmp_path)["kept.db"] == 0o600
