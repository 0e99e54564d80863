# SPDX-License-Identifier: Apache-2.0
"""Watches a launch, ends it at its time limit or once it cannot win any more, and says how it ended."""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import shlex
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from xlaunch.errors import WarningKind, kind_of
from xlaunch.metrics.live import LiveLine, LiveStart, LiveValue
from xlaunch.metrics.metric_lines import MetricKind
from xlaunch.report import Report
from xlaunch.supervision.instance_run import KILLER
from xlaunch.supervision.keeper_client import RunningLaunch
from xlaunch.text import number
from xtune.errors import ObjectiveError
from xtune.launches.announcements import MARK
from xtune.launches.launch import Goal, Outcome, Secondary, Series, Steadiness
from xtune.launches.meters import MAX_PAUSE_S, EnergyMeter, MemoryWatch
from xtune.launches.summaries import comparable

Number = TypeVar("Number", int, float)

MIN_VALUES = 20
BATCHES = 10
STUDENT = 4.781
"""The 99.95 % quantile of Student's t with nine degrees of freedom."""


def may_be_cut(kind: MetricKind, goal: Goal) -> bool:
    """Whether launches with such an objective may be cut."""
    return (kind, goal) in ((MetricKind.RATE, Goal.MAXIMIZE), (MetricKind.TIME, Goal.MINIMIZE))


def surely_worse(
    series: Sequence[Series], instances: int, *, kind: MetricKind, goal: Goal, cut_at: float
) -> str | None:
    """Why a running launch will end worse than `cut_at`; None if it may not.

    Every instance must have been steady for at least as long as it ran before, and its favourable bound
    must not reach the value to beat. The bound is the better of the best of ten batches of the steady
    values, and the one-sided 99.95 % confidence bound of the batches' mean; batches are less correlated
    than single values.

    series
        Values of the objective's metric so far, for each instance that has any.
    instances
        The number of instances.
    """
    if len(series) < instances:
        return None
    bounds = []
    for own in series:
        bound = _favourable_bound(own, maximise=goal is Goal.MAXIMIZE)
        if bound is None:
            return None
        bounds.append(bound)
    # The median of several instances' values lies between their medians.
    bound = sum(bounds) if kind is MetricKind.RATE else min(bounds)
    if bound >= cut_at if goal is Goal.MAXIMIZE else bound <= cut_at:
        return None
    most = "most" if goal is Goal.MAXIMIZE else "least"
    return f"steady at {number(bound)} at {most}, and the value to beat is {number(cut_at)}"


def _favourable_bound(series: Series, *, maximise: bool) -> float | None:
    """The best value that one instance may reach; None if unknown."""
    import numpy as np

    from xtune.launches.steadiness import judge

    # The first value does not count, see xlaunch.metrics.collector.
    times, values = series.times_s[1:], series.values[1:]
    if len(values) < MIN_VALUES:
        return None
    judgement = judge(values, larger_is_better=maximise)
    if judgement.steadiness not in (Steadiness.FLAT, Steadiness.WARM_UP):
        return None
    start = judgement.start
    steady = np.asarray(values[start:], dtype=np.float64)
    if len(steady) < MIN_VALUES or times[-1] < 2 * times[start]:
        return None
    middle = np.mean if maximise else np.median
    batches = [float(middle(batch)) for batch in np.array_split(steady, BATCHES)]
    mean = statistics.fmean(batches)
    reach = STUDENT * statistics.stdev(batches) / math.sqrt(BATCHES)
    return max(mean + reach, *batches) if maximise else min(mean - reach, *batches)


TAIL_BYTES = 1 << 14
TAIL_LINES = 20
LINE_WIDTH = 400


class Tail:
    """A pipe that keeps the last bytes. A context manager; closed on exit."""

    def __init__(self, *, copy_to: int | None = None) -> None:
        """`copy_to`: a descriptor that receives all output."""
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._copy_to = copy_to
        self._kept = b""
        self.ended = False
        """All writers have closed the pipe."""

    @property
    def writer(self) -> int:
        """The write end, for the launch; call `given_away` once it has it."""
        return self._writer

    def given_away(self) -> None:
        """Close this process's copy of the write end."""
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1

    def fileno(self) -> int:
        """A descriptor that is readable when `take` has data."""
        return self._reader

    def take(self) -> None:
        """Read all available data."""
        while not self.ended:
            try:
                data = os.read(self._reader, 1 << 16)
            except BlockingIOError:
                return
            self.ended = not data
            self._kept = (self._kept + data)[-TAIL_BYTES:]
            if self._copy_to is not None:
                with contextlib.suppress(OSError):  # its reader is gone
                    os.write(self._copy_to, data)

    def text(self) -> str:
        """The last lines."""
        lines = self._kept.decode(errors="replace").splitlines()[-TAIL_LINES:]
        return "\n".join(line[:LINE_WIDTH] for line in lines)

    def __enter__(self) -> Tail:
        return self

    def __exit__(self, *_: object) -> None:
        self.given_away()
        os.close(self._reader)


