# SPDX-License-Identifier: Apache-2.0
"""Send signals to processes that may have ended, or may belong to another user by now."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

from xlaunch.supervision.states import Action, Target

KEPT = (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGTTIN, signal.SIGTTOU)
PASSED_ON = signal.valid_signals().difference(KEPT)
"""Signals for the instances: all that can be blocked, but for those of child processes and of the
terminal's background jobs. A fault of the launcher itself ends it all the same."""


def send(pid: int, number: int, *, group: bool = False) -> bool:
    """Send a signal to a process or its whole group; False where the kernel does not permit it.

    A program may change its user (`sudo`). One that has ended needs no signal: True.
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

    A group that this process belongs to sends the signal here as well; it is blocked here, and
    recognized by its sender.
    """
    refused = []
    for pid in pids:
        sent = True
        if action.signal is not None and action.target is not Target.NOBODY:
            sent = send(pid, action.signal, group=action.target is Target.GROUPS)
        if action.continue_groups:
            send(pid, signal.SIGCONT, group=True)
        if not sent:
            refused.append(pid)
    return refused


def kill_all(pids: Iterable[int]) -> None:
    """Kill every process that this one is permitted to kill."""
    for pid in pids:
        send(pid, signal.SIGKILL)


def signal_name(number: int) -> str:
    """**Ex.:** ``"SIGSEGV"``, ``"SIGRTMIN+3"``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
