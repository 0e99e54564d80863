# SPDX-License-Identifier: Apache-2.0
"""Metric values while instances run, for the caller of `xlaunch.start`.

The supervisor must never wait for its caller. So they share a file in memory (see memfd_create(2))
instead of a pipe: the supervisor appends, the caller reads at its own pace.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

MAX_LIVE_BYTES = 16 << 20
"""Limit for one run, about 700,000 values. Later ones are in the report only."""

LINES_AFTER_MARK = 8

_STARTED, _VALUE, _LINE = range(3)
_STREAMS = ("out", "err", "metrics")
_RECORD = struct.Struct("<BIHdd")
"""Kind, instance, number of the metric or stream, time, then the value or the length of the text."""


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


class LiveLine(NamedTuple):
    """A line that contains the mark, or one of the next `LINES_AFTER_MARK` lines."""

    instance: int
    stream: str
    """``out``, ``err``, or ``metrics`` for what was reported."""
    at_s: float
    text: str


Live: TypeAlias = LiveStart | LiveValue | LiveLine


class LiveWriter:
    """The end that the supervisor writes to."""

    def __init__(self, descriptor: int, metrics: Sequence[str], mark: str | None) -> None:
        """`metrics`: names, in the order that the reader has. `mark`: see `LiveLine`."""
        self._descriptor = descriptor
        self._numbers = {name: number for number, name in enumerate(metrics)}
        self._mark = mark
        self._lines_left: dict[tuple[int, str], int] = {}
        self._written = 0

    def started(self, instance: int, now: float) -> None:
        """Write that an instance was started."""
        self._append(_RECORD.pack(_STARTED, instance, 0, now, 0.0))

    def value(self, instance: int, metric: str, now: float, value: float) -> None:
        """Write a value."""
        self._append(_RECORD.pack(_VALUE, instance, self._numbers[metric], now, value))

    def line(self, instance: int, stream: str, now: float, text: str) -> None:
        """Write a line that contains the mark, or follows one."""
        if self._mark is None:
            return
        source = (instance, stream)
        if self._mark in text:
            self._lines_left[source] = LINES_AFTER_MARK + 1
        left = self._lines_left.get(source, 0)
        if left:
            self._lines_left[source] = left - 1
            data = text.encode(errors="replace")
            number = _STREAMS.index(stream)
            self._append(_RECORD.pack(_LINE, instance, number, now, len(data)) + data)

    def _append(self, record: bytes) -> None:
        self._written += len(record)
        if self._written > MAX_LIVE_BYTES:
            return
        try:
            os.write(self._descriptor, record)
        except OSError:  # no memory: treat the file as full
            self._written = MAX_LIVE_BYTES


class LiveReader:
    """The end that the caller reads from. `close` it."""

    def __init__(self, descriptor: int, metrics: Iterable[str]) -> None:
        self.descriptor = descriptor
        self.metrics = tuple(metrics)
        self._position = 0

    def read(self) -> Iterator[Live]:
        """What was written since the last call."""
        data = b""
        while more := os.pread(self.descriptor, 1 << 16, self._position + len(data)):
            data += more
        start = 0
        while start + _RECORD.size <= len(data):
            kind, instance, number, at_s, value = _RECORD.unpack_from(data, start)
            end = start + _RECORD.size
            if kind == _STARTED:
                yield LiveStart(instance, at_s)
            elif kind == _VALUE:
                yield LiveValue(instance, self.metrics[number], at_s, value)
            else:
                end += int(value)
                if end > len(data):
                    break  # it is being written
                text = data[end - int(value) : end].decode()
                yield LiveLine(instance, _STREAMS[number], at_s, text)
            self._position += end - start
            start = end

    def close(self) -> None:
        """Close the file."""
        os.close(self.descriptor)
