# SPDX-License-Identifier: Apache-2.0
"""Pseudo-terminals for the output of instances: `--pty`, for programs that show more on a terminal.

Standard output and standard error get one each, so that they stay apart. It is not the controlling
terminal: Ctrl-C and job control stay where they are, and nothing is typed into it.
"""

from __future__ import annotations

import contextlib
import os
import termios
from collections.abc import Iterable

USUAL_SIZE = (24, 80)
"""Rows and columns where the launcher has no terminal."""


def open_pseudo_terminal() -> tuple[int, int]:
    """Its two ends: to read from, and for the instance. Raises OSError."""
    ours, theirs = os.openpty()
    # Bytes pass as they are written: no carriage return before each newline.
    attributes = termios.tcgetattr(theirs)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    termios.tcsetwinsize(theirs, window_size())
    return ours, theirs


def window_size() -> tuple[int, int]:
    """Rows and columns of the launcher's terminal."""
    for descriptor in (1, 2, 0):
        with contextlib.suppress(termios.error):
            rows, columns = termios.tcgetwinsize(descriptor)
            if rows and columns:
                return rows, columns
    return USUAL_SIZE


def resize(descriptors: Iterable[int]) -> None:
    """Give pseudo-terminals the size that the launcher's terminal has now."""
    size = window_size()
    for descriptor in descriptors:
        with contextlib.suppress(termios.error):  # nobody has it open any more
            termios.tcsetwinsize(descriptor, size)
