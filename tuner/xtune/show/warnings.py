# SPDX-License-Identifier: Apache-2.0
"""Warnings about the launches and the verdict of a study: shared CPUs, drift, noise, contradictions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from xlaunch.text import number
from xtune.evidence.noise import Control, disturbance_of, drift_of, noise_cautions, pooled_spread
from xtune.evidence.verdicts import FinalistResults, VerdictKind
from xtune.launches.launch import Launch, Objective, Outcome, Steadiness
from xtune.search.events import EndReason
from xtune.search.records import Record, Stage, ended_launches, outdated
from xtune.show.results import SearchResult
from xtune.show.words import effects, launches, percent, spans
from xtune.space.parameters import BARE, Configuration

MIN_HOST_DIFFERENCE = 0.10
"""Relative difference of the bare command between hosts from which on there is a warning."""

MIN_SHARED = 0.10
"""Share of launches with busy CPUs from which on there is a warning; the median outweighs fewer."""

MAX_P_VALUE = 0.05
"""A gain with a larger p-value in the exact test is a disagreement between two tests."""

ENDINGS = {
    EndReason.INTERRUPTED: "the last search was interrupted; this is the verdict so far",
    EndReason.STORAGE: "the last search ended early: its storage could not be written",
}


class ResultWarning(NamedTuple):
    """A warning for the reader of a verdict."""

    about: str
    """**Ex.:** ``drift``, ``disagreement``."""
    text: str


def launch_warnings(records: Sequence[Record], objective: Objective) -> Iterator[ResultWarning]:
    """Warnings that follow from the launches alone."""
    ended = ended_launches(records)
    seen = [shared_with(launch) for launch in ended]
    numbers = [number for number, note in enumerate(seen, start=1) if note]
    if numbers and len(numbers) >= MIN_SHARED * len(seen):
        whose = "its" if len(numbers) == 1 else "their"
        yield ResultWarning(
            "others",
            f"{launches(len(numbers))} of {len(seen):,} ({spans(numbers)}) shared {whose} CPUs with"
            f" other work; the last: {seen[numbers[-1] - 1]}",
        )
    notes = [note for launch in ended for note in launch.notes]
    failed = [note for note in notes if note.startswith("--cleanup ")]
    if failed:
        where = f"after {launches(len(failed))} of {len(ended):,}"
        yield ResultWarning("cleanup", f"{where}: {failed[-1]}")
    caution = disturbance_of(final_pairs(records))
    if caution:
        yield ResultWarning("waiting", f"whether the settings made the difference is {caution}")
    hosts: dict[str, list[Control]] = {}
    for record in records:
        launch = record.launch
        level = None if launch is None else objective.level(launch.value)
        if launch is not None and launch.configuration == BARE and level is not None:
            control = Control(launch.began_s, level)
            hosts.setdefault(record.host, []).append(control)
    for host, controls in enumerate(hosts.values(), start=1):
        caution = drift_of(controls).caution
        if caution:
            where = f"host {host}: " if len(hosts) > 1 else ""
            yield ResultWarning("drift", where + caution)
    levels = [[control.level for control in controls] for controls in hosts.values()]
    medians = list(map(statistics.median, levels))
    between = math.expm1(max(medians) - min(medians)) if medians else 0.0
    if between > MIN_HOST_DIFFERENCE:
        yield ResultWarning(
            "hosts",
            f"the bare command differs by {percent(between)} between the"
            f" {len(medians)} hosts of this study; values are compared within a host",
        )


def final_pairs(records: Sequence[Record]) -> Iterator[tuple[Launch, Launch]]:
    """The launches of the bare command and of each finalist in the same block of a final."""
    blocks: dict[tuple[int, int], list[Launch]] = {}
    for record in records:
        details = record.step.details
        if details is not None and record.launch is not None:
            blocks.setdefault((details.attempt, details.block), []).append(record.launch)
    for block in blocks.values():
        for bare in (launch for launch in block if launch.configuration == BARE):
            yield from ((bare, launch) for launch in block if launch.configuration != BARE)


def shared_with(launch: Launch) -> str | None:
    """The note on what else used a launch's CPUs; None if nothing did."""
    return next(iter(launch.shared_cpus), None)


def warnings_of(result: SearchResult) -> tuple[ResultWarning, ...]:
    """All warnings of the page, the most important first."""
    return (
        *_provenance(result),
        *launch_warnings(result.records, result.objective),
        *_disagreement(result),
        *_noise(result),
        *_ending(result),
    )


