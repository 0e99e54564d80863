# SPDX-License-Identifier: Apache-2.0
"""The controlling terminal, lent to the one instance that has standard input, and Ctrl-C in it.

While it has it, the instance is the foreground process group, as if it had been started without a
launcher. The supervisor joins that group: so it learns of a Ctrl-C that only the terminal's
foreground group gets.
"""

from __future__ import annotations

import contextlib
import os
import termios
import time

PROMPT_S = 0.1
"""A prompt leaves its input line on Ctrl-C and is back on the next within this time."""


class Terminal:
    """A terminal on descriptor 0, and the process group of the launcher's job on it."""

    def __init__(self, job: int) -> None:
        self._job = job
        self._group: int | None = None

    @classmethod
    def find(cls, job: int) -> Terminal | None:
        """The controlling terminal, when standard input is it."""
        try:
            os.tcgetpgrp(0)
        except OSError:
            return None
        return cls(job)

    def lend_to(self, group: int) -> None:
        """Hand the terminal on to the instance's group, and join that.

        A job in the shell's background has nothing to hand on, until the shell's `fg`.
        """
        self._group = group
        self.lend_again()
        with contextlib.suppress(OSError):  # it has ended already
            os.setpgid(0, group)

    def lend_again(self) -> None:
        """After SIGCONT: hand the terminal on if the shell gave it to the job (`fg`, not `bg`)."""
        if self._group is not None and self._foreground() == self._job:
            self._set_foreground(self._group)

    def take_back(self) -> None:
        """Give the terminal back to the job, unless somebody else has it by now."""
        if self._group is not None and self._foreground() == self._group:
            self._set_foreground(self._job)
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        self._group = None

    @property
    def line_by_line(self) -> bool:
        """False while a program edits its own input line: a prompt, where Ctrl-C is a key."""
        try:
            return bool(termios.tcgetattr(0)[3] & termios.ICANON)
        except termios.error:
            return False

    def _foreground(self) -> int | None:
        try:
            return os.tcgetpgrp(0)
        except OSError:
            return None

    def _set_foreground(self, group: int) -> None:
        with contextlib.suppress(OSError):
            os.tcsetpgrp(0, group)  # SIGTTOU is blocked in this process


class CtrlC:
    """Tells a second Ctrl-C in the terminal of an instance from one that is a key of its prompt."""

    def __init__(self, terminal: Terminal | None, grace_s: float) -> None:
        """`grace_s`: how soon after the first one the second one must come. No terminal: never."""
        self._terminal = terminal
        self._grace_s = grace_s
        self._first: float | None = None
        self.second_at: float | None = None
        """When a second one is one, unless the program shows a prompt by then."""

    @property
    def was_pressed(self) -> bool:
        """Whether there was one that the program may have ended of."""
        return self._first is not None

    @property
    def is_recent(self) -> bool:
        """Whether that was within the grace period."""
        return self._first is not None and time.monotonic() - self._first <= self._grace_s

    def press(self) -> None:
        """It was pressed."""
        assert self._terminal is not None
        now = time.monotonic()
        first, self._first = self._first, now
        if not self._terminal.line_by_line:
            self._first = None
        elif first is not None and now - first <= self._grace_s:
            self.second_at = self.second_at or now + PROMPT_S

    def is_second(self, now: float) -> bool:
        """Whether, at `second_at` and once, the second one has turned out to be one."""
        if self._terminal is None or self.second_at is None or now < self.second_at:
            return False
        self.second_at = None
        if self._terminal.line_by_line:
            return True
        self._first = None
        return False
