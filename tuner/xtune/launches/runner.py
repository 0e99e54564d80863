# SPDX-License-Identifier: Apache-2.0
"""Measurement of real launches: starts the workload through xlaunch and observes it.

>>> runner = Runner(resolver, Objective("images/s", Goal.MAXIMIZE))
>>> runner.measure(Configuration({"layout": "4x8"})).value

xlaunch supervises each launch as usual and delivers printed and reported values with their times.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import xlaunch
from xlaunch.environment import Environment
from xlaunch.errors import WarningKind, XLaunchError, kind_of
from xlaunch.metrics.metric_lines import MetricKind
from xlaunch.planning import Plan, ProgramRequest, RunRequest
from xlaunch.planning.request import OnFailure
from xlaunch.report import Report
from xlaunch.text import number
from xtune.errors import ObjectiveError, SpaceError
from xtune.launches.announcements import MARK, Announced, Announcement, read_announcements
from xtune.launches.generators import LATENCY, summaries_of, summary_of_share
from xtune.launches.launch import WALL, Launch, Objective, Outcome, Series, Steadiness
from xtune.launches.meters import CpuWait, EnergyMeter, MemoryWatch
from xtune.launches.printed_rates import rate_in
from xtune.launches.requests import ERRORS, GENERATORS, REJECTED
from xtune.launches.requirements import check, metrics_to_read
from xtune.launches.services import (
    Load,
    Running,
    Service,
    at_ports,
    bare_command,
    confined,
    cores_kept_free,
    cpus_of_bare,
    free_ports,
    put_under_load,
    run_command,
)
from xtune.launches.summaries import (
    Summary,
    Window,
    comparable,
    kind_in,
    name_of,
    printed_units,
    series_of,
    summaries_of_run,
    unit_in,
    window_of,
)
from xtune.launches.watching import (
    Race,
    Tail,
    Watched,
    describe_unseen,
    failure_of,
    secondary_of,
    watch,
)
from xtune.space.parameters import BARE, Configuration
from xtune.space.resolution import Resolver

PADDING_VARIABLE = "XTUNE_PADDING"
"""Has a random length in every launch: the start address of the stack affects the speed of some
programs and would look like an effect of a setting (Mytkowicz et al. 2009)."""
MAX_PADDING = 4096

GRACE_S = 3.0
"""Time between SIGTERM and SIGKILL, unless the user asks for less."""

ERRORS_NOT_SEEN = (
    "failed requests are not seen: the output is not that of a known load generator"
    f" ({', '.join(GENERATORS)})"
)

MAX_LINES_TOLD = 3
"""Of a generator's output without the metric."""


class _Command(NamedTuple):
    """The command to start."""

    plan: Plan
    program: ProgramRequest | Environment
    run: RunRequest
    inherited: Mapping[str, str]
    port: int
    """A service's first."""


