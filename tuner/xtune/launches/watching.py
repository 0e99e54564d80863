# SPDX-License-Identifier: Apache-2.0
"""Watches a launch, and ends it at its time limit or once it cannot win any more."""

from __future__ import annotations

import math
import select
import time
from typing import NamedTuple

from xlaunch.metrics.live import LiveLine, LiveStart, LiveValue
from xlaunch.metrics.metric_lines import Kind
from xlaunch.supervision.keeper_client import RunningLaunch
from xlaunch.text import number
from xtune.launches.cuts import may_be_cut, surely_worse
from xtune.launches.launch import Outcome, Series
from xtune.launches.objectives import Goal
from xtune.launches.outputs import Tail
from xtune.launches.readings import MAX_PAUSE_S, EnergyMeter

FIRST_LOOK_S = 0.25
SHARE_OF_ONE_CPU = 0.005
"""Maximum share of a CPU for checks of a running launch."""


class Race(NamedTuple):
    """The value that a launch must beat to continue."""

    cut_at: float
    goal: Goal
    metric: str | None
    """None: wall time."""
    kind: Kind
    instances: int


class Watched(NamedTuple):
    """Observations of a running launch."""

    began: float
    """Start of its first instance, on the clock of `time.monotonic()`."""
    lines: tuple[LiveLine, ...]
    """Marked lines, and the ones after them."""
    ended_as: Outcome | None
    """`TIMED_OUT` or `CUT` if the tuner ended it."""
    reason: str


def watch(
    run: RunningLaunch,
    tail: Tail,
    meter: EnergyMeter,
    *,
    limit_s: float | None = None,
    race: Race | None = None,
) -> Watched:
    """Wait for the end of all processes. Reads `tail` and samples `meter` meanwhile."""
    return _Watch(run, tail, meter, limit_s, race).until_the_end()


class _Watch:
    def __init__(
        self,
        run: RunningLaunch,
        tail: Tail,
        meter: EnergyMeter,
        limit_s: float | None,
        race: Race | None,
    ) -> None:
        self._run = run
        self._tail = tail
        self._meter = meter
        self._race = race
        self._started = time.monotonic()
        self._limit_s = limit_s
        self._began: float | None = None
        self._lines: list[LiveLine] = []
        self._values: dict[int, tuple[list[float], list[float]]] = {}
        self._ended_as: Outcome | None = None
        self._reason = ""
        self._look_at = self._started + FIRST_LOOK_S
        self._look_pause_s = FIRST_LOOK_S
        self._sample_at = self._started + MAX_PAUSE_S
        if race is not None and race.metric is not None and not may_be_cut(race.kind, race.goal):
            self._race = None

    def until_the_end(self) -> Watched:
        while not self._run.wait(0):
            # select.select fails for descriptors from 1,024 on.
            poll = select.poll()
            poll.register(self._run.fileno(), select.POLLIN)
            if not self._tail.ended:
                poll.register(self._tail.fileno(), select.POLLIN)
            timeout_s = max(0.0, self._next_at() - time.monotonic())
            poll.poll(None if math.isinf(timeout_s) else math.ceil(1000.0 * timeout_s))
            self._tail.take()
            self._check(time.monotonic())
        self._tail.take()
        self._take_live()
        began = self._started if self._began is None else self._began
        return Watched(began, tuple(self._lines), self._ended_as, self._reason)

    def _next_at(self) -> float:
        """The next deadline."""
        times = [self._sample_at]
        if self._ended_as is None:
            if self._limit_s is not None:
                times.append(self._started + self._limit_s)
            if self._race is not None:
                times.append(self._look_at)
        return min(times)

    def _check(self, now: float) -> None:
        if now >= self._sample_at:
            self._meter.sample()
            self._sample_at = now + MAX_PAUSE_S
        if self._ended_as is not None:
            return
        if self._limit_s is not None and now >= self._started + self._limit_s:
            self._end(
                Outcome.TIMED_OUT, f"it took longer than the limit of {number(self._limit_s)} s"
            )
        elif self._race is not None and now >= self._look_at:
            spent = time.thread_time()
            reason = self._lost(self._race, now)
            cost_s = time.thread_time() - spent
            # Check less and less often, and limit the cost to its share.
            self._look_pause_s = max(1.2 * self._look_pause_s, cost_s / SHARE_OF_ONE_CPU)
            if self._look_at <= now:
                self._look_at = now + self._look_pause_s
            if reason is not None:
                self._end(Outcome.CUT, reason)

    def _lost(self, race: Race, now: float) -> str | None:
        """Why it cannot win any more; None if it can."""
        self._take_live()
        if race.metric is None:
            if race.goal is not Goal.MINIMIZE or self._began is None:
                return None
            self._look_at = self._began + race.cut_at
            ran_s = now - self._began
            if ran_s <= race.cut_at:
                return None
            return f"it ran for {number(ran_s)} s, and the time to beat is {number(race.cut_at)} s"
        series = [
            Series(index, race.metric, tuple(times), tuple(values))
            for index, (times, values) in sorted(self._values.items())
        ]
        return surely_worse(
            series, race.instances, kind=race.kind, goal=race.goal, cut_at=race.cut_at
        )

    def _take_live(self) -> None:
        for one in self._run.live():
            if isinstance(one, LiveStart):
                self._began = one.at_s if self._began is None else self._began
            elif isinstance(one, LiveLine):
                self._lines.append(one)
            elif self._race is not None and one.metric == self._race.metric:
                self._take_value(one)

    def _take_value(self, one: LiveValue) -> None:
        times, values = self._values.setdefault(one.instance, ([], []))
        times.append(one.at_s - (self._began or self._started))
        values.append(one.value)

    def _end(self, outcome: Outcome, reason: str) -> None:
        self._ended_as, self._reason = outcome, reason
        self._run.end()
