# SPDX-License-Identifier: Apache-2.0
"""The paired final: the top few and the baseline take turns, and only what is seen here counts.

A search picks its best by values that were lucky; measured again, they come back down. So the final
starts from nothing: it uses no launch of the search, and the finalists are few, for each shares the
error that may be made. Every block measures the baseline and each finalist once, in an order that
neither slow drift nor the neighbour before can favour. At planned looks it is asked whether that is
enough, and finalists that are behind stop.

The plan is an immutable value. `Final` walks through it: `next()` says what to measure, `record()`
takes what was seen, `decision()` may be asked at any time. Whoever measures is outside, so a final is
the same with real launches, recorded ones and made-up ones; and recording stored launches again
brings a final back to where it was.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from xtune.evidence.levels import look_levels
from xtune.evidence.ratios import RatioInterval, has_ratio, log_ratio, ratio_interval
from xtune.evidence.verdicts import (
    FEWEST_PAIRS,
    Contender,
    Kind,
    Rule,
    Verdict,
    differences,
    judge,
    undecided,
)
from xtune.measurement.launches import Launch, Outcome
from xtune.measurement.objectives import Objective
from xtune.space.parameters import Configuration

LOOKS_AT = (1 / 3, 1 / 2, 3 / 4)
"""Parts of the planned blocks after which it is looked, besides the fewest that anything is claimed of, and the end."""

FAILURES_ALLOWED = 1
"""A finalist that fails, or breaks a requirement, more often than this is out."""

BASELINE = 0
"""The baseline's number among the candidates; finalists count from 1."""


class Finalist(NamedTuple):
    """A configuration that may win."""

    configuration: Configuration
    changes: int = 0
    """Settings that differ from the default."""


class FinalPlan(NamedTuple):
    """What is measured in which order, and when it is looked: fixed before the first launch.

    To go on later, keep the orders: another numpy may draw others from the same seed.
    """

    baseline: Configuration
    finalists: tuple[Finalist, ...]
    orders: tuple[tuple[int, ...], ...]
    """One of each block: the candidates by number, 0 for the baseline. **Ex.:** ``((0, 1), (1, 0))``"""
    looks: tuple[int, ...]
    """Blocks after which it is looked; the last is all of them."""
    rule: Rule
    seed: int
    attempt: int = 0
    """0 for the first final of a search. Later ones, of searches that were resumed, may err half as
    much as the one before: all together, however many, claim a gain that is none in 5 % at most."""

    @property
    def configurations(self) -> tuple[Configuration, ...]:
        """The candidates by number: the baseline, then the finalists."""
        return (self.baseline, *(one.configuration for one in self.finalists))

    @property
    def error(self) -> float:
        """What each side of the interval may err, in this attempt."""
        return self.rule.error * 0.5**self.attempt


class Turn(NamedTuple):
    """The launch to make now."""

    block: int
    place: int
    """In the order of its block."""
    candidate: int
    """0 for the baseline."""
    configuration: Configuration


class Decision(NamedTuple):
    """What a final says so far."""

    verdict: Verdict
    is_settled: bool
    """More blocks of this plan would not change what is said, only narrow the interval."""
    blocks: int
    """Complete blocks that it rests on."""
    level: float
    """One-sided error of this look, all finalists together."""


def plan_final(
    baseline: Configuration,
    finalists: Sequence[Finalist],
    *,
    blocks: int = 12,
    rule: Rule | None = None,
    seed: int = 0,
    attempt: int = 0,
) -> FinalPlan:
    """A final of so many blocks, its orders drawn by the seed. Raises ValueError for what is none.

    Orders come in groups in which each candidate has every place equally often and follows every
    other equally often (Williams 1949), so linear drift and the heat of the one before cancel; which
    candidate takes which part of the design, and in which sequence its rows come, is drawn. With one
    finalist that is ABBA or BAAB.
    """
    if not finalists:
        raise ValueError("plan_final: there is no finalist; give at least one besides the baseline")
    if blocks < 1:
        raise ValueError(f"plan_final: {blocks} blocks; at least 1 is needed, 12 are usual")
    everyone = [baseline, *(finalist.configuration for finalist in finalists)]
    if len(set(everyone)) < len(everyone):
        raise ValueError("plan_final: a configuration occurs twice; each may be in a final once")
    generator = np.random.default_rng(seed)
    count = len(everyone)
    design = _williams_design(count)
    orders: list[tuple[int, ...]] = []
    while len(orders) < blocks:
        names = generator.permutation(count)
        rows = generator.permutation(len(design))
        orders += [tuple(int(names[place]) for place in design[row]) for row in rows]
    looks = {math.ceil(blocks * part) for part in LOOKS_AT} | {FEWEST_PAIRS}
    return FinalPlan(
        baseline=baseline,
        finalists=tuple(finalists),
        orders=tuple(orders[:blocks]),
        looks=(*sorted(look for look in looks if FEWEST_PAIRS <= look < blocks), blocks),
        rule=rule or Rule(),
        seed=seed,
        attempt=attempt,
    )


