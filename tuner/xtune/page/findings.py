# SPDX-License-Identifier: Apache-2.0
"""All that a page tells of, and what follows from it without another launch."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from xlaunch.machine.topology import Machine
from xtune.evidence.finals import FinalPlan
from xtune.evidence.fronts import SecondGoal
from xtune.evidence.verdicts import Verdict
from xtune.measurement.launches import Launch, Outcome
from xtune.measurement.objectives import Objective
from xtune.screen.words import settings
from xtune.search.ablation import Ablation, ablations_of
from xtune.search.encoding import decode_final_plan
from xtune.search.levels import Scale
from xtune.search.provenance import Made
from xtune.search.records import Record, Stage
from xtune.search.study import Subject
from xtune.space.parameters import BARE, Configuration
from xtune.space.resolution import Resolver
from xtune.space.spaces import Space

MOST_CONTESTANTS = 5
"""Configurations beside the bare command that are shown next to each other."""


class Findings(NamedTuple):
    """What a study has found."""

    study: str
    """Its name."""
    subject: Subject
    verdict: Verdict
    records: tuple[Record, ...]
    """Those that have ended; at least one."""
    plain: Mapping[str, Any]
    """What --json prints."""
    words: tuple[str, ...]
    """What is told on a terminal, a line each."""
    machine: Machine
    resolver: Resolver
    preset: str | None = None
    """The file that holds the settings of what won."""
    preset_text: str = ""
    """What is in it, or would be; empty where there is nothing to set."""
    second: SecondGoal | None = None
    ended: str = ""
    """How the last search ended, as it was kept; empty where that is not known."""
    folder: str = ""
    """In which the program's words mean what they meant."""
    made: tuple[Made, ...] = ()
    """The launches by what they were made with, as far as that was kept."""

    @property
    def space(self) -> Space:
        return self.subject.space

    @property
    def objective(self) -> Objective:
        return self.subject.objective

    @property
    def launches(self) -> tuple[Launch, ...]:
        return tuple([record.launch for record in self.records if record.launch is not None])

    @property
    def shown(self) -> Configuration:
        """What is worth looking at closely: the winner, else what is most promising, else BARE."""
        verdict = self.verdict
        if verdict.best != BARE or verdict.leader is None:
            return verdict.best
        return verdict.leader

    @property
    def ablations(self) -> tuple[Ablation, ...]:
        """The winner without one of its changes."""
        scale = Scale(self.records, self.objective)
        return ablations_of(self.verdict.best, self.space, self.resolver.plan_hash, scale)

    @property
    def final_plan(self) -> FinalPlan | None:
        """Of the last final; None before there was one."""
        for record in reversed(self.records):
            if record.step.stage is Stage.FINAL and "plan" in record.step.details:
                return decode_final_plan(record.step.details["plan"])
        return None

    def values(self, configuration: Configuration) -> tuple[float, ...]:
        """What the launches of a configuration came to, in order; those without a value left out."""
        return tuple(
            [
                launch.value
                for launch in self.launches
                if launch.configuration == configuration and launch.value is not None
            ]
        )

    def median(self, configuration: Configuration) -> float | None:
        found = self.values(configuration)
        return statistics.median(found) if found else None


class Contestant(NamedTuple):
    """A configuration with a short name, by which charts and tables speak of it."""

    name: str
    """``bare``, or a letter."""
    configuration: Configuration
    told: str
    """What it sets."""


def contestants(findings: Findings) -> tuple[Contestant, ...]:
    """The bare command, then the finalists, the best first; without a final the best that were seen."""
    found = [Contestant("bare", BARE, settings(BARE, findings.space))]
    chosen = [row.contender.configuration for row in findings.verdict.standings]
    chosen = chosen or best_seen(findings)
    for configuration, letter in zip(chosen[:MOST_CONTESTANTS], "ABCDE", strict=False):
        found.append(Contestant(letter, configuration, settings(configuration, findings.space)))
    return tuple(found)


def best_seen(findings: Findings) -> list[Configuration]:
    """The configurations that kept what is required, the one with the best median first."""
    objective = findings.objective
    groups: dict[Configuration, list[float]] = {}
    for launch in findings.launches:
        if objective.is_feasible(launch) and launch.configuration != BARE:
            assert launch.value is not None
            groups.setdefault(launch.configuration, []).append(launch.value)
    return sorted(groups, key=lambda one: -objective.sign * statistics.median(groups[one]))


def best_so_far(findings: Findings) -> list[float | None]:
    """The best value of a launch that kept what is required, at each launch; None before one did."""
    objective = findings.objective
    best: float | None = None
    found: list[float | None] = []
    for launch in findings.launches:
        value = launch.value
        if value is not None and objective.is_feasible(launch):
            better = best is None or objective.sign * (value - best) > 0
            best = value if better else best
        found.append(best)
    return found


def is_failure(launch: Launch) -> bool:
    """It has no value, and was not merely ended for being behind."""
    return launch.outcome not in (Outcome.MEASURED, Outcome.CUT)


class Failure(NamedTuple):
    """Launches that failed in the same way: outcome, exit code and last words are the same."""

    outcome: Outcome
    configurations: tuple[Configuration, ...]
    numbers: tuple[int, ...]
    """Which launches, the first being 1."""
    exit_code: int | None
    notes: tuple[str, ...]
    stderr_tail: str
    """Both of the last of them."""


def failures(findings: Findings) -> tuple[Failure, ...]:
    """What failed, in the order in which it first did."""
    groups: dict[tuple[Outcome, int | None, str], list[tuple[int, Launch]]] = {}
    for number, launch in enumerate(findings.launches, start=1):
        if is_failure(launch):
            said = launch.stderr_tail.strip().splitlines()
            key = launch.outcome, launch.exit_code, said[-1] if said else ""
            groups.setdefault(key, []).append((number, launch))
    return tuple(
        [
            Failure(
                outcome,
                tuple(dict.fromkeys(launch.configuration for _, launch in members)),
                tuple([number for number, _ in members]),
                exit_code,
                members[-1][1].notes,
                members[-1][1].stderr_tail,
            )
            for (outcome, exit_code, _), members in groups.items()
        ]
    )
