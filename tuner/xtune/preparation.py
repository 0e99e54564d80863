# SPDX-License-Identifier: Apache-2.0
"""Turns a request into a task: the program, the objective, the space and the study's subject."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from xlaunch.machine import read_machine
from xlaunch.machine.topology import Machine
from xlaunch.metrics.metric_lines import MetricKind
from xlaunch.planning import plan
from xtune.errors import ObjectiveError, StudyError
from xtune.launches.announcements import MARK
from xtune.launches.functions import Function, FunctionMeasurer
from xtune.launches.launch import WALL, Goal, Launch, Limits, Objective
from xtune.launches.requirements import parse_requirement
from xtune.launches.runner import Runner
from xtune.launches.services import cores_kept_free, require_command, require_service
from xtune.launches.summaries import kind_in
from xtune.launches.suspension import repeated
from xtune.request import DEFAULT_BUDGET, SearchRequest
from xtune.search.budget import Budget, parse_budget
from xtune.search.events import Observer, require_baseline
from xtune.search.study import Subject
from xtune.search.workers import host_locked
from xtune.space.hypertune import hypertune_space
from xtune.space.identities import identify_machine, identify_program, measured_by, read_processor
from xtune.space.launch_options import INSTANCES
from xtune.space.machine_space import MadeSpace, make_space
from xtune.space.offers import Offers, read_offers
from xtune.space.parameters import BARE
from xtune.space.resolution import Resolver
from xtune.space.spaces import Space
from xtune.space.user_parameters import parse_parameters

RATES_ARE_ADDED = (
    "a layout of several instances runs the whole program in each of them, and their rates are added;"
    " give --instances 1 if a single run is to become faster, such as a training"
)
NO_FRONT = "{metric!r} is only recorded: for a Pareto front, give each --metric its --goal"
SHARED_CORES = (
    "the load generator has cores of its own only where a layout leaves some idle; give the service"
    " fewer by --cpus, to keep the others for the generator"
)


Say = Callable[[str], None]
"""Is told a line for the user."""


def silent(line: str) -> None:
    """Drop a line for the user."""


class SearchTask(NamedTuple):
    """A search that is ready to start."""

    asked: SearchRequest
    subject: Subject
    made: MadeSpace
    resolver: Resolver
    runner: Runner | FunctionMeasurer
    probe: Launch | None = None
    """The launch of the bare command that announced the objective; the study counts it."""

    @property
    def space(self) -> Space:
        return self.subject.space

    @property
    def objective(self) -> Objective:
        return self.subject.objective

    @property
    def budget(self) -> Budget:
        """Raises `BudgetError` for one that cannot be read."""
        if self.asked.budget is None and self.made.launches is not None:
            return Budget(launches=self.made.launches)
        return parse_budget(self.asked.budget or DEFAULT_BUDGET)


def prepare(
    asked: SearchRequest,
    *,
    known: Subject | None = None,
    kept: Callable[[], Sequence[Subject]] = tuple,
    function: Function | None = None,
    observer: Observer | None = None,
    show_output: bool = False,
    launches: bool = True,
) -> SearchTask:
    """The task that `asked` makes on this machine.

    known
        The subject of a study to continue, whose space and objective are used.
    kept
        Returns the subjects of all stored studies.
    function
        Measured in place of the program, which only names it.
    observer
        Told of another search that is using this host, and of launches that Ctrl-Z ended.
    show_output
        Copy the program's output to standard error.
    launches
        False: a study is only looked at, so the machine may be another one.

    If the program announces its objective and no stored study of it knows that, the bare command is
    launched once. Raises the errors of `xtune.errors` and of xlaunch.
    """
    request, machine = asked.request, read_machine()
    requirements = tuple([parse_requirement(text) for text in asked.require])
    metric = asked.metrics[0] if asked.metrics else (MARK if asked.conf_file else WALL)
    if launches:
        _require_launchable(asked, machine, metric)
    one_instance = metric == WALL and not asked.work_shared
    made_space = MadeSpace(known.space) if known else _make_space(asked, machine, one_instance)
    made_space.space.require_choice()
    resolver = Resolver(made_space.space, request, os.environ, machine)
    resolver.command(BARE)  # raises if the program is missing

    program = identify_program(request)
    if asked.service is not None:
        load = "" if asked.loads is None else f" at the highest of {asked.loads}"
        program = measured_by(program, asked.service.measure + load)
    identities = identify_machine(machine, read_processor()), program
    probe: Launch | None = None
    if known is not None:
        objective = known.objective
    elif metric.startswith(MARK) and not asked.goals and function is None:
        unknown = Objective(metric, Goal.MINIMIZE, requirements)
        announced = _kept_objective(Subject(*identities, made_space.space, unknown), kept())
        if announced is None:
            runner = _runner(asked, resolver, unknown, show_output=show_output)
            announced, probe = _announced_objective(runner, observer or Observer())
        objective = announced
    else:
        objective = Objective(metric, goal_of(metric, asked.goals[:1]), requirements)
    subject = Subject(*identities, made_space.space, objective)
    if launches and known is not None:
        difference = subject.difference(known)
        if difference is not None:
            raise StudyError(
                f"the study cannot be continued: {difference}; begin a new one with xtune PROGRAM"
            )
    made_space = made_space._replace(notes=(*made_space.notes, *_notes(asked, subject, resolver)))
    measurer = (
        _runner(asked, resolver, objective, show_output=show_output)
        if function is None
        else FunctionMeasurer(function, resolver, objective)
    )
    return SearchTask(asked, subject, made_space, resolver, measurer, probe)


def _require_launchable(asked: SearchRequest, machine: Machine, metric: str) -> None:
    """Raise if a command is missing, the layout does not fit, or its wall time cannot be compared."""
    if asked.service is not None:
        require_service(asked.service)
    for option, command in (("--prepare", asked.prepare), ("--cleanup", asked.cleanup)):
        if command is not None:
            require_command(command, option)
    count = plan(asked.request.layout, machine).count
    if metric == WALL and count > 1 and not asked.work_shared:
        raise ObjectiveError(
            f"wall time cannot compare {count} instances with the bare command: they do "
            f"{count} times the work; give a --metric, or --work shared if they divide it"
        )


def _runner(
    asked: SearchRequest, resolver: Resolver, objective: Objective, *, show_output: bool
) -> Runner:
    return Runner(
        resolver,
        objective,
        metrics=[text for text in asked.metrics[1:] if text != WALL],
        work_shared=asked.work_shared,
        show_output=show_output,
        timeout_s=asked.timeout_s,
        service=asked.service,
        loads=asked.loads,
        prepare=asked.prepare,
        cleanup=asked.cleanup,
        seed=asked.seed,
    )


def _announced_objective(runner: Runner, observer: Observer) -> tuple[Objective, Launch]:
    """The objective that the bare command announces, and the launch that showed it."""
    unknown = runner.objective
    host_lock = partial(host_locked, observer.waiting)
    limits = Limits(limit_s=runner.timeout_s)
    launch = repeated(lambda: runner.measure(BARE, limits), host_lock, observer.resumed)
    require_baseline(launch, unknown)
    objectives = [
        announcement.objective
        for announcement in runner.reader.announcements
        if unknown.metric in (MARK, announcement.metric)
    ]
    objective = objectives[0] if objectives else unknown
    return objective._replace(requirements=unknown.requirements), launch


def _notes(asked: SearchRequest, subject: Subject, resolver: Resolver) -> Iterator[str]:
    """What the user should know before the search."""
    if asked.service is not None and not cores_kept_free(asked.request, resolver.machine):
        yield SHARED_CORES
    is_rate = kind_in(subject.objective.metric) is MetricKind.RATE and asked.service is None
    counts = [derived.values for derived in subject.space.derived if derived.name == INSTANCES]
    if is_rate and not asked.work_shared and any(len(set(values)) > 1 for values in counts):
        yield RATES_ARE_ADDED
    if len(asked.metrics) == 2 and second_goal(asked) is None:
        yield NO_FRONT.format(metric=asked.metrics[1])


def second_goal(asked: SearchRequest) -> Objective | None:
    """The objective of the second --metric; None without a second --metric, or if that is only recorded."""
    if len(asked.metrics) < 2:
        return None
    try:
        return Objective(asked.metrics[1], goal_of(asked.metrics[1], asked.goals[1:2]))
    except ObjectiveError:
        return None  # neither a rate nor a time, and without --goal


def goal_of(metric: str, asked: Sequence[str]) -> Goal:
    if asked:
        return Goal(asked[0])
    if metric == WALL:
        return Goal.MINIMIZE
    kind = kind_in(metric)
    if kind is MetricKind.VALUE:
        raise ObjectiveError(
            f"--metric {metric!r} is neither a rate nor a time by its name: give --goal maximize or "
            f"--goal minimize, or name its kind, as in 'rate:{metric}'"
        )
    return Goal.MAXIMIZE if kind is MetricKind.RATE else Goal.MINIMIZE


def _kept_objective(unknown: Subject, kept: Sequence[Subject]) -> Objective | None:
    """The objective in a study of the same, unedited program; None if there is none.

    `unknown`: the subject; only the metric and the requirements of its objective are known.
    """
    for subject in kept:
        objective = subject.objective
        asked = unknown._replace(objective=objective)
        if (
            asked.difference(subject) is None
            and subject.program.content == unknown.program.content
            and unknown.objective.metric in (MARK, objective.metric)
            and objective.metric.startswith(MARK)
            and objective.requirements == unknown.objective.requirements
        ):
            return objective
    return None


def _make_space(asked: SearchRequest, machine: Machine, one_instance: bool) -> MadeSpace:
    request = asked.request
    own = parse_parameters(asked.param, request, asked.commands)
    if asked.conf_file is not None:
        return hypertune_space(asked.conf_file, request, machine, own, asked.when)
    offers = Offers()
    if not asked.only_params:
        offers = read_offers(request, os.environ, machine, read_processor())
    return make_space(
        request,
        machine,
        offers,
        own=own,
        when=asked.when,
        one_instance=one_instance,
        allow_numerics=asked.allow_numerics,
        only_parameters=asked.only_params,
    )
