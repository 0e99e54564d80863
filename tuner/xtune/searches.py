# SPDX-License-Identifier: Apache-2.0
"""A search from its request to its result: begins it, runs it in a study, and recalls stored ones."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from xlaunch.errors import UsageError
from xlaunch.machine import read_machine
from xtune.errors import StorageError
from xtune.evidence.verdicts import ClaimRule, Verdict, VerdictKind, undecided
from xtune.launches.functions import Function
from xtune.launches.launch import WALL, Goal, Launch, Limits, Objective
from xtune.launches.runner import Runner
from xtune.preparation import Say, SearchTask, prepare, second_goal, silent
from xtune.request import AUTO, SearchRequest
from xtune.search.budget import parse_budget
from xtune.search.events import (
    Allowance,
    EndReason,
    Observer,
    SearchOutcome,
    Seed,
    require_baseline,
)
from xtune.search.records import (
    NextLaunch,
    Provenance,
    Record,
    Stage,
    changed_variables,
    digests,
    ended_launches,
    outdated,
    shown_records,
)
from xtune.search.storage import open_storage
from xtune.search.strategy import Strategy
from xtune.search.study import Study, earlier_winners, list_studies, open_study
from xtune.search.study_store import StudyStore
from xtune.search.workers import host_locked
from xtune.show.results import SearchResult
from xtune.show.words import launches, settings
from xtune.space.identities import identify_program, installed
from xtune.space.parameters import BARE, Configuration
from xtune.space.resolution import Resolver, starting_point
from xtune.space.spaces import Space
from xtune.space.user_parameters import parse_parameters
from xtune.tuning import Search


class SearchSession(NamedTuple):
    """A search that can start."""

    task: SearchTask
    study: Study
    tried: Sequence[Seed]
    """The user's presets."""


def begin(
    asked: SearchRequest,
    arguments: Sequence[str] | None,
    *,
    function: Function | None = None,
    observer: Observer | None = None,
    say: Say = silent,
    show_output: bool = False,
) -> SearchSession:
    """Prepare a search: its task, budget and study, with the command line for `xtune resume`, if it has
    one.

    Raises `StudyError` if --study names a study of something else, `StorageError` and what `prepare`
    raises.
    """
    if asked.budget is not None:
        parse_budget(asked.budget)
    if asked.metrics[:1] == (AUTO,):
        asked = asked._replace(metrics=(_metric_printed(asked), *asked.metrics[1:]))
        say(f"--metric auto: {asked.metrics[0]}")
    storage = functools.cache(lambda: open_storage(asked.storage))  # opened by the first use
    task = prepare(
        asked,
        kept=lambda: [study.subject for study in list_studies(storage())[0]],
        function=function,
        observer=observer,
        show_output=show_output,
    )
    tried = []
    for path in asked.tried:
        configuration, left_out = starting_point(path, task.resolver)
        if left_out:
            names = ", ".join(left_out)
            say(f"note: {path} is tried without options that are not searched: {names}")
        tried.append(Seed(f"preset {os.path.basename(path)}", configuration))
    directory = os.getcwd()
    study = open_study(storage(), task.subject, asked.study)
    if study.notes:
        say(f"continuing study {study.name!r}")
    if arguments is not None:
        study.keep_note("options", {"arguments": list(arguments), "folder": directory})
    if tried:  # so that resuming does not need the files
        study.keep_note("tried", [[seed.origin, dict(seed.configuration)] for seed in tried])
    return SearchSession(task, study, tried)


def _metric_printed(asked: SearchRequest) -> str:
    """The rate that the bare command prints in a launch that does not count; wall time if none."""
    objective = Objective(WALL, Goal.MINIMIZE)
    if asked.service is not None:
        raise UsageError("--metric auto: of a service, name what its load generator prints")
    space = Space(parse_parameters(asked.param, asked.request, asked.commands))
    resolver = Resolver(space, asked.request, os.environ, read_machine())
    resolver.command(BARE)  # raises if the program is missing
    runner = Runner(resolver, objective, prepare=asked.prepare, cleanup=asked.cleanup)
    runner.reads_output = True
    with host_locked():
        require_baseline(runner.measure(BARE, Limits(limit_s=asked.timeout_s)), objective)
    return runner.printed_rate or WALL


def resumed(task: SearchTask, study: Study) -> SearchSession:
    """A search that continues a study, with the presets that `begin` stored."""
    kept = study.notes.get("tried", ())
    tried = [Seed(origin, Configuration(values)) for origin, values in kept]
    return SearchSession(task, study, tried)


def search(
    session: SearchSession,
    observer: Observer,
    *,
    say: Say = silent,
    check: Callable[[], None] = lambda: None,
) -> SearchOutcome:
    """Search in a study, whose launches that still count are used.

    `check`: called before each launch; may raise an interruption.
    """
    task, study, tried = session
    study.keep_note("ended", None)
    store = open_store(task, study, say)
    runner = task.runner if isinstance(task.runner, Runner) else None
    if runner is not None:
        if task.probe is not None:
            _keep_probe(runner, store, task.probe)
        runner.reads_output = task.objective.metric == WALL and not task.asked.metrics
        runner.reader.learn(ended_launches(store.records()))
        runner.load_tried = observer.load_tried
    first = [*tried, *earlier_winners(study.storage, task.subject)]
    strategy = _strategy(task, task.resolver.plan_hash, store.host, first)

    @contextlib.contextmanager
    def locked_host() -> Iterator[None]:
        check()
        if runner is not None and runner.printed_rate is not None:
            observer.rate_printed(runner.printed_rate)
            runner.printed_rate = None
        with host_locked(observer.waiting):
            content = identify_program(task.asked.request).content
            if content not in ("", store.made.content):
                store.made = store.made._replace(content=content)
                observer.edited()
            yield

    outcome = Search(
        task.space,
        strategy,
        task.runner,
        store,
        task.objective,
        task.budget,
        observer=observer,
        limit_s=task.asked.timeout_s,
        host_lock=locked_host,
    ).run()
    with contextlib.suppress(StorageError):  # `conclude` reports it
        store.update_results(is_last=True)
    return outcome


