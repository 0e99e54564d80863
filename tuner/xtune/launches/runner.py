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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple

import xlaunch
from xlaunch.environment import Environment
from xlaunch.errors import WarningKind, XLaunchError, kind_of
from xlaunch.machine.topology import CPUs
from xlaunch.metrics.metric_lines import MetricKind
from xlaunch.planning import Plan, ProgramRequest, RunRequest
from xlaunch.planning.request import OnFailure
from xlaunch.report import Report
from xlaunch.supervision.keeper_client import RunningLaunch
from xtune.errors import SpaceError
from xtune.launches.announcements import MARK
from xtune.launches.highest_load import LoadRange, load_at_limit
from xtune.launches.launch import NO_LIMITS, WALL, Launch, Limits, Objective
from xtune.launches.measurements import Reader, rate_in
from xtune.launches.meters import CpuWait, EnergyMeter, MemoryWatch
from xtune.launches.services import (
    Load,
    LoadTest,
    Service,
    at_ports,
    bare_command,
    confined,
    cores_kept_free,
    cpus_of_bare,
    free_ports,
    run_command,
)
from xtune.launches.summaries import kind_in, name_of
from xtune.launches.watching import Cutoff, EndedRun, LaunchWatch, Tail, may_be_cut, secondary_of
from xtune.space.parameters import BARE, Configuration
from xtune.space.resolution import Resolver
from xtune.space.user_parameters import replace

PADDING_VARIABLE = "XTUNE_PADDING"
"""Has a random length in every launch: the start address of the stack affects the speed of some
programs and would look like an effect of a setting (Mytkowicz et al. 2009)."""
MAX_PADDING = 4096

GRACE_S = 3.0
"""Time between SIGTERM and SIGKILL, unless the user asks for less."""


class _Command(NamedTuple):
    plan: Plan
    program: ProgramRequest | Environment
    run: RunRequest
    inherited: Mapping[str, str]
    port: int
    """A service's first."""


