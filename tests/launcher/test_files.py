# SPDX-License-Identifier: Apache-2.0
"""Files appear whole, directories are private, and locks end with their holder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.launcher.launching import is_alive, wait_until

from xlaunch.errors import UsageError, XLaunchError
from xlaunch.files import (
    MAX_LISTED,
    locked,
    make_private,
    make_temporary,
    open_input,
    read_record,
    remove_dead,
    runtime_directory,
    temporary_directory,
    temporary_path,
    try_lock,
    write_output,
    write_record,
    write_whole,
)

HOLD = """
import os, sys
from xlaunch.files import locked, write_record
with locked(sys.argv[1]) as descriptor:
    write_record(descriptor, b"PID %d" % os.getpid())
    print(flush=True)
    sys.stdin.read()
"""


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path):
    path = tmp_path / "file"
    write_whole(str(path), b"old", mode=0o600)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(TypeError):
        write_whole(str(path), "text")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_not_a_regular_file_is_not_opened_unless_it_is_open():
    with pytest.raises(OSError, match="it is a device, not a regular file"):
        open_input("/dev/zero")
    for name in (os.devnull, "/dev/stdin"):
        done = subprocess.run(
            (sys.executable, "-c", f"from xlaunch.files import *; print(open_input({name!r}).read())"),
            input=b"typed", stdout=subprocess.PIPE, check=True,
        )  # fmt: skip
        assert done.stdout.decode().strip() == ("b'typed'" if "stdin" in name else "b''")


def test_a_file_that_is_replaced_keeps_its_mode_and_owner(tmp_path: Path):
    path = tmp_path / "file"
    path.touch()
    owner = 65534 if os.geteuid() == 0 else os.geteuid()
    os.chown(path, owner, -1)
    for mode in (0o600, 0o664):
        path.chmod(mode)
        write_whole(str(path), b"new")
        status = path.stat()
        assert (status.st_mode & 0o7777, status.st_uid) == (mode, owner)
    assert path.read_bytes() == b"new"


def test_only_a_regular_file_is_replaced(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="it is not a regular file"):
        write_whole(str(pipe), b"new")
    with pytest.raises(IsADirectoryError):
        write_whole(str(tmp_path), b"new")
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_output_goes_into_a_pipe(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader, writer = os.pipe()
    with (
        open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb") as named,
        open(reader, "rb") as other,
    ):
        write_output(str(pipe), "text")
        write_output(f"/dev/fd/{writer}", "text")
        os.close(writer)
        assert named.read() == other.read() == b"text"
    with pytest.raises(UsageError, match=r"^--output '.*' cannot be written: Is a directory"):
        write_output(str(tmp_path), "text", option="--output")


def test_private_directories_are_made_so_whatever_the_mask(tmp_path: Path):
    before = os.umask(0)
    try:
        make_private(str(tmp_path / "one" / "two"))
    finally:
        os.umask(before)
    for directory in (tmp_path / "one", tmp_path / "one" / "two"):
        assert directory.stat().st_mode & 0o777 == 0o700
    make_private(str(tmp_path / "one"))
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        make_private(str(tmp_path / "file"))


def test_runtime_directory(tmp_path: Path):
    given, memory = tmp_path / "run", tmp_path / "memory"
    given.mkdir()
    memory.mkdir()
    variables = {"XDG_RUNTIME_DIR": str(given)}
    assert runtime_directory("x", variables, str(memory)) == str(given / "x")
    other = memory / f"x-{os.geteuid()}"
    for environment in (
        {},
        {"XDG_RUNTIME_DIR": "run"},
        {"XDG_RUNTIME_DIR": str(tmp_path / "gone")},
    ):
        assert runtime_directory("x", environment, str(memory)) == str(other)
    assert other.stat().st_mode & 0o777 == 0o700
    other.chmod(0o750)
    with pytest.raises(XLaunchError, match=f"{other} is not a private directory of yours"):
        runtime_directory("x", {}, str(memory))
    other.rmdir()
    other.symlink_to(given)
    with pytest.raises(XLaunchError, match="is not a private directory of yours"):
        runtime_directory("x", {}, str(memory))
    with pytest.raises(XLaunchError, match="No such file or directory; set XDG_RUNTIME_DIR"):
        runtime_directory("x", {}, str(tmp_path / "gone"))


def test_the_lock_of_a_killed_holder_is_free_and_its_record_is_read(tmp_path: Path):
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLD, str(path)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    told: list[bytes] = []

    def waiting(descriptor: int) -> None:
        told.append(read_record(descriptor))
        holder.send_signal(signal.SIGKILL)

    with holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with open(path, "rb") as stream:
            assert not try_lock(stream.fileno())
            assert not try_lock(stream.fileno(), shared=True)
        with locked(str(path), waiting=waiting) as descriptor:
            assert told == [b"PID %d" % holder.pid]
            write_record(descriptor, b"me")
            assert path.read_bytes() == b"me"
    with locked(str(path), waiting=waiting):
        assert len(told) == 1


def test_shared_locks(tmp_path: Path):
    (tmp_path / "file").touch()
    with open(tmp_path / "file") as one, open(tmp_path / "file") as two:
        assert try_lock(one.fileno(), shared=True)
        assert try_lock(two.fileno(), shared=True)
        assert not try_lock(two.fileno())


def test_the_file_of_a_lock(tmp_path: Path):
    with locked(str(tmp_path / "lock")):
        assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600
    (tmp_path / "link").symlink_to(tmp_path / "lock")
    with pytest.raises(OSError, match="symbolic links"), locked(str(tmp_path / "link")):
        pass


# Temporary directories.

KEEP = """
import os, subprocess, sys, time
from xlaunch.files import make_temporary, temporary_path
path = temporary_path("xlaunch-test", sys.argv[1])
make_temporary(path)
os.mkdir(path + "/weights")
open(path + "/weights/model.so", "w").close()
if sys.argv[2] == "program":
    subprocess.Popen(["sleep", "10"], close_fds=False)
