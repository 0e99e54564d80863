# SPDX-License-Identifier: Apache-2.0
"""Runs two commands in turns, and prints which of them is better."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from xlaunch.errors import UsageError
from xlaunch.machine import read_machine
from xlaunch.metrics.metric_lines import MetricKind
from xlaunch.options.commands import launch_command, resolved_options
from xlaunch.options.definitions import RESERVED
from xlaunch.options.precedence import request_from
from xtune.cli import HELP, say
from xtune.cli.options import RUNS
from xtune.cli.searching import Signals
from xtune.errors import MetricNotSeenError, ObjectiveError, TunerError
from xtune.evidence.comparisons import Comparison, Pair, Result
from xtune.evidence.noise import disturbance_of
from xtune.evidence.ratios import log_ratio
from xtune.evidence.verdicts import ClaimRule
from xtune.launches.launch import WALL, Launch, Objective, Outcome
from xtune.launches.runner import Runner
from xtune.launches.summaries import compared, kind_in, with_unit
from xtune.launches.suspension import repeated
from xtune.preparation import goal_of
from xtune.search.workers import host_locked
from xtune.show.result_text import describe_interval
from xtune.show.screens import WAITING
from xtune.show.words import (
    amount,
    as_good_as,
    counted,
    describe_differences,
    describe_failure,
    duration,
)
from xtune.space.parameters import BARE, Configuration
from xtune.space.resolution import Resolver
from xtune.space.spaces import Space

USUAL_RUNS = 12
USUAL_S = 10.0
"""Default number of runs of each command; more of short ones, until they take this time."""

RUN_BY_XLAUNCH = ("dry_run", "nnodes", "nproc_per_node")
"""Options that start something else than instances of the program: xlaunch is then run like any command."""

SHELL = re.compile(r"[|&;<>()`$*?\n]|^\s*\w+=|(?:^|\s)~")
"""What only a shell understands, outside of single quotes."""


def run_comparison(commands: Sequence[str], options: Mapping[str, Any]) -> int:
    """Compare two commands and print the verdict; return the exit code."""
    metric = options["metric"] or WALL
    objective = Objective(metric, goal_of(metric, [options["goal"]] if options["goal"] else []))
    first: list[Launch] = []
    measures = [_measure_of(text, objective, options["prepare"], first) for text in commands]
    with Signals() as signals:
        comparison = _compare(measures, objective, options)
        signals.search_ended()
        if options["as_json"]:
            click.echo(json.dumps(_plain(comparison, commands, objective)))
        else:
            _print(comparison, commands, objective)
    return 0 if signals.number is None else 128 + signals.number


def _measure_of(
    text: str, objective: Objective, prepare: str | None, first: list[Launch]
) -> Callable[[], Launch]:
    """A function that runs a command once. Raises what xlaunch raises if it cannot be started.

    `first`: the first launch of any command that printed a unit, in which all values are compared.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"the command {text!r} cannot be read: {error}") from None
    if not words:
        raise UsageError("a command is empty; name a program")
    configuration = BARE
    if SHELL.search(re.sub(r"'[^']*'", "", text)):
        words = ["/bin/sh", "-c", text]
    values: Mapping[str, Any] = {"program": tuple(words)}
    if os.path.basename(words[0]) == "xlaunch" and not (HELP | RESERVED).intersection(words[1:2]):
        parser = launch_command(program_required=True)(lambda _: None)
        asked = resolved_options(parser.make_context("xlaunch", words[1:]).params).values
        if asked.keys().isdisjoint(RUN_BY_XLAUNCH):
            configuration, values = Configuration({}), asked
    resolver = Resolver(Space([]), request_from(values), os.environ, read_machine())
    resolver.command(BARE)
    if configuration != BARE:
        resolver.resolve(configuration)
    runner = Runner(resolver, objective, work_shared=True, prepare=prepare)

    def measure() -> Launch:
        runner.reader.learn(first)
        launch = runner.measure(configuration)
        if launch.outcome is Outcome.NO_METRIC:
            raise MetricNotSeenError(f"{text!r}: {launch.notes[0]}")
        if launch.outcome is not Outcome.MEASURED or launch.value is None:
            raise TunerError(f"{text!r} cannot be compared: {describe_failure(launch)}")
        log_ratio(launch.value, launch.value, compared(objective, [launch]))  # or raises
        if not first and any(unit for _, unit in launch.units):
            first.append(launch)
        return launch

    return measure


