# SPDX-License-Identifier: Apache-2.0
"""The paired final: interleaved launches of the best configurations and the baseline.

The best values of a search are partly luck, so the final uses none of its launches. It has few
finalists, because they share the error. Every block launches the baseline and each finalist once, in an
order that balances drift and carry-over. At planned looks the final stops if the result is clear, and
drops finalists that are behind.

The plan is immutable. `Final` executes it: `next()` returns the launch to make, `record()` takes its
result, `decision()` may be called at any time. Launching happens elsewhere, so real, recorded and
simulated launches work the same, and recording stored launches again restores the state.
`extend_final` continues a final that was stopped or whose plan was not enough.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from xtune.evidence.advice import settling_blocks
from xtune.evidence.looks import look_level
from xtune.evidence.ratios import RatioInterval, has_ratio, log_ratio, ratio_interval
from xtune.evidence.verdicts import (
    MIN_PAIRS,
    Contender,
    Kind,
    MoreBudget,
    Rule,
    Verdict,
    differences,
    judge,
    undecided,
)
from xtune.launches.launch import Launch, Outcome
from xtune.launches.objectives import Objective
from xtune.space.parameters import Configuration

LOOKS_AT = (1 / 3, 1 / 2, 3 / 4)
"""Parts of the planned blocks with a look; there are also looks after MIN_PAIRS and at the end."""

LOOK_GROWTH = 2
"""Beyond the plan there is a look each time the blocks have doubled, and at the end."""

MAX_FAILURES = 1
"""Maximum failures, or broken requirements, before a finalist is out."""

BASELINE = 0
"""The baseline's number among the candidates; finalists count from 1."""


class Finalist(NamedTuple):
    """A configuration that may win."""

    configuration: Configuration
    changes: int = 0
    """Settings that differ from xlaunch's defaults."""


class FinalPlan(NamedTuple):
    """The order of launches, and the looks."""

    baseline: Configuration
    finalists: tuple[Finalist, ...]
    orders: tuple[tuple[int, ...], ...]
    """For each block, the candidates by number, 0 for the baseline. **Ex.:** ``((0, 1), (1, 0))``

    Stored because other versions of numpy may draw different orders from the same seed."""
    looks: tuple[int, ...]
    """Numbers of blocks at each look, past ones included; the last is the end."""
    planned: int
    """Blocks of the original plan, before extensions."""
    rule: Rule
    seed: int
    stops: tuple[int, ...] = ()
    """Looks that were not planned: the final stopped there. They may settle it, but drop no finalist,
    because the next block may hold its launch already."""
    attempt: int = 0
    """0 for the first final of a study. A final after a clear verdict, in a resumed search, gets half
    of the error of the previous one, so that all finals of a study together claim a false gain in at
    most 5 %."""

    @property
    def configurations(self) -> tuple[Configuration, ...]:
        """The candidates by number: the baseline, then the finalists."""
        return (self.baseline, *(one.configuration for one in self.finalists))

    @property
    def error(self) -> float:
        """The error of each side of the interval, over all looks and finalists."""
        return self.rule.error * 0.5**self.attempt


class Turn(NamedTuple):
    """A launch of a final."""

    block: int
    place: int
    """Position in the order of its block."""
    candidate: int
    """0 for the baseline."""
    configuration: Configuration


class Decision(NamedTuple):
    """The state of a final."""

    verdict: Verdict
    is_settled: bool
    """The final is over: the result is clear, or all planned blocks are done."""
    blocks: int
    """Complete blocks used for the verdict."""
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
    """Plan a final of `blocks` blocks; the seed determines the orders. Raises ValueError without finalists.

    Orders form groups in which each candidate has every place, and follows every other candidate,
    equally often (Williams 1949), so linear drift and carry-over cancel. The assignment of candidates
    and the sequence of rows are random. With one finalist, the orders are ABBA or BAAB.
    """
    if not finalists:
        raise ValueError("plan_final: no finalist; give at least one besides the baseline")
    if blocks < 1:
        raise ValueError(f"plan_final: {blocks} blocks; need at least 1, usually 12")
    everyone = [baseline, *(finalist.configuration for finalist in finalists)]
    if len(set(everyone)) < len(everyone):
        raise ValueError("plan_final: a configuration occurs twice in the final")
    looks = {math.ceil(blocks * part) for part in LOOKS_AT} | {MIN_PAIRS}
    return FinalPlan(
        baseline=baseline,
        finalists=tuple(finalists),
        orders=_draw_orders(len(everyone), blocks, seed),
        looks=(*sorted(look for look in looks if MIN_PAIRS <= look < blocks), blocks),
        planned=blocks,
        rule=rule or Rule(),
        seed=seed,
        attempt=attempt,
    )


