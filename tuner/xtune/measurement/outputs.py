# SPDX-License-Identifier: Apache-2.0
"""The end of what a launch writes to standard error; the rest is let go, or shown if that is asked."""

from __future__ import annotations

import contextlib
import os

TAIL_BYTES = 1 << 14
TAIL_LINES = 20
LINE_WIDTH = 400


class Tail:
    """A pipe whose last bytes are kept. As a context manager it is closed at the end of the block."""

    def __init__(self, *, copy_to: int | None = None) -> None:
        """`copy_to`: a descriptor that everything is passed on to."""
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._copy_to = copy_to
        self._kept = b""
        self.ended = False
        """Nobody has the other end open any more."""

    @property
    def writer(self) -> int:
        """The end to give away; then `given_away`."""
        return self._writer

    def given_away(self) -> None:
        """Close our own copy of the writer's end."""
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1

    def fileno(self) -> int:
        """A descriptor that is readable when there is something to `take`."""
        return self._reader

    def take(self) -> None:
        """Take all that is there."""
        while not self.ended:
            try:
                data = os.read(self._reader, 1 << 16)
            except BlockingIOError:
                return
            self.ended = not data
            self._kept = (self._kept + data)[-TAIL_BYTES:]
            if self._copy_to is not None:
                with contextlib.suppress(OSError):  # nobody looks any more
                    os.write(self._copy_to, data)

    def text(self) -> str:
        """The last lines."""
        lines = self._kept.decode(errors="replace").splitlines()[-TAIL_LINES:]
        return "\n".join(line[:LINE_WIDTH] for line in lines)

    def __enter__(self) -> Tail:
        return self

    def __exit__(self, *_: object) -> None:
        self.given_away()
        os.close(self._reader)
