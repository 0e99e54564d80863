# SPDX-License-Identifier: Apache-2.0
"""Where output of instances goes: to one stream for all, whole lines never mixed, no byte lost; and to log files.

A `LineTagger` turns what one instance writes into whole tagged lines; a `Sink` writes the lines of
all instances to one destination without ever blocking the supervisor. Instances write log files
directly; with `--tee`, `--log-size` or JSON the launcher does, by a `LogFile`.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections import deque
from collections.abc import Iterable, Iterator

from xlaunch.console import json_line
from xlaunch.errors import UsageError
from xlaunch.files import try_lock

LINE_CAP = 64 * 1024
"""A longer line is split into pieces of this many bytes; all but the first are marked."""

READ_SIZE = 64 * 1024
HIGH_WATER = 1 << 20
"""Maximum unwritten output; above it, the instances' pipes are not read."""

ERASE_TO_END = b"\x1b[K"


class LineTagger:
    """Splits a stream of bytes into whole lines and puts a tag before each.

    **Ex.:** ``b"a\\nb\\n"`` of instance 3 becomes ``b"[3] a\\n[3] b\\n"``. A line beyond `LINE_CAP`
    is split; its further pieces start with ``[3]+``. A carriage return on its own ends an *update*
    (a progress bar): on a terminal it is shown in place, elsewhere it is part of its line.
    Taking the tags away gives back the bytes that came in, but for the newline after a cut piece.
    """

    def __init__(self, tag: str, *, terminal: bool) -> None:
        self._tag = f"[{tag}] ".encode() if tag else b""
        self._continued_tag = f"[{tag}]+ ".encode() if tag else b""
        self._terminal = terminal
        self._pending = b""
        self._continued = False

    def feed(self, data: bytes) -> bytes:
        """The whole lines that `data` completes."""
        data = self._pending + data
        end = data.rfind(b"\n") + 1
        if self._terminal:
            # The last byte may be the first half of \r\n.
            end = max(end, data.rfind(b"\r", 0, -1) + 1)
        complete, self._pending = data[:end], data[end:]
        lines = self._tagged(complete) if complete else b""
        pieces, self._pending = self._cut(self._pending, LINE_CAP)
        return lines + pieces

    def finish(self) -> bytes:
        """The remaining bytes, as a whole line."""
        rest, self._pending = self._pending, b""
        return self._tagged(rest.removesuffix(b"\n") + b"\n") if rest else b""

    def _tagged(self, lines: bytes) -> bytes:
        # Only the first line can exceed the cap: the others arrived within one read.
        pieces, lines = self._cut(lines, LINE_CAP + 1)
        first_tag, self._continued = self._prefix(), False
        body = lines[:-1].replace(b"\n", b"\n" + self._tag)
        if self._terminal and b"\r" in body:
            update = b"\r" + ERASE_TO_END + self._tag
            body = re.sub(rb"\r(?![\r\n]|$)", lambda _: update, body)
        return pieces + first_tag + body + lines[-1:]

    def _cut(self, lines: bytes, min_bytes: int) -> tuple[bytes, bytes]:
        """The tagged pieces of a first line of at least `min_bytes`, and what is left of `lines`."""
        pieces = b""
        while len(lines) >= min_bytes and lines.find(b"\n", 0, LINE_CAP + 1) < 0:
            pieces += self._prefix() + lines[:LINE_CAP] + b"\n"
            lines, self._continued = lines[LINE_CAP:], True
        return pieces, lines

    def _prefix(self) -> bytes:
        return self._continued_tag if self._continued else self._tag


class JsonLines:
    """Turns a stream of bytes into lines of JSON: see `console.json_line`.

    A line beyond `LINE_CAP` is split. Bytes that are not UTF-8 are replaced.
    """

    def __init__(self, index: int, stream: str) -> None:
        self._index = index
        self._stream = stream
        self._pending = b""

    def feed(self, data: bytes) -> bytes:
        """The whole lines that `data` completes."""
        *lines, self._pending = (self._pending + data).split(b"\n")
        pieces = []
        for line in lines:
            pieces += [line[at : at + LINE_CAP] for at in range(0, len(line) or 1, LINE_CAP)]
        while len(self._pending) >= LINE_CAP:
            pieces.append(self._pending[:LINE_CAP])
            self._pending = self._pending[LINE_CAP:]
        return b"".join(map(self._formatted, pieces))

    def finish(self) -> bytes:
        """The remaining bytes, as a whole line."""
        rest, self._pending = self._pending, b""
        return self._formatted(rest) if rest else b""

    def _formatted(self, line: bytes) -> bytes:
        text = line.removesuffix(b"\r").decode(errors="replace")
        return json_line(text, self._stream, self._index).encode()


class Sink:
    """A destination for output. Keeps what cannot be written yet."""

    def __init__(self, descriptor: int, *, shared: bool = True) -> None:
        """`shared`: by several instances, so that a line on a terminal erases an update before it."""
        self.descriptor = descriptor
        self._shared = shared
        self.terminal = os.isatty(descriptor)
        self.broken = False
        """Whether nothing more can be written: then further output is dropped."""
        self.problem: str | None = None
        """Why output was lost, unless its reader is gone. **Ex.:** ``"No space left on device"``."""
        self._waiting: deque[bytes | memoryview] = deque()
        self._size = 0
        self._update_shown = False
        mode = os.fstat(descriptor).st_mode
        # After poll() says writable, a pipe takes PIPE_BUF bytes and a terminal 256 without
        # blocking; the supervisor must not block, or it would miss signals.
        self._portion = 1 << 20 if stat.S_ISREG(mode) else 256 if self.terminal else 4096

    @property
    def pending(self) -> bool:
        return self._size > 0

    @property
    def full(self) -> bool:
        return self._size >= HIGH_WATER

    def add(self, lines: bytes) -> None:
        """Queue output; whole lines where several share this."""
        if self.broken or not lines:
            return
        if self._update_shown:
            lines = ERASE_TO_END + lines
        self._update_shown = self._shared and self.terminal and lines.endswith(b"\r")
        self._waiting.append(lines)
        self._size += len(lines)

    def give_up(self) -> None:
        """Drop the queued output, and everything from now on."""
        self.broken = True
        self._waiting.clear()
        self._size = 0

    def write_some(self) -> None:
        """Write what fits without blocking. Call it when poll() reports the descriptor writable."""
        data = self._waiting[0]
        try:
            count = os.write(self.descriptor, data[: self._portion])
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EPIPE:
                self.problem = error.strerror
            self.give_up()
            return
        self._size -= count
        if count == len(data):
            self._waiting.popleft()
        else:
            # A view, so that a large chunk is not copied for each portion.
            self._waiting[0] = memoryview(data)[count:]


def read_available(descriptor: int) -> bytes | None:
    """Read from a pipe or pseudo-terminal; empty at its end, None when nothing is available."""
    try:
        return os.read(descriptor, READ_SIZE)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""  # the end of a pseudo-terminal: no process has it open


def same_file(first: int, second: int) -> bool:
    """Whether two descriptors are of the same file, pipe or terminal."""
    try:
        return os.path.sameopenfile(first, second)
    except OSError:
        return False


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


def open_logs(directory: str, index: int, *, new: bool) -> tuple[int, int]:
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

    def __init__(self, descriptor: int, path: str, max_bytes: int | None) -> None:
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


def last_lines(path: str) -> list[str]:
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
    return [line for line in lines[1 if start else 0 :] if line.strip()][-LINES_SHOWN:]
