# SPDX-License-Identifier: Apache-2.0
"""The paired final: interleaved launches of the best configurations and the bare command.

The best values of a search are partly luck, so the final uses none of its launches. It has few
finalists, because they share the error. Every block launches the baseline and each finalist once, in an
order that balances drift and carry-over. After every block the final stops if the result is clear, and
drops finalists that are behind.

`FinalPlan` is one value, and its blocks have no end. `Final` holds the launches by block and candidate;
its state follows from both alone, so recorded and simulated launches work like real ones, and launches
that are recorded again cannot contradict the plan. Each finalist gets an equal share of the error
(Bonferroni): Holm's step-down procedure (1979) has the same level for the largest effect, and only that
is claimed.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from xtune.evidence.ratios import RatioInterval, log_ratio, ratio_interval
from xtune.evidence.verdicts import (
    MIN_PAIRS,
    ClaimRule,
    FinalistResults,
    MoreBudget,
    Verdict,
    VerdictKind,
    differences,
    judge,
    look_level,
    settling_blocks,
    undecided,
)
from xtune.launches.launch import Launch, Objective, Outcome
from xtune.launches.summaries import compared
from xtune.space.parameters import Configuration

MAX_FAILURES = 1
"""Maximum failures, or broken requirements, before a finalist is out."""

DROP_LEVEL = 0.005
"""One-sided error of dropping a finalist that is as good as the leader, at each look."""

NO_FINALIST = "no finalist is left"

BASELINE = 0
"""The baseline's number among the candidates; finalists count from 1."""


class Finalist(NamedTuple):
    """A configuration that may win."""

    configuration: Configuration
    changes: int = 0
    """Settings that differ from xlaunch's defaults."""


class FinalPlan(NamedTuple):
    """Everything that a final depends on, except its launches."""

    baseline: Configuration
    finalists: Sequence[Finalist]
    """At least one."""
    planned: int = 12
    """Blocks that the error is planned for, from 1 to 60; more may follow."""
    rule: ClaimRule = ClaimRule()
    seed: int = 0
    attempt: int = 0
    """0 for the first final of a study. A final after a clear verdict, in a resumed search, gets half
    of the error of the previous one, so that all finals of a study together claim a false gain in at
    most 5 %."""

    @property
    def configurations(self) -> tuple[Configuration, ...]:
        """The candidates by number: the baseline, then the finalists."""
        return (self.baseline, *(finalist.configuration for finalist in self.finalists))

    @property
    def error(self) -> float:
        """The error of each side of the interval, over all looks and finalists."""
        return self.rule.error * 0.5**self.attempt

    def level(self, block: int) -> float:
        """One-sided error of the look after a block, all finalists together."""
        return look_level(max(block, 1), self.planned, self.error, self.attempt)

    def order(self, block: int) -> tuple[int, ...]:
        """The order of the candidates in a block, from 0.

        Orders form groups in which each candidate has every place, and follows every other candidate,
        equally often (Williams 1949), so linear drift and carry-over cancel. With one finalist, they
        are ABBA or BAAB. The assignment of candidates and the sequence of rows are random.
        """
        count = len(self.configurations)
        design = _williams_design(count)
        group, at = divmod(block, len(design))
        chance = random.Random(f"{self.seed} {group}")  # noqa: S311 - no secret
        names = chance.sample(range(count), count)
        row = chance.sample(design, len(design))[at]
        return tuple([names[place] for place in row])


class FinalLaunch(NamedTuple):
    block: int
    candidate: int
    """0 for the baseline."""
    configuration: Configuration


def _williams_design(count: int) -> list[list[int]]:
    """A balanced order: each number has each place, and follows each other one, equally often."""
    first, low, high = [0], 1, count - 1
    while low <= high:
        first.append(low)
        if low < high:
            first.append(high)
        low, high = low + 1, high - 1
    rows = [[(number + shift) % count for number in first] for shift in range(count)]
    return rows if count % 2 == 0 else rows + [row[::-1] for row in rows]


