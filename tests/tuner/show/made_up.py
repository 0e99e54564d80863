# SPDX-License-Identifier: Apache-2.0
"""A space, its launches and their records, made of values."""

from __future__ import annotations

from collections.abc import Iterable

from xtune.launches.launch import Goal, Launch, Objective, Outcome, Secondary
from xtune.search.records import NextLaunch, Record, Stage
from xtune.space.parameters import Configuration, Parameter, Target
from xtune.space.spaces import Space

SPACE = Space([Parameter("n", (1, 2, 4), 1, Target.PROGRAM, ordered=True)])
RATE = Objective("items/s", Goal.MAXIMIZE)
TWO, FOUR = Configuration({"n": 2}), Configuration({"n": 4})


def launch(configuration: Configuration, value: float | None, **more: object) -> Launch:
    """A launch of two seconds; without a value it has crashed."""
    outcome = Outcome.CRASHED if value is None else Outcome.MEASURED
    made = Launch(configuration, str(configuration), outcome, value, 0.0, secondary=Secondary(2.0))
    return made._replace(**more)  # type: ignore[arg-type]


def recorded(launches: Iterable[Launch], host: str = "here") -> tuple[Record, ...]:
    return tuple(
        Record(
            number,
            NextLaunch(Stage.SEARCH, one.configuration, one.plan_hash, str(number)),
            host,
            one,
        )
        for number, one in enumerate(launches)
    )
