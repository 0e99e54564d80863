# SPDX-License-Identifier: Apache-2.0
"""The launches of a search, each with its purpose and provenance, and their scores.

A score is the level of the value (see `Objective.level`), corrected for the host. A change of the provenance
does not start another study, as another machine does, because it may not affect speed: differences are
reported.
"""

from __future__ import annotations

import enum
import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from xtune.evidence.finals import FinalPlan
from xtune.evidence.noise import PooledSpread, pooled_spread
from xtune.launches.launch import Launch, Objective, Outcome
from xtune.launches.summaries import compared
from xtune.space.identities import INTERPRETER, PROGRAM, SYSTEM, TUNER
from xtune.space.parameters import BARE, Configuration

COMPARED_OF_TUNER = ("xtune",)
"""The packages of the tuner that affect launches; the others only read results."""

DIGEST_DIGITS = 8
"""Hexadecimal digits kept of each variable: enough to notice a change, too few to guess a secret by."""


class Provenance(NamedTuple):
    """The program and variables of a launch, and the earlier launches that did not count then."""

    content: str = ""
    """Digest of the program's file; empty if there is none or it is very large."""
    installed: Mapping[str, Mapping[str, str]] = {}
    variables: Mapping[str, str] = {}
    """Digests of the inherited variables that may change how the program computes, by name."""
    left_out: tuple[int, ...] = ()
    """Numbers of the launches that did not count in its search."""

    def differences(self, other: Provenance) -> tuple[str, ...]:
        """The differences to `other`. **Ex.:** ``torch 2.11.0 (now 2.13.0)``."""
        texts = ["the program as it was before an edit"] if self.content != other.content else []
        for group in (PROGRAM, SYSTEM, TUNER):
            ours, theirs = self.installed.get(group, {}), other.installed.get(group, {})
            for name in COMPARED_OF_TUNER if group == TUNER else {**ours, **theirs}:
                before, now = ours.get(name, "none"), theirs.get(name, "none")
                if before != now and name != INTERPRETER:
                    texts.append(f"{name} {before} (now {now})")
        return tuple(texts)


def ended_launches(records: Sequence[Record]) -> list[Launch]:
    """The launches of the records that are not under way."""
    return [record.launch for record in records if record.launch is not None]


def bare_walls_s(records: Sequence[Record]) -> list[float]:
    """The wall times of the launches of the bare command that have ended."""
    launches = ended_launches([record for record in records if record.step.configuration == BARE])
    return [launch.secondary.wall_s for launch in launches]


def digests(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        name: hashlib.sha256(value.encode(errors="surrogateescape")).hexdigest()[:DIGEST_DIGITS]
        for name, value in sorted(variables.items())
    }


def outdated(records: Sequence[Record], now: Provenance) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The numbers, from 1, of the launches with another provenance, and what differs."""
    numbers: list[int] = []
    told: dict[str, None] = {}
    ended = [(record.made, record.launch) for record in records if record.launch is not None]
    for number, (made, launch) in enumerate(ended, start=1):
        has_value = launch.outcome in (Outcome.MEASURED, Outcome.CUT)
        if has_value and (differences := made.differences(now)):
            numbers.append(number)
            told.update(dict.fromkeys(differences))
    return tuple(numbers), tuple(told)


def shown_records(records: Sequence[Record]) -> tuple[Record, ...]:
    """The records that counted in the search of the latest launch, whatever this process inherits."""
    ended = [record for record in records if record.launch is not None]
    left_out = ended[-1].made.left_out if ended else ()
    return tuple([record for record in records if record.number not in left_out])


def changed_variables(records: Sequence[Record], now: Provenance) -> tuple[list[str], bool]:
    """Names of the variables that differ from those of these launches, and whether all have one."""
    names = [
        {name for name in {**then, **now.variables} if then.get(name) != now.variables.get(name)}
        for then in (record.made.variables for record in records)
    ]
    return sorted(set().union(*names)), all(names)


class Stage(enum.Enum):
    """The purpose of a launch."""

    BASELINE = "baseline"
    """The bare command, before anything else."""
    SEED = "seed"
    """A configuration worth trying first: xlaunch's default, presets, earlier winners."""
    SEARCH = "search"
    """A configuration that the model proposed."""
    CONTROL = "control"
    """The bare command again, to detect drift of the machine."""
    ABLATION = "ablation"
    """The best configuration without some of its changes, before a final."""
    FINAL = "final"
    """The finalists and the bare command, interleaved."""


