# SPDX-License-Identifier: Apache-2.0
"""Send signals to processes that may have ended, or may belong to another user by now."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterable

from xlaunch.machine.processes import children, descendants, read_process
from xlaunch.supervision.states import Action, SignalTarget

KEPT = (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGTTIN, signal.SIGTTOU)
PASSED_ON = signal.valid_signals().difference(KEPT)
"""Signals for the instances: all that can be blocked, but for those of child processes and of the
terminal's background jobs. A fault of the launcher itself ends it all the same."""

MAX_ROUNDS = 100
"""Number of scans of the process tree in one call of `kill_descendants`, whose caller has to reap
in between."""


def send(pid: int, number: int, *, group: bool = False) -> bool:
    """Send a signal to a process or its whole group; False where the kernel does not permit it.

    It refuses for a program that has changed its user (`sudo`). For one that has ended the result
    is True.
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
        if action.signal is not None and action.target is not SignalTarget.NOBODY:
            sent = send(pid, action.signal, group=action.target is SignalTarget.GROUPS)
        if action.continue_groups:
            send(pid, signal.SIGCONT, group=True)
        if not sent:
            refused.append(pid)
    return refused


def kill_descendants(spared: Collection[int] = ()) -> None:
    """Kill the descendants of this process, and what they fork meanwhile.

    spared
        Children to leave alone, with what they have started.
    """
    signalled: set[int] = set()
    for _ in range(MAX_ROUNDS):
        found = [child for child in children(os.getpid()) if child not in spared]
        found += [process for child in found for process in descendants(child)]
        new = set(found) - signalled
        if not new:
            break
        kill(new, spared)
        signalled |= new


def kill(pids: Iterable[int], spared: Collection[int] = ()) -> None:
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
    found = {os.getpgid(0)} & groups
    for name in os.listdir("/proc"):
        status = read_process(int(name)) if name.isdigit() else None
        if status is None or status.group not in groups - found:
            continue
        if not _is_descendant(int(name), spared):
            found.add(status.group)
    return found


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