@dataclass(eq=False)
class Runner:
    """A `Measurer` that starts the workload.

    Raises `ObjectiveError` or `UsageError` for metrics that cannot be measured.
    """

    resolver: Resolver
    objective: Objective
    _: KW_ONLY
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    """What launches inherit, the same as for the resolver."""
    metrics: Sequence[str] = ()
    """Further metrics to record, as for xlaunch's --metric."""
    work_shared: bool = False
    """Instances divide the work. Otherwise N instances do N times the work, and wall time cannot be
    compared."""
    show_output: bool = False
    """Copy the workload's output to standard error."""
    timeout_s: float | None = None
    """Time limit of every launch. A program that still runs then, such as a service, is measured by its
    values so far if they are enough and steady."""
    service: Service | None = None
    """The program is a service, and its metrics are what a load generator prints."""
    loads: LoadRange | None = None
    """Measure the service at the highest of these loads that meets the requirements."""
    prepare: str | None = None
    """Command to run before each launch."""
    cleanup: str | None = None
    """Command to run after each launch."""
    seed: int | None = None
    """Seed of the padding's lengths."""
    root: str = "/"
    """Root of the file tree for energy and memory counters."""
    load_tried: Callable[[str], None] = lambda _: None
    """Is told each load that was tried."""
    reads_output: bool = False
    """Look for `printed_rate` in the output of the next bare command."""
    printed_rate: str | None = None

    def __post_init__(self) -> None:
        is_service = self.service is not None
        self.reader = Reader(self.objective, self.metrics, is_service=is_service)
        self._highest: dict[Configuration, int] = {}
        """The last of each configuration."""
        self._kept_free: CPUs = ()
        if is_service:
            self._kept_free = cores_kept_free(self.resolver.request(BARE), self.resolver.machine)
        self._random = random.Random(self.seed)  # noqa: S311 - no secret
        self._next_bare: Launch | None = None
        self._earlier_s = 0.0
        """Time of launches that `take_over` added."""

    def now_s(self) -> float:
        return time.monotonic() + self._earlier_s

    def take_over(self, launch: Launch) -> None:
        """Use `launch`, made just before, as the next launch of the bare command; its time counts."""
        self._next_bare = launch

    def measure(self, configuration: Configuration, limits: Limits = NO_LIMITS) -> Launch:
        """See `Measurer`. Raises `SpaceError` for a configuration that is not in the space."""
        bare, self._next_bare = self._next_bare, None
        if bare is not None and configuration == BARE:
            self._earlier_s += bare.secondary.wall_s
            return bare
        self.reader.announcements = ()
        launch = Launch.not_started(configuration, self.resolver.plan_hash(configuration))
        problem, values = "", self.resolver.own_values(configuration)
        try:
            if self.prepare:
                problem = run_command(replace(self.prepare, values), "--prepare")
            if not problem:
                launch = self._launched(launch, limits)
        finally:
            after = run_command(replace(self.cleanup, values), "--cleanup") if self.cleanup else ""
        return launch._replace(notes=(*launch.notes, *filter(None, (problem, after))))

    def _launched(self, launch: Launch, limits: Limits) -> Launch:
        configuration = launch.configuration
        try:
            request = self.resolver.request(configuration)
            all_limits_s = (limits.limit_s, request.run.timeout_s, self.timeout_s)
            limit_s = min([given for given in all_limits_s if given is not None], default=None)
            padding = "x" * self._random.randrange(MAX_PADDING)
            inherited = {**self.environment, PADDING_VARIABLE: padding}
            is_bare, run = configuration == BARE, self._watched(request.run)
            plan = None if is_bare else self.resolver.resolve(configuration).plan
            port = free_ports(1 if plan is None else plan.count) if self.service else 0
            words = at_ports(request, port).program
            program: ProgramRequest | Environment = words
            if plan is None:
                plan, program = bare_command(words, run, inherited, self.resolver.machine)
            if self.objective.metric == WALL and plan.count > 1 and not self.work_shared:
                note = (
                    f"wall time of {plan.count} instances cannot be compared, since they do"
                    f" {plan.count} times the work; give --work shared if they divide it, or --metric"
                )
                return launch._replace(notes=(note,))
            command = _Command(plan, program, run, inherited, port)
            return self._run(launch, command, self._race(plan, limits.cut_at), limit_s)
        except SpaceError:
            raise
        except (XLaunchError, OSError) as error:
            return launch._replace(notes=(str(error),))

    def _watched(self, run: RunRequest) -> RunRequest:
        """`run` with the options for observing and ending it."""
        metrics = self.reader.metrics
        if self.service is not None:  # its output is read for a line only
            metrics = ("ready",) if self.service.awaited_line else ()
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

    def _race(self, plan: Plan, cut_at: float | None) -> Cutoff | None:
        metric, goal = self.objective.metric, self.objective.goal
        name, kind = None, MetricKind.TIME
        if metric != WALL:
            name, kind = name_of(metric), kind_in(metric)
        if cut_at is None or metric.startswith(MARK) or not may_be_cut(kind, goal):
            return None
        return Cutoff(cut_at, goal, name, kind, len(plan.instances), self.reader.printed)

    def _run(
        self, launch: Launch, command: _Command, cutoff: Cutoff | None, limit_s: float | None
    ) -> Launch:
        memory, meter = MemoryWatch(self.root), EnergyMeter(self.root)
        cpu_wait = CpuWait(self.root)
        copy_to = 2 if self.show_output else None
        is_read = self.reads_output and launch.configuration == BARE
        load: Load | None = None
        with Tail(copy_to=copy_to) as tail, Tail(copy_to=copy_to) as printed:
            started = time.monotonic()
            stdout = printed.writer if is_read else copy_to or subprocess.DEVNULL
            with self._start(command, stdout, tail.writer) as run:
                tail.given_away()
                printed.given_away()
                if self.service is not None:
                    service = self.service.fill(self.resolver.own_values(launch.configuration))
                    test = LoadTest(
                        service,
                        run,
                        command.plan,
                        command.port,
                        tail=tail,
                        meter=meter,
                        deadline=None if limit_s is None else started + limit_s,
                        machine=self.resolver.machine,
                        environment=self.environment,
                        kept_free=self._kept_free,
                    )
                    load = self._under_load(test, service, launch.configuration, memory)
                    load = load._replace(said=tail.text())  # without what it says when it is ended
                    run.end()
                    limit_s = None
                watch = LaunchWatch(run, (tail, printed), meter, limit_s, cutoff)
                observations = watch.until_the_end()
                joules = meter.joules()
                try:
                    report = run.report()
                except XLaunchError as error:
                    if observations.ended_as is None and not (load and load.problem):
                        raise
                    # It was ended before it could report.
                    report = Report(125, str(error), time.monotonic() - started, 0, (), (), ())
            said = tail.text()
            if is_read and observations.ended_as is None:
                self.printed_rate, self.reads_output = rate_in(printed.text()), False
        secondary = secondary_of(report, joules)
        if load is None:  # a load generator is no other program
            secondary = secondary._replace(waited=cpu_wait.share(secondary.cpu_s))
        told = [text for text in report.warnings if text not in command.plan.warnings]
        shared = [text for text in told if kind_of(text) is WarningKind.SHARED_CPUS]
        notes = tuple([text for text in told if text not in shared])
        launch = launch._replace(
            secondary=secondary,
            exit_code=report.exit_code if report.instances else None,
            shared_cpus=tuple(shared),
        )
        ended = EndedRun(report, memory, observations, said, notes)
        if load is not None:
            return self.reader.measured_load(launch, load, ended)
        if limit_s is None or limit_s != self.timeout_s:
            return self.reader.read(launch, ended)
        return self.reader.read(launch, ended, limit_s, started + limit_s - observations.began)

    def _start(self, command: _Command, stdout: int, stderr: int) -> RunningLaunch:
        mark = MARK if MARK in self.reader.metrics else None
        with confined(cpus_of_bare(command.plan, self.resolver.machine, self._kept_free)):
            return xlaunch.start(
                command.plan,
                command.program,
                command.run,
                environment=command.inherited,
                stdout=stdout,
                stderr=stderr,
                mark=self.service.awaited_line if self.service else mark,
            )

    def _under_load(
        self, test: LoadTest, service: Service, configuration: Configuration, memory: MemoryWatch
    ) -> Load:
        """Put a service under load once it is ready; with --load, at the highest that holds."""
        load, loads = test.wait_until_ready(), self.loads
        if load.problem:
            return load
        if loads is None:
            return test.generate(service.measure)
        load = load_at_limit(
            lambda level: test.generate(loads.fill(service.measure, level)),
            lambda load: self.reader.tried(load, memory),
            loads,
            start=self._highest.get(configuration),
            tell=self.load_tried,
        )
        if load.level is not None:
            self._highest[configuration] = load.level[1]
        return load
