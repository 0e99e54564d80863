# SPDX-License-Identifier: Apache-2.0
"""`pin`: runs a block or a function on given CPUs, in the calling thread.

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
from typing import NamedTuple, ParamSpec, TypeVar

from xruntime.threads.cpu_pool import CPUPool, checked_pool
from xruntime.threads.team import (
    confine_team,
    mkl_threads,
    openmp_team,
    resize_team,
    set_mkl_threads,
    team_size,
)

P = ParamSpec("P")
T = TypeVar("T")


class _ThreadState(NamedTuple):
    """The state of a thread, to be restored."""

    threads: int
    mkl_threads: int
    """0 means the process's number."""

    cpus: frozenset[int]
    """The calling thread's affinity mask."""

    workers: dict[int, frozenset[int]]
    """Each worker's mask, by the kernel's thread id."""


class pin:  # noqa: N801 - it reads as a verb: `with pin(pool):`
    """Confine the calling thread and its native team to `pool`, one thread for each CPU, and undo it.

    A context manager and a decorator. It acts on the calling thread alone, so many threads may use one
    object at once, also nested. With `pin_workers` each worker of the team runs on one CPU; the calling
    thread keeps all, because workers that the runtime starts later inherit its mask.

    On exit, also by an exception, the calling thread's OpenMP and MKL thread counts, its affinity mask
    and its workers' masks are restored. The defaults of new threads do not change. Threads that the block
    starts inherit the mask.

    Raises CPUPoolError for anything but a pool, and on entry AffinityRefusedError, SecondRuntimeError or
    KernelsUnavailableError without any change.
    """

    def __init__(self, pool: CPUPool, *, pin_workers: bool = False) -> None:
        self.pool = checked_pool(pool)
        self.pin_workers = pin_workers

    def __enter__(self) -> CPUPool:
        before = _begin(self.pool, pin_workers=self.pin_workers)
        _entered.stack.append((self, before))
        return self.pool

    def __exit__(self, *exception: object) -> None:
        stack = _entered.stack
        places = [place for place, (entered, _) in enumerate(stack) if entered is self]
        if not places:
            raise RuntimeError(
                f"pin({self.pool}) was entered in another thread than {threading.current_thread().name}:"
                " leave it in the thread that entered it; close a generator that holds it there"
            )
        _, before = stack.pop(places[-1])
        if places[-1] == len(stack):
            _restore(before)
        else:
            # Another pin, such as a generator's, was entered since; leaving that one undoes both.
            above, _ = stack[places[-1]]
            stack[places[-1]] = above, before

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return `function`, run on the pool in each call."""

        @functools.wraps(function)
        def pinned(*args: P.args, **kwargs: P.kwargs) -> T:
            with self:
                return function(*args, **kwargs)

        return pinned


class _PinStack(threading.local):
    """The pins that the calling thread has entered, the innermost last."""

    def __init__(self) -> None:
        self.stack: list[tuple[pin, _ThreadState]] = []


_entered = _PinStack()


def _begin(pool: CPUPool, *, pin_workers: bool) -> _ThreadState:
    threads, cpus = team_size(), frozenset(os.sched_getaffinity(0))
    mkl_before = mkl_threads()
    resize_team(len(pool))
    # This starts the workers now, with the masks that they would have without the pin.
    workers = {
        member.thread_id: frozenset(os.sched_getaffinity(member.thread_id))
        for member in openmp_team().members[1:]
    }
    before = _ThreadState(threads, mkl_before, cpus, workers)
    try:
        confine_team(pool.core_ids, pin_workers=pin_workers)
    except BaseException:
        _restore(before)
        raise
    return before


def _restore(before: _ThreadState) -> None:
    os.sched_setaffinity(0, before.cpus)
    resize_team(max(team_size(), len(before.workers) + 1))
    # The runtime may have started more workers since, from the confined thread.
    for member in openmp_team().members[1:]:
        os.sched_setaffinity(member.thread_id, before.workers.get(member.thread_id, before.cpus))
    resize_team(before.threads)
    set_mkl_threads(before.mkl_threads)