FIRST_LOOK_S = 0.25
SHARE_OF_ONE_CPU = 0.005
"""Maximum share of a CPU for checks of a running launch."""


class Cutoff(NamedTuple):
    """The value that a launch must beat to continue, of an objective that `may_be_cut`."""

    cut_at: float
    goal: Goal
    metric: str | None
    """None: wall time."""
    kind: MetricKind
    instances: int
    printed: Mapping[str, str] = {}
    """See `printed_units`."""


class LaunchObservations(NamedTuple):
    began: float = 0.0
    """Start of its first instance, on the clock of `time.monotonic()`."""
    lines: tuple[LiveLine, ...] = ()
    """Marked lines, and the ones after them."""
    ended_as: Outcome | None = None
    """`TIMED_OUT` or `CUT` if the tuner ended it."""
    reason: str = ""


@dataclass(eq=False)
class LaunchWatch:
    """Watches a running launch. Reads `tails` and samples `meter` meanwhile."""

    run: RunningLaunch
    tails: Sequence[Tail]
    meter: EnergyMeter
    limit_s: float | None
    cutoff: Cutoff | None

    def __post_init__(self) -> None:
        self._started = time.monotonic()
        self._began: float | None = None
        self._lines: list[LiveLine] = []
        self._values: dict[int, tuple[list[float], list[float]]] = {}
        self._ended_as: Outcome | None = None
        self._reason = ""
        self._look_at = self._started + FIRST_LOOK_S
        self._look_pause_s = FIRST_LOOK_S
        self._sample_at = self._started + MAX_PAUSE_S

    def until_the_end(self) -> LaunchObservations:
        """Wait for the end of all processes."""
        while not self.run.wait(0):
            # select.select fails for descriptors from 1,024 on.
            poll = select.poll()
            poll.register(self.run.fileno(), select.POLLIN)
            for tail in self.tails:
                if not tail.ended:
                    poll.register(tail.fileno(), select.POLLIN)
            timeout_s = max(0.0, self._next_at() - time.monotonic())
            poll.poll(None if math.isinf(timeout_s) else math.ceil(1000.0 * timeout_s))
            self._take_output()
            self._check(time.monotonic())
        self._take_output()
        self._take_live()
        began = self._started if self._began is None else self._began
        return LaunchObservations(began, tuple(self._lines), self._ended_as, self._reason)

    def _take_output(self) -> None:
        for tail in self.tails:
            tail.take()

    def _next_at(self) -> float:
        """The next deadline."""
        times = [self._sample_at]
        if self._ended_as is None:
            if self.limit_s is not None:
                times.append(self._started + self.limit_s)
            if self.cutoff is not None:
                times.append(self._look_at)
        return min(times)

    def _check(self, now: float) -> None:
        if now >= self._sample_at:
            self.meter.sample()
            self._sample_at = now + MAX_PAUSE_S
        if self._ended_as is not None:
            return
        if self.limit_s is not None and now >= self._started + self.limit_s:
            limit = f"the limit of {number(self.limit_s)} s"
            self._end(Outcome.TIMED_OUT, f"it took longer than {limit}")
        elif self.cutoff is not None and now >= self._look_at:
            spent = time.thread_time()
            reason = self._lost(self.cutoff, now)
            cost_s = time.thread_time() - spent
            # Check less and less often, and limit the cost to its share.
            self._look_pause_s = max(1.2 * self._look_pause_s, cost_s / SHARE_OF_ONE_CPU)
            if self._look_at <= now:
                self._look_at = now + self._look_pause_s
            if reason is not None:
                self._end(Outcome.CUT, reason)

    def _lost(self, cutoff: Cutoff, now: float) -> str | None:
        """Why it cannot win any more; None if it can."""
        self._take_live()
        if cutoff.metric is None:
            if self._began is None:
                return None
            self._look_at = self._began + cutoff.cut_at
            ran_s = now - self._began
            if ran_s <= cutoff.cut_at:
                return None
            time_to_beat = f"the time to beat is {number(cutoff.cut_at)} s"
            return f"it ran for {number(ran_s)} s, and {time_to_beat}"
        series = [
            Series(index, cutoff.metric, tuple(times), tuple(values))
            for index, (times, values) in sorted(self._values.items())
        ]
        return surely_worse(
            series, cutoff.instances, kind=cutoff.kind, goal=cutoff.goal, cut_at=cutoff.cut_at
        )

    def _take_live(self) -> None:
        for event in self.run.live():
            if isinstance(event, LiveStart):
                self._began = event.at_s if self._began is None else self._began
            elif isinstance(event, LiveLine):
                self._lines.append(event)
            elif self.cutoff is not None and event.metric == self.cutoff.metric:
                self._take_value(event, self.cutoff)

    def _take_value(self, live: LiveValue, cutoff: Cutoff) -> None:
        first = cutoff.printed.get(live.metric)
        try:
            factor, _ = comparable(live.metric, cutoff.kind, live.unit, first)
        except ObjectiveError:  # which the launch fails with in the end
            return
        times, values = self._values.setdefault(live.instance, ([], []))
        times.append(live.at_s - (self._began or self._started))
        values.append(live.value * factor)

    def _end(self, outcome: Outcome, reason: str) -> None:
        self._ended_as, self._reason = outcome, reason
        self.run.end()


