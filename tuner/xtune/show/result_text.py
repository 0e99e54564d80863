# SPDX-License-Identifier: Apache-2.0
"""The result of a search as lines of text, the verdict first."""

from __future__ import annotations

import itertools
import shlex
import statistics
from collections import Counter
from collections.abc import Iterator

from xlaunch.text import number
from xtune.evidence.noise import disturbance_of
from xtune.evidence.ratios import RatioInterval
from xtune.evidence.verdicts import MIN_PAIRS, VerdictKind
from xtune.launches.highest_load import LOAD
from xtune.launches.launch import Outcome
from xtune.search.budget import MIN_LAUNCHES, MIN_WITH_FINAL
from xtune.show.results import HEADLINES, SearchResult
from xtune.show.warnings import ENDINGS, launch_warnings
from xtune.show.words import (
    against_bare,
    amount,
    as_good_as,
    counted,
    describe_differences,
    describe_failure,
    describe_gains,
    duration,
    effects,
    launches,
    percent,
    settings,
    unmet,
)
from xtune.space.parameters import BARE, Configuration

MIN_EFFECT_SHOWN = 0.005
"""Minimum effect that gets a line, however certain it is."""

MAX_CONFIGURATIONS_SHOWN = 8
"""Size of a space up to which all configurations are listed."""

MAX_FRONT_SHOWN = 12

MIN_DEGREES_SHOWN = 2
"""With one degree of freedom, the range of gains reaches several hundred percent."""

MAX_MORE = 8
"""Advice is limited to this many times the launches made so far."""


def result_lines(result: SearchResult) -> Iterator[str]:
    """The text of `xtune` and `xtune report`."""
    verdict = result.verdict
    if verdict.kind is not VerdictKind.GAIN or verdict.interval is None:
        yield HEADLINES[verdict.kind]
    else:
        yield from _claim(verdict.interval)
    if verdict.kind is VerdictKind.GAIN:
        yield f"  best: {settings(verdict.best, result.space)}"
        if result.values(BARE) and result.values(verdict.best):
            best, bare = _medians(result, verdict.best), _medians(result, BARE)
            yield f"  median: {best}; bare command: {bare}"
        yield from _passed_over(result)
    else:
        yield f"  {verdict.reason}"
    if told := describe_differences(result.objective):
        yield f"  {told}"
    yield from _highest_loads(result)
    if verdict.kind is VerdictKind.INCONCLUSIVE:
        yield from _lead(result)
        if result.resolution is not None and result.resolution.degrees >= MIN_DEGREES_SHOWN:
            yield f"  this budget detects gains {describe_gains(result.resolution)}"
        yield f"  {advice(result)}: {resume_command(result)}"
    if result.earlier:
        yield f"  {result.earlier}"
    yield from _mattered(result)
    yield from _failures(result)
    yield from _front(result)
    for warned in launch_warnings(result.records, result.objective):
        yield f"  warning: {warned.text}"
    if result.end_reason in ENDINGS and result.verdict.finalists:  # else it is the reason
        yield f"  {ENDINGS[result.end_reason]}"
    yield f"  run it: {result.command}"
    if result.preset is not None:
        yield f"  preset: {result.preset}"
    yield (
        f"  {launches(len(result.launches))}, {duration(result.wall_s)} in all; details: xtune report"
        f"{_storage_option(result)} {shlex.quote(result.study)}"
    )


def _highest_loads(result: SearchResult) -> Iterator[str]:
    """The medians of the highest loads within the requirements, with --load."""
    objective = result.objective
    loads: dict[str, dict[Configuration, list[float]]] = {}
    for launch in result.launches:
        for name, value in launch.metrics:
            if name.startswith(f"{LOAD} ") and objective.is_feasible(launch):
                loads.setdefault(name, {}).setdefault(launch.configuration, []).append(value)
    for name, rows in loads.items():
        medians = {one: f"{statistics.median(values):g}" for one, values in rows.items()}
        shown = [medians[result.shown]] if result.shown in medians else []
        if result.shown != BARE:
            shown.append(f"bare command: {medians.get(BARE, 'none')}")
        yield f"  highest {name} within the requirements: {'; '.join(shown) or 'none'}"