class Final:
    """A paired final in progress."""

    def __init__(
        self,
        plan: FinalPlan,
        objective: Objective,
        launches: Mapping[tuple[int, int], Launch] | None = None,
    ) -> None:
        """`launches`: by block and candidate; those that the final did not ask for are ignored."""
        self.plan = plan
        self._made = dict(launches or {})
        self._begin(objective)

    def _begin(self, objective: Objective) -> None:
        self._objective = compared(objective, self._made.values())
        self._blocks: list[dict[int, Launch]] = []
        """The complete blocks."""
        self._out: dict[int, str] = {}
        self._dropped: dict[int, tuple[str, RatioInterval]] = {}
        """Why, and its interval then."""
        self._ended = ""
        self._is_clear = False
        self._advance()

    @property
    def blocks(self) -> int:
        """The number of complete blocks."""
        return len(self._blocks)

    @property
    def launches(self) -> tuple[Launch, ...]:
        """All recorded launches by block, also failed ones."""
        return tuple([self._made[key] for key in sorted(self._made)])

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to launch: the result is clear, or no finalist is left."""
        return bool(self._ended) or self._is_clear

    @property
    def is_deserted(self) -> bool:
        """Every finalist is out."""
        return self._ended == NO_FINALIST

    def next(self, left: float = math.inf) -> FinalLaunch | None:
        """The next launch, the same until it is recorded; None if the final is over.

        left
            The launches that may be made: None, too, if another block beyond the plan does not fit.
        """
        if self.is_over:
            return None
        candidate, *others = self._missing()
        is_begun = any(block == self.blocks for block, _ in self._made)
        if not is_begun and self.blocks >= self.plan.planned and left < 1 + len(others):
            return None
        return FinalLaunch(self.blocks, candidate, self.plan.configurations[candidate])

    def record(self, asked: FinalLaunch, launch: Launch) -> None:
        """Record one launch of the final.

        If a finalist's launch has no value, its pair of this block is left out; after the second one
        the finalist is out. If the baseline's has none, the block ends; two in a row end the final.
        """
        self._made[asked.block, asked.candidate] = launch
        if compared(self._objective, self._made.values()) == self._objective:
            self._advance()
        else:  # its first value of 0 or less
            self._begin(self._objective)

    def _advance(self) -> None:
        """Close the complete blocks."""
        while not self.is_over and not self._missing():
            block = {
                candidate: self._made[self.blocks, candidate]
                for candidate in self.plan.order(self.blocks)
                if self._is_in(candidate) and self._has(candidate)
            }
            self._blocks.append(block)
            for candidate in block.keys() - {BASELINE}:
                self._put_out_if_bad(candidate)
            self._look()

    def _missing(self) -> list[int]:
        """The candidates that the next block still needs, in its order."""
        baseline = self._made.get((self.blocks, BASELINE))
        if baseline is not None and not self._objective.has_level(baseline):
            return []
        order = self.plan.order(self.blocks)
        return [one for one in order if self._is_in(one) and not self._has(one)]

    def _has(self, candidate: int) -> bool:
        return (self.blocks, candidate) in self._made

    def _is_in(self, candidate: int) -> bool:
        return candidate not in self._out and candidate not in self._dropped

    def _put_out_if_bad(self, candidate: int) -> None:
        mine = [block[candidate] for block in self._blocks if candidate in block]
        failed = [launch for launch in mine if not self._objective.has_level(launch)]
        broke = [launch for launch in mine if self._kept(launch) is False]
        if len(failed) > MAX_FAILURES:
            reason = _failure_reason(failed[-1])
            self._out[candidate] = f"{len(failed)} of {len(mine)} launches failed ({reason})"
        elif len(broke) > MAX_FAILURES:
            names = ", ".join(requirement.text for requirement in self._objective.requirements)
            count = f"{len(broke)} of {len(mine)} launches"
            self._out[candidate] = f"{count} broke requirements ({names})"

    def _look(self) -> None:
        """End the final if it is clear, else drop finalists that are behind."""
        last = [block[BASELINE] for block in self._blocks[-2:] if BASELINE in block]
        if len(last) == 2 and not any(self._objective.has_level(launch) for launch in last):
            self._ended = f"the bare command failed twice in a row ({_failure_reason(last[-1])})"
            return
        if not any(self._is_in(number) for number in range(1, len(self.plan.configurations))):
            self._ended = NO_FINALIST
            return
        if self.blocks < MIN_PAIRS:
            return
        results = self._results()
        verdict = self._judge(results)
        if verdict.kind is not VerdictKind.INCONCLUSIVE and self._leader_is_clear(verdict, results):
            self._is_clear = True
            return
        share = self.plan.level(self.blocks) / len(self.plan.finalists)
        active = [n for n, row in results.items() if self._is_in(n) and row.seen]
        leader = max(active, key=lambda n: ratio_interval(results[n].seen).estimate, default=None)
        for number in active:
            if number == leader or leader is None:
                continue
            step = self._objective.step
            interval = ratio_interval(results[number].seen, level=share, step=step)
            behind = differences(results[number], results[leader])
            if len(behind) >= MIN_PAIRS and ratio_interval(behind, level=DROP_LEVEL).high < 1.0:
                self._dropped[number] = "behind another finalist", interval
            elif interval.high < 1.0 + self.plan.rule.min_effect:
                self._dropped[number] = "no gain", interval

    def _leader_is_clear(self, verdict: Verdict, results: Mapping[int, FinalistResults]) -> bool:
        """Whether no remaining finalist can be better than the winner by the minimal effect."""
        if verdict.kind is VerdictKind.NO_GAIN:
            return True
        winner = next(c for c in results.values() if c.configuration == verdict.best)
        for number, row in results.items():
            if row is winner or not self._is_in(number):
                continue
            ahead = differences(row, winner)
            limit = 1.0 + self.plan.rule.min_effect
            if len(ahead) < 2 or ratio_interval(ahead).high >= limit:
                return False
        return True

    def verdict(self, *, in_full: bool = True) -> Verdict:
        """The verdict on the complete blocks; it may be asked for, and the final continued, at any time.

        `in_full`: include advice, which takes most of the time.
        """
        verdict = self._judge(self._results())
        if in_full and verdict.kind is VerdictKind.INCONCLUSIVE:
            verdict = verdict._replace(more=self._more_budget(verdict))
        return verdict

    def _judge(self, results: Mapping[int, FinalistResults]) -> Verdict:
        if self._ended.startswith("the bare command"):
            return undecided(self.plan.baseline, self._ended)
        return judge(
            self.plan.baseline,
            tuple(results.values()),
            rule=self.plan.rule,
            level=self.plan.level(self.blocks),
            baseline_kept=[self._kept(block.get(BASELINE)) for block in self._blocks],
        )

    def _more_budget(self, verdict: Verdict) -> MoreBudget | None:
        """The continuation that should settle the final; None if unknown."""
        if self._ended:
            return None
        count, interval = len(self.plan.finalists), verdict.interval
        blocks: int | None = MIN_PAIRS - (0 if interval is None else interval.pairs)
        if interval is not None and interval.pairs >= MIN_PAIRS:
            blocks = settling_blocks(
                interval,
                lambda more: self.plan.level(self.blocks + more) / count,
                self.plan.rule,
                finalists=count,
            )
        if blocks is None:
            return None
        active = [n for n in range(len(self.plan.configurations)) if self._is_in(n)]
        rows = [*self._blocks, {n: self._made[self.blocks, n] for n in active if self._has(n)}]
        walls_s = {n: [row[n].secondary.wall_s for row in rows if n in row] for n in active}
        means_s = {n: statistics.fmean(walls) if walls else 0.0 for n, walls in walls_s.items()}
        launches = blocks * len(active) - len(rows[-1])
        seconds = blocks * sum(means_s.values()) - sum(means_s[n] for n in rows[-1])
        return MoreBudget(blocks, launches, max(0.0, seconds))

    def _results(self) -> dict[int, FinalistResults]:
        """The finalists by number, with their results in the complete blocks."""
        results = {}
        for number, finalist in enumerate(self.plan.finalists, start=1):
            mine = [block[number] for block in self._blocks if number in block]
            peaks = [launch.secondary.peak_rss_bytes for launch in mine]
            known_peaks = [peak for peak in peaks if peak is not None]
            dropped, interval = self._dropped.get(number, ("", None))
            results[number] = FinalistResults(
                configuration=finalist.configuration,
                changes=finalist.changes,
                log_ratios=tuple([self._log_ratio(block, number) for block in self._blocks]),
                kept=tuple([self._kept(block.get(number)) for block in self._blocks]),
                memory_bytes=statistics.median(known_peaks) if known_peaks else None,
                out=self._out.get(number, ""),
                dropped=dropped,
                interval=interval,
                step=self._objective.step,
                seed=self.plan.seed,
            )
        return results

    def _log_ratio(self, block: dict[int, Launch], number: int) -> float | None:
        own, other = block.get(number), block.get(BASELINE)
        if own is None or other is None or not all(map(self._objective.has_level, (own, other))):
            return None
        return log_ratio(own.value, other.value, self._objective)

    def _kept(self, launch: Launch | None) -> bool | None:
        if launch is None or not self._objective.has_level(launch):
            return None
        return self._objective.is_feasible(launch)


def _failure_reason(launch: Launch) -> str:
    if launch.outcome is not Outcome.MEASURED:
        return str(launch.outcome.value)
    return f"its value is {launch.value}, which has no ratio"
