# SPDX-License-Identifier: Apache-2.0
"""The launch that the argument RUN of a command names, and what it answers."""

from __future__ import annotations

import os
from typing import Any

from xlaunch.errors import UsageError
from xlaunch.leases import Lease, described, of_others, read_leases
from xlaunch.ownership import user_name
from xlaunch.report.run_client import STATE, TIMEOUT_S, ask

SELF = "self"


def find_run(word: str) -> Lease:
    """The launch that RUN names. Raises `UsageError` where there is none, or several.

    A PID, or ``self``: the launch that this command runs in, else the only one of this PID namespace.
    """
    leases = [lease for lease in read_leases() if lease.is_local]
    if word == SELF:
        outside = [lease.path for lease in of_others(leases)]
        found = [lease for lease in leases if lease.path not in outside][-1:] or leases
    elif word.isascii() and word.isdigit():
        found = [lease for lease in leases if lease.pid == int(word)]
    else:
        raise UsageError(f"{word!r} is not the PID of a launch, nor self; xlaunch ps lists them")
    if not found:
        what = "no launch runs here" if word == SELF else f"no launch has the PID {word}"
        raise UsageError(f"{what}; xlaunch ps lists them")
    if len(found) > 1:
        pids = ", ".join([str(lease.pid) for lease in found])
        raise UsageError(f"several launches run here: name one of {pids}")
    return described(found[0])


def state_of(lease: Lease) -> dict[str, Any]:
    """The state of a run. Raises `XLaunchError` if it has no socket, or does not answer."""
    return ask_run(lease, STATE)


def ask_run(lease: Lease, word: str, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """What a run answers to a request. Raises `XLaunchError`."""
    if os.geteuid() not in (0, lease.uid):
        raise UsageError(f"launch {lease.pid} is of {user_name(lease.uid)}, who alone may ask it")
    if not lease.socket:
        raise UsageError(
            f"launch {lease.pid} has no socket: it began just now, or is not supervised (see --supervise)"
        )
    return ask(lease.socket, word, timeout_s)