def _compare(
    measures: Sequence[Callable[[], Launch]], objective: Objective, options: Mapping[str, Any]
) -> Comparison:
    """Run the commands in turns until the result is known; Ctrl-C ends it with what is known."""
    quiet, runs = options["quiet"], options["runs"]
    rule = ClaimRule(min_effect=options["min_effect"])

    def waiting(holder: str) -> None:
        if not quiet:
            say(WAITING.format(holder=holder))

    comparison = Comparison(objective, planned=runs or USUAL_RUNS, rule=rule)
    is_shown = not quiet and sys.stderr.isatty()
    try:
        for number in range(options["warmup"]):
            with host_locked(waiting):
                _pair(measures, (number % 2, 1 - number % 2))
        while not comparison.is_over:
            began = time.monotonic()
            with host_locked(waiting):
                pair = _pair(measures, comparison.plan.order(len(comparison.pairs)))
            pair_s = time.monotonic() - began
            if not comparison.pairs and runs is None:  # now their time is known
                planned = min(max(round(USUAL_S / pair_s), USUAL_RUNS), RUNS[-1])
                comparison = Comparison(objective, planned=planned, rule=rule)
            comparison.record(pair)
            if is_shown:
                _show_progress(comparison, pair_s)
    except KeyboardInterrupt:
        pass  # `Signals` knows which signal it was
    finally:
        if is_shown:
            _rewrite("")
    return comparison


def _pair(measures: Sequence[Callable[[], Launch]], order: Sequence[int]) -> Pair:
    """A launch of each command, both anew if Ctrl-Z ended one."""
    launches = repeated(lambda: {at: measures[at]() for at in order})
    units = [{name: unit for name, unit in launches[at].units if unit} for at in range(2)]
    if units[0].keys() != units[1].keys():
        unit = next(iter((units[0] or units[1]).values()))
        raise ObjectiveError(
            f"one of the commands prints its metric in {unit}, and the other without a unit;"
            " have both print the unit"
        )
    return launches[0], launches[1]


def _show_progress(comparison: Comparison, pair_s: float) -> None:
    pairs, planned = len(comparison.pairs), comparison.plan.planned
    interval = comparison.finding(in_full=False).interval
    assert interval is not None
    time_left = duration((planned - pairs) * pair_s)
    _rewrite(
        f"xtune: {pairs} of up to {planned} runs of each, up to {time_left} left;"
        f" B is {as_good_as(interval.step, interval.estimate)} A"
    )


def _rewrite(text: str) -> None:
    """Replace the terminal's line."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def _columns(comparison: Comparison) -> list[list[float]]:
    """The values of each command."""
    return [[pair[at].value or math.nan for pair in comparison.pairs] for at in range(2)]


def _print(comparison: Comparison, commands: Sequence[str], objective: Objective) -> None:
    launches = [launch for pair in comparison.pairs for launch in pair]
    shown = compared(with_unit(objective, launches), launches)
    for name, text, values in zip("AB", commands, _columns(comparison), strict=True):
        click.echo(f"{name}: {text}")
        if values:
            median, low, high = statistics.median(values), min(values), max(values)
            seen = " to ".join(amount(bound, shown) for bound in (low, high))
            click.echo(f"   median {amount(median, shown)} ({counted(len(values), 'run')}: {seen})")
    click.echo(_sentence(comparison, objective))
    if told := describe_differences(shown):
        click.echo(told)
    caution = disturbance_of(comparison.pairs)
    if caution:
        click.echo(f"whether the commands themselves differ is {caution}")


def _sentence(comparison: Comparison, objective: Objective) -> str:
    finding, pairs = comparison.finding(), len(comparison.pairs)
    interval, result = finding.interval, finding.result
    if interval is None:
        return "inconclusive: it was interrupted before each command had run"
    better, other = "B", "A"
    if result is Result.FIRST:
        better, other, interval = "A", "B", interval.inverse
    is_value = objective.metric != WALL and kind_in(objective.metric) is MetricKind.VALUE
    times = as_good_as(interval.step, interval.estimate)
    times = times if is_value else times.replace("good", "fast")
    span = f"95 % confidence interval: {describe_interval(interval)}; {counted(pairs, 'pair')}"
    times = f"{better} is {times} {other} ({span})"
    if result in (Result.FIRST, Result.SECOND):
        return times
    if result is Result.NO_DIFFERENCE:
        return f"no difference of {100 * comparison.plan.rule.min_effect:g} % or more: {times}"
    advice = ""
    if pairs < RUNS[0]:
        advice = f"; a verdict takes at least {RUNS[0]} pairs"
    elif finding.more is not None and pairs + finding.more <= RUNS[-1]:
        advice = f"; --runs {pairs + finding.more} should settle it"
    elif pairs >= comparison.plan.planned:
        advice = "; longer runs, or a higher --min-effect, would settle it sooner"
    return f"inconclusive: {times}{advice}"


def _plain(comparison: Comparison, commands: Sequence[str], objective: Objective) -> dict[str, Any]:
    finding = comparison.finding()
    interval = finding.interval
    ends = () if interval is None else (interval.low, interval.high)
    seen = () if interval is None else map(interval.in_values, (interval.estimate, *ends))
    ratio, *shown = [number if math.isfinite(number) else None for number in seen] or [None]
    is_difference = interval is not None and interval.step
    return {
        "verdict": finding.result.value,
        "difference" if is_difference else "ratio": ratio,
        "interval": [one if end > 0.0 else None for one, end in zip(shown, ends, strict=True)]
        or None,
        "metric": objective.metric,
        "commands": [
            {
                "command": text,
                "median": statistics.median(values) if values else None,
                "values": values,
            }
            for text, values in zip(commands, _columns(comparison), strict=True)
        ],
    }
