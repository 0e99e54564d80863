# SPDX-License-Identifier: Apache-2.0
"""What a study found, as the page shows it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from xlaunch.machine.topology import Machine
from xtune.evidence.finals import FinalPlan
from xtune.evidence.fronts import SecondGoal
from xtune.evidence.verdicts import Verdict
from xtune.measurement.launches import Launch, Outcome
from xtune.measurement.objectives import Objective
from xtune.search.ablation import Ablation, ablations_of
from xtune.search.encoding import decode_final_plan
from xtune.search.provenance import Made
from xtune.search.records import Record, Stage
from xtune.search.scale import Scale
from xtune.search.study import Subject
from xtune.space.parameters import BARE, Configuration
from xtune.space.resolution import Resolver
from xtune.space.spaces import Space

MAX_CONTESTANTS = 5
"""Configurations that are compared with the bare command in charts."""


class Findings(NamedTuple):
    """What a study found."""

    study: str
    """The study's name."""
    subject: Subject
    verdict: Verdict
    records: tuple[Record, ...]
    """Launches that have ended; at least one."""
    plain: Mapping[str, Any]
    """The output of --json."""
    words: tuple[str, ...]
    """The lines that are printed on a terminal."""
    machine: Machine
    resolver: Resolver
    preset: str | None = None
    """The file with the winner's settings."""
    preset_text: str = ""
    """The preset's content; empty if it would set nothing."""
    second: SecondGoal | None = None
    ended: str = ""
    """How the last search ended; empty if unknown."""
    directory: str = ""
    """The working directory of the launches."""
    made: tuple[Made, ...] = ()
    """The launches by program version and environment, as far as that was kept."""
    advice: str = ""
    """What the resume command is for."""
    resume: str = ""
    """The command that continues the search."""

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
        """The winner, else the most promising finalist, else BARE."""
        verdict = self.verdict
        if verdict.best != BARE or verdict.leader is None:
            return verdict.best
        return verdict.leader

    @property
    def ablations(self) -> tuple[Ablation, ...]:
        """The winner without each of its changes."""
        scale = Scale(self.records, self.objective)
        return ablations_of(self.verdict.best, self.space, self.resolver.plan_hash, scale)

    @property
    def final_plan(self) -> FinalPlan | None:
        """The plan of the last final; None before the first."""
        for record in reversed(self.records):
            if record.step.stage is Stage.FINAL and "plan" in record.step.details:
                return decode_final_plan(record.step.details["plan"])
        return None

    def values(self, configuration: Configuration) -> tuple[float, ...]:
        """The values of a configuration's launches, in order."""
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

    @property
    def medians(self) -> dict[Configuration, float]:
        """The median of each configuration with a finite value; the bare command is left out."""
        groups: dict[Configuration, list[float]] = {}
        for launch in self.launches:
            value = launch.value
            if launch.configuration != BARE and value is not None and math.isfinite(value):
                groups.setdefault(self.space.complete(launch.configuration), []).append(value)
        return {one: statistics.median(values) for one, values in groups.items()}


class Contestant(NamedTuple):
    """A configuration with a short name for charts and tables."""

    name: str
    """``bare``, or a letter."""
    configuration: Configuration


def contestants(findings: Findings) -> tuple[Contestant, ...]:
    """The bare command, then the finalists, best first; without a final the best launched ones."""
    chosen = [row.contender.configuration for row in findings.verdict.standings]
    chosen = (chosen or best_seen(findings))[:MAX_CONTESTANTS]
    return tuple(
        [Contestant(*one) for one in zip(("bare", *"ABCDE"), (BARE, *chosen), strict=False)]
    )


def best_seen(findings: Findings) -> list[Configuration]:
    """The configurations that met all requirements, best median first."""
    objective = findings.objective
    groups: dict[Configuration, list[float]] = {}
    for launch in findings.launches:
        if objective.is_feasible(launch) and launch.configuration != BARE:
            assert launch.value is not None
            groups.setdefault(launch.configuration, []).append(launch.value)
    return sorted(groups, key=lambda one: -objective.sign * statistics.median(groups[one]))


def best_so_far(findings: Findings) -> list[float | None]:
    """After each launch, the best value that met all requirements; None before the first."""
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
    """Whether a launch failed; one that was cut for being behind did not."""
    return launch.outcome not in (Outcome.MEASURED, Outcome.CUT)


class Failure(NamedTuple):
    """Launches with the same outcome, exit code and last line of standard error."""

    outcome: Outcome
    configurations: tuple[Configuration, ...]
    numbers: tuple[int, ...]
    """Numbers of the launches, from 1."""
    exit_code: int | None
    notes: tuple[str, ...]
    stderr_tail: str
    """Notes and standard error of the last of them."""


def failures(findings: Findings) -> tuple[Failure, ...]:
    """The failures, in order of their first launch."""
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
