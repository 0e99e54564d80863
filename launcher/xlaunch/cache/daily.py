# SPDX-License-Identifier: Apache-2.0
"""Start the pruner beside a launch, once a day at most. Imported by every launch, so it needs little."""

from __future__ import annotations

import contextlib
import os
import sys
import time

DAY_S = 86_400.0
STAMP = "pruned"
"""A file of the base directory; its time stamp is that of the last pruning."""


def start_pruner(base: str) -> None:
    """Prune in a process of its own, once a day at most, of which this one hears nothing more."""
    stamp = os.path.join(base, STAMP)
    try:
        due = time.time() - os.stat(stamp).st_mtime > DAY_S
    except FileNotFoundError:
        due = False  # the first launch: there is nothing to prune yet
    except OSError:
        return
    else:
        if not due:
            return
    with contextlib.suppress(OSError):
        os.close(os.open(stamp, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        os.utime(stamp)
        if due:
            _detach([sys.executable, "-P", "-m", "xlaunch", "cache", "prune", "--cache-dir", base])


def _detach(command: list[str]) -> None:
    """Start a command that is neither this process's child nor of its terminal."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            null = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(null, number)
            # Neither pipes of the caller nor its directory stay in use by this process.
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            os.chdir("/")
            os.nice(19)
            os.execv(command[0], command)
    finally:
        os._exit(0)
