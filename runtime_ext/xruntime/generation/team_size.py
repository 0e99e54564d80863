# SPDX-License-Identifier: Apache-2.0
"""How many threads of the calling thread's team compute a step.

Not more than there are CPUs for: of its mask, of a quota, and beside the conversations of other threads. Of these as
many as are useful, which is found from the times of the first steps: memory may be busy with fewer, and small
layers end sooner than threads can wait for each other.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import statistics
import threading
import time
from collections.abc import Iterator
from typing import Final

from xlaunch import read_machine
from xruntime import native
from xruntime.threads.team import team_size

TRIALS: Final = 5
"""How many steps are timed with each of two numbers of threads, alternately, before they are compared."""

MAX_TRIALS: Final = 20
"""So many where the usual steps say something else than the quickest, until that is certain."""

LEFT_OUT: Final = 5
"""The longest of so many steps is no usual one."""

MIN_CERTAINTY: Final = 2
"""By so many times its standard error a difference of usual steps is certain."""

MIN_GAIN: Final = 0.03
"""A smaller number is used if it is this much faster."""

HOPELESS: Final = 1.2
"""A number whose first two steps take so many times as long is not tried further."""

VALID_STEPS: Final = 500
"""After so many more steps a search begins anew: other programs may have come or gone."""

DOUBTED_STEPS: Final = 32
"""So many after the first search if it has found less than the most: all its steps may have been disturbed."""

MEMORY: Final = 4
"""A thread counts as computing tokens until so many times its last step have passed since."""

MIN_MEMORY_S: Final = 0.02
QUOTA_S: Final = 10
"""Seconds until the quota is read again."""


class _Steps:
    """The threads of the process that compute tokens now, in the sense of `MEMORY`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: dict[int, tuple[float, frozenset[int]]] = {}
        """Of each thread: until when it counts, and its mask."""

    @contextlib.contextmanager
    def one(self, cpus: frozenset[int]) -> Iterator[tuple[int, int]]:
        """Count the calling thread; give how many compute, and how many of these share CPUs with it."""
        name, began = threading.get_ident(), time.perf_counter()
        with self._lock:
            self._threads[name] = (float("inf"), cpus)
            self._threads = {
                at: thread for at, thread in self._threads.items() if thread[0] > began
            }
            sharing = sum(not cpus.isdisjoint(mask) for _, mask in self._threads.values())
            counts = len(self._threads), sharing
        try:
            yield counts
        finally:
            ended = time.perf_counter()
            until = ended + max(MIN_MEMORY_S, MEMORY * (ended - began))
            with self._lock:
                self._threads[name] = (until, cpus)


_steps: Final = _Steps()


class Search:
    """Finds the useful number of threads, at most `most`: halves while that is faster, then tries three quarters.

    Other programs only lengthen a step, so the quickest steps are compared. But they may lengthen steps of all CPUs more
    often than those of a few, which the usual steps show: these decide where the difference is certain. They may
    lengthen all steps of a search, too: twice the number that it has found is tried again, first soon, then after
    twice as many steps each time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._doubted_steps = DOUBTED_STEPS
        self._begin(most)

    def _begin(self, first: int) -> None:
        self.best = self._first = first
        self._other = first // 2
        """The number that is compared with `best`; 0: there is none any more."""

        self._halving = True
        self._times: dict[int, list[float]] = {}
        self._steps_since = 0

    def is_over(self) -> bool:
        return self._other == 0

    def threads(self) -> int:
        """Return the number for the next step."""
        with self._lock:
            best, other = (
                len(self._times.get(threads, ())) for threads in (self.best, self._other)
            )
            return self._other if self._other and other < best else self.best

    def add(self, threads: int, seconds: float) -> None:
        """Keep the time of a step."""
        with self._lock:
            if self._other == 0:
                self._steps_since += 1
                is_most = self.best == self._most
                if self._steps_since == (VALID_STEPS if is_most else self._doubted_steps):
                    self._doubted_steps = min(2 * self._doubted_steps, VALID_STEPS)
                    self._begin(min(2 * self.best, self._most))
                return
            self._times.setdefault(threads, []).append(seconds)
            best, other = (self._times.get(number, []) for number in (self.best, self._other))
            timed = min(len(best), len(other))
            if timed < 2:
                return
            if timed < TRIALS and min(other) < HOPELESS * max(best):
                return
            other_is_faster = min(other) < (1 - MIN_GAIN) * min(best)
            if timed >= TRIALS:
                excess, error = _usual_excess(best, other)
                if (excess < 0) is not other_is_faster:
                    if abs(excess) >= MIN_CERTAINTY * error:
                        other_is_faster = not other_is_faster
                    elif timed < MAX_TRIALS:
                        return
            self._times[self.best] = best[-TRIALS:]  # what they are compared with next is timed now
            self._times[self._other] = other[-TRIALS:]
            if other_is_faster:
                self.best = self._other
                self._other = self.best // 2 if self._halving else 0
            else:
                last, half = self.best * 3 // 4, self._other
                self._other = last if self._halving and last > half else 0
                self._halving = False
            if self._other == 0 and self.best == self._first < self._most:  # perhaps more
                self._begin(min(2 * self.best, self._most))


def _usual_excess(best: list[float], other: list[float]) -> tuple[float, float]:
    """By how much the mean of usual steps is above one that is faster by `MIN_GAIN`, and the standard error of that."""
    means, errors = [], []
    for times in (best, other):
        usual = sorted(times)[: len(times) - len(times) // LEFT_OUT]
        means.append(statistics.fmean(usual))
        errors.append(statistics.stdev(usual) / len(usual) ** 0.5)
    share = 1 - MIN_GAIN
    return means[1] - share * means[0], math.hypot(errors[1], share * errors[0])


class TeamSizes:
    """The searches of one model, by what the time of a step depends on."""

    def __init__(self) -> None:
        self._searches: dict[tuple[int, ...], Search] = {}

    @contextlib.contextmanager
    def chosen(self, batch: int, capacity: int) -> Iterator[tuple[int, Search]]:
        """Give the number of threads for a step, and the search that its time is for.

        capacity
            Positions that there is room for in the cache: when it has doubled, there is a new search.
        """
        mask = frozenset(os.sched_getaffinity(0))
        with _steps.one(mask) as (computing, sharing):
            # Of the mask that the team was made in: OMP_PROC_BIND leaves this thread one CPU of it.
            cpus: int = native.library().omp_get_num_procs()
            limits = [team_size(), cpus // sharing]
            quota = _quota(int(time.monotonic()) // QUOTA_S)
            if quota is not None:
                limits.append(int(quota / computing))
            most = max(1, min(limits))
            search = self._searches.setdefault((batch, capacity, most), Search(most))
            yield search.threads(), search


@functools.lru_cache(maxsize=1)
def _quota(_period: int) -> float | None:
    """The CPUs that a quota leaves this process; None without one."""
    return read_machine().limits.cpu_quota
