# SPDX-License-Identifier: Apache-2.0
"""The controlling terminal, lent to the one instance that has standard input, and Ctrl-C in it.

Meanwhile the instance is the foreground process group, as without a launcher. The supervisor joins
that group, because only the foreground group gets a Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import termios
import time

PROMPT_S = 0.1
"""Maximum time after Ctrl-C in which a program at a prompt shows its next prompt."""


class Terminal:
    """A terminal on descriptor 0, and the process group of the launcher's job on it."""

    def __init__(self, job: int | None) -> None:
        """`job`: that group. None: there is no terminal to lend, and the methods do nothing."""
        self._job = job
        self._group: int | None = None
        self.exists = job is not None

    @classmethod
    def find(cls, job: int) -> Terminal:
        """The controlling terminal, if standard input is it."""
        try:
            os.tcgetpgrp(0)
        except OSError:
            return cls(None)
        return cls(job)

    def lend_to(self, group: int) -> None:
        """Give the terminal to the instance's group, and join that group.

        A background job of a shell has no terminal to give, until the shell's `fg`.
        """
        if not self.exists:
            return
        self._group = group
        self.lend_again()
        with contextlib.suppress(OSError):  # it has ended already
            os.setpgid(0, group)

    def lend_again(self) -> None:
        """After SIGCONT: give the terminal to the group if the shell gave it to the job (`fg`, not `bg`)."""
        if self._group is not None and self._foreground() == self._job:
            self._set_foreground(self._group)

    def take_back(self) -> None:
        """Give the terminal back to the job, unless another group has it by now."""
        if self._job is None:
            return
        if self._group is not None and self._foreground() == self._group:
            self._set_foreground(self._job)
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        self._group = None

    @property
    def line_by_line(self) -> bool:
        """False while a program edits its input line itself: a prompt, where Ctrl-C is a key."""
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
    """Distinguishes a second Ctrl-C in an instance's terminal from a key at its prompt."""

    def __init__(self, terminal: Terminal, grace_s: float) -> None:
        """`grace_s`: maximum time between the two."""
        self._terminal = terminal
        self._grace_s = grace_s
        self._first: float | None = None
        self.second_at: float | None = None
        """Deadline at which a second Ctrl-C is confirmed, unless the program shows a prompt by then."""

    @property
    def was_pressed(self) -> bool:
        """Whether there was a Ctrl-C that may have ended the program."""
        return self._first is not None

    @property
    def is_recent(self) -> bool:
        """Whether it was within the last grace period."""
        return self._first is not None and time.monotonic() - self._first <= self._grace_s

    def press(self) -> None:
        """Note a Ctrl-C."""
        now = time.monotonic()
        first, self._first = self._first, now
        if not self._terminal.line_by_line:
            self._first = None
        elif first is not None and now - first <= self._grace_s:
            self.second_at = self.second_at or now + PROMPT_S

    def is_second(self, now: float) -> bool:
        """Whether the second Ctrl-C is confirmed now. True once."""
        if self.second_at is None or now < self.second_at:
            return False
        self.second_at = None
        if self._terminal.line_by_line:
            return True
        self._first = None
        return False