def open_store(task: SearchTask, study: Study, say: Say) -> StudyStore:
    """The launches of a study that `task` would start in the same way.

    Reports the launches that it leaves out, and those with another provenance.
    """
    resolver = task.resolver
    versions, variables = installed(resolver.program), digests(resolver.inherited)
    now = Provenance(task.subject.program.content, versions, variables)
    store = StudyStore(study, plan_hash=resolver.plan_hash)
    records = read_records(store, say)
    store.made = now._replace(left_out=tuple([record.number for record in store.left_out]))
    if store.left_out:
        names, only_they = changed_variables(store.left_out, now)
        inherited = f"the inherited {', '.join(names)}" if names else "inherited variables"
        if only_they:
            reason = f"{inherited} {'has' if len(names) == 1 else 'have'} changed"
        else:
            reason = f"--cpus, --python, caches, {inherited} or libraries have changed"
        say(_left_out(len(store.left_out), reason))
    numbers, changes = outdated(records, now)
    if numbers:
        were = "was" if len(numbers) == 1 else "were"
        say(
            f"warning: {launches(len(numbers))} of this study {were} made with {', '.join(changes)}; if"
            " that affects speed, start a new study with --study NAME"
        )
    return store


def _left_out(count: int, why: str) -> str:
    return f"{launches(count)} of this study {'does' if count == 1 else 'do'} not count: {why}"


def _keep_probe(runner: Runner, store: StudyStore, probe: Launch) -> None:
    """Count the launch that announced the objective as this host's baseline or as a control."""
    own = [record for record in store.records() if record.host == store.host]
    bare = sum(record.step.configuration == BARE for record in own)
    if not bare:
        runner.take_over(probe)
        return
    key = f"control {store.host} {bare}"
    number = store.claim(NextLaunch(Stage.CONTROL, BARE, probe.plan_hash, key, "the bare command"))
    if number is not None:
        store.finish(number, probe)


def recall(task: SearchTask, study: Study, say: Say) -> SearchResult:
    """The result from the launches of a study, whatever this process inherits."""
    kept = read_records(StudyStore(study), say)
    records = shown_records(kept)
    if others := len(kept) - len(records):
        say(_left_out(others, "they were started in another way (xtune export has them)"))
    plans = {record.step.configuration: record.step.plan_hash for record in records}
    strategy = _strategy(task, plans.get)
    final = strategy.final(records)
    verdict = undecided(BARE, "there was no final yet") if final is None else final.verdict()
    favourite = strategy.favourite(records)
    resolution = strategy.resolution(records, Allowance(0.0, 0.0))
    end_reason = EndReason(study.notes.get("ended") or EndReason.UNKNOWN.value)
    outcome = SearchOutcome(verdict, favourite, None, resolution, records, 0, end_reason)
    return _result(task, study, outcome)


def conclude(session: SearchSession, outcome: SearchOutcome, say: Say = silent) -> SearchResult:
    """The result of a search; it is also stored in the study if that can be reached."""
    study = session.study
    try:
        study.keep_note("ended", outcome.end_reason.value)
        if not _earlier(study, outcome.verdict):
            study.keep_verdict(outcome.verdict)
    except StorageError as error:
        if outcome.end_reason is not EndReason.STORAGE:  # which is reported
            say(f"warning: the verdict is not stored: {error}")
    return _result(session.task, study, outcome)


def _result(task: SearchTask, study: Study, outcome: SearchOutcome) -> SearchResult:
    return SearchResult(
        study.name,
        task.subject,
        task.resolver,
        outcome.verdict,
        outcome.favourite,
        tuple([record for record in outcome.records if record.launch is not None]),
        second=second_goal(task.asked),
        storage=task.asked.storage,
        earlier=_earlier(study, outcome.verdict),
        resolution=outcome.resolution,
        end_reason=outcome.end_reason,
    )


def _earlier(study: Study, verdict: Verdict) -> str:
    """The verdict of an earlier search of the study, if this one is inconclusive; else empty."""
    kept = study.notes.get("verdict")
    if verdict.kind is not VerdictKind.INCONCLUSIVE or not kept:
        return ""
    if kept["kind"] == VerdictKind.INCONCLUSIVE.value:
        return ""
    best = settings(Configuration(kept["best"]), study.subject.space)
    return f"an earlier search of this study found {kept['kind']}: {best} ({kept['reason']})"


def _strategy(
    task: SearchTask,
    plan_hash: Callable[[Configuration], str | None],
    host: str = "",
    first: Sequence[Seed] = (),
) -> Strategy:
    return Strategy(
        task.space,
        plan_hash,
        task.objective,
        host=host,
        seeds=first,
        rule=ClaimRule(min_effect=task.asked.min_effect),
        seed=task.asked.seed,
    )


def read_records(store: StudyStore, say: Say) -> Sequence[Record]:
    """The records of a study that count; reports those that cannot be read."""
    records = store.records()
    for number, damage in sorted(store.damaged.items()):
        trial = f"trial {number} of study {store.study.name!r}"
        say(f"warning: {trial} is damaged and left out: {damage}")
    return records