KILLED = 128 + 9
"""Exit code after SIGKILL, of the program or of a child whose code it returns."""


def secondary_of(report: Report, joules: float | None) -> Secondary:
    """Resources that the launch used."""
    instances = report.instances
    peaks = [instance.peak_rss_bytes for instance in instances]
    return Secondary(
        # Without the launcher's own start and end.
        wall_s=max([instance.wall_s for instance in instances], default=report.wall_s),
        cpu_s=_total(instance.cpu_s for instance in instances),
        peak_rss_bytes=None if None in peaks or not peaks else sum(filter(None, peaks)),
        minor_faults=_total(instance.minor_faults for instance in instances),
        major_faults=_total(instance.major_faults for instance in instances),
        energy_j=joules,
    )


def _total(values: Iterable[Number | None]) -> Number | None:
    """The sum; None if a value is unknown or there are none."""
    listed = list(values)
    numbers = [value for value in listed if value is not None]
    return sum(numbers[1:], numbers[0]) if numbers and len(numbers) == len(listed) else None


class EndedRun(NamedTuple):
    """What is known of a launch that has ended."""

    report: Report
    memory: MemoryWatch
    observations: LaunchObservations = LaunchObservations()
    said: str = ""
    """The last lines of its standard error."""
    notes: tuple[str, ...] = ()
    """xlaunch's warnings."""

    @property
    def other_notes(self) -> list[str]:
        """Those not about metrics that were not seen: these get a note of xtune's."""
        return [text for text in self.notes if kind_of(text) is not WarningKind.UNSEEN_METRIC]


def failure_of(run: EndedRun) -> tuple[Outcome, str] | None:
    """The outcome of a failed launch, and why; None if it succeeded."""
    report, said = run.report, run.said
    if run.observations.ended_as is not None:
        return run.observations.ended_as, run.observations.reason
    # An instance that the system had no process for is not in the report.
    if sum(instance.started for instance in report.instances) < report.count:
        last = (said.splitlines() or ["it printed nothing"])[-1]
        return Outcome.NOT_STARTED, f"{report.reason}: {last}"
    if report.exit_code == 0:
        return None
    if KILLER in report.reason:
        return Outcome.OUT_OF_MEMORY, report.reason
    ends = [(instance.signal, instance.exit_code) for instance in report.instances]
    killed = any(signal == "SIGKILL" or code == KILLED for signal, code in ends)
    why = run.memory.explain(killed=killed, stderr=said)
    if why is not None:
        return Outcome.OUT_OF_MEMORY, f"{report.reason}: {why}"
    return Outcome.CRASHED, report.reason


def describe_unseen(metric: str, report: Report) -> str:
    """Explain that a metric was not printed, with the lines that were."""
    if metric.startswith(MARK):
        wanted = f"no value was announced by {metric!r} with a number on the next line"
    else:
        wanted = f"no value of {metric!r} was found"
    if not report.lines_seen:
        return f"{wanted}; nothing with a number was printed or reported"
    lines = " | ".join(report.lines_seen)
    other = re.search(re.escape(metric), lines, re.IGNORECASE)
    if other is not None and other[0] != metric:
        return f"{wanted}, but of {other[0]!r}: write --metric {shlex.quote(other[0])}"
    return f"{wanted}; the last lines with numbers: {lines}"
