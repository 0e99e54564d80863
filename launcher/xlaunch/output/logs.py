# SPDX-License-Identifier: Apache-2.0
"""Log files. The instances write them directly; with `--tee`, `--log-size` or JSON the launcher does."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator

from xlaunch.errors import UsageError
from xlaunch.files import try_lock

STREAMS = ("out", "err")
LINES_SHOWN = 10
"""Number of lines of a failed instance's standard error that are shown."""
MAX_BYTES_READ = 1 << 14


def log_path(directory: str, index: int, stream: str) -> str:
    """The log file of an instance's stream. **Ex.:** ``logs/instance-0.out``."""
    return os.path.join(directory, f"instance-{index}.{stream}")


def log_files(directory: str, indices: Iterable[int]) -> Iterator[str]:
    """Every file that the logs of a run may be written or moved to."""
    for index in indices:
        for stream in STREAMS:
            path = log_path(directory, index, stream)
            yield from (path, f"{path}.1")


def prepare_log_directory(directory: str, indices: Iterable[int]) -> None:
    """Make the directory if it does not exist. Raises `UsageError` if it is not writable, or if a
    running launch writes the logs of one of the instances `indices` there.
    """
    if not directory:
        raise UsageError("--log-dir: the directory's name is empty")
    try:
        os.makedirs(directory, exist_ok=True)
    except FileExistsError:
        raise UsageError(f"--log-dir: {directory!r} is not a directory") from None
    except OSError as error:
        raise UsageError(
            f"--log-dir: cannot make the directory {directory!r}: {error.strerror}"
        ) from None
    if not os.access(directory, os.W_OK | os.X_OK):
        raise UsageError(f"--log-dir: no permission to write in {directory!r}")
    for index in indices:
        if _is_in_use(log_path(directory, index, "out")):
            raise UsageError(
                f"--log-dir {directory!r}: another launch is writing the log of instance {index} "
                "there; name another directory, or wait for its end (xlaunch ps)"
            )


def open_logs(directory: str, index: int, *, new: bool = True) -> tuple[int, int]:
    """Open an instance's two files for appending, and lock them while a process has them open.

    `new`: create them; those of the previous run are renamed to end in `.1`. Raises OSError, also if
    another launch writes them.
    """
    descriptors = []
    for stream in STREAMS:
        path = log_path(directory, index, stream)
        if new and os.path.exists(path):
            if _is_in_use(path):
                raise OSError(errno.EBUSY, "another launch is writing this log", path)
            os.replace(path, f"{path}.1")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try_lock(descriptor)
        descriptors.append(descriptor)
    return descriptors[0], descriptors[1]


def _is_in_use(path: str) -> bool:
    """Whether a running launch has this log file open."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(descriptor)
    return False


class LogFile:
    """A log file that the launcher writes, because it formats, limits or shows the output."""

    def __init__(self, descriptor: int, path: str, max_bytes: int | None = None) -> None:
        """`max_bytes`: beyond it the file is moved to ``path.1``, after a whole line."""
        self._descriptor: int | None = descriptor
        self._path = path
        self._max_bytes = max_bytes
        self._size = os.fstat(descriptor).st_size
        self._begins_line = True

    def write(self, data: bytes) -> str | None:
        """Append `data`. If that fails, return the reason once and write nothing more."""
        try:
            if self._max_bytes is not None and 0 < self._size > self._max_bytes - len(data):
                data = self._rotate(data)
            self._append(data)
        except OSError as error:
            self.close()
            return f"cannot write a log file: {error.strerror} ({self._path})"
        return None

    def _append(self, data: bytes) -> None:
        if data and self._descriptor is not None:
            self._size += len(data)
            self._begins_line = data.endswith(b"\n")
            while data:
                data = data[os.write(self._descriptor, data) :]

    def _rotate(self, data: bytes) -> bytes:
        """Begin a new file, after the end of the line; return what belongs into it."""
        end = 0 if self._begins_line else data.find(b"\n") + 1
        if self._descriptor is None or not (self._begins_line or end):
            return data
        self._append(data[:end])
        os.replace(self._path, f"{self._path}.1")
        new = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try_lock(new)
        os.close(self._descriptor)
        self._descriptor, self._size = new, 0
        return data[end:]

    def close(self) -> None:
        """Close the file; a second time does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def last_lines(path: str, count: int = LINES_SHOWN) -> list[str]:
    """The last lines of a log file, as text; empty if it cannot be read or has none."""
    try:
        with open(path, "rb") as stream:
            start = max(0, os.fstat(stream.fileno()).st_size - MAX_BYTES_READ)
            stream.seek(start)
            text = stream.read().decode(errors="replace")
    except OSError:
        return []
    # What ends in a carriage return was an update of the line that follows it.
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    return [line for line in lines[1 if start else 0 :] if line.strip()][-count:]
