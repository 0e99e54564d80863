# SPDX-License-Identifier: Apache-2.0
"""Where studies are kept, and what is said when they cannot be."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from xlaunch.machine.tree import Tree, file_system_of
from xtune.errors import StorageError
from xtune.search import storage as storing
from xtune.search.storage import default_url, file_url, open_storage
from xtune.search.workers import host_locked

MOUNTS = """\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
30 22 0:40 / /home rw shared:1 - nfs4 server:/home rw
31 30 0:41 / /home/local\\040disk rw - xfs /dev/sdb1 rw
32 22 0:42 / /mnt rw - ext4 /dev/sdc1 rw
33 32 0:43 / /mnt rw - lustre mgs:/fs rw
"""


@pytest.fixture
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(MOUNTS)
    tree = Tree(str(tmp_path))
    monkeypatch.setattr(storing, "file_system_of", lambda _, path: file_system_of(tree, path))
    return tree


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/srv/studies", "ext4"),
        ("/home/me/studies", "nfs4"),
        ("/homestead/studies", "ext4"),
        ("/home/local disk/studies", "xfs"),
        ("/mnt/studies", "lustre"),
    ],
)
def test_the_file_system_of_a_path(mounts: Tree, path: str, expected: str) -> None:
    assert file_system_of(mounts, path) == expected


def test_a_system_without_mountinfo_has_no_network(tmp_path: Path) -> None:
    assert file_system_of(Tree(str(tmp_path)), "/x") == ""


def test_a_network_file_system_gets_a_journal(mounts: Tree) -> None:
    assert file_url(Path("/srv/studies")) == "sqlite:////srv/studies.db"
    assert file_url(Path("/home/me/studies")) == "journal:/home/me/studies.journal"
    assert file_url(Path("/srv/a.journal")) == "journal:/srv/a.journal"
    with pytest.raises(StorageError, match=r"network file system \(nfs4\), where SQLite"):
        file_url(Path("/home/me/studies.db"))


def test_the_user_s_own_lie_below_xdg_state_home(tmp_path: Path) -> None:
    url = default_url({"XDG_STATE_HOME": str(tmp_path / "state")})
    assert url == f"sqlite:///{tmp_path}/state/xtune/studies.db"
    assert (tmp_path / "state" / "xtune").is_dir()


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    with pytest.raises(StorageError, match=r"driver psycopg2,.*'psycopg2-binary'") as caught:
        open_storage("postgresql+psycopg2://me:secret@node/db")
    assert "secret" not in str(caught.value)
    assert "postgresql+psycopg2://me@node/db" in str(caught.value)


def test_a_driver_that_lacks_its_library_is_named_by_the_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "psycopg.py").write_text("raise ImportError('no pq wrapper available')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "psycopg", raising=False)
    with pytest.raises(StorageError, match=r"needs the driver psycopg,.*'psycopg\[binary\]'$"):
        open_storage("postgresql+psycopg://node/db")


def test_who_waits_is_told_for_whom(tmp_path: Path) -> None:
    told: list[str] = []

    class EnoughError(Exception):
        pass

    def waiting(holder: str) -> None:
        told.append(holder)
        raise EnoughError

    with (
        host_locked(directory=tmp_path),
        pytest.raises(EnoughError),
        host_locked(waiting, tmp_path),
    ):
        pass
    assert told == [f"PID {os.getpid()}"]
    with host_locked(waiting, tmp_path):
        pass
    assert told == [f"PID {os.getpid()}"]
