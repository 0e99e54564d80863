# SPDX-License-Identifier: Apache-2.0
"""Runs a prepared search, shows it and prints its verdict."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

import click

from xlaunch.console import terminal_width
from xlaunch.errors import UsageError, XLaunchError
from xlaunch.machine import read_machine
from xlaunch.text import folded
from xtune.cli import EXIT_INTERRUPTED, say
from xtune.cli.options import AUTO, DEFAULT_BUDGET, Asked, parse_search
from xtune.cli.output_files import write_best
from xtune.cli.preparation import (
    SearchTask,
    current_provenance,
    prepare,
    presets_to_try,
    second_goal,
)
from xtune.cli.studies import open_named, say_damaged
from xtune.errors import StorageError
from xtune.evidence.verdicts import ClaimRule, Verdict, VerdictKind, undecided
from xtune.launches.launch import WALL, Goal, Launch, Objective
from xtune.launches.runner import Runner
from xtune.search.budget import Budget, parse_budget
from xtune.search.events import Allowance, Ended, Observer, SearchOutcome, Seed, require_baseline
from xtune.search.records import NextLaunch, Stage, changed_variables, outdated, shown_records
from xtune.search.strategy import Strategy
from xtune.search.study import Study, earlier_winners, list_studies, open_study
from xtune.search.study_store import StudyStore
from xtune.search.workers import HostTurn, runtime_directory
from xtune.show.result_text import result_lines
from xtune.show.results import SearchResult
from xtune.show.screens import RESUMED, WAITING, PlainScreen
from xtune.show.words import aim, describe_space, launches, settings
from xtune.space.identities import identify_program
from xtune.space.parameters import BARE, Configuration
from xtune.space.resolution import Resolver
from xtune.space.spaces import Space
from xtune.space.user_parameters import parse_parameters
from xtune.tuning import Search

COMMAND_LINE = re.compile(r"(run it|to try it|preset): |: xtune re(port|sume)\b")
"""What precedes the commands of a verdict."""

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a search: the first with the verdict so far, the second at once."""


class Shown(NamedTuple):
    """How a search is shown, and where its results go."""

    save_preset: str | None
    as_json: bool
    verbose: bool
    quiet: bool
    force: bool = False
    """`save_preset` may be any file that the program does not use."""


class Begun(NamedTuple):
    """A search that can start."""

    task: SearchTask
    asked: Asked
    budget: Budget
    study: Study
    tried: Sequence[Seed]
    """The user's presets."""


class Interruption(KeyboardInterrupt):
    """A signal ended the search."""


REPEAT_S = 1.0
"""A signal so soon after the first is the same wish, as where a service manager and a shell both send one."""


class Signals:
    """Raises `Interruption` for the first signal of `ENDING` during a search, and for repeated ones later on."""

    def __init__(self) -> None:
        self.number: int | None = None
        """The signal that was received."""
        self._received_s = 0.0
        self._searching = True
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:  # ignored, as under nohup
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def search_ended(self) -> None:
        """From now on the first signal is too late: the verdict is about to be printed."""
        self._searching = False

    def check(self) -> None:
        """Raise `Interruption` after a signal: Python can lose an exception raised in a callback."""
        if self.number is not None:
            raise Interruption

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.number is None:
            self.number, self._received_s = number, time.monotonic()
            interrupts = self._searching
        else:
            interrupts = time.monotonic() - self._received_s > REPEAT_S
        if interrupts:
            raise Interruption


def budget_of(asked: Asked, task: SearchTask) -> Budget:
    """The budget of the search. Raises `BudgetError`."""
    if asked.budget is None and task.made.launches is not None:
        return Budget(launches=task.made.launches)
    return parse_budget(asked.budget or DEFAULT_BUDGET)


def announce(task: SearchTask, *, verbose: bool = False) -> None:
    """Print the objective and the space; with the reasons for what is left out if `verbose`."""
    say(f"objective: {aim(task.objective)}")
    for line in describe_space(task.space, task.made.left_out, verbose=verbose):
        _line(line)
    for note in task.made.notes:
        _line(f"note: {note}")


def begin(
    asked: Asked, arguments: Sequence[str], *, quiet: bool = True, verbose: bool = False
) -> Begun:
    """Prepare a search: its task, budget and study, with the command line for `xtune resume`.

    Raises `StudyError` if --study names a study of something else, `StorageError` and what `prepare`
    raises.
    """
    if asked.budget is not None:
        parse_budget(asked.budget)
    if asked.metrics[:1] == (AUTO,):
        asked = asked._replace(metrics=(_metric_printed(asked), *asked.metrics[1:]))
        if not quiet:
            say(f"--metric auto: {asked.metrics[0]}")
    storage = functools.cache(
        lambda: open_named(asked.storage, create=True)
    )  # opened by the first use
    task = prepare(
        asked,
        kept=lambda: [study.subject for study in list_studies(storage())],
        waiting=lambda holder: None if quiet else say(WAITING.format(holder=holder)),
        resumed=lambda: None if quiet else say(RESUMED),
        show_output=verbose,
    )
    budget = budget_of(asked, task)
    tried = presets_to_try(task, asked, quiet=quiet)
    directory = os.getcwd()
    study = open_study(storage(), task.subject, asked.study)
    if study.notes and not quiet:
        say(f"continuing study {study.name!r}")
    study.keep_note("options", {"arguments": list(arguments), "folder": directory})
    if tried:  # so that resuming does not need the files
        study.keep_note("tried", [[seed.origin, dict(seed.configuration)] for seed in tried])
    return Begun(task, asked, budget, study, tried)


