# SPDX-License-Identifier: Apache-2.0
"""Measurement of real launches: starts the workload through xlaunch and observes it.

>>> runner = Runner(resolver, Objective("images/s", Goal.MAXIMIZE), machine=machine)
>>> runner.measure(Configuration({"layout": "4x8"})).value

xlaunch supervises each launch as usual and delivers printed and reported values with their times.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import xlaunch
from xlaunch.environment import Environment
from xlaunch.errors import XLaunchError
from xlaunch.machine.topology import Machine
from xlaunch.metrics.metric_lines import Kind
from xlaunch.planning import Plan, Request
from xlaunch.planning.request import OnFailure
from xlaunch.report import InstanceReport, Report
from xlaunch.run_warnings import WarningKind, kind_of
from xlaunch.text import number
from xtune.errors import SpaceError
from xtune.launches.announcements import MARK, Announced, Announcement, read_announcements
from xtune.launches.bare import bare_command
from xtune.launches.energy import EnergyMeter
from xtune.launches.exhaustion import MemoryWatch
from xtune.launches.launch import Launch, Outcome, Secondary, Series, Steadiness
from xtune.launches.objectives import WALL, Goal, Objective
from xtune.launches.outputs import Tail
from xtune.launches.requirements import check, metrics_to_read
from xtune.launches.summaries import (
    Summary,
    Window,
    kind_in,
    name_of,
    series_of,
    summarise,
    window_of,
)
from xtune.launches.watching import Race, Watched, watch
from xtune.space.parameters import BARE, Configuration

PADDING_VARIABLE = "XTUNE_PADDING"
"""Has a random length in every launch: the start address of the stack affects the speed of some
programs and would look like an effect of a setting (Mytkowicz et al. 2009)."""
MAX_PADDING = 4096

GRACE_S = 3.0
"""Time between SIGTERM and SIGKILL, unless the user asks for less."""

KILLED = 128 + 9
"""Exit code after SIGKILL, of the program or of a child whose code it returns."""


class Resolved(Protocol):
    """A configuration that can be carried out."""

    @property
    def plan(self) -> Plan: ...


class Resolver(Protocol):
    """See `xtune.space.resolution.Resolver`."""

    def request(self, configuration: Configuration) -> Request: ...
    def resolve(self, configuration: Configuration) -> Resolved: ...
    def plan_hash(self, configuration: Configuration) -> str | None: ...


class _Command(NamedTuple):
    """The command to start."""

    plan: Plan
    environment: Mapping[str, str] | Environment
    """The inherited variables, or the complete environment."""


class Runner:
    """A `Measurer` that starts the workload."""

    def __init__(
        self,
        resolver: Resolver,
        objective: Objective,
        *,
        machine: Machine,
        environment: Mapping[str, str] | None = None,
        metrics: Sequence[str] = (),
        work_shared: bool = False,
        show_output: bool = False,
        timeout_s: float | None = None,
        seed: int | None = None,
        root: str = "/",
    ) -> None:
        """Raises `ObjectiveError` or `UsageError` for metrics that cannot be measured.

        environment
            What launches inherit, the same as for the resolver; None: `os.environ`.
        metrics
            Further metrics to record, as for xlaunch's --metric.
        work_shared
            Instances divide the work. Otherwise N instances do N times the work, and wall time
            cannot be compared.
        show_output
            Copy the workload's output to standard error.
        timeout_s
            Time limit of every launch. A program that still runs then, such as a service, is measured
            by its values so far if they are enough and steady.
        seed
            Seed of the padding's lengths.
        root
            Root of the file tree for energy and memory counters.
        """
        self._resolver = resolver
        self._objective = objective
        self._machine = machine
        self._environment = os.environ if environment is None else environment
        self._metrics = metrics_to_read(objective, metrics)
        self._work_shared = work_shared
        self._show_output = show_output
        self._timeout_s = timeout_s
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._root = root
        self._next_bare: Launch | None = None
        self._earlier_s = 0.0
        """Time of launches that `take_over` added."""
        self.announcements: tuple[Announcement, ...] = ()
        """The announcements of the last launch."""

    @property
    def objective(self) -> Objective:
        return self._objective

    def now_s(self) -> float:
        return time.monotonic() + self._earlier_s

    def plan_hash(self, configuration: Configuration) -> str | None:
        """See `Measurer`. Raises `SpaceError` for a configuration that is not in the space."""
        return self._resolver.plan_hash(configuration)

    def take_over(self, launch: Launch) -> None:
        """Use `launch`, made just before, as the next launch of the bare command; its time counts."""
        self._next_bare = launch

    def measure(
        self,
        configuration: Configuration,
        *,
        cut_at: float | None = None,
        limit_s: float | None = None,
    ) -> Launch:
        """See `Measurer`. Raises `SpaceError` for a configuration that is not in the space."""
        made, self._next_bare = self._next_bare, None
        if made is not None and configuration == BARE:
            self._earlier_s += made.secondary.wall_s
            return made
        self.announcements = ()
        launch = Launch(
            configuration=configuration,
            plan_hash=self._resolver.plan_hash(configuration) or "",
            outcome=Outcome.NOT_STARTED,
            value=None,
            began_s=time.time(),
        )
        try:
            command = self._command(configuration)
            self._refuse_incomparable(command.plan)
            own_limit_s = self._resolver.request(configuration).timeout_s
            limits = [one for one in (limit_s, own_limit_s, self._timeout_s) if one is not None]
            limit_s = min(limits, default=None)
            return self._run(launch, command, self._race(command.plan, cut_at), limit_s)
        except SpaceError:
            raise
        except (XLaunchError, OSError) as error:
            return launch._replace(notes=(str(error),))

    # Starting.

    def _command(self, configuration: Configuration) -> _Command:
        """The command to start. Raises `XLaunchError` if it cannot be carried out."""
        padding = "x" * self._random.randrange(MAX_PADDING)
        inherited = {**self._environment, PADDING_VARIABLE: padding}
        if configuration == BARE:
            request = self._watched(self._resolver.request(BARE))
            return _Command(*bare_command(request, inherited, self._machine))
        made = self._resolver.resolve(configuration).plan
        return _Command(made._replace(request=self._watched(made.request)), inherited)

    def _watched(self, request: Request) -> Request:
        """The request with the options for observing and ending the run."""
        return request._replace(
            metric=self._metrics,
            supervise=True,
            on_failure=OnFailure.STOP,
            grace_s=min(GRACE_S, request.grace_s),
            timeout_s=None,
            log_dir=None,
            report=None,
            pty=False,
            tag=None,
        )

    def _refuse_incomparable(self, plan: Plan) -> None:
        if self._objective.metric == WALL and plan.count > 1 and not self._work_shared:
            raise XLaunchError(
                f"wall time of {plan.count} instances cannot be compared, since they do {plan.count} times"
                " the work; give --work shared if they divide it, or --metric"
            )

    def _race(self, plan: Plan, cut_at: float | None) -> Race | None:
        objective = self._objective
        if cut_at is None or objective.metric.startswith(MARK):
            return None
        count = len(plan.instances)
        if objective.metric == WALL:
            return Race(cut_at, objective.goal, None, Kind.TIME, count)
        kind = kind_in(objective.metric)
        return Race(cut_at, objective.goal, name_of(objective.metric), kind, count)

    def _run(
        self, launch: Launch, command: _Command, race: Race | None, limit_s: float | None
    ) -> Launch:
        memory, meter = MemoryWatch(self._root), EnergyMeter(self._root)
        with Tail(copy_to=2 if self._show_output else None) as tail:
            started = time.monotonic()
            with xlaunch.start(
                command.plan,
                environment=command.environment,
                stdout=2 if self._show_output else subprocess.DEVNULL,
                stderr=tail.writer,
                mark=MARK if MARK in self._metrics else None,
            ) as run:
                tail.given_away()
                watched = watch(run, tail, meter, limit_s=limit_s, race=race)
                joules = meter.joules()
                try:
                    report = run.report()
                except XLaunchError as error:
                    if watched.ended_as is None:
                        raise
                    # It was ended before it could report.
                    report = Report(125, str(error), time.monotonic() - started, 0, (), (), ())
            said = tail.text()
        notes = tuple(text for text in report.warnings if text not in command.plan.warnings)
        shared = [text for text in notes if kind_of(text) is WarningKind.SHARED_CPUS]
        launch = launch._replace(
            secondary=_secondary(report, joules),
            exit_code=report.exit_code if report.instances else None,
            shared_cpus=tuple(shared),
        )
        notes = tuple(text for text in notes if text not in shared)
        failure = _failure(report, watched, memory, said)
        is_timeout = watched.ended_as is Outcome.TIMED_OUT and limit_s == self._timeout_s
        if is_timeout and limit_s is not None:
            until_s = started + limit_s - watched.began
            served = self._served(launch, report, watched, until_s)
            if served is not None:
                return served
        if failure is not None:
            outcome, reason = failure
            if is_timeout:
                reason += f"; {self._describe_unserved()}"
            series = (*series_of(report), *self._announced(watched).series)
            said = "" if outcome is Outcome.CUT else said
            return launch._replace(
                outcome=outcome, series=series, stderr_tail=said, notes=(reason, *notes)
            )
        return self._measured(launch, report, watched, said, notes)

    # What was seen.

    def _announced(self, watched: Watched) -> Announced:
        announced = read_announcements(watched.lines, watched.began)
        self.announcements = announced.announcements
        return announced

    def _served(
        self,
        launch: Launch,
        report: Report,
        watched: Watched,
        until_s: float,
    ) -> Launch | None:
        """The measurement of a launch that was stopped while running; None if it is not enough.

        Every instance must have enough steady values of the objective's metric.
        """
        window = Window(until_s=until_s)
        served = self._measured(launch, report, watched, "", (), window)
        name = self._metric_name(self.announcements)
        seen = [one for one in served.series if one.metric == name and window.of(one).values]
        if (
            served.outcome is not Outcome.MEASURED
            or served.steadiness in (Steadiness.TOO_FEW, Steadiness.NOT_STEADY)
            or len({one.instance for one in seen}) < len(report.instances)
        ):
            return None
        assert self._timeout_s is not None
        limit = number(self._timeout_s)
        note = f"it was still running after {limit} s: measured until then and stopped"
        return served._replace(notes=(note, *served.notes))

    def _describe_unserved(self) -> str:
        """Why a program that was still running could not be measured."""
        if self._objective.metric == WALL:
            return "a program that does not end needs a --metric that it prints while running"
        return (
            f"it had too few steady values of {self._objective.metric!r} by then:"
            " increase --timeout"
        )

    def _metric_name(self, announcements: Sequence[Announcement]) -> str:
        """The name of the objective's metric in series."""
        objective = self._objective
        name = objective.metric if objective.metric == WALL else name_of(objective.metric)
        return announcements[0].metric if name == MARK and announcements else name

    def _measured(
        self,
        launch: Launch,
        report: Report,
        watched: Watched,
        said: str,
        known: Sequence[str],
        window: Window | None = None,
    ) -> Launch:
        """The measurement of a launch that succeeded. `window`: when values count."""
        objective = self._objective
        announced = self._announced(watched)
        series = (*series_of(report), *announced.series)
        summaries = self._summarise(report, announced, window or Window())
        name = self._metric_name(announced.announcements)
        seen, unmet = check(objective.requirements, summaries, launch.secondary)
        launch = launch._replace(
            series=series, requirements=seen, metrics=tuple(_others(summaries, name))
        )
        # Replaced by a note for each metric below.
        notes = [text for text in known if kind_of(text) is not WarningKind.UNSEEN_METRIC]
        notes += [*announced.notes, *unmet]
        if name == WALL:
            value, steadiness = launch.secondary.wall_s, Steadiness.TOO_FEW
        elif name in summaries:
            value, steadiness = summaries[name].value, summaries[name].steadiness
            notes = [*summaries[name].notes, *notes]
        else:
            reason = _describe_unseen(objective.metric, report)
            return launch._replace(
                outcome=Outcome.NO_METRIC, stderr_tail=said, notes=(reason, *dict.fromkeys(notes))
            )
        for other, summary in summaries.items():
            if other != name:
                notes += [f"{other}: {note}" for note in summary.notes]
        unseen = [text for text in self._metrics if text != MARK and name_of(text) not in summaries]
        notes += [f"{text}: it was not printed" for text in unseen]
        return launch._replace(
            outcome=Outcome.MEASURED,
            value=value,
            steadiness=steadiness,
            notes=tuple(dict.fromkeys(notes)),
        )

    def _summarise(
        self, report: Report, announced: Announced, window: Window
    ) -> dict[str, Summary]:
        """Every metric with values in the window, by name."""
        objective, found = self._objective, dict[str, Summary]()
        better = objective.goal is Goal.MAXIMIZE
        by_metric: dict[str, list[Series]] = {}
        for series in (*series_of(report), *announced.series):
            by_metric.setdefault(series.metric, []).append(series)
        for total in report.metrics:
            summary = summarise(
                total.name,
                by_metric.get(total.name, ()),
                kind=Kind(total.kind),
                unit=total.unit,
                window=window_of(total).within(window),
                larger_is_better=better if total.name == name_of(objective.metric) else None,
                known=total.notes,
            )
            if summary is not None:
                found[total.name] = summary
        for one in announced.announcements:
            summary = summarise(
                one.metric,
                by_metric[one.metric],
                window=window,
                larger_is_better=one.higher_is_better,
            )
            if summary is not None:
                found[one.metric] = summary
        return found


