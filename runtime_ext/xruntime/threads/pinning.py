# SPDX-License-Identifier: Apache-2.0
"""Runs a block or a function on given CPUs, in the calling thread.

with pin(CPUPool("0-3")):
    model(batch)              # four threads, on CPUs 0 to 3

@pin(CPUPool(node=1))
def serve(batch): ...
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, ParamSpec, TypeVar

from xruntime.threads.cpu_pool import CPUPool
from xruntime.threads.openmp import openmp_team
from xruntime.threads.team import (
    confine_team,
    mkl_threads,
    resize_team,
    set_mkl_threads,
    team_size,
)

P = ParamSpec("P")
T = TypeVar("T")


class _Before(NamedTuple):
    """What a thread was like, to be made so again."""

    threads: int
    mkl_threads: int
    """0: the process's."""

    cpus: frozenset[int]
    """The calling thread's affinity mask."""

    workers: dict[int, frozenset[int]]
    """Each worker's mask, by the kernel's id of the thread."""


class pin:  # noqa: N801 - it reads as a verb: `with pin(pool):`
    """Confine the calling thread and its native team to `pool`, a thread a CPU; undo it afterwards.

    A context manager and a decorator. It acts on the calling thread alone, so one object may be used
    by many threads at once, and within itself. With `pin_workers` each worker of the team runs on one
    CPU; the calling thread keeps all of them, because the runtime may start workers later, and these
    inherit its mask.

    On exit, and on an exception, the OpenMP and MKL thread counts of the calling thread, its affinity
    mask and those of its workers are what they were. What the process gives to new threads is never
    touched. Threads that the block starts inherit the mask.

    Raises TypeError for anything but a pool, and on entry AffinityRefusedError, SecondRuntimeError or
    KernelsUnavailableError; then nothing has changed.
    """

    def __init__(self, pool: CPUPool, *, pin_workers: bool = False) -> None:
        if not isinstance(pool, CPUPool):
            raise TypeError(f"pin needs a CPUPool, such as CPUPool('0-3'), and this is {pool!r}")
        self.pool = pool
        self.pin_workers = pin_workers

    def __enter__(self) -> CPUPool:
        before = _begin(self.pool, pin_workers=self.pin_workers)
        _stack().append((self, before))
        return self.pool

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        stack = _stack()
        places = [place for place, (entered, _) in enumerate(stack) if entered is self]
        if not places:
            raise RuntimeError(
                f"pin({self.pool}) was entered in another thread than {threading.current_thread().name}:"
                " leave it in the thread that it pinned, where a generator that holds it has to be closed"
            )
        _, before = stack.pop(places[-1])
        if places[-1] == len(stack):
            _restore(before)
        else:
            # Another pin was entered since and holds, as of a generator beside; it undoes both.
            above, _ = stack[places[-1]]
            stack[places[-1]] = above, before

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """`function`, run on the pool each time it is called."""

        @functools.wraps(function)
        def pinned(*args: P.args, **kwargs: P.kwargs) -> T:
            with self:
                return function(*args, **kwargs)

        return pinned


_local = threading.local()


def _stack() -> list[tuple[pin, _Before]]:
    """The pins that the calling thread is inside, the innermost last."""
    stack: list[tuple[pin, _Before]] | None = getattr(_local, "stack", None)
    if stack is None:
        stack = _local.stack = []
    return stack


def _begin(pool: CPUPool, *, pin_workers: bool) -> _Before:
    threads, cpus = team_size(), frozenset(os.sched_getaffinity(0))
    mkl_before = mkl_threads()
    resize_team(len(pool))
    # The workers that there will be, started now with the masks that they would have without us.
    workers = {
        member.thread_id: frozenset(os.sched_getaffinity(member.thread_id))
        for member in openmp_team().members[1:]
    }
    before = _Before(threads, mkl_before, cpus, workers)
    try:
        confine_team(pool.core_ids, pin_workers=pin_workers)
    except BaseException:
        _restore(before)
        raise
    return before


def _restore(before: _Before) -> None:
    os.sched_setaffinity(0, before.cpus)
    resize_team(max(team_size(), len(before.workers) + 1))
    # The runtime may have started others since, from a thread that was confined.
    for member in openmp_team().members[1:]:
        os.sched_setaffinity(member.thread_id, before.workers.get(member.thread_id, before.cpus))
    resize_team(before.threads)
    set_mkl_threads(before.mkl_threads)