def _metric_printed(asked: Asked) -> str:
    """The rate that the bare command prints in a launch that does not count; wall time if none."""
    objective = Objective(WALL, Goal.MINIMIZE)
    if asked.service is not None:
        raise UsageError("--metric auto: of a service, name what its load generator prints")
    space = Space(parse_parameters(asked.param, asked.request))
    resolver = Resolver(space, asked.request, os.environ, read_machine())
    resolver.command(BARE)  # raises if the program is missing
    runner = Runner(resolver, objective, prepare=asked.prepare, cleanup=asked.cleanup)
    runner.reads_output = True
    with HostTurn(runtime_directory(os.environ))():
        require_baseline(runner.measure(BARE, limit_s=asked.timeout_s), objective)
    return runner.printed_rate or WALL


def stored_presets(study: Study) -> list[Seed]:
    """The presets that `begin` stored."""
    return [Seed(origin, Configuration(values)) for origin, values in study.notes.get("tried", ())]


def tune(*program: str, observer: Observer | None = None, **options: Any) -> SearchResult:
    """Search as the command does, without output, and return the result that it prints.

    **Ex.:** ``tune("infer.py", metric="images/s", param=["batch=1,2,4"], budget="10m").verdict``

    program
        The program and its arguments.
    observer
        Is told the course of the search.
    options
        Those of the command line, with underscores; lists for options that may be repeated.

    Ctrl-C ends the search with the verdict so far. Raises the errors of `xtune.errors` and of xlaunch.
    """
    arguments = [*_as_arguments(options), "--", *program]
    begun = begin(parse_search(arguments), arguments)
    with contextlib.closing(begun.study.storage):
        return conclude(begun, search(begun, observer or Observer(), quiet=True))


def _as_arguments(options: Mapping[str, Any]) -> Iterator[str]:
    """The command line of keyword arguments. **Ex.:** ``--param n=1,2`` of ``param=["n=1,2"]``."""
    for name, value in options.items():
        for one in value if isinstance(value, list | tuple) else [value]:
            option = f"--{name.replace('_', '-')}"
            if one is True:
                yield option
            elif one is not None and one is not False:
                yield f"{option}={one}"


def run_search(begun: Begun, shown: Shown) -> int:
    """Search and print the verdict; return the exit code."""
    with Signals() as signals:
        with _screen(begun.task, shown) as screen:
            found = search(begun, screen, quiet=shown.quiet, check=signals.check)
            signals.search_ended()
        result = conclude(begun, found)
        try:
            path, why = write_best(result, shown.save_preset, force=shown.force)
        except UsageError:
            print_result(result, as_json=shown.as_json)
            raise
        print_result(result._replace(preset=path), as_json=shown.as_json)
        if why and not shown.quiet:
            say(f"note: {why}")
    if found.ended is Ended.STORAGE:
        say(f"error: {found.trouble}")
        return StorageError.exit_code
    if found.ended is Ended.INTERRUPTED:
        return EXIT_INTERRUPTED if signals.number is None else 128 + signals.number
    return 0


def search(
    begun: Begun, screen: Observer, *, quiet: bool, check: Callable[[], None] = lambda: None
) -> SearchOutcome:
    """Search in a study, whose launches that still count are used.

    check
        Called before each launch; may raise an interruption.
    """
    task, asked, budget, study, tried = begun
    study.keep_note("ended", None)
    store = open_store(task, study, quiet=quiet)
    if task.probe is not None:
        _keep_probe(task, store, task.probe)
    task.runner.reads_output = task.objective.metric == WALL and not asked.metrics
    task.runner.learn([record.launch for record in store.records() if record.launch is not None])
    first = [*tried, *earlier_winners(study.storage, task.subject)]
    strategy = _strategy(task, asked, task.resolver.plan_hash, store.host, first)
    host_turn = HostTurn(runtime_directory(os.environ), screen.waiting)

    @contextlib.contextmanager
    def turn() -> Iterator[None]:
        check()
        rate, task.runner.printed_rate = task.runner.printed_rate, None
        if rate is not None:
            screen.rate_printed(rate)
        with host_turn():
            content = identify_program(task.request).content
            if content not in ("", store.made.content):
                store.made = store.made._replace(content=content)
                screen.edited()
            yield

    found = Search(
        task.space,
        strategy,
        task.runner,
        store,
        task.objective,
        budget,
        observer=screen,
        limit_s=asked.timeout_s,
        turn=turn,
    ).run()
    with contextlib.suppress(StorageError):  # `conclude` reports it
        store.update_results(is_last=True)
    return found