def describe_interval(interval: RatioInterval, unit: str = "") -> str:
    """The interval of a ratio; a dash for too few pairs. **Ex.:** ``1.012 to 1.088``."""
    if not interval.low > 0.0:
        return "\N{EN DASH}"
    low, high = effects(interval.step, interval.low, interval.high)
    unit = "" if interval.step else unit
    return f"{low}{unit} to {high}{unit}"


def advice(result: SearchResult) -> str:
    """The purpose of the resume command."""
    more, interval = result.verdict.more, result.verdict.interval
    if more is None or interval is None or interval.pairs < MIN_PAIRS:
        return "to continue"
    if not _is_affordable(result):
        return (
            f"a difference this small takes about {launches(more.launches)} more: raise --min-effect"
            " or make each launch longer; to continue all the same"
        )
    return (
        f"about {launches(more.launches)} more ({duration(more.seconds)}) in its final should"
        " settle it (90 % power)"
    )


def resume_command(result: SearchResult) -> str:
    """The command that continues the search; with the budget that should settle it, if advised."""
    more = result.verdict.more if _is_affordable(result) else None
    budget = ""
    if more is not None:
        budget = f" --budget '{max(more.launches, MIN_LAUNCHES)} launches'"
    return f"xtune resume{_storage_option(result)}{budget} {shlex.quote(result.study)}"


def _is_affordable(result: SearchResult) -> bool:
    more, made_launches = result.verdict.more, len(result.launches)
    return more is not None and more.launches <= max(MAX_MORE * made_launches, MIN_WITH_FINAL)


def _storage_option(result: SearchResult) -> str:
    """--storage, if it was given."""
    return "" if result.storage is None else f" --storage {shlex.quote(result.storage)}"


def _claim(interval: RatioInterval) -> Iterator[str]:
    times = as_good_as(interval.step, interval.estimate, interval.low, interval.high)
    yield f"{HEADLINES[VerdictKind.GAIN]}: {times} the bare command"
    pairs = counted(interval.pairs, "pair")
    if interval.low > 0.0:
        yield f"  95 % confidence interval: {describe_interval(interval)} ({pairs})"
    else:
        yield f"  {pairs}: too few for a confidence interval"


def _passed_over(result: SearchResult) -> Iterator[str]:
    """Why a configuration that looks better than the winner is not recommended."""
    verdict, goal = result.verdict, result.objective.sign
    compared = [row.configuration for row in verdict.finalists]
    if compared and compared[0] != verdict.best:
        yield (
            f"  preferred to {settings(compared[0], result.space)}, which is not clearly better, and changes"
            " more or takes more memory"
        )
    others = {launch.configuration for launch in result.launches} - {*compared, verdict.best, BARE}
    medians = {other: result.median(other) for other in others if not result.broke(other)}
    scores = {one: median * goal for one, median in medians.items() if median is not None}
    best, own = max(scores, key=scores.__getitem__, default=None), result.median(verdict.best)
    if best is not None and own is not None and scores[best] > own * goal:
        yield (
            f"  not compared in the final: {settings(best, result.space)}, whose median is"
            f" {_medians(result, best)}"
        )


def _medians(result: SearchResult, configuration: Configuration) -> str:
    values = result.values(configuration)
    median = result.median(configuration)
    assert median is not None
    return f"{amount(median, result.objective)} ({launches(len(values))})"


