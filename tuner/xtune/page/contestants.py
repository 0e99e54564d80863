# SPDX-License-Identifier: Apache-2.0
"""The configurations that the page compares, and the failures that it lists."""

from __future__ import annotations

import statistics
from typing import NamedTuple

from xtune.launches.launch import Launch, Outcome
from xtune.screen.conclusion import Conclusion
from xtune.space.parameters import BARE, Configuration

MAX_CONTESTANTS = 5
"""Configurations that are compared with the bare command in charts."""


class Contestant(NamedTuple):
    """A configuration with a short name for charts and tables."""

    name: str
    """``bare``, or a letter."""
    configuration: Configuration


def contestants(conclusion: Conclusion) -> tuple[Contestant, ...]:
    """The bare command, then the finalists, best first; without a final the best launched ones."""
    chosen = [row.contender.configuration for row in conclusion.verdict.standings]
    chosen = (chosen or best_seen(conclusion))[:MAX_CONTESTANTS]
    return tuple(
        [Contestant(*one) for one in zip(("bare", *"ABCDE"), (BARE, *chosen), strict=False)]
    )


def best_seen(conclusion: Conclusion) -> list[Configuration]:
    """The configurations that met all requirements, best median first."""
    objective = conclusion.objective
    groups: dict[Configuration, list[float]] = {}
    for launch in conclusion.launches:
        if objective.is_feasible(launch) and launch.configuration != BARE:
            assert launch.value is not None
            groups.setdefault(launch.configuration, []).append(launch.value)
    return sorted(groups, key=lambda one: -objective.sign * statistics.median(groups[one]))


def best_so_far(conclusion: Conclusion) -> list[float | None]:
    """After each launch, the best value that met all requirements; None before the first."""
    objective = conclusion.objective
    best: float | None = None
    found: list[float | None] = []
    for launch in conclusion.launches:
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


def failures(conclusion: Conclusion) -> tuple[Failure, ...]:
    """The failures, in order of their first launch."""
    groups: dict[tuple[Outcome, int | None, str], list[tuple[int, Launch]]] = {}
    for number, launch in enumerate(conclusion.launches, start=1):
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