def _secondary(report: Report, joules: float | None) -> Secondary:
    instances = report.instances
    peaks = [one.peak_rss_bytes for one in instances]
    return Secondary(
        # Without the launcher's own start and end.
        wall_s=max([one.wall_s for one in instances], default=report.wall_s),
        cpu_s=_total(one.cpu_s for one in instances),
        peak_rss_bytes=None if None in peaks or not peaks else sum(filter(None, peaks)),
        minor_faults=_to_int(_total(one.minor_faults for one in instances)),
        major_faults=_to_int(_total(one.major_faults for one in instances)),
        energy_j=joules,
    )


def _total(values: Iterable[float | None]) -> float | None:
    """The sum; None if a value is unknown or there are none."""
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) if known and len(known) == len(found) else None


def _to_int(value: float | None) -> int | None:
    return None if value is None else int(value)


def _failure(
    report: Report, watched: Watched, memory: MemoryWatch, said: str
) -> tuple[Outcome, str] | None:
    """The outcome of a failed launch, and why; None if it succeeded."""
    if watched.ended_as is not None:
        return watched.ended_as, watched.reason
    # An instance that the system had no process for is not in the report.
    if sum(one.started for one in report.instances) < report.count:
        return Outcome.NOT_STARTED, f"{report.reason}: {_last_line(said)}"
    if report.exit_code == 0:
        return None
    killed = any(map(_was_killed, report.instances))
    why = memory.explain(killed=killed, stderr=said)
    if why is not None:
        return Outcome.OUT_OF_MEMORY, f"{report.reason}: {why}"
    return Outcome.CRASHED, report.reason


def _was_killed(instance: InstanceReport) -> bool:
    return instance.signal == "SIGKILL" or instance.exit_code == KILLED


def _others(summaries: Mapping[str, Summary], objective: str) -> Iterable[tuple[str, float]]:
    """The other metrics, and the mean, p90 and p99 of each time."""
    for name, summary in summaries.items():
        if name != objective:
            yield name, summary.value
        if summary.kind is Kind.TIME and summary.count > 1:
            spread = (("mean", summary.mean), ("p90", summary.p90), ("p99", summary.p99))
            yield from ((f"{name} {label}", value) for label, value in spread if value is not None)


def _describe_unseen(metric: str, report: Report) -> str:
    """Explain that a metric was not printed, with the lines that were."""
    if metric.startswith(MARK):
        wanted = f"no value was announced by {metric!r} with a number on the next line"
    else:
        wanted = f"no value of {metric!r} was found"
    if not report.lines_seen:
        return f"{wanted}; nothing with a number was printed or reported"
    return f"{wanted}; the last lines with numbers: {' | '.join(report.lines_seen)}"


def _last_line(text: str) -> str:
    lines = text.splitlines()
    return lines[-1] if lines else "it printed nothing"
