# SPDX-License-Identifier: Apache-2.0
"""Files appear whole, directories are private, and locks end with their holder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from xlaunch.errors import UsageError, XLaunchError
from xlaunch.files import (
    locked,
    make_private,
    open_input,
    read_record,
    runtime_directory,
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