def _lead(result: SearchResult) -> Iterator[str]:
    """The best configuration of a search that proved nothing."""
    unproven_best = result.unproven_best
    if unproven_best is None:
        return
    shown = settings(unproven_best.configuration, result.space)
    if unproven_best.value is not None:
        shown += f": {amount(unproven_best.value, result.objective)}"
        if unproven_best.ratio:
            shown += f", {against_bare(result.objective.step, unproven_best.ratio)}"
    if unproven_best.is_promising:
        command = shlex.join(result.resolver.command(unproven_best.configuration))
        yield f"  most promising, but not proven: {shown}; to try it: {command}"
    elif unproven_best.ratio is not None and unproven_best.ratio <= 1.0:
        yield f"  nothing is ahead of the bare command so far; the best is {shown}"
    elif unproven_best.is_promising is None:
        yield f"  the best so far is {shown}; the noise is not known yet"
    else:
        yield f"  nothing is ahead of the bare command by more than the noise; the best is {shown}"


def _mattered(result: SearchResult) -> Iterator[str]:
    """The settings that mattered; for a small space the median of each configuration."""
    neighbours = itertools.pairwise(result.launches)
    caution = disturbance_of(
        [(one, other) for one, other in neighbours if one.configuration != other.configuration]
    )
    if caution:
        yield f"  what mattered: {caution}"
        return
    importance, lines, step = result.importance, list[str](), result.objective.step
    for left_out in result.ablations:
        ratio, low, high = effects(step, left_out.ratio, left_out.low, left_out.high)
        change, times = f"{left_out.name}={left_out.value}", "" if step else " times as good"
        lines.append(f"  without its {change}: {ratio}{times}, {low} to {high}")
    for row in importance.settings:
        largest = max([abs(effect.ratio - 1.0) for effect in row.effects], default=0.0)
        if row.matters and largest >= MIN_EFFECT_SHOWN:
            best = row.effects[0]
            ratio, low, high = effects(step, best.ratio, best.low, best.high)
            times = "against" if step else "times"
            lines.append(
                f"  mattered: {row.name} ({percent(row.share)} of the differences): {best.value} is"
                f" {ratio} {times} its default, {low} to {high}"
            )
    yield from lines
    if result.space.size > MAX_CONFIGURATIONS_SHOWN:
        if not lines:
            yield f"  what mattered: {importance.note or 'no single setting for certain'}"
        return
    listed = [configuration for configuration in result.space if result.values(configuration)]
    if not lines or any(map(result.broke, listed)):
        for configuration in listed:
            broke = result.broke(configuration)
            mark = f"; broke {broke}" if broke else ""
            yield f"  {settings(configuration, result.space)}: median {_medians(result, configuration)}{mark}"


def _failures(result: SearchResult) -> Iterator[str]:
    failed: Counter[str] = Counter()
    for failure in result.failures:
        failed[failure.launches[0].outcome.value] += len(failure.numbers)
    if failed:
        counts = ", ".join(f"{count} {outcome}" for outcome, count in failed.items())
        last = max(result.failures, key=lambda one: one.numbers[-1]).launches[-1]
        yield f"  failed launches: {counts} (xtune export has their standard error)"
        yield f"  the last failure: {describe_failure(last)}"
    measured = [launch for launch in result.launches if launch.outcome is Outcome.MEASURED]
    broke = [launch for launch in measured if not result.objective.is_feasible(launch)]
    if broke:
        yield (
            f"  {len(broke):,} of {launches(len(measured))} broke requirements; the last:"
            f" {unmet(broke[-1], result.objective)}"
        )


def _front(result: SearchResult) -> Iterator[str]:
    """The Pareto front of two goals, best by the objective first; the bare command is a candidate."""
    second = result.second
    if second is None:
        return
    points = result.front
    title = f"front of {result.objective.metric} and {second.metric}"
    if len(points) < 2:
        few = "only one configuration" if points else "no launch"
        meets = " and meets the requirements" if result.objective.requirements else ""
        yield f"  {title}: none, because {few} has both values{meets}"
        return
    front = [point for point in points if not point.is_beaten]
    yield f"  {title} ({len(front)} of {len(points)}):"
    for point in front[:MAX_FRONT_SHOWN]:
        both = f"{number(point.first)}, {number(point.other)}"
        yield f"    {settings(point.configuration, result.space)}: {both}"
    if len(front) > MAX_FRONT_SHOWN:
        yield f"    and {len(front) - MAX_FRONT_SHOWN} more"
