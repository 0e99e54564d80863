# SPDX-License-Identifier: Apache-2.0
"""Captures: written, read back, and refused."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from tests.captures import capture_path
from tests.launcher.machine.trees import CPU, NODE, cache, cpus, each, write_files

from xlaunch.errors import UsageError
from xlaunch.machine import machine_of, read_machine
from xlaunch.machine.capture import unpacked, write_capture
from xlaunch.machine.description import describe_machine

SECRET = "editor-of-alice"
"""Names a process, a user or a host where it stands below; no capture may hold it."""


def members(path: Path) -> dict[str, str]:
    """The files of an archive and their text."""
    with tarfile.open(path) as archive:
        found = {}
        for member in archive:
            content = archive.extractfile(member)
            found[member.name] = content.read().decode() if content else ""
        return found


def test_a_capture_of_a_limited_hybrid_machine_is_the_same_and_names_nobody(tmp_path: Path) -> None:
    files = cpus(
        "0-3",
        core_cpus_list=["0", "1", "2", "3"],
        package_cpus_list=["0-3"] * 4,
        physical_package_id=["0"] * 4,
        ppin=["0x1234567890"] * 4,
    )
    files |= cache(0, 0, 3, "0-1") | cache(1, 0, 3, "0-1") | cache(2, 0, 2, "2-3")
    files |= each(range(4), "cpu_capacity", ["1024", "1024", "500", "500"])
    files |= {
        f"{CPU}/cpu4/": "",
        f"{NODE}/node0/cpulist": "0-3",
        f"{NODE}/node0/meminfo": "Node 0 MemTotal: 1000 kB",
        f"{NODE}/node0/distance": "10 20",
        f"{NODE}/node1/cpulist": "",
        f"{NODE}/node1/distance": "20 10",
        f"{NODE}/node1/access1/initiators/node0/": "",
        "sys/devices/cpu_core/cpus": "0-1",
        "sys/devices/cpu_atom/cpus": "2-3",
        "proc/sys/kernel/arch": "x86_64",
        "proc/sys/kernel/hostname": SECRET,
        "proc/cpuinfo": "flags\t: lm\nSerial\t\t: 00000000deadbeef",
        "proc/self/mountinfo": f"26 23 0:23 /{SECRET} /sys/fs/cgroup rw - cgroup2 {SECRET} rw,x={SECRET}",
        "proc/self/cgroup": f"1:name={SECRET}:/\n0::/{SECRET}/{SECRET}.scope/job",
        "proc/self/status": f"Name:\t{SECRET}\nCpus_allowed_list:\t1-3\nMems_allowed_list:\t0-1",
        f"sys/fs/cgroup/{SECRET}.scope/cgroup.procs": SECRET,
        f"sys/fs/cgroup/{SECRET}.scope/job/cpuset.cpus.effective": "2-3",
        f"sys/fs/cgroup/{SECRET}.scope/cpu.max": "150000 100000",
    }
    root = write_files(tmp_path / "machine", files)
    before = describe_machine(read_machine(root))
    assert before["allowed_cpus"] == (2, 3)
    assert before["cpu_quota"] == 1.5

    capture = tmp_path / "a.tar.xz"
    write_capture(str(capture), root)
    with unpacked(str(capture)) as copy:
        assert describe_machine(read_machine(copy)) == before
    assert not Path(copy).exists()
    found = members(capture)
    assert not [word for word in (SECRET, "deadbeef", "1234567890") if word in repr(found)]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.zip", "a capture is a .tar.xz; write --capture {}/a.zip.tar.xz"),
        ("none/a.tar.xz", "cannot write it: No such file or directory"),
    ],
)
def test_where_no_capture_can_be_written(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        write_capture(f"{tmp_path}/{name}")
    assert str(caught.value).endswith(message.format(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_capture_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = tmp_path / "a.tar.xz"
    capture.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UsageError, match="No space left on device"):
        write_capture(str(capture), force=True)
    assert capture.read_text() == "old"
    assert list(tmp_path.iterdir()) == [capture]


def archive_of(path: Path, name: str, *, link: str | None = None) -> str:
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo(name)
        if link is not None:
            member.type, member.linkname = tarfile.SYMTYPE, link
            archive.addfile(member)
        else:
            member.size = 2
            archive.addfile(member, io.BytesIO(b"0\n"))
    return str(path)


@pytest.mark.parametrize(
    ("name", "link"),
    [("../escaped", None), ("sys/link", "/etc"), ("sys/link", "../../../etc/passwd")],
)
def test_members_that_leave_the_directory_are_refused(
    tmp_path: Path, name: str, link: str | None
) -> None:
    path = archive_of(tmp_path / "bad.tar", name, link=link)
    with pytest.raises(UsageError, match="not a capture that can be unpacked"), unpacked(path):
        pass


Member = tuple[str, dict[str, object]]
CPU0: Member = (f"{CPU}/cpu0", {"type": tarfile.DIRTYPE})


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([("sys/a", {"type": tarfile.LNKTYPE, "linkname": "sys/none"})], "linkname 'sys/none' not found"),
        ([("sys/a", {"type": tarfile.LNKTYPE, "linkname": "sys/a"})], "linkname 'sys/a' not found"),
        ([("sys/a", {"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"})], "link to an absolute path"),
        ([("sys/a", {"type": tarfile.SYMTYPE, "linkname": "b"}), ("sys/b", {"type": tarfile.SYMTYPE, "linkname": "a"}), ("sys/a/c", {})], "cannot be unpacked"),
        ([("sys/a", {"type": tarfile.CHRTYPE})], "special file"),
        ([("sys/a", {"type": tarfile.FIFOTYPE})], "special file"),
        ([("sys/a", {"mtime": 1e30})], "timestamp out of range"),
        ([("sys/a", {"pax_headers": {"path": "sys/a\0b"}})], "null"),
        ([("sys/a", {"type": tarfile.SYMTYPE, "linkname": "b", "pax_headers": {"linkpath": "a\0b"}})], "null"),
        ([("sys/a", {"pax_headers": {"GNU.sparse.map": "a,b", "GNU.sparse.size": "z"}})], "invalid literal"),
        ([("sys", {}), ("sys/a", {})], "cannot be unpacked"),
        ([("sys/" + "a/" * 3000 + "b", {})], "deeper, than any capture"),
        ([("sys/" + "a" * 300, {})], "cannot be unpacked"),
        ([("sys/a", {})], "holds no sys/devices/system/cpu"),
    ],
)  # fmt: skip
def test_damaged_members_are_one_line(
    members: list[Member], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    path = tmp_path / "bad.tar"
    with tarfile.open(path, "w") as archive:
        for name, fields in members if "holds no" in reason else [CPU0, *members]:
            member = tarfile.TarInfo(name)
            for field, value in fields.items():
                setattr(member, field, value)
            archive.addfile(member)
    with pytest.raises(UsageError) as caught, unpacked(str(path)):
        pass
    assert str(caught.value).startswith(f"{path}: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == [path]


def test_members_of_more_than_a_capture_are_refused_before_they_are_written(tmp_path: Path) -> None:
    member = tarfile.TarInfo("sys/a")
    member.size = 1 << 40
    path = tmp_path / "bad.tar"
    path.write_bytes(member.tobuf())
    with pytest.raises(UsageError, match="unpacks to more"), unpacked(str(path)):
        pass


@pytest.mark.parametrize("content", [b"", b"not an archive", b"\xfd7zXZ\x00 broken"])
def test_what_is_no_archive_is_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.tar.xz"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught, unpacked(str(path)):
        pass
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_capture_may_come_through_a_pipe() -> None:
    with subprocess.Popen(("cat", capture_path("1-cpu")), stdout=subprocess.PIPE) as cat:
        assert cat.stdout is not None
        with machine_of(f"/dev/fd/{cat.stdout.fileno()}", None) as machine:
            assert machine.topology.online_cpus == (0,)


@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tar.xz"])
def test_every_compression_and_a_directory_around(tmp_path: Path, suffix: str) -> None:
    write_files(tmp_path / "machine", {f"{CPU}/online": "0-2", f"{CPU}/cpu0/": ""})
    path = tmp_path / f"a.{suffix}"
    with tarfile.open(path, f"w:{suffix[4:]}") as archive:
        archive.add(tmp_path / "machine", "wrapped")
    with unpacked(str(path)) as root:
        assert read_machine(root).topology.online_cpus == (0, 1, 2)