def _williams_design(count: int) -> list[list[int]]:
    """Rows in which each number stands in each place, and behind each other number, equally often."""
    first, low, high = [0], 1, count - 1
    while low <= high:
        first.append(low)
        if low < high:
            first.append(high)
        low, high = low + 1, high - 1
    rows = [[(number + shift) % count for number in first] for shift in range(count)]
    return rows if count % 2 == 0 else rows + [row[::-1] for row in rows]


class Final:
    """A paired final under way; the same launches in the same order always lead to the same state."""

    def __init__(self, plan: FinalPlan, objective: Objective) -> None:
        self._plan = plan
        self._objective = objective
        self._configurations = (plan.baseline, *(f.configuration for f in plan.finalists))
        self._blocks: list[dict[int, Launch]] = [{}]
        self._launches: list[Launch] = []
        self._out: dict[int, str] = {}
        self._dropped: dict[int, str] = {}
        self._frozen: dict[int, RatioInterval] = {}
        self._ended = ""
        self._is_settled = False

    @property
    def plan(self) -> FinalPlan:
        return self._plan

    @property
    def launches(self) -> tuple[Launch, ...]:
        """All that was recorded, failed ones too, in order."""
        return tuple(self._launches)

    @property
    def blocks(self) -> int:
        """Blocks that are complete."""
        return len(self._blocks) - 1

    def next(self) -> Turn | None:
        """The launch to make now; the same until it is recorded; None when the final is over."""
        if self._ended or self._is_settled or self.blocks >= len(self._plan.orders):
            return None
        return self._open_turn()

    def _open_turn(self) -> Turn | None:
        number = self.blocks
        done = self._blocks[-1]
        for place, candidate in enumerate(self._plan.orders[number]):
            if candidate not in done and self._is_in(candidate):
                return Turn(number, place, candidate, self._configurations[candidate])
        return None

    def _is_in(self, candidate: int) -> bool:
        return candidate not in self._out and candidate not in self._dropped

    def record(self, launch: Launch) -> None:
        """Take what was seen of the launch that `next()` named.

        A finalist's launch without a value leaves its pair of this block out; the second such one
        puts it out. Without the baseline's there is no pair at all: the block ends there; two in a
        row end the final. Raises ValueError for a launch of another configuration, or none due.
        """
        turn = self.next()
        if turn is None:
            raise ValueError("Final.record: the final is over; next() is None")
        if launch.configuration != turn.configuration:
            raise ValueError(
                f"Final.record: a launch of {launch.configuration}; next() named {turn.configuration}"
            )
        self._launches.append(launch)
        self._blocks[-1][turn.candidate] = launch
        if turn.candidate != BASELINE:
            self._put_out_if_bad(turn.candidate)
        elif not _has_value(launch):
            self._close_block()
            return
        if self._open_turn() is None:
            self._close_block()

    def _put_out_if_bad(self, candidate: int) -> None:
        mine = [block[candidate] for block in self._blocks if candidate in block]
        failed = [launch for launch in mine if not _has_value(launch)]
        broke = [
            launch
            for launch in mine
            if _has_value(launch) and not self._objective.is_feasible(launch)
        ]
        if len(failed) > FAILURES_ALLOWED:
            self._out[candidate] = (
                f"{len(failed)} of {len(mine)} launches failed ({_why(failed[-1])})"
            )
        elif len(broke) > FAILURES_ALLOWED:
            names = ", ".join(requirement.text for requirement in self._objective.requirements)
            self._out[candidate] = (
                f"{len(broke)} of {len(mine)} launches broke what was required ({names})"
            )

    def _close_block(self) -> None:
        last = [block[BASELINE] for block in self._blocks if BASELINE in block][-2:]
        self._blocks.append({})
        if len(last) == 2 and not any(_has_value(launch) for launch in last):
            self._ended = f"the default failed twice in a row ({_why(last[-1])})"
        elif not any(self._is_in(number) for number in range(1, len(self._configurations))):
            self._ended = "no finalist is left"
        elif self.blocks in self._plan.looks:
            self._look()

    def _look(self) -> None:
        """At a planned look: settle it, or drop who is behind."""
        level = self._level(is_last=False)
        verdict = self._verdict(level, with_chances=False)
        self._is_settled = verdict.kind is not Kind.INCONCLUSIVE and self._leader_is_clear(verdict)
        if self._is_settled:
            return
        share = level / len(self._plan.finalists)
        contenders = self._contenders()
        active = [n for n, row in contenders.items() if self._is_in(n) and row.seen]
        if not active:
            return
        leader = max(active, key=lambda n: ratio_interval(contenders[n].seen).estimate)
        for number in active:
            interval = ratio_interval(contenders[number].seen, level=share)
            behind = differences(contenders[number], contenders[leader])
            if number == leader:
                continue
            if len(behind) >= FEWEST_PAIRS and ratio_interval(behind).high < 1.0:
                self._dropped[number] = "surely behind another finalist"
            elif interval.high < 1.0 + self._plan.rule.min_effect:
                self._dropped[number] = "surely no gain"
            else:
                continue
            self._frozen[number] = interval

    def _leader_is_clear(self, verdict: Verdict) -> bool:
        """Whether none of those still measured may be better than the winner by what matters."""
        if verdict.kind is Kind.NO_GAIN:
            return True
        contenders = self._contenders()
        winner = next(c for c in contenders.values() if c.configuration == verdict.best)
        for number, contender in contenders.items():
            if contender is winner or not self._is_in(number):
                continue
            ahead = differences(contender, winner)
            least = 1.0 + self._plan.rule.min_effect
            if len(ahead) < 2 or ratio_interval(ahead).high >= least:
                return False
        return True

    def decision(self, *, is_last: bool = False) -> Decision:
        """The verdict on what was seen so far. Changes nothing.

        is_last
            The final ends here because the time is up, which has nothing to do with the values: then
            this look may use up all the error that is left. Not for Ctrl-C: whoever watches the
            interval and stops when it pleases gets the level that is planned for this time. Of A/A
            searches that were stopped at the first block that showed a gain, 4 in 100 claimed one.
        """
        level = self._level(is_last=is_last)
        verdict = self._verdict(level)
        settled = bool(self._ended) or self._is_settled or self.blocks >= len(self._plan.orders)
        return Decision(verdict, settled, self.blocks, level)

    def _level(self, *, is_last: bool) -> float:
        """The error that a look now may make: the looks that were planned before, then this one."""
        planned = len(self._plan.orders)
        now = max(1, self.blocks)
        fractions = (*(look / planned for look in self._plan.looks if look < now), now / planned)
        return look_levels(fractions, self._plan.error, self._plan.rule.spending, is_last)[-1]

    def _verdict(self, level: float, *, with_chances: bool = True) -> Verdict:
        if self._ended.startswith("the default"):
            return undecided(self._plan.baseline, self._ended)
        contenders = self._contenders()
        own = [block[BASELINE] for block in self._blocks if BASELINE in block]
        return judge(
            self._plan.baseline,
            tuple(contenders.values()),
            rule=self._plan.rule,
            level=level,
            baseline_kept=[self._kept(block.get(BASELINE)) for block in self._blocks],
            baseline_wall_s=statistics.fmean(launch.secondary.wall_s for launch in own)
            if own
            else 0.0,
            seed=self._plan.seed,
            with_chances=with_chances,
        )

    def _contenders(self) -> dict[int, Contender]:
        found = {}
        for number, finalist in enumerate(self._plan.finalists, start=1):
            mine = [block[number] for block in self._blocks if number in block]
            peaks = [
                launch.secondary.peak_rss_bytes
                for launch in mine
                if launch.secondary.peak_rss_bytes is not None
            ]
            found[number] = Contender(
                configuration=finalist.configuration,
                changes=finalist.changes,
                log_ratios=tuple(self._log_ratio(block, number) for block in self._blocks),
                kept=tuple(self._kept(block.get(number)) for block in self._blocks),
                memory_bytes=statistics.median(peaks) if peaks else None,
                wall_s=statistics.fmean(row.secondary.wall_s for row in mine) if mine else 0.0,
                out=self._out.get(number, ""),
                dropped=self._dropped.get(number, ""),
                frozen=self._frozen.get(number),
            )
        return found

    def _log_ratio(self, block: dict[int, Launch], number: int) -> float | None:
        own, other = block.get(number), block.get(BASELINE)
        if own is None or other is None or not _has_value(own) or not _has_value(other):
            return None
        assert own.value is not None
        assert other.value is not None
        return log_ratio(own.value, other.value, self._objective.goal)

    def _kept(self, launch: Launch | None) -> bool | None:
        if launch is None or not _has_value(launch):
            return None
        return self._objective.is_feasible(launch)


def _has_value(launch: Launch) -> bool:
    return launch.outcome is Outcome.MEASURED and has_ratio(launch.value)


def _why(launch: Launch) -> str:
    if launch.outcome is not Outcome.MEASURED:
        return str(launch.outcome.value)
    return f"its value is {launch.value}, of which no ratio can be made"