class FinalDetails(NamedTuple):
    """The place of a launch in a final, which can be continued from it."""

    attempt: int
    block: int
    candidate: int
    plan: FinalPlan
    plans: tuple[str, ...]
    """The hashes of all candidates' plans."""


class NextLaunch(NamedTuple):
    stage: Stage
    configuration: Configuration
    plan_hash: str
    key: str
    """Its place in the search; unique among the launches that count."""
    origin: str = ""
    """Where the configuration came from. **Ex.:** ``xlaunch``, ``preset throughput``."""
    cut_at: float | None = None
    """The launch is ended early once it cannot reach this value."""
    details: FinalDetails | None = None
    """Of a launch of a final."""


class Record(NamedTuple):
    """A launch, finished or under way."""

    number: int
    step: NextLaunch
    host: str
    """The host that made it; launches of one host share its drift."""
    launch: Launch | None
    """None: under way."""
    made: Provenance = Provenance()


class Rating(NamedTuple):
    """The score of a launch of a configuration of the space."""

    configuration: Configuration
    plan_hash: str
    score: float | None
    """The level of the value, larger is better; None without a usable value."""
    is_cut: bool = False
    """The launch was cut: the score is the one it missed."""

    @property
    def is_failure(self) -> bool:
        """It failed or broke a requirement, so it is never chosen."""
        return self.score is None


USUAL_SPREAD = 0.03
USUAL_DEGREES = 3.0
"""Prior for the noise, and the number of repeated launches that it counts as."""


class ScoreScale:
    """The scores of some records; immutable."""

    def __init__(self, records: Sequence[Record], objective: Objective) -> None:
        self._records = [record for record in records if record.launch is not None]
        self.objective = compared(objective, ended_launches(self._records))
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
        bare_scores = [self.score_of(record) for record in _bare(self._records)]
        scores = [score for score in bare_scores if score is not None]
        return sum(scores) / len(scores) if scores else None

    @property
    def lead(self) -> float:
        """Lead of the best score over the bare command's, minus twice the noise."""
        assert self.bare is not None
        scores = [rating.score for rating in self.ratings if rating.score is not None]
        return max(scores, default=self.bare) - self.bare - 2.0 * self.spread

    def mean_of(self, plan_hash: str) -> float | None:
        """The mean score of a plan; None if no launch has a score."""
        plan_scores = [rating.score for rating in self.ratings if rating.plan_hash == plan_hash]
        scores = [score for score in plan_scores if score is not None]
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
    def noise_seen(self) -> PooledSpread:
        """The spread of scores between launches of one plan."""
        groups: dict[tuple[str, str], list[float]] = {}
        for record in self._records:
            score = self.score_of(record)
            if score is not None and record.launch and record.launch.outcome is not Outcome.CUT:
                groups.setdefault((record.host, record.step.plan_hash), []).append(score)
        return pooled_spread(groups.values())

    def score_of(self, record: Record) -> float | None:
        """The score of a record; for a cut launch, the score it missed; None for a failure."""
        launch = record.launch
        assert launch is not None
        # The bare command is the reference, even if it breaks a requirement.
        is_bare, objective = launch.configuration == BARE, self.objective
        is_usable = objective.has_level(launch) and (is_bare or objective.is_feasible(launch))
        value = launch.value if is_usable else None
        if launch.outcome is Outcome.CUT and record.step.cut_at is not None:
            value = record.step.cut_at
        level = self.objective.level(value)
        return None if level is None else level - self._bare_levels.get(record.host, 0.0)

    def _levels_of_hosts(self) -> dict[str, float]:
        """The mean score of the bare command on each host, minus the mean of all hosts."""
        scores: dict[str, list[float]] = {}
        for record in _bare(self._records):
            assert record.launch is not None
            level = self.objective.level(record.launch.value)
            if record.launch.outcome is Outcome.MEASURED and level is not None:
                scores.setdefault(record.host, []).append(level)
        levels = {host: sum(own) / len(own) for host, own in scores.items()}
        centre = sum(levels.values()) / len(levels) if levels else 0.0
        return {host: level - centre for host, level in levels.items()}


def _bare(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.step.configuration == BARE]
