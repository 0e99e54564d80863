# SPDX-License-Identifier: Apache-2.0
"""Output of several instances on one stream: tagged by line, whole lines never mixed, no byte lost.

A `LineTagger` turns what one instance writes into whole tagged lines; a `Sink` writes the lines of
all instances to one destination without ever blocking the supervisor.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections import deque

from xlaunch.console import json_line

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
        out = self._tagged(complete) if complete else b""
        if len(self._pending) >= LINE_CAP:
            out += self._cut()
        return out

    def finish(self) -> bytes:
        """The remaining bytes, as a whole line."""
        rest, self._pending = self._pending, b""
        if not rest:
            return b""
        return self._tagged(rest if rest.endswith(b"\n") else rest + b"\n")

    def _tagged(self, lines: bytes) -> bytes:
        out = b""
        # Only the first line can exceed the cap: the others arrived within one read.
        while lines.find(b"\n", 0, LINE_CAP + 1) < 0 and len(lines) > LINE_CAP:
            out += self._prefix() + lines[:LINE_CAP] + b"\n"
            lines = lines[LINE_CAP:]
            self._continued = True
        out += self._prefix()
        self._continued = False
        body = lines[:-1].replace(b"\n", b"\n" + self._tag)
        if self._terminal and b"\r" in body:
            update = b"\r" + ERASE_TO_END + self._tag
            body = re.sub(rb"\r(?![\r\n]|$)", lambda _: update, body)
        return out + body + lines[-1:]

    def _cut(self) -> bytes:
        out = b""
        while len(self._pending) >= LINE_CAP:
            out += self._prefix() + self._pending[:LINE_CAP] + b"\n"
            self._pending = self._pending[LINE_CAP:]
            self._continued = True
        return out

    def _prefix(self) -> bytes:
        return self._continued_tag if self._continued else self._tag


class Verbatim:
    """Passes bytes on unchanged: for a single instance."""

    def feed(self, data: bytes) -> bytes:
        """`data`."""
        return data

    def finish(self) -> bytes:
        """Empty: nothing is held back."""
        return b""


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
        while len(self._pending) >= LINE_CAP:
            lines.append(self._pending[:LINE_CAP])
            self._pending = self._pending[LINE_CAP:]
        return b"".join(map(self._formatted, lines))

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
