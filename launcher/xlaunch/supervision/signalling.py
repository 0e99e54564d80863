# SPDX-License-Identifier: Apache-2.0
"""Send signals to processes that may have ended, or may belong to another user by now; lend a terminal."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import termios
import time
from collections.abc import Collection, Iterable

from xlaunch.machine.processes import children, descendants, read_process
from xlaunch.supervision.states import Action, SignalTarget

KEPT = (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGTTIN, signal.SIGTTOU)
PASSED_ON = signal.valid_signals().difference(KEPT)
"""Signals for the instances: all that can be blocked, but for those of child processes and of the
terminal's background jobs. A fault of the launcher itself ends it all the same."""

MAX_ROUNDS = 100
"""Scans of the process tree in one call of `kill_descendants`; its caller reaps in between."""


def send(pid: int, number: int, *, group: bool = False) -> bool:
    """Send a signal to a process or its whole group; False where the kernel does not permit it.

    It refuses for a program that has changed its user (`sudo`). True for one that has ended.
    """
    try:
        (os.killpg if group else os.kill)(pid, number)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return True


def deliver(action: Action, pids: Iterable[int]) -> list[int]:
    """Signal the processes or groups that `action` names; return those that the kernel refuses.

    If this process belongs to such a group, it gets the signal as well, which is blocked here.
    """
    refused = []
    for pid in pids:
        sent = True
        if action.signal is not None and action.target is not SignalTarget.NO_PROCESS:
            sent = send(pid, action.signal, group=action.target is SignalTarget.GROUPS)
        if action.continue_groups:
            send(pid, signal.SIGCONT, group=True)
        if not sent:
            refused.append(pid)
    return refused


def kill_descendants(spared: Collection[int] = ()) -> None:
    """Kill the descendants of this process, and what they fork meanwhile, but for the children `spared`."""
    signalled: set[int] = set()
    for _ in range(MAX_ROUNDS):
        processes = [child for child in children(os.getpid()) if child not in spared]
        processes += [process for child in processes for process in descendants(child)]
        new = set(processes) - signalled
        if not new:
            break
        kill_processes(new, spared)
        signalled |= new


def kill_processes(pids: Iterable[int], spared: Collection[int] = ()) -> None:
    """Kill descendants of this process with their process groups, as far as it is permitted to.

    The kernel kills a group at once: no member can fork in between, as it can between a look at /proc
    and a signal to a PID. A group with members that are no descendants is left alone.
    """
    pids = tuple(pids)
    statuses = [status for pid in pids if (status := read_process(pid)) is not None]
    # Whoever is in another session descends from its leader, and that from this process.
    here = os.getsid(0)
    shared = {status.group for status in statuses if status.session == here}
    shared = _groups_of_others(shared, spared) if shared else set()
    for group in {status.group for status in statuses} - shared:
        send(group, signal.SIGKILL, group=True)
    for pid in pids:
        send(pid, signal.SIGKILL)


def group_exists(group: int) -> bool:
    """Whether a process group has a member, be it one that has ended and was not reaped."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _groups_of_others(groups: set[int], spared: Collection[int]) -> set[int]:
    """Those of `groups` that have a member that is not a descendant of this process."""
    others = {os.getpgid(0)} & groups
    for name in os.listdir("/proc"):
        status = read_process(int(name)) if name.isdigit() else None
        if status is None or status.group not in groups - others:
            continue
        if not _is_descendant(int(name), spared):
            others.add(status.group)
    return others


def _is_descendant(pid: int, spared: Collection[int]) -> bool:
    """Whether a process descends from this one and not from a child in `spared`.

    True for one that ends, or whose ancestors end, meanwhile.
    """
    child, status = pid, read_process(pid)
    while status is not None and status.parent != os.getpid():
        if status.parent == 0:
            return False
        above = read_process(status.parent)
        if above is None:  # it has ended, or /proc hides it
            again = read_process(child)
            return again is None or again.parent != status.parent
        child, status = status.parent, above
    return child not in spared


def signal_name(number: int) -> str:
    """**Ex.:** ``"SIGSEGV"``, ``"SIGRTMIN+3"``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"


PROMPT_S = 0.1
"""Maximum time after Ctrl-C in which a program at a prompt shows its next prompt."""


class Terminal:
    """The controlling terminal on descriptor 0, lent to the one instance that has standard input.

    Meanwhile the instance is the foreground process group, as without a launcher. The supervisor joins
    that group, because only the foreground group gets a Ctrl-C.
    """

    def __init__(self, job: int | None) -> None:
        """`job`: the group that has it, and gets it back. None: the methods do nothing."""
        self._job = job
        self._group: int | None = None
        self.exists = job is not None and self._foreground() is not None

    def lend_to(self, group: int) -> None:
        """Give the terminal to the instance's group, and join it; a background job has none to give."""
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
        if not self.exists or self._job is None:
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
        self.second_at = math.inf
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
            self.second_at = min(self.second_at, now + PROMPT_S)

    def is_second(self, now: float) -> bool:
        """Whether the second Ctrl-C is confirmed now. True once."""
        if now < self.second_at:
            return False
        self.second_at = math.inf
        if self._terminal.line_by_line:
            return True
        self._first = None
        return False