def _provenance(result: SearchResult) -> Iterator[ResultWarning]:
    if not result.records:
        return
    numbers, changes = outdated(result.records, result.records[-1].made)
    if numbers:
        yield ResultWarning(
            "provenance",
            f"{len(numbers):,} of the launches ({spans(numbers)}) ran with {', '.join(changes)};"
            " they are compared with the others all the same",
        )


def _disagreement(result: SearchResult) -> Iterator[ResultWarning]:
    verdict = result.verdict
    mine = (row for row in verdict.finalists if row.configuration == verdict.leader)
    leader = next(mine, None)
    if leader is None or leader.interval is None:
        return
    yield from _search_and_final(result, leader)
    # With n pairs that all agree, the exact test's p-value is 1 / 2**n: that is no disagreement.
    attainable = 1.01 * 0.5**leader.interval.pairs
    if verdict.kind is VerdictKind.GAIN and leader.chance > max(MAX_P_VALUE, attainable):
        yield ResultWarning(
            "disagreement",
            f"the exact sign-flip test is less sure of the gain (p = {number(leader.chance, 2)}) than"
            " the interval, which assumes more; more pairs would make them agree",
        )
    if leader.outlying:
        interval = leader.interval
        mean, robust = effects(interval.step, interval.mean, interval.estimate)
        yield ResultWarning(
            "outliers",
            f"outliers in the final: block {spans([block + 1 for block in leader.outlying])}; the"
            f" plain mean is {mean}, the robust estimate {robust}",
        )


def _search_and_final(result: SearchResult, leader: FinalistResults) -> Iterator[ResultWarning]:
    """Warn if the launches before the final contradict the final."""
    interval = leader.interval
    assert interval is not None
    early = [record for record in result.records if record.step.stage is not Stage.FINAL]
    mine, bare = (
        result.levels(
            [launch for launch in ended_launches(early) if launch.configuration == wanted]
        )
        for wanted in (leader.configuration, BARE)
    )
    if not mine or not bare:
        return
    seen = math.exp(statistics.median(mine) - statistics.median(bare))
    groups: dict[Configuration, list[Launch]] = {}
    for launch in result.launches:
        groups.setdefault(launch.configuration, []).append(launch)
    spread = pooled_spread(map(result.levels, groups.values())).spread
    noise = spread * math.sqrt(1 / len(mine) + 1 / len(bare))
    slack = math.exp(2.0 * noise)
    if interval.low / slack <= seen <= interval.high * slack:
        return
    how, lucky = "worse", ""
    if seen > interval.high:
        how, lucky = "better", "; the best of many launches is usually a lucky one"
    ratio, low, high = effects(interval.step, seen, interval.low, interval.high)
    yield ResultWarning(
        "disagreement",
        f"the leader looked {how} before the final ({ratio}, {launches(len(mine))}) than in it"
        f" ({low} to {high}); only the final counts{lucky}",
    )


def _noise(result: SearchResult) -> Iterator[ResultWarning]:
    measured = [launch for launch in result.launches if launch.configuration == BARE]
    measured = [launch for launch in measured if result.objective.has_level(launch)]
    values = [launch.value for launch in measured if launch.value is not None]
    for caution in noise_cautions(values, result.levels(measured)) if len(values) > 1 else ():
        yield ResultWarning("noise", f"the bare command: {caution}")
    names = {result.shown: "the best finalist", BARE: "the bare command"}
    for configuration, name in reversed(names.items()):
        mine = [launch for launch in result.launches if launch.configuration == configuration]
        measured = [launch for launch in mine if launch.outcome is Outcome.MEASURED]
        for steadiness in (Steadiness.NOT_STEADY, Steadiness.SLOW_DOWN):
            count = sum(launch.steadiness is steadiness for launch in measured)
            if 2 * count > len(measured):
                yield ResultWarning(
                    "steadiness",
                    f"{name}: {steadiness.value} in {count} of {launches(len(measured))}; the mean of"
                    " such a launch depends on how long it runs",
                )


def _ending(result: SearchResult) -> Iterator[ResultWarning]:
    if result.end_reason in ENDINGS:
        yield ResultWarning("ending", ENDINGS[result.end_reason])
    if result.final_plan is None:
        yield ResultWarning(
            "no final",
            "there was no final, so nothing is claimed; the values below come from the search",
        )
