# SPDX-License-Identifier: Apache-2.0
"""Metric values while instances run, for the caller of `xlaunch.start`.

The supervisor must never wait for its caller. So they share a file in memory (see memfd_create(2))
instead of a pipe: the supervisor appends, the caller reads at its own pace.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

MAX_LIVE_BYTES = 32 << 20
"""Limit for one run, about 500,000 values. Later ones are in the report only."""

LINES_AFTER_MARK = 8


class LiveStart(NamedTuple):
    """The start of an instance."""

    instance: int
    at_s: float
    """On the clock of `time.monotonic()`, as every time here."""


class LiveValue(NamedTuple):
    """A value that an instance printed or reported."""

    instance: int
    metric: str
    at_s: float
    value: float
    """Finite, in the unit that the metric had first in this run, if any."""
    unit: str | None = None


class LiveLine(NamedTuple):
    """A line that contains the mark, or one of the next `LINES_AFTER_MARK` lines."""

    instance: int
    stream: str
    """``out``, ``err``, or ``metrics`` for what was reported."""
    at_s: float
    text: str


Live: TypeAlias = LiveStart | LiveValue | LiveLine


_CLASSES = {kind.__name__: kind for kind in (LiveStart, LiveValue, LiveLine)}


class LiveWriter:
    """The write end of the pipe, for the supervisor: a line of JSON for each event."""

    def __init__(self, descriptor: int, mark: str | None) -> None:
        """`mark`: see `LiveLine`."""
        self._descriptor = descriptor
        self._mark = mark
        self._lines_left: dict[tuple[int, str], int] = {}
        self._written = 0

    def write(self, event: Live) -> None:
        data = json.dumps([type(event).__name__, *event]).encode() + b"\n"
        self._written += len(data)
        if self._written > MAX_LIVE_BYTES:
            return
        try:
            os.write(self._descriptor, data)
        except OSError:  # no memory: treat the file as full
            self._written = MAX_LIVE_BYTES

    def write_marked(self, line: LiveLine) -> None:
        """Write a line if it contains the mark, or follows one."""
        if self._mark is None:
            return
        source = (line.instance, line.stream)
        if self._mark in line.text:
            self._lines_left[source] = LINES_AFTER_MARK + 1
        remaining = self._lines_left.get(source, 0)
        if remaining:
            self._lines_left[source] = remaining - 1
            self.write(line)


class LiveReader:
    """The read end of the pipe, for the caller, which must `close` it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._position = 0

    def read(self) -> Iterator[Live]:
        """What was written since the last call."""
        data = b""
        while more := os.pread(self.descriptor, 1 << 16, self._position + len(data)):
            data += more
        # What follows the last newline is being written.
        for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):
            name, *fields = json.loads(line)
            self._position += len(line)
            yield _CLASSES[name](*fields)

    def close(self) -> None:
        os.close(self.descriptor)