def extend_final(plan: FinalPlan, done: int, blocks: int) -> FinalPlan:
    """The plan with `blocks` blocks in total, to continue a final that stopped after `done` blocks.

    The verdict at the stop was a look, so it is added to the plan's looks.
    """
    more = _draw_orders(len(plan.configurations), blocks, plan.seed)[len(plan.orders) :]
    blocks = max(blocks, len(plan.orders))
    is_look = done in plan.looks or done < MIN_PAIRS
    return plan._replace(
        orders=plan.orders + more,
        looks=_looks_until(plan.looks, done, blocks),
        stops=plan.stops if is_look else (*plan.stops, done),
    )


def _looks_until(looks: Sequence[int], done: int, blocks: int) -> tuple[int, ...]:
    """These looks, one after `done` blocks, and further ones up to `blocks`."""
    found = {look for look in (MIN_PAIRS, *looks, done) if MIN_PAIRS <= look < blocks}
    look = LOOK_GROWTH * max(found, default=MIN_PAIRS)
    # A look shortly before the end would add little.
    while 1.5 * look <= blocks:
        found.add(look)
        look *= LOOK_GROWTH
    return (*sorted(found), blocks)


def _draw_orders(count: int, blocks: int, seed: int) -> tuple[tuple[int, ...], ...]:
    """The orders of `blocks` blocks; a larger number begins with the same orders."""
    generator = np.random.default_rng(seed)
    design = _williams_design(count)
    orders: list[tuple[int, ...]] = []
    while len(orders) < blocks:
        names = generator.permutation(count)
        rows = generator.permutation(len(design))
        orders += [tuple(int(names[place]) for place in design[row]) for row in rows]
    return tuple(orders[:blocks])


def _williams_design(count: int) -> list[list[int]]:
    """A design in which each number has each place, and follows each other number, equally often."""
    first, low, high = [0], 1, count - 1
    while low <= high:
        first.append(low)
        if low < high:
            first.append(high)
        low, high = low + 1, high - 1
    rows = [[(number + shift) % count for number in first] for shift in range(count)]
    return rows if count % 2 == 0 else rows + [row[::-1] for row in rows]


