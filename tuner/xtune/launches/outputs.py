# SPDX-License-Identifier: Apache-2.0
"""The last lines of a launch's standard error."""

from __future__ import annotations

import contextlib
import os

TAIL_BYTES = 1 << 14
TAIL_LINES = 20
LINE_WIDTH = 400


class Tail:
    """A pipe that keeps the last bytes. A context manager; closed on exit."""

    def __init__(self, *, copy_to: int | None = None) -> None:
        """`copy_to`: a descriptor that receives all output."""
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._copy_to = copy_to
        self._kept = b""
        self.ended = False
        """All writers have closed the pipe."""

    @property
    def writer(self) -> int:
        """The write end, for the launch; call `given_away` once it has it."""
        return self._writer

    def given_away(self) -> None:
        """Close this process's copy of the write end."""
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1

    def fileno(self) -> int:
        """A descriptor that is readable when `take` has data."""
        return self._reader

    def take(self) -> None:
        """Read all available data."""
        while not self.ended:
            try:
                data = os.read(self._reader, 1 << 16)
            except BlockingIOError:
                return
            self.ended = not data
            self._kept = (self._kept + data)[-TAIL_BYTES:]
            if self._copy_to is not None:
                with contextlib.suppress(OSError):  # its reader is gone
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
