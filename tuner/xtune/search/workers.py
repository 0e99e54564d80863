# SPDX-License-Identifier: Apache-2.0
"""The workers that make launches, and whether they are still alive.

A worker on the same system is looked up: it is dead if its PID is free or belongs to another process.
Workers on other systems increment a counter while they launch; one whose counter has not changed for
long enough is taken for dead. Clocks of two systems are never compared.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from xtune.search.encoding import Plain

BEAT_S = 15.0
"""Between two counts."""

LEASE_S = 90.0
"""A count that stands still so long is a dead worker's."""


class Worker(NamedTuple):
    """A process that searches."""

    name: str
    """The host's."""
    boot: str
    """Identifies the system from one start to the next; empty where it cannot be told."""
    namespace: str
    """Of process numbers: those of a container mean nothing outside."""
    pid: int
    start_ticks: int
    """When the process began; its number may be another's later."""

    @property
    def host(self) -> str:
        """Names the host until it is started again. **Ex.:** ``node7 1f0c``."""
        return f"{self.name} {self.boot[:4]}".strip()

    def to_plain(self) -> Plain:
        return self._asdict()

    @classmethod
    def from_plain(cls, plain: Plain) -> Worker:
        return cls(**plain)


def this_worker() -> Worker:
    """The process that asks."""
    pid = os.getpid()
    return Worker(socket.gethostname(), _boot(), _namespace(), pid, _start_ticks(pid) or 0)


class Watch:
    """Tells which of other workers' launches will never be finished."""

    def __init__(
        self,
        me: Worker,
        clock: Callable[[], float] = time.monotonic,
        lease_s: float = LEASE_S,
    ) -> None:
        """`lease_s`: several times what others count in."""
        self._me = me
        self._clock = clock
        self._lease_s = lease_s
        self._seen: dict[int, tuple[int, float]] = {}
        """Of each launch its last count, and when that was first seen."""

    def is_lost(self, number: int, worker: Worker, beat: int) -> bool:
        """Whether a launch under way is nobody's any more.

        number
            Of its record.
        beat
            What its worker has counted up to.
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
    """When a process began, in clock ticks since boot; None where there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in parentheses may hold anything, so the fields after it are counted.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    # A zombie is no worker any more.
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
