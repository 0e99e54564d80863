# SPDX-License-Identifier: Apache-2.0
"""Files that another user could change are refused, wherever on the way to them the gap is."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

import pytest
from tests.golden import Golden

from xlaunch.ownership import Ownership, inspect_ownership

CLONE_NEWUSER = 0x10000000


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A file three directories deep that only its owner can write."""
    tmp_path.chmod(0o755)
    path = tmp_path / "one" / "two" / "lib.so"
    for directory in (tmp_path / "one", tmp_path / "one" / "two"):
        directory.mkdir()
        directory.chmod(0o755)
    path.write_bytes(b"")
    path.chmod(0o644)
    return path


def refusal(path: Path) -> str | None:
    return inspect_ownership(str(path)).refusal


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `path` another user's; without the right to do so, make us another user."""
    if os.geteuid() == 0:
        os.chown(path, 54321, -1)
    else:
        other = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: other)


@pytest.mark.parametrize(
    ("which", "mode", "fine"),
    [
        (0, 0o644, True), (0, 0o777, False), (0, 0o757, False), (1, 0o777, False),
         (1, 0o757, False),
        (2, 0o777, False), (2, 0o757, False),
        # The sticky bit protects what is in a directory; it means nothing for a file.
        (1, 0o1777, True), (0, 0o1666, False),
    ],
)  # fmt: skip
def test_who_may_write_the_file_or_a_directory(library: Path, which: int, mode: int, fine: bool):
    path = [library, library.parent, library.parent.parent][which]
    path.chmod(mode)
    assert refusal(library) == (None if fine else f"every user may write {path}")


@pytest.mark.parametrize(("which", "mode"), [(0, 0o755), (0, 0o1777), (1, 0o755)])
def test_file_or_directory_of_another_user(
    golden: Golden, library: Path, which: int, mode: int, monkeypatch: pytest.MonkeyPatch
):
    library.parent.chmod(mode)
    give_away([library, library.parent][which], monkeypatch)
    golden(refusal(library) or "")


def test_group_that_this_process_is_not_in(golden: Golden, library: Path, needs):
    needs(os.geteuid() == 0, "root, who can give a file to any group")
    os.chown(library, -1, 54321)
    assert refusal(library) is None
    library.chmod(0o664)
    golden(refusal(library))


@pytest.mark.parametrize("by", ["os", "libc"])
@pytest.mark.parametrize("permissions", [4, 6])
@pytest.mark.parametrize(("tag", "who"), [(0x02, "another user (user"), (0x08, "a group (group")])
def test_access_list(
    library: Path, tag: int, permissions: int, who: str, by: str, needs, monkeypatch
):
    nobody = 2**32 - 1
    # The owner, the named user or group, the group of the file, the mask, all others.
    entries = [(0x01, 6, nobody), (0x04, 4, nobody), (0x10, 6, nobody), (0x20, 4, nobody)]
    entries = sorted([*entries, (tag, permissions, 54321)])
    data = struct.pack("<I", 2) + b"".join([struct.pack("<HHI", *entry) for entry in entries])
    try:
        os.setxattr(library, "system.posix_acl_access", data)
    except OSError:
        needs(None, "a file system with access lists for temporary files")
    if by == "libc":
        monkeypatch.delattr(os, "getxattr")
    told = f"{who} 54321) may write {library}"
    assert refusal(library) == (told if permissions & 2 else None)


def test_owners_that_a_user_namespace_does_not_show(library: Path, needs):
    """There this user, root and all others have one number, 65534."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if ctypes.CDLL(None).unshare(CLONE_NEWUSER) == 0:
                os.write(writing, str(refusal(library)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as stream:
        told = stream.read()
    os.waitpid(child, 0)
    needs(told, "user namespaces")
    assert "is unknown in this user namespace" in told


@pytest.mark.parametrize("which", ["file", "directory"])
def test_group_that_this_process_is_in_is_accepted_with_a_note(
    library: Path, which: str, needs, monkeypatch: pytest.MonkeyPatch
):
    needs(os.geteuid() == 0, "root, who can give a file to any group")
    monkeypatch.setattr(os, "getgroups", lambda: [54321])
    path = library if which == "file" else library.parent
    os.chown(path, -1, 54321)
    path.chmod(0o775)
    told = f"a group (group 54321) may write {path}"
    assert inspect_ownership(str(library)) == Ownership(None, f"{told}, and you are in it")
    assert inspect_ownership(str(library), named=True).refusal is None
    assert inspect_ownership(str(library.parent), private=True).refusal == (
        told if which == "directory" else None
    )


def test_path_that_the_user_typed_is_used_with_a_note(library: Path):
    library.chmod(0o666)
    told = f"every user may write {library}"
    assert inspect_ownership(str(library)) == Ownership(told)
    assert inspect_ownership(str(library), named=True) == Ownership(
        None, f"{told}; used as you named it"
    )
    assert inspect_ownership("/proc/self/fd/pipe:[1]", named=True) == Ownership()


def test_directory_for_one_user_alone(library: Path):
    directory = library.parent
    for mode, fine in ((0o700, True), (0o755, True), (0o770, False), (0o702, False)):
        directory.chmod(mode)
        found = inspect_ownership(str(directory), private=True)
        assert (found.refusal is None) is fine, oct(mode)
        assert found.note is None


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
        assert (refusal(library) is None) is fine, members
    everyone = grp.struct_group(("users", "x", gid, []))
    monkeypatch.setattr(grp, "getgrgid", lambda _: everyone)
    assert refusal(library) is not None


def test_link_out_of_a_safe_directory(library: Path, tmp_path: Path):
    library.parent.chmod(0o777)
    link = tmp_path / "link.so"
    link.symlink_to("one/two/lib.so")
    assert str(library.parent) in (refusal(link) or "")


def test_link_in_a_directory_that_all_may_write(library: Path, tmp_path: Path):
    loose = tmp_path / "loose"
    loose.mkdir()
    loose.chmod(0o777)
    (loose / "link.so").symlink_to(library)
    assert str(loose) in (refusal(loose / "link.so") or "")


def test_link_to_a_directory_and_up_again(library: Path, tmp_path: Path):
    (tmp_path / "short").symlink_to(library.parent)
    assert refusal(tmp_path / "short" / "lib.so") is None
    library.chmod(0o666)
    assert str(library) in (refusal(tmp_path / "short" / "lib.so") or "")
    library.chmod(0o644)
    link = tmp_path / "up.so"
    link.symlink_to("short/../two/lib.so")  # the directory above what the link leads to
    assert refusal(link) is None
    library.parent.parent.chmod(0o777)
    assert str(library.parent.parent) in (refusal(link) or "")


def test_what_leads_nowhere(golden: Golden, tmp_path: Path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert "loop" in (refusal(tmp_path / "a") or "")
    golden(refusal(tmp_path / "absent") or "")
