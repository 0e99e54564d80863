# SPDX-License-Identifier: Apache-2.0
"""Scores of launches: the logarithm of the value, larger is better, corrected for the host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

from xtune.evidence.ratios import has_ratio
from xtune.launches.launch import Launch, Outcome
from xtune.launches.objectives import Objective
from xtune.search.records import Rating, Record, score
from xtune.space.parameters import BARE

USUAL_SPREAD = 0.03
USUAL_DEGREES = 3.0
"""Prior for the noise, and the number of repeated launches that it counts as."""


class Scale:
    """The scores of some records; immutable."""

    def __init__(self, records: Sequence[Record], objective: Objective) -> None:
        self._objective = objective
        self._records = [record for record in records if record.launch is not None]
        self._bare_levels = self._levels_of_hosts()

    @cached_property
    def ratings(self) -> list[Rating]:
        """The rating of every launch of a configuration of the space, in order."""
        return [
            Rating(
                record.step.configuration,
                record.step.plan_hash,
                self.score_of(record),
                is_cut=record.launch is not None and record.launch.outcome is Outcome.CUT,
            )
            for record in self._records
            if record.step.configuration != BARE
        ]

    @cached_property
    def bare(self) -> float | None:
        """The mean score of the bare command; None before it was measured."""
        found = [self.score_of(record) for record in _bare(self._records)]
        scores = [one for one in found if one is not None]
        return sum(scores) / len(scores) if scores else None

    @property
    def lead(self) -> float:
        """Lead of the best score over the bare command's, minus twice the noise."""
        assert self.bare is not None
        scores = [rating.score for rating in self.ratings if rating.score is not None]
        return max(scores, default=self.bare) - self.bare - 2.0 * self.spread

    def mean_of(self, plan_hash: str) -> float | None:
        """The mean score of a plan; None if no launch has a score."""
        found = [one.score for one in self.ratings if one.plan_hash == plan_hash]
        scores = [score for score in found if score is not None]
        return sum(scores) / len(scores) if scores else None

    @property
    def spread(self) -> float:
        """Standard deviation of scores between launches of one plan, combined with the prior."""
        seen, degrees = self.noise_seen
        squares = USUAL_DEGREES * USUAL_SPREAD**2 + degrees * seen**2
        return math.sqrt(squares / self.degrees)

    @property
    def degrees(self) -> float:
        """Degrees of freedom of `spread`."""
        return USUAL_DEGREES + self.noise_seen[1]

    @cached_property
    def noise_seen(self) -> tuple[float, int]:
        """Standard deviation of scores between launches of one plan, and its degrees of freedom."""
        groups: dict[tuple[str, str], list[float]] = {}
        for record in self._records:
            found = self.score_of(record)
            if found is not None and record.launch and record.launch.outcome is not Outcome.CUT:
                groups.setdefault((record.host, record.step.plan_hash), []).append(found)
        squares, degrees = 0.0, 0
        for group in groups.values():
            centre = sum(group) / len(group)
            squares += sum((one - centre) ** 2 for one in group)
            degrees += len(group) - 1
        return math.sqrt(squares / degrees) if degrees else 0.0, degrees

    def score_of(self, record: Record) -> float | None:
        """The score of a record; for a cut launch, the score it missed; None for a failure."""
        launch = record.launch
        assert launch is not None
        if launch.outcome is Outcome.CUT and record.step.cut_at is not None:
            value = record.step.cut_at
        elif _is_usable(launch, self._objective):
            assert launch.value is not None
            value = launch.value
        else:
            return None
        return score(value, self._objective) - self._bare_levels.get(record.host, 0.0)

    def _levels_of_hosts(self) -> dict[str, float]:
        """The offset of each host from the average host, by its bare command."""
        scores: dict[str, list[float]] = {}
        for record in _bare(self._records):
            assert record.launch is not None
            if record.launch.outcome is Outcome.MEASURED and has_ratio(record.launch.value):
                assert record.launch.value is not None
                scores.setdefault(record.host, []).append(
                    score(record.launch.value, self._objective)
                )
        levels = {host: sum(found) / len(found) for host, found in scores.items()}
        centre = sum(levels.values()) / len(levels) if levels else 0.0
        return {host: level - centre for host, level in levels.items()}


def _is_usable(launch: Launch, objective: Objective) -> bool:
    if not has_ratio(launch.value):
        return False
    # The bare command is the reference, even if it breaks a requirement.
    is_bare = launch.configuration == BARE
    return launch.outcome is Outcome.MEASURED and (is_bare or objective.is_feasible(launch))


def _bare(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.step.configuration == BARE]