pid = os.fork() if sys.argv[2] == "fork" else 0
if pid or sys.argv[2] != "fork":
    print(pid, flush=True)
time.sleep(100)
"""


def killed(base: Path, child: str = "") -> int:
    """The fork of a process that made a temporary directory in `base` and was killed."""
    words = (sys.executable, "-c", KEEP, str(base), child)
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as holder:
        assert holder.stdout is not None
        pid = int(holder.stdout.readline())
        remove_dead(str(base))
        assert len(list(base.iterdir())) == 1
        holder.kill()
        holder.wait()
        holder.stdout.close()
    return pid


def test_a_temporary_directory_is_removed_by_the_next_process_when_its_own_was_killed(
    tmp_path: Path,
):
    killed(tmp_path)
    remove_dead(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_was_started_does_not_keep_a_temporary_directory(tmp_path: Path):
    killed(tmp_path, "program")
    remove_dead(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_fork_keeps_a_temporary_directory_until_it_ends(tmp_path: Path):
    pid = killed(tmp_path, "fork")
    remove_dead(str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 1
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), "the end of the fork")
    remove_dead(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_only_dead_temporary_directories_of_ours_are_removed(tmp_path: Path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    base = tmp_path / "base"
    base.mkdir()

    def dead(name: str) -> Path:
        path = base / name
        os.close(make_temporary(str(path)))
        return path

    number = "0123456789abcdef"
    kept = [dead("mine"), dead("xlaunch-mine"), dead(f"xlaunch-{number}-old")]
    kept.append(dead(f"xlaunch-readable-{number}"))
    kept[-1].chmod(0o755)
    kept.append(base / f"xlaunch-unlocked-{number}")
    kept[-1].mkdir(mode=0o700)
    kept.append(base / f"xlaunch-file-{number}")
    kept[-1].touch(mode=0o700)
    kept.append(base / f"xlaunch-link-{number}")
    kept[-1].symlink_to(outside)
    kept.append(base / f"xlaunch-locklink-{number}")
    kept[-1].mkdir(mode=0o700)
    (kept[-1] / ".lock").symlink_to(outside / "file")
    kept.append(base / f"xlaunch-fifo-{number}")
    kept[-1].mkdir(mode=0o700)
    os.mkfifo(kept[-1] / ".lock", 0o600)
    if os.geteuid() == 0:
        kept.append(dead(f"xlaunch-other-{number}"))
        os.chown(kept[-1], 65534, -1)
    inside = dead(f"xlaunch-dead-{number}")
    (inside / "link").symlink_to(outside)
    remove_dead(str(base), str(base), str(tmp_path / "absent"))
    assert sorted(base.iterdir()) == sorted(kept)
    assert (outside / "file").exists()


def test_what_others_put_beside_temporary_directories_costs_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    looked_at = 0
    opened = os.open

    def counting(*arguments: Any, **more: Any) -> int:
        nonlocal looked_at
        looked_at += 1
        return opened(*arguments, **more)

    for _ in range(300):
        os.mkdir(temporary_path("xlaunch-theirs", str(tmp_path)), 0o755)
    monkeypatch.setattr(os, "open", counting)
    remove_dead(str(tmp_path))
    assert looked_at <= 100
    assert MAX_LISTED < 100_000


def test_a_temporary_directory_is_empty_private_and_gone_after_its_block(tmp_path: Path):
    with temporary_directory("xlaunch-test", str(tmp_path)) as path:
        assert os.listdir(path) == []
        (made,) = tmp_path.iterdir()
        assert made.stat().st_mode & 0o777 == 0o700
        os.mkfifo(f"{path}/fifo")
        remove_dead(str(tmp_path))
        assert os.listdir(path) == ["fifo"]
    assert list(tmp_path.iterdir()) == []
