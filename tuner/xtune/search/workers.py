# SPDX-License-Identifier: Apache-2.0
"""Liveness of the workers that make launches.

A worker on the same system is dead if its PID is free or belongs to another process. A worker on
another system increments a counter while it launches, and is considered dead if the counter has not
changed for `LEASE_S`. Clocks of two systems are never compared.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from xtune.search.encoding import Plain

BEAT_S = 15.0
"""Interval between increments."""

LEASE_S = 90.0
"""A worker is dead if its counter has not changed for this time."""


class Worker(NamedTuple):
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

    def to_plain(self) -> Plain:
        return self._asdict()

    @classmethod
    def from_plain(cls, plain: Plain) -> Worker:
        return cls(**plain)


def this_worker() -> Worker:
    """The calling process."""
    pid = os.getpid()
    return Worker(socket.gethostname(), _boot(), _namespace(), pid, _start_ticks(pid) or 0)


class Watch:
    """Detects launches of dead workers."""

    def __init__(
        self,
        me: Worker,
        clock: Callable[[], float] = time.monotonic,
        lease_s: float = LEASE_S,
    ) -> None:
        """`lease_s`: several times the interval of other workers' increments."""
        self._me = me
        self._clock = clock
        self._lease_s = lease_s
        self._seen: dict[int, tuple[int, float]] = {}
        """For each launch, the last count and when it was first seen."""

    def is_lost(self, number: int, worker: Worker, beat: int) -> bool:
        """Whether the worker of a launch under way is dead.

        number
            The number of its record.
        beat
            The worker's counter.
        """
        me = self._me
        if worker.boot and worker.boot == me.boot and worker.namespace == me.namespace:
            return _start_ticks(worker.pid) != worker.start_ticks
        now_s = self._clock()
        last, since_s = self._seen.get(number, (-1, now_s))
        if beat != last:
            last, since_s = beat, now_s
        self._seen[number] = last, since_s
        return now_s - since_s >= self._lease_s


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in parentheses may contain anything: read the fields after it.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    # A zombie does not count.
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
