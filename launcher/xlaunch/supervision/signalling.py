# SPDX-License-Identifier: Apache-2.0
"""Send signals to processes that may have ended, or may belong to another user by now."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable


def send(pid: int, number: signal.Signals, *, group: bool = False) -> bool:
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


def kill_all(pids: Iterable[int]) -> None:
    """Kill every process that this one is permitted to kill."""
    for pid in pids:
        send(pid, signal.SIGKILL)


def signal_name(number: int) -> str:
    """**Ex.:** ``"SIGSEGV"``; real-time signals by number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
