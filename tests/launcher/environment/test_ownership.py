# SPDX-License-Identifier: Apache-2.0
"""Files that another user could change are told, wherever on the way to them the gap is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from xlaunch.environment.ownership import writable_by_others


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A file three folders deep that only its owner can write."""
    tmp_path.chmod(0o755)
    path = tmp_path / "one" / "two" / "lib.so"
    for folder in (tmp_path / "one", tmp_path / "one" / "two"):
        folder.mkdir()
        folder.chmod(0o755)
    path.write_bytes(b"")
    path.chmod(0o644)
    return path


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `path` another user's; without the right to do so, make us another user."""
    if os.geteuid() == 0:
        os.chown(path, 54321, -1)
    else:
        other = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: other)


def test_file_of_one_s_own(library: Path):
    assert writable_by_others(str(library)) is None


@pytest.mark.parametrize("mode", [0o777, 0o757])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_file_or_folder_that_all_may_write(library: Path, mode: int, which: int):
    path = [library, library.parent, library.parent.parent][which]
    path.chmod(mode)
    reason = writable_by_others(str(library))
    assert reason is not None
    assert reason.endswith(f" {path}")


def test_sticky_folder_is_no_danger(library: Path):
    library.parent.chmod(0o1777)
    assert writable_by_others(str(library)) is None


def test_sticky_file_is_no_folder(library: Path):
    library.chmod(0o1666)
    assert writable_by_others(str(library)) is not None


def test_file_of_another_user(library: Path, monkeypatch: pytest.MonkeyPatch):
    give_away(library, monkeypatch)
    assert "belongs to another user" in (writable_by_others(str(library)) or "")


def test_file_of_another_user_in_a_sticky_folder(library: Path, monkeypatch: pytest.MonkeyPatch):
    library.parent.chmod(0o1777)
    give_away(library, monkeypatch)
    assert writable_by_others(str(library)) is not None


def test_folder_of_another_user(library: Path, monkeypatch: pytest.MonkeyPatch):
    give_away(library.parent, monkeypatch)
    assert "belongs to another user" in (writable_by_others(str(library)) or "")


def test_group_that_has_others_in_it(library: Path, needs):
    needs(os.geteuid() == 0, "root, who can give a file to any group")
    os.chown(library, -1, 54321)
    assert writable_by_others(str(library)) is None
    library.chmod(0o664)
    assert writable_by_others(str(library)) == f"a group (group 54321) may write {library}"


def test_user_s_own_group_is_the_user(library: Path, monkeypatch: pytest.MonkeyPatch):
    import grp
    import pwd

    gid = 54321
    if os.geteuid() == 0:
        os.chown(library, -1, gid)
    else:
        gid = library.stat().st_gid
    library.chmod(0o664)
    me = ("me", "x", os.geteuid(), gid, "", "/", "/bin/sh")
    monkeypatch.setattr(pwd, "getpwuid", lambda _: pwd.struct_passwd(me))
    for name, members, fine in (("me", [], True), ("me", ["me"], True), ("me", ["you"], False)):
        group = grp.struct_group((name, "x", gid, members))
        monkeypatch.setattr(grp, "getgrgid", lambda _, group=group: group)
        assert (writable_by_others(str(library)) is None) is fine, members
    everyone = grp.struct_group(("users", "x", gid, []))
    monkeypatch.setattr(grp, "getgrgid", lambda _: everyone)
    assert writable_by_others(str(library)) is not None


def test_link_out_of_a_safe_folder(library: Path, tmp_path: Path):
    library.parent.chmod(0o777)
    link = tmp_path / "link.so"
    link.symlink_to("one/two/lib.so")
    assert str(library.parent) in (writable_by_others(str(link)) or "")


def test_link_in_a_folder_that_all_may_write(library: Path, tmp_path: Path):
    loose = tmp_path / "loose"
    loose.mkdir()
    loose.chmod(0o777)
    (loose / "link.so").symlink_to(library)
    assert str(loose) in (writable_by_others(str(loose / "link.so")) or "")


def test_link_to_a_folder_and_up_again(library: Path, tmp_path: Path):
    (tmp_path / "short").symlink_to(library.parent)
    assert writable_by_others(str(tmp_path / "short" / "lib.so")) is None
    library.chmod(0o666)
    assert str(library) in (writable_by_others(str(tmp_path / "short" / "lib.so")) or "")
    library.chmod(0o644)
    link = tmp_path / "up.so"
    link.symlink_to("short/../two/lib.so")  # the folder above what the link leads to
    assert writable_by_others(str(link)) is None
    library.parent.parent.chmod(0o777)
    assert str(library.parent.parent) in (writable_by_others(str(link)) or "")


def test_loop_of_links(tmp_path: Path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert "loop" in (writable_by_others(str(tmp_path / "a")) or "")


def test_file_that_is_not_there(tmp_path: Path):
    assert "No such file" in (writable_by_others(str(tmp_path / "absent")) or "")
