# SPDX-License-Identifier: Apache-2.0
"""Pseudo-terminals for the output of instances (`--pty`), for programs that print more to a terminal.

Standard output and standard error get one each, so that they stay separate. It is not the
controlling terminal: Ctrl-C and job control are not affected, and it has no input.
"""

from __future__ import annotations

import contextlib
import os
import termios
from collections.abc import Iterable

DEFAULT_SIZE = (24, 80)
"""Rows and columns if the launcher has no terminal."""


def open_pseudo_terminal() -> tuple[int, int]:
    """Open a pseudo-terminal: the end to read from, and the instance's. Raises OSError."""
    ours, theirs = os.openpty()
    # Pass bytes unchanged: no carriage return before each newline.
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
    return DEFAULT_SIZE


def resize(descriptors: Iterable[int]) -> None:
    """Set pseudo-terminals to the current size of the launcher's terminal."""
    size = window_size()
    for descriptor in descriptors:
        with contextlib.suppress(termios.error):  # no process has it open any more
            termios.tcsetwinsize(descriptor, size)