class Runner:
    """A `Measurer` that starts the workload."""

    def __init__(
        self,
        resolver: Resolver,
        objective: Objective,
        *,
        environment: Mapping[str, str] | None = None,
        metrics: Sequence[str] = (),
        work_shared: bool = False,
        show_output: bool = False,
        timeout_s: float | None = None,
        service: Service | None = None,
        prepare: str | None = None,
        cleanup: str | None = None,
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
        service
            The program is a service, and its metrics are what a load generator prints.
        prepare, cleanup
            Commands to run before and after each launch.
        seed
            Seed of the padding's lengths.
        root
            Root of the file tree for energy and memory counters.
        """
        self._resolver = resolver
        self._objective = objective
        self._machine = resolver.machine
        self._environment = os.environ if environment is None else environment
        if service is not None:
            metrics = (*metrics, f"{MetricKind.TIME.value}:{LATENCY}")
        self._metrics = metrics_to_read(objective, metrics)
        self._service = service
        self._prepare, self._cleanup = prepare, cleanup
        self._kept_free = (
            () if service is None else cores_kept_free(resolver.request(BARE), resolver.machine)
        )
        self._work_shared = work_shared
        self._show_output = show_output
        self._timeout_s = timeout_s
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._root = root
        self._next_bare: Launch | None = None
        self._earlier_s = 0.0
        """Time of launches that `take_over` added."""
        self._printed: dict[str, str] = {}
        """See `printed_units`."""
        self.announcements: tuple[Announcement, ...] = ()
        """The announcements of the last launch."""
        self.reads_output = False
        """Look for `printed_rate` in the output of the next bare command."""
        self.printed_rate: str | None = None

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

    def learn(self, launches: Iterable[Launch]) -> None:
        """Compare times with those of earlier launches of the study, whatever units are printed."""
        self._printed = {**self._printed, **printed_units(launches, self._metrics)}

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
        problem = ""
        try:
            if self._prepare:
                problem = run_command(self._prepare, "--prepare")
            if not problem:
                launch = self._launched(launch, cut_at, limit_s)
        finally:
            after = run_command(self._cleanup, "--cleanup") if self._cleanup else ""
        return launch._replace(notes=(*launch.notes, *filter(None, (problem, after))))

    def _launched(self, launch: Launch, cut_at: float | None, limit_s: float | None) -> Launch:
        configuration = launch.configuration
        try:
            command = self._command(configuration)
            self._refuse_incomparable(command.plan)
            own_limit_s = self._resolver.request(configuration).run.timeout_s
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
        request = self._resolver.request(configuration)
        if configuration == BARE:
            port = free_ports(1) if self._service else 0
            request = at_ports(request, port)
            run = self._watched(request.run)
            bare = bare_command(request.program, run, inherited, self._machine)
            return _Command(bare.plan, bare.environment, run, inherited, port)
        made = self._resolver.resolve(configuration).plan
        port = free_ports(made.count) if self._service else 0
        request = at_ports(request, port)
        return _Command(made, request.program, self._watched(request.run), inherited, port)

    def _watched(self, run: RunRequest) -> RunRequest:
        """`run` with the options for observing and ending it."""
        metrics = self._metrics
        if self._service is not None:  # its output is read for a line only
            metrics = ("ready",) if self._service.awaited_line else ()
        return run._replace(
            metric=metrics,
            supervise=True,
            on_failure=OnFailure.STOP,
            grace_s=min(GRACE_S, run.grace_s),
            timeout_s=None,
            log_dir=None,
            tee=False,
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
            return Race(cut_at, objective.goal, None, MetricKind.TIME, count)
        kind, name = kind_in(objective.metric), name_of(objective.metric)
        return Race(cut_at, objective.goal, name, kind, count, self._printed)

    def _run(
        self, launch: Launch, command: _Command, race: Race | None, limit_s: float | None
    ) -> Launch:
        memory, meter = MemoryWatch(self._root), EnergyMeter(self._root)
        cpu_wait = CpuWait(self._root)
        copy_to = 2 if self._show_output else None
        is_read = self.reads_output and launch.configuration == BARE
        with Tail(copy_to=copy_to) as tail, Tail(copy_to=copy_to) as printed:
            started = time.monotonic()
            mark = MARK if MARK in self._metrics else None
            with confined(cpus_of_bare(command.plan, self._machine, self._kept_free)):
                run = xlaunch.start(
                    command.plan,
                    command.program,
                    command.run,
                    environment=command.inherited,
                    stdout=printed.writer if is_read else copy_to or subprocess.DEVNULL,
                    stderr=tail.writer,
                    mark=self._service.awaited_line if self._service else mark,
                )
            with run:
                tail.given_away()
                printed.given_away()
                load: Load | None = None
                if self._service is not None:
                    deadline = None if limit_s is None else started + limit_s
                    load = put_under_load(
                        self._service,
                        Running(run, command.plan, tail, meter, command.port, deadline),
                        self._machine,
                        self._environment,
                        self._kept_free,
                    )
                    load = load._replace(said=tail.text())  # without what it says when it is ended
                    run.end()
                    limit_s = None
                watched = watch(run, (tail, printed), meter, limit_s=limit_s, race=race)
                joules = meter.joules()
                try:
                    report = run.report()
                except XLaunchError as error:
                    if watched.ended_as is None and not (load and load.problem):
                        raise
                    # It was ended before it could report.
                    report = Report(125, str(error), time.monotonic() - started, 0, (), (), ())
            said = tail.text()
            if is_read and watched.ended_as is None:
                self.printed_rate, self.reads_output = rate_in(printed.text()), False
        notes = tuple(text for text in report.warnings if text not in command.plan.warnings)
        shared = [text for text in notes if kind_of(text) is WarningKind.SHARED_CPUS]
        secondary = secondary_of(report, joules)
        if load is None:  # a load generator is no other program
            secondary = secondary._replace(waited=cpu_wait.share(secondary.cpu_s))
        launch = launch._replace(
            secondary=secondary,
            exit_code=report.exit_code if report.instances else None,
            shared_cpus=tuple(shared),
        )
        notes = tuple(text for text in notes if text not in shared)
        if load is not None:
            return self._measured_load(launch, load, report, memory, notes)
        failure = failure_of(report, watched, memory, said)
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

        Every instance must have enough steady values of the objective's metric while all were running.
        """
        window = Window(until_s=until_s)
        served = self._measured(launch, report, watched, "", (), window)
        name = self._metric_name(self.announcements)
        for total in report.metrics:
            if total.name == name:
                window = window_of(total).within(window)
        seen = [one for one in served.series if one.metric == name and window.of(one).values]
        if served.outcome is Outcome.NOT_FINITE:
            return served
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
        announced = self._announced(watched)
        series = (*series_of(report), *announced.series)
        summaries = summaries_of_run(report, announced, self._objective, window or Window())
        name = self._metric_name(announced.announcements)
        launch = launch._replace(series=series, stderr_tail=said)
        lines = [
            f"{total.name}: {total.not_finite}" for total in report.metrics if total.not_finite
        ]
        lines += [announced.not_finite] if announced.not_finite else []
        if lines:
            return launch._replace(outcome=Outcome.NOT_FINITE, notes=(*lines[:1], *known))
        # Replaced by a note for each metric.
        notes = [text for text in known if kind_of(text) is not WarningKind.UNSEEN_METRIC]
        unseen = describe_unseen(self._objective.metric, report)
        return self._concluded(launch, summaries, name, [*notes, *announced.notes], unseen)

    def _concluded(
        self,
        launch: Launch,
        summaries: Mapping[str, Summary],
        name: str,
        notes: Sequence[str],
        unseen: str,
    ) -> Launch:
        """The launch with its value.

        name
            Of the objective's metric.
        unseen
            The note for a metric without a value.
        """
        try:
            launch, summaries = self._comparable(launch, summaries)
        except ObjectiveError as error:
            return launch._replace(outcome=Outcome.NO_METRIC, notes=(str(error), *notes))
        seen, unmet = check(
            self._objective.requirements, summaries, launch.secondary, self._printed
        )
        launch = launch._replace(requirements=seen, metrics=tuple(_others(summaries, name)))
        for other, summary in summaries.items():
            # A generator's table of percentiles may have no median.
            has_no_median = self._service is not None and other == LATENCY != name
            if not summary.is_finite and not has_no_median:
                lines = (f"{other} is {number(summary.value)}", *notes)
                return launch._replace(outcome=Outcome.NOT_FINITE, notes=lines)
        notes = (*notes, *unmet)
        if name != WALL and name not in summaries:
            notes = (unseen, *dict.fromkeys(notes))
            return launch._replace(outcome=Outcome.NO_METRIC, notes=notes)
        value, steadiness, told = launch.secondary.wall_s, Steadiness.TOO_FEW, list[str]()
        if name != WALL:
            value, steadiness = summaries[name].value, summaries[name].steadiness
            told += summaries[name].notes
        told += notes
        for other, summary in summaries.items():
            if other != name:
                told += [f"{other}: {note}" for note in summary.notes]
        implied = () if self._service is None else (LATENCY,)
        told += [
            f"{text}: it was not printed"
            for text in self._metrics
            if text != MARK and name_of(text) not in (*summaries, *implied)
        ]
        return launch._replace(
            outcome=Outcome.MEASURED,
            value=value,
            steadiness=steadiness,
            stderr_tail="",
            notes=tuple(dict.fromkeys(told)),
        )

    def _comparable(
        self, launch: Launch, summaries: Mapping[str, Summary]
    ) -> tuple[Launch, dict[str, Summary]]:
        """The launch and its summaries, with times in the units of the study; see `comparable`.

        Raises `ObjectiveError` for a unit that cannot be compared.
        """
        found, factors = dict(summaries), dict[str, float]()
        for name, summary in summaries.items():
            if summary.kind is MetricKind.TIME:
                first = self._printed.get(name)
                factors[name], unit = comparable(name, summary.unit, first)
                found[name] = summary.times(factors[name], unit)
                if unit_in(name) is None:
                    self._printed.setdefault(name, summary.printed_in)
                    launch = launch._replace(units=(*launch.units, (name, summary.printed_in)))
        series = [
            one._replace(
                values=tuple([value * factors.get(one.metric, 1.0) for value in one.values])
            )
            for one in launch.series
        ]
        return launch._replace(series=tuple(series)), found

    # A service.

    def _measured_load(
        self,
        launch: Launch,
        load: Load,
        report: Report,
        memory: MemoryWatch,
        known: Sequence[str],
    ) -> Launch:
        """The measurement of a service by what its generators printed."""
        notes = [text for text in known if kind_of(text) is not WarningKind.UNSEEN_METRIC]
        if not load.service_ended:
            launch = launch._replace(exit_code=None)
        if load.problem:
            outcome, reason = load.outcome, load.problem
            unwatched = Watched(0.0, (), None, "")
            if load.service_ended and (ended := failure_of(report, unwatched, memory, load.said)):
                outcome, reason = ended[0], f"{reason}: {ended[1]}"
            return launch._replace(outcome=outcome, stderr_tail=load.said, notes=(reason, *notes))
        required = {one.quantity for one in self._objective.requirements}
        requests = load.requests
        shares = {} if requests is None else requests.shares
        if requests is not None and any(shares[name] for name in shares.keys() - required):
            hint = f"allow a share of them with --require '{ERRORS}<=1%' or '{REJECTED}<=1%'"
            return launch._replace(outcome=Outcome.CRASHED, notes=(f"{requests}; {hint}", *notes))
        if requests is None:
            notes.append(ERRORS_NOT_SEEN)
        summaries, name = summaries_of(load.outputs, self._metrics), name_of(self._objective.metric)
        summaries |= {word: summary_of_share(word, share) for word, share in shares.items()}
        series = [Series(0, n, (0.0,), (one.value,)) for n, one in summaries.items()]
        lines = [line.strip() for line in load.outputs[0].splitlines() if line.strip()]
        unseen = f"the generator printed no {self._objective.metric!r}; its last lines:"
        unseen = f"{unseen} {' | '.join(lines[-MAX_LINES_TOLD:]) or 'none'}"
        launch = launch._replace(series=tuple(series))
        return self._concluded(launch, summaries, name, notes, unseen)


def _others(summaries: Mapping[str, Summary], objective: str) -> Iterable[tuple[str, float]]:
    """The other metrics, and the mean, p90 and p99 of each time."""
    for name, summary in summaries.items():
        if name != objective:
            yield name, summary.value
        if summary.kind is MetricKind.TIME and summary.count > 1:
            spread = (("mean", summary.mean), ("p90", summary.p90), ("p99", summary.p99))
            yield from ((f"{name} {label}", value) for label, value in spread if value is not None)
