# SPDX-License-Identifier: Apache-2.0
"""Searches that ended in every way. Each is made once a session, and its page too."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from tests.tuner.search.scripted import RATE, SMALL, gain
from tests.tuner.show.pages import Element, findings, read_page

from xtune.launches.launch import WALL, Goal, Launch, Objective, Outcome, Series
from xtune.show.results import SearchResult
from xtune.space.parameters import BARE, Configuration


def crash_under_tcmalloc(configuration: Configuration) -> Outcome:
    fails = configuration.get("allocator") == "tcmalloc"
    return Outcome.CRASHED if fails else Outcome.MEASURED


def with_accuracy(launch: Launch) -> Launch:
    """A second metric: large batches are worse by it, whatever else is set."""
    batch = launch.configuration.get("batch", 4)
    return launch._replace(metrics=(("accuracy", 0.9 - 0.01 * math.log(float(batch))),))


def with_samples(launch: Launch) -> Launch:
    if launch.value is None:
        return launch
    values = tuple([launch.value * (1.0 + 0.001 * (n % 7)) for n in range(400)])
    times = tuple([0.01 * n for n in range(400)])
    return launch._replace(series=(Series(0, RATE.metric, times, values),))


def erratic() -> Callable[[Configuration], float]:
    """Speeds that change from launch to launch: 17 % ahead of the bare command on average."""
    launched: Counter[Configuration] = Counter()

    def speed(configuration: Configuration) -> float:
        if configuration == BARE:
            return 0.0
        launched[configuration] += 1
        return 0.3 if launched[configuration] % 2 else 0.02

    return speed


def slow(configuration: Configuration) -> float:
    return 0.0 if configuration == BARE else gain(configuration) - 1.5


ACCURACY = Objective("accuracy", Goal.MAXIMIZE)

CASES: dict[str, Callable[[], SearchResult]] = {
    "gain": lambda: findings(60),
    "no gain": lambda: findings(60, speed=lambda _: 0.0, noise=0.0005),
    "inconclusive": lambda: findings(40, speed=erratic()),
    "behind": lambda: findings(40, speed=slow),
    "behind, no final": lambda: findings(9, speed=slow),
    "no final": lambda: findings(9),
    "one launch": lambda: findings(1),
    "small space": lambda: findings(60, space=SMALL),
    "some fail": lambda: findings(60, outcomes=crash_under_tcmalloc),
    "times": lambda: findings(40, objective=Objective("latency_ms", Goal.MINIMIZE)),
    "wall": lambda: findings(40, objective=Objective(WALL, Goal.MINIMIZE)),
    "two goals": lambda: findings(60, change=with_accuracy, second=ACCURACY),
    "two goals, one launch": lambda: findings(1, change=with_accuracy, second=ACCURACY),
    "samples": lambda: findings(60, change=with_samples),
}


class Case(NamedTuple):
    found: SearchResult
    root: Element
    """Its page."""


@cache
def case(name: str) -> Case:
    found = CASES[name]()
    return Case(found, read_page(found))