class Final:
    """A paired final in progress; its state depends only on the recorded launches."""

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
        """All recorded launches in order, also failed ones."""
        return tuple(self._launches)

    @property
    def blocks(self) -> int:
        """The number of complete blocks."""
        return len(self._blocks) - 1

    @property
    def can_continue(self) -> bool:
        """Whether all planned blocks are done, the verdict is open, and more blocks could settle it."""
        over = self.blocks >= len(self._plan.orders) and not self._ended and not self._is_settled
        return over and self._judge().kind is Kind.INCONCLUSIVE

    @property
    def block_launches(self) -> int:
        """Launches of another block: the baseline and the remaining finalists."""
        return sum(self._is_in(number) for number in range(len(self._configurations)))

    def next(self) -> Turn | None:
        """The next launch, the same until it is recorded; None at the end of the plan."""
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
        """Record the launch that `next()` returned.

        If a finalist's launch has no value, its pair of this block is left out; after the second one
        the finalist is out. If the baseline's has none, the block ends; two in a row end the final.
        Raises ValueError for a launch of another configuration, or if none is due.
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
        if len(failed) > MAX_FAILURES:
            self._out[candidate] = (
                f"{len(failed)} of {len(mine)} launches failed ({_failure_reason(failed[-1])})"
            )
        elif len(broke) > MAX_FAILURES:
            names = ", ".join(requirement.text for requirement in self._objective.requirements)
            self._out[candidate] = (
                f"{len(broke)} of {len(mine)} launches broke requirements ({names})"
            )

    def _close_block(self) -> None:
        last = [block[BASELINE] for block in self._blocks if BASELINE in block][-2:]
        self._blocks.append({})
        if len(last) == 2 and not any(_has_value(launch) for launch in last):
            self._ended = f"the bare command failed twice in a row ({_failure_reason(last[-1])})"
        elif not any(self._is_in(number) for number in range(1, len(self._configurations))):
            self._ended = "no finalist is left"
        elif self.blocks in self._plan.looks:
            self._look()

    def _look(self) -> None:
        """End the final if it is settled, else drop finalists that are behind."""
        verdict = self._judge()
        self._is_settled = verdict.kind is not Kind.INCONCLUSIVE and self._leader_is_clear(verdict)
        if self._is_settled or self.blocks in self._plan.stops:
            return
        share = self._level() / len(self._plan.finalists)
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
            if len(behind) >= MIN_PAIRS and ratio_interval(behind).high < 1.0:
                self._dropped[number] = "behind another finalist"
            elif interval.high < 1.0 + self._plan.rule.min_effect:
                self._dropped[number] = "no gain"
            else:
                continue
            self._frozen[number] = interval

    def _leader_is_clear(self, verdict: Verdict) -> bool:
        """Whether no remaining finalist can be better than the winner by the minimal effect."""
        if verdict.kind is Kind.NO_GAIN:
            return True
        contenders = self._contenders()
        winner = next(c for c in contenders.values() if c.configuration == verdict.best)
        for number, contender in contenders.items():
            if contender is winner or not self._is_in(number):
                continue
            ahead = differences(contender, winner)
            limit = 1.0 + self._plan.rule.min_effect
            if len(ahead) < 2 or ratio_interval(ahead).high >= limit:
                return False
        return True

    def decision(self, *, in_full: bool = True) -> Decision:
        """The verdict on the complete blocks.

        It counts as a look: if the final is continued later, `extend_final` adds it to the looks.

        in_full
            Include advice and probabilities, which take most of the time.
        """
        verdict = self._judge(in_full=in_full)
        if in_full and verdict.kind is Kind.INCONCLUSIVE:
            verdict = verdict._replace(more=self._more_budget(verdict))
        settled = bool(self._ended) or self._is_settled or self.blocks >= len(self._plan.orders)
        return Decision(verdict, settled, self.blocks, self._level())

    def _level(self) -> float:
        """The level of a look now, after the planned looks before it."""
        now = max(1, self.blocks)
        return self._level_of((*(look for look in self._plan.looks if look < now), now))

    def _level_of(self, looks: tuple[int, ...]) -> float:
        return look_level(looks, self._plan.planned, self._plan.error)

    def _judge(self, *, in_full: bool = False) -> Verdict:
        if self._ended.startswith("the bare command"):
            return undecided(self._plan.baseline, self._ended)
        return judge(
            self._plan.baseline,
            tuple(self._contenders().values()),
            rule=self._plan.rule,
            level=self._level(),
            baseline_kept=[self._kept(block.get(BASELINE)) for block in self._blocks[:-1]],
            seed=self._plan.seed,
            with_chances=in_full,
        )

    def _more_budget(self, verdict: Verdict) -> MoreBudget | None:
        """The continuation that should settle the final; None if unknown."""
        if self._ended or verdict.interval is None:
            return None
        share = 1.0 / len(self._plan.finalists)
        blocks = settling_blocks(
            verdict.interval,
            lambda more: (
                share
                * self._level_of(_looks_until(self._plan.looks, self.blocks, self.blocks + more))
            ),
            self._plan.rule,
            finalists=len(self._plan.finalists),
        )
        if blocks is None:
            return None
        walls_s = {BASELINE: self._mean_wall_s(BASELINE)}
        for number in range(1, len(self._configurations)):
            if self._is_in(number):
                walls_s[number] = self._mean_wall_s(number)
        # Launches already made in the open block.
        made = self._blocks[-1]
        launches = blocks * len(walls_s) - len(made)
        seconds = blocks * sum(walls_s.values()) - sum(
            one.secondary.wall_s for one in made.values()
        )
        return MoreBudget(blocks, launches, max(0.0, seconds))

    def _mean_wall_s(self, number: int) -> float:
        walls_s = [block[number].secondary.wall_s for block in self._blocks if number in block]
        return statistics.fmean(walls_s) if walls_s else 0.0

    def _contenders(self) -> dict[int, Contender]:
        """The finalists by number, with their results in the complete blocks."""
        complete = self._blocks[:-1]
        found = {}
        for number, finalist in enumerate(self._plan.finalists, start=1):
            peaks = [
                block[number].secondary.peak_rss_bytes for block in complete if number in block
            ]
            known = [peak for peak in peaks if peak is not None]
            found[number] = Contender(
                configuration=finalist.configuration,
                changes=finalist.changes,
                log_ratios=tuple(self._log_ratio(block, number) for block in complete),
                kept=tuple(self._kept(block.get(number)) for block in complete),
                memory_bytes=statistics.median(known) if known else None,
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


def _failure_reason(launch: Launch) -> str:
    if launch.outcome is not Outcome.MEASURED:
        return str(launch.outcome.value)
    return f"its value is {launch.value}, which has no ratio"
