# SPDX-License-Identifier: Apache-2.0
"""What instances leave running when they end: asked to end, and killed after the grace period.

Orphans of the run become the supervisor's children, as it is a child subreaper. An orphan of an
instance that still runs is its helper, and is left alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Sequence

from xlaunch.run.processes import children, descendants, environment_value, process_group
from xlaunch.run.running import Running

LEFTOVER_INTERVAL_S = 0.05
"""How often is looked for them, as long as there may be some."""


class Leftovers:
    """The processes that were asked to end, each with its deadline.

    `known`, below, are all runs of all instances so far, in the order of the supervisor's.
    """

    def __init__(self, grace_s: float) -> None:
        """`grace_s`: between SIGTERM and SIGKILL."""
        self._grace_s = grace_s
        self._deadlines: dict[int, float] = {}

    @property
    def waiting(self) -> bool:
        """Whether some that were asked to end are still there."""
        return bool(self._deadlines)

    def waiting_of(self, runs: Iterable[Running]) -> bool:
        """Whether some of these runs are."""
        return any(not run.leftovers.isdisjoint(self._deadlines) for run in runs)

    def end(self, known: Sequence[Running], *, kill: bool) -> None:
        """Ask those that are new to end; kill those whose time is over, or with `kill` all."""
        now = time.monotonic()
        instances = {run.pid for run in known if run.ended is None}
        for orphan in children(os.getpid()):
            if orphan in instances:
                continue
            owner = _owner(orphan, known)
            if owner is not None and owner.ended is None:
                continue  # a helper of an instance that still runs
            for pid in (orphan, *descendants(orphan)):
                if owner is not None:
                    owner.leftovers.add(pid)
                deadline = self._deadlines.get(pid)
                with contextlib.suppress(ProcessLookupError):
                    if kill or (deadline is not None and now >= deadline):
                        os.kill(pid, signal.SIGKILL)
                    elif deadline is None:
                        self._deadlines[pid] = now + self._grace_s
                        os.kill(pid, signal.SIGTERM)
                        os.kill(pid, signal.SIGCONT)
        self._deadlines = {
            pid: at for pid, at in self._deadlines.items() if os.path.exists(f"/proc/{pid}")
        }

    def reap(self, pid: int, known: Sequence[Running]) -> None:
        """Reap an orphan that has ended; what it cost is its instance's."""
        owner = _owner(pid, known)
        _, _, usage = os.wait4(pid, 0)
        self._deadlines.pop(pid, None)
        if owner is not None:
            owner.add_usage(usage)


def _owner(pid: int, known: Sequence[Running]) -> Running | None:
    """The instance that an orphan comes from: by what is known, its group, its environment."""
    group = process_group(pid)
    index = environment_value(pid, "XLAUNCH_INSTANCE_INDEX")
    for run in known:
        if pid in run.leftovers or group == run.pid:
            return run
    return next((run for run in known if str(run.instance.index) == index), None)
