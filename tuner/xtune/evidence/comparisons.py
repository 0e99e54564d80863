# SPDX-License-Identifier: Apache-2.0
"""Two commands compared: the paired final, seen from both of them.

A final asks whether its finalist is better than the baseline. Here each command is the finalist of one
final, and both have the same launches; each has one side of the error.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from xtune.evidence.finals import Final, Finalist, FinalLaunch, FinalPlan
from xtune.evidence.ratios import RatioInterval
from xtune.evidence.verdicts import ClaimRule, VerdictKind
from xtune.launches.launch import Launch, Objective
from xtune.space.parameters import BARE, Configuration

Pair = tuple[Launch, Launch]
"""A launch of the first command and one of the second, in the same block."""


class Result(enum.Enum):
    """The result of a comparison; the values appear in --json."""

    FIRST = "first"
    """The first command is better."""
    SECOND = "second"
    NO_DIFFERENCE = "no-difference"
    """A difference of the minimal effect is ruled out."""
    INCONCLUSIVE = "inconclusive"


class Finding(NamedTuple):
    """What the pairs so far show."""

    result: Result
    interval: RatioInterval | None
    """How many times better the second command is than the first; None before the first pair."""
    more: int | None
    """Pairs that should settle an inconclusive comparison (90 % power); None if unknown."""


class Comparison:
    def __init__(
        self, objective: Objective, *, planned: int, rule: ClaimRule, seed: int = 0
    ) -> None:
        """`planned`: number of pairs, up to 60."""
        self.plan = FinalPlan(BARE, (Finalist(Configuration({})),), planned, rule, seed)
        self._of_second, self._of_first = (Final(self.plan, objective) for _ in range(2))
        self.pairs: list[Pair] = []

    @property
    def is_over(self) -> bool:
        """Whether the result is known, or all planned pairs were measured."""
        is_known = self.finding(in_full=False).result is not Result.INCONCLUSIVE
        return is_known or len(self.pairs) >= self.plan.planned

    def record(self, pair: Pair) -> None:
        """Add a pair of measured launches."""
        for final, launches in ((self._of_second, pair), (self._of_first, pair[::-1])):
            for candidate, launch in enumerate(launches):
                configuration = self.plan.configurations[candidate]
                final.record(FinalLaunch(len(self.pairs), candidate, configuration), launch)
        self.pairs.append(pair)

    def finding(self, *, in_full: bool = True) -> Finding:
        """The result of the pairs so far. `in_full`: with advice, which takes most of the time."""
        if not self.pairs:
            return Finding(Result.INCONCLUSIVE, None, None)
        second, first = (
            final.verdict(in_full=in_full) for final in (self._of_second, self._of_first)
        )
        assert second.interval is not None
        assert first.interval is not None
        # A final that has ended saw fewer pairs than the other.
        is_later = first.interval.pairs > second.interval.pairs
        interval = first.interval.inverse if is_later else second.interval
        if VerdictKind.GAIN in (second.kind, first.kind):
            result = Result.SECOND if second.kind is VerdictKind.GAIN else Result.FIRST
            claimed = second.interval if result is Result.SECOND else first.interval.inverse
            return Finding(result, claimed, None)
        still_open = [one for one in (second, first) if one.kind is VerdictKind.INCONCLUSIVE]
        if not still_open:
            return Finding(Result.NO_DIFFERENCE, interval, None)
        advised = [verdict.more.blocks for verdict in still_open if verdict.more is not None]
        return Finding(Result.INCONCLUSIVE, interval, max(advised, default=None))
