# SPDX-License-Identifier: Apache-2.0
"""Workers: which of them are alive, and the lock that lets one launch at a time on a host.

A worker on the same system is dead if its PID is free or belongs to another process. A worker on
another system increments a counter while it launches, and is considered dead if the counter has not
changed for `LEASE_S`. Clocks of two systems are never compared. Optuna's own heartbeat would need a
database: its journals have none.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from xlaunch import files
from xlaunch.machine.processes import pid_namespace, start_ticks

BEAT_S = 15.0
"""Interval between increments."""

LEASE_S = 90.0
"""A worker is dead if its counter has not changed for this time."""


class SearchWorker(NamedTuple):
    """A process that searches."""

    name: str
    """Name of its host."""
    boot: str
    """Identifies one boot of the system; empty if unknown."""
    namespace: str
    """PID namespace: PIDs of a container mean nothing outside."""
    pid: int
    start_ticks: int
    """Start time of the process, since PIDs are reused."""

    @property
    def host(self) -> str:
        """Names one boot of the host. **Ex.:** ``node7 1f0c``."""
        return f"{self.name} {self.boot[:4]}".strip()


def this_worker() -> SearchWorker:
    """The calling process."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    boot_id = boot.read_text().strip() if boot.exists() else ""
    pid = os.getpid()
    return SearchWorker(socket.gethostname(), boot_id, pid_namespace(), pid, start_ticks(pid) or 0)


@dataclass(eq=False)
class Watch:
    """Detects launches of dead workers."""

    me: SearchWorker
    clock: Callable[[], float] = time.monotonic
    lease_s: float = LEASE_S
    """Several times the interval of other workers' increments."""
    _seen: dict[int, tuple[int, float]] = field(default_factory=dict)
    """For each launch, the last count and when it was first seen."""

    def is_lost(self, number: int, worker: SearchWorker, beat: int) -> bool:
        """Whether the worker of the launch of that number is dead. `beat`: its counter."""
        if worker.boot and (worker.boot, worker.namespace) == (self.me.boot, self.me.namespace):
            return start_ticks(worker.pid) != worker.start_ticks
        now_s = self.clock()
        if self._seen.get(number, (-1, 0.0))[0] != beat:
            self._seen[number] = beat, now_s
        return now_s - self._seen[number][1] >= self.lease_s


@contextlib.contextmanager
def host_locked(
    waiting: Callable[[str], None] = lambda _: None, directory: Path | None = None
) -> Iterator[None]:
    """Exclude other launches on this host within the block.

    waiting
        Called with the holder's name before waiting.
    directory
        Of the lock; None: the user's private directory for locks on this host.
    """

    def report(descriptor: int) -> None:
        waiting(files.read_record(descriptor).decode(errors="replace") or "another process")

    place = directory or files.runtime_directory("xtune", os.environ)
    with files.locked(f"{place}/launching.lock", waiting=report) as descriptor:
        # The last holder's name stays until it is overwritten, so a waiting process reads a name.
        files.write_record(descriptor, f"PID {os.getpid()}".encode())
        yield