def open_store(task: SearchTask, study: Study, *, quiet: bool) -> StudyStore:
    """The launches of a study that `task` would start in the same way.

    Reports the launches that it leaves out, and those with another provenance.
    """
    now = current_provenance(task)
    store = StudyStore(study, plan_hash=task.resolver.plan_hash)
    records = store.records()
    store.made = now._replace(left_out=tuple([one.number for one in store.left_out]))
    if quiet:
        return store
    say_damaged(store)
    if store.left_out:
        names, only_they = changed_variables(store.left_out, now)
        inherited = f"the inherited {', '.join(names)}" if names else "inherited variables"
        if only_they:
            what = f"{inherited} {'has' if len(names) == 1 else 'have'} changed"
        else:
            what = f"--cpus, --python, caches, {inherited} or libraries have changed"
        say(_left_out(len(store.left_out), what))
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


def _keep_probe(task: SearchTask, store: StudyStore, probe: Launch) -> None:
    """Count the launch that announced the objective as this host's baseline or as a control."""
    own = [one for one in store.records() if one.host == store.host]
    bare = sum(one.step.configuration == BARE for one in own)
    if not bare:
        task.runner.take_over(probe)
        return
    key = f"control {store.host} {bare}"
    number = store.claim(NextLaunch(Stage.CONTROL, BARE, probe.plan_hash, key, "the bare command"))
    if number is not None:
        store.finish(number, probe)


def recall(task: SearchTask, asked: Asked, study: Study) -> SearchResult:
    """The result from the launches of a study, whatever this process inherits."""
    store = StudyStore(study)
    kept = store.records()
    say_damaged(store)
    records = shown_records(kept)
    if others := len(kept) - len(records):
        say(_left_out(others, "they were started in another way (xtune export has them)"))
    plans = {record.step.configuration: record.step.plan_hash for record in records}
    strategy = _strategy(task, asked, plans.get)
    final = strategy.final(records)
    verdict = undecided(BARE, "there was no final yet") if final is None else final.verdict()
    favourite = strategy.favourite(records)
    resolution = strategy.resolution(records, Allowance(0.0, 0.0))
    ended = Ended(study.notes.get("ended") or Ended.UNKNOWN.value)
    found = SearchOutcome(verdict, favourite, None, resolution, records, 0, ended)
    return _result(Begun(task, asked, Budget(), study, ()), found)


def print_result(result: SearchResult, *, as_json: bool) -> None:
    """Print the result of a search."""
    if as_json:
        click.echo(json.dumps(result.to_plain()))
        return
    width = terminal_width(1)
    for line in result_lines(result):
        # A command stays whole, so that it can be copied.
        for piece in [line] if COMMAND_LINE.search(line) else folded(line, width):
            click.echo(piece)


def conclude(begun: Begun, found: SearchOutcome) -> SearchResult:
    """The result of a search; it is also stored in the study if that can be reached."""
    study = begun.study
    try:
        study.keep_note("ended", found.ended.value)
        if not _earlier(study, found.verdict):
            study.keep_verdict(found.verdict)
    except StorageError as error:
        if found.ended is not Ended.STORAGE:  # which is reported
            say(f"warning: the verdict is not stored: {error}")
    return _result(begun, found)


def _result(begun: Begun, found: SearchOutcome) -> SearchResult:
    return SearchResult(
        begun.study.name,
        begun.task.subject,
        begun.task.resolver,
        found.verdict,
        found.favourite,
        tuple([record for record in found.records if record.launch is not None]),
        second=second_goal(begun.asked),
        storage=begun.asked.storage,
        earlier=_earlier(begun.study, found.verdict),
        resolution=found.resolution,
        ended=found.ended,
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
    asked: Asked,
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
        rule=ClaimRule(min_effect=asked.min_effect),
        seed=asked.seed,
    )


@contextlib.contextmanager
def _screen(task: SearchTask, shown: Shown) -> Iterator[Observer]:
    """The observer that shows the search."""
    if shown.quiet:
        yield Observer()
    elif sys.stderr.isatty() and not shown.verbose and os.environ.get("TERM") != "dumb":
        from xtune.show.screens import LiveScreen

        with LiveScreen(task.space, task.objective) as screen:
            yield screen
    else:
        yield PlainScreen(task.space, task.objective, say, verbose=shown.verbose)


def _line(text: str) -> None:
    """Write a line to standard error with its indentation."""
    width = terminal_width(2)
    with contextlib.suppress(OSError):
        for piece in folded(text, None if width is None else width - len("xtune: ")):
            click.echo(f"xtune: {piece}", err=True)


def require_launched(records: Sequence[object], name: str) -> None:
    """Raise `XLaunchError` unless a study holds a launch."""
    if not records:
        raise XLaunchError(f"study {name!r} has no launch to report; continue it with xtune resume")
