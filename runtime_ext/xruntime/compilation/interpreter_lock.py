# SPDX-License-Identifier: Apache-2.0
"""Whether a call keeps the interpreter's lock (GIL), found by watching another thread stand still.

What holds the lock while it computes makes threads useless: each waits for all the others. No
interface of Python or torch tells, so it is measured.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

PERIOD_S = 100e-6
"""How long the ticker sleeps, without the lock, before it asks for the lock again."""

LATE_S = 300e-6
"""A tick later than this was kept waiting. A free one is late by what a wake-up takes, under 0.1 ms."""

ROUNDS = 3
ROUND_S = 0.05


class LockShare(NamedTuple):
    """How much of a call another Python thread stood still.

    **Ex.:** ``LockShare(held_share=0.97, longest_freeze_s=0.258, call_s=0.283, unknown=None)`` is a
    module that torch.compile made with its default wrapper.
    """

    held_share: float | None
    """0 to 1: the part of the time in which no other thread got the lock; None: it cannot be known."""

    longest_freeze_s: float | None
    """The longest wait for the lock; None as above."""

    call_s: float
    """How long one call took while it was watched."""

    unknown: str | None
    """Why the others are None."""

    @property
    def held_s(self) -> float:
        """How long one call holds the lock; 0 where it cannot be known."""
        return (self.held_share or 0.0) * self.call_s


def lock_exists() -> bool:
    """Whether this interpreter has a lock that one thread at a time can hold."""
    enabled = getattr(sys, "_is_gil_enabled", None)
    return enabled is None or bool(enabled())


def lock_share(call: Callable[[], Any], *, rounds: int = ROUNDS) -> LockShare:
    """Run `call` in the calling thread, several times, and tell how much of it held the lock.

    A thread beside it wakes every 0.1 ms and asks for the lock. What it waits for the lock counts;
    what it waits for a CPU does not, where the kernel tells the two apart. Other work only ever adds
    to a wait, so of the rounds, each at least 0.05 s, the least is taken. Locks held for less than
    0.3 ms do not count. What other threads of the process hold meanwhile cannot be told from what the
    call holds.

    Without a CPU for the thread to run on beside the call the answer is not known, and says why.
    Raises what `call` raises.
    """
    if not lock_exists():
        return LockShare(0.0, 0.0, _timed(call), None)
    if len(os.sched_getaffinity(0)) < 2:
        reason = "this thread may use one CPU only, so no other thread could run beside the call"
        return LockShare(None, None, _timed(call), reason)
    return min((_watched(call) for _ in range(max(1, rounds))), key=lambda share: share[:2])


def _timed(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _watched(call: Callable[[], Any]) -> LockShare:
    """One round."""
    calls = 0
    with _Ticker() as ticker:
        began = time.perf_counter()
        while (elapsed := time.perf_counter() - began) < ROUND_S:
            call()
            calls += 1
    held = min(1.0, sum(ticker.freezes_s) / elapsed)
    return LockShare(held, max(ticker.freezes_s, default=0.0), elapsed / calls, None)


class _Ticker:
    """A thread that asks for the lock all the time and notes when it had to wait."""

    def __init__(self) -> None:
        self.freezes_s: list[float] = []
        self._stopped = False
        self._ticking = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lock share", daemon=True)

    def __enter__(self) -> _Ticker:
        self._thread.start()
        self._ticking.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        self._thread.join()

    def _run(self) -> None:
        # Bound before, so that a tick holds the lock as shortly as it can.
        sleep, now, freezes = time.sleep, time.perf_counter, self.freezes_s
        with _CPUWait() as cpu_wait:
            seen = now()
            cpu_wait.since_last()
            self._ticking.set()
            while not self._stopped:
                sleep(PERIOD_S)
                # Between two looks at one place of the loop, so that no wait is missed.
                before = seen
                waited = cpu_wait.since_last()
                seen = now()
                frozen = seen - before - PERIOD_S - waited
                if frozen > LATE_S:
                    freezes.append(frozen)


class _CPUWait(contextlib.AbstractContextManager["_CPUWait"]):
    """How long the calling thread waited for a CPU; 0 where the kernel is silent.

    Source: Documentation/scheduler/sched-stats.rst of Linux, /proc/<pid>/schedstat.
    """

    def __init__(self) -> None:
        self._waited_s = 0.0
        self._turns = 0
        self._file = -1
        with contextlib.suppress(OSError):
            path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def since_last(self) -> float:
        """Since the call before, without what passed while the lock was taken anyway."""
        if self._file < 0:
            return 0.0
        _, waited_ns, turns = map(int, os.pread(self._file, 128, 0).split()[:3])
        more_s = waited_ns * 1e-9 - self._waited_s
        more_turns = turns - self._turns
        self._waited_s += more_s
        self._turns = turns
        # A thread that waits for the lock wakes every 5 ms to look (sys.getswitchinterval). Only what
        # it waits for a CPU at first, and at last when the lock is free, adds to its wait.
        return more_s * min(1.0, 2 / max(1, more_turns))

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            os.close(self._file)
