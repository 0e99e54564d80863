# SPDX-License-Identifier: Apache-2.0
"""Values for `xlaunch --metric` and xtune that nobody has to print.

>>> report("images/s", batch_size / seconds)

Under ``xlaunch --metric`` each call is a line of ``NAME VALUE`` on the pipe that XLAUNCH_METRICS
names; elsewhere it does nothing, at the cost of looking. Threads and processes may call it at the
same time: a line of at most PIPE_BUF bytes is never mixed with another (see pipe(7)).
"""

from __future__ import annotations

import math
import os
import threading
import warnings
from typing import SupportsFloat, SupportsIndex

VARIABLE = "XLAUNCH_METRICS"

LONGEST_NAME = 256
"""Characters; with its number a line stays below PIPE_BUF and is written in one piece."""


class ReportingWarning(UserWarning):
    """Values cannot be reported, because whoever asked for them does not listen any more."""


def report(name: str, value: SupportsFloat | SupportsIndex) -> None:
    """Have xlaunch know that metric `name` is `value` now.

    name
        As ``--metric`` asks for it: ``images/s``, ``loss``. A kind said there (``latency:``) is not
        part of it.
    value
        Any number, or what `float` takes, such as a tensor or an array of one element. One that is
        not finite is no measurement and is left out.

    It waits only while the pipe is full, that is for xlaunch to read 64 KiB. Raises ValueError for a
    name that is empty, too long or has more than one line, TypeError for a value that is no number.
    """
    path = os.environ.get(VARIABLE)
    if path is None:
        return
    line = _line(name, value)
    if line is None:
        return
    _pipe.send(path, line)


def _line(name: str, value: SupportsFloat | SupportsIndex) -> bytes | None:
    stripped = name.strip()
    if not stripped or len(stripped) > LONGEST_NAME or len(stripped.splitlines()) > 1:
        raise ValueError(
            f"report({name[:80]!r}, ...): a name is one line of 1 to {LONGEST_NAME} characters,"
            " such as 'images/s'"
        )
    number = float(value)
    if not math.isfinite(number):
        return None
    return f"{stripped} {number!r}\n".encode(errors="replace")


class _Pipe:
    """The pipe that is open, once somebody has reported."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.opened: tuple[str, int] | None = None
        """Its path and descriptor; -1 where it cannot be written to, of which was warned."""

    def send(self, path: str, line: bytes) -> None:
        opened = self.opened
        if opened is None or opened[0] != path:
            opened = self._open(path)
        if opened[1] < 0:
            return
        try:
            os.write(opened[1], line)
        except OSError as error:
            self._give_up(path, error)

    def _open(self, path: str) -> tuple[str, int]:
        with self._lock:
            if self.opened is not None and self.opened[0] == path:
                return self.opened
            # A descriptor of another path is left open: a thread may be about to write to it.
            try:
                # Without waiting for a reader: xlaunch has it open as long as its run lasts.
                descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.set_blocking(descriptor, True)
            except OSError as error:
                self.opened = (path, -1)
                self._warn(path, error)
            else:
                self.opened = (path, descriptor)
            return self.opened

    def _give_up(self, path: str, error: OSError) -> None:
        with self._lock:
            if self.opened is not None and self.opened[1] >= 0:
                self.opened = (path, -1)
                self._warn(path, error)

    def _warn(self, path: str, error: OSError) -> None:
        warnings.warn(
            f"values are not reported any more: {VARIABLE}={path}: {error.strerror}",
            ReportingWarning,
            stacklevel=5,  # where `report` was called
        )

    def forget_the_lock(self) -> None:
        """In a forked child: another thread of the parent may have held it."""
        self._lock = threading.Lock()


_pipe = _Pipe()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pipe.forget_the_lock)
