# SPDX-License-Identifier: Apache-2.0
"""`report`: metric values for `xlaunch --metric` and xtune, without printing them.

>>> report("images/s", batch_size / seconds)

Under ``xlaunch --metric`` each call writes a line ``NAME VALUE`` to the pipe that XLAUNCH_METRICS names;
without that variable it does nothing. Threads and processes may call it at the same time: lines of at
most PIPE_BUF bytes are never interleaved (see pipe(7)).
"""

from __future__ import annotations

import math
import os
import threading
import warnings
from typing import SupportsFloat, SupportsIndex

VARIABLE = "XLAUNCH_METRICS"

MAX_NAME_CHARACTERS = 256
"""With the number the line stays below PIPE_BUF and is written at once."""


class ReportingWarning(UserWarning):
    """Values cannot be reported, because the reader has closed the pipe."""


def report(name: str, value: SupportsFloat | SupportsIndex) -> None:
    """Report to xlaunch that metric `name` is `value` now.

    name
        As in ``--metric``, without the kind (``latency:``): ``images/s``, ``loss``.
    value
        Anything that `float` takes, such as a tensor or an array of one element. NaN and infinity are
        ignored.

    It waits only while the pipe is full, that is until xlaunch reads 64 KiB. Raises ValueError for a
    name that is empty, too long or has several lines, TypeError for a value that is not a number.
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
    if not stripped or len(stripped) > MAX_NAME_CHARACTERS or len(stripped.splitlines()) > 1:
        raise ValueError(
            f"report({name[:80]!r}, ...): a name is one line of 1 to {MAX_NAME_CHARACTERS} characters,"
            " such as 'images/s'"
        )
    number = float(value)
    if not math.isfinite(number):
        return None
    return f"{stripped} {number!r}\n".encode(errors="replace")


class _Pipe:
    """The pipe, opened by the first report."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.opened: tuple[str, int] | None = None
        """Its path and descriptor; the descriptor is -1 after a failure, which was warned of."""

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
            # A descriptor of another path stays open: a thread may be about to write to it.
            try:
                # Without waiting for a reader: xlaunch keeps the pipe open during the run.
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
            f"values are no longer reported: {VARIABLE}={path}: {error.strerror}",
            ReportingWarning,
            stacklevel=5,  # where `report` was called
        )

    def replace_lock(self) -> None:
        """In a forked child: another thread of the parent may hold the lock."""
        self._lock = threading.Lock()


_pipe = _Pipe()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pipe.replace_lock)
