# SPDX-License-Identifier: Apache-2.0
"""The page's warnings: other versions, shared CPUs, drift, noise, evidence that disagrees."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

from xlaunch.wording import number
from xtune.evidence.noise import Trouble, noise_cautions, pooled_spread
from xtune.evidence.ratios import has_ratio
from xtune.evidence.verdicts import Kind, Standing
from xtune.launches.launch import Outcome, Steadiness
from xtune.screen.cautions import Warned, launch_warnings
from xtune.screen.conclusion import Conclusion
from xtune.screen.quantities import launches, spans
from xtune.search.events import Ended
from xtune.search.provenance import outdated
from xtune.search.records import Record, Stage
from xtune.space.parameters import BARE, Configuration

MAX_P_VALUE = 0.05
"""A gain with a larger p-value in the exact test is a disagreement between two tests."""

_MINOR = (Trouble.TOO_FEW, Trouble.MORE_THAN_NEEDED)


def warnings_of(conclusion: Conclusion) -> tuple[Warned, ...]:
    """All warnings, the most important first."""
    return (
        *_provenance(conclusion),
        *launch_warnings(conclusion.records),
        *_disagreement(conclusion),
        *_noise(conclusion),
        *_steadiness(conclusion),
        *_ending(conclusion),
    )


def _provenance(conclusion: Conclusion) -> Iterator[Warned]:
    if not conclusion.made:
        return
    numbers, changes = outdated(conclusion.made, conclusion.made[-1].provenance)
    if numbers:
        yield Warned(
            "provenance",
            f"{len(numbers):,} of the launches ({spans(numbers)}) ran with {', '.join(changes)}; they are"
            " compared with the others all the same",
        )


def _disagreement(conclusion: Conclusion) -> Iterator[Warned]:
    verdict = conclusion.verdict
    leader = next(
        (row for row in verdict.standings if row.contender.configuration == verdict.leader), None
    )
    if leader is None or leader.interval is None:
        return
    yield from _search_and_final(conclusion, leader)
    # With n pairs that all agree, the exact test's p-value is 1 / 2**n: that is no disagreement.
    attainable = 1.01 * 0.5**leader.interval.pairs
    if verdict.kind is Kind.GAIN and leader.chance > max(MAX_P_VALUE, attainable):
        yield Warned(
            "disagreement",
            f"the exact sign-flip test is less sure of the gain (p = {number(leader.chance, 2)}) than"
            " the interval, which assumes more; more pairs would make them agree",
        )
    if leader.outlying:
        blocks = spans(tuple([block + 1 for block in leader.outlying]))
        yield Warned(
            "outliers",
            f"outliers in the final: block {blocks}; the plain mean is"
            f" {number(leader.interval.plain)}, the robust estimate"
            f" {number(leader.interval.estimate)}",
        )


def _search_and_final(conclusion: Conclusion, leader: Standing) -> Iterator[Warned]:
    """Warn if the launches before the final contradict the final."""
    interval, objective = leader.interval, conclusion.objective
    assert interval is not None
    mine = _before_final(conclusion.records, leader.contender.configuration)
    bare = _before_final(conclusion.records, BARE)
    if not mine or not bare:
        return
    seen = statistics.median(mine) / statistics.median(bare)
    seen = seen if objective.sign > 0 else 1.0 / seen
    spread = pooled_spread(
        [
            [value for value in conclusion.values(one) if has_ratio(value)]
            for one in dict.fromkeys(launch.configuration for launch in conclusion.launches)
        ]
    )
    noise = 0.0 if spread is None else spread.spread * math.sqrt(1 / len(mine) + 1 / len(bare))
    slack = math.exp(2.0 * noise)
    if interval.low / slack <= seen <= interval.high * slack:
        return
    is_better = seen > interval.high
    how = "better" if is_better else "worse"
    yield Warned(
        "disagreement",
        f"the leader looked {how} before the final ({number(seen)}, {launches(len(mine))}) than in it"
        f" ({number(interval.low)} to {number(interval.high)}); only the final counts"
        + ("; the best of many launches is usually a lucky one" if is_better else ""),
    )


def _before_final(records: tuple[Record, ...], wanted: Configuration) -> list[float]:
    return [
        record.launch.value
        for record in records
        if record.step.stage is not Stage.FINAL
        and record.step.configuration == wanted
        and record.launch is not None
        and has_ratio(record.launch.value)
        and record.launch.value is not None
    ]


def _noise(conclusion: Conclusion) -> Iterator[Warned]:
    values = [value for value in conclusion.values(BARE) if has_ratio(value)]
    if len(values) < 2:
        return
    for caution in noise_cautions(values):
        if caution.trouble not in _MINOR:
            yield Warned("noise", f"the bare command: {caution.text}")


def _steadiness(conclusion: Conclusion) -> Iterator[Warned]:
    names = {conclusion.shown: "the best finalist", BARE: "the bare command"}
    for configuration, name in reversed(names.items()):
        mine = [one for one in conclusion.launches if one.configuration == configuration]
        measured = [one for one in mine if one.outcome is Outcome.MEASURED]
        for steadiness in (Steadiness.NOT_STEADY, Steadiness.SLOW_DOWN):
            count = sum(one.steadiness is steadiness for one in measured)
            if 2 * count > len(measured):
                yield Warned(
                    "steadiness",
                    f"{name}: {steadiness.value} in {count} of {launches(len(measured))}; the mean of"
                    " such a launch depends on how long it runs",
                )


def _ending(conclusion: Conclusion) -> Iterator[Warned]:
    if conclusion.ended == Ended.INTERRUPTED.value:
        yield Warned("ending", "the last search was interrupted; this is the verdict so far")
    elif conclusion.ended == Ended.STORAGE.value:
        yield Warned("ending", "the last search ended early: its storage could not be written")
    if conclusion.final_plan is None:
        yield Warned(
            "no final",
            "there was no final, so nothing is claimed; the values below come from the search",
        )
