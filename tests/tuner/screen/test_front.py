# SPDX-License-Identifier: Apache-2.0
"""Why there is no front is said, where there is none."""

from __future__ import annotations

import pytest

from xtune.evidence.fronts import SecondGoal
from xtune.launches.launch import Launch, Outcome, Secondary
from xtune.launches.objectives import Goal, Objective
from xtune.launches.requirements import parse_requirement
from xtune.screen.front import front_lines
from xtune.space.parameters import BARE, Configuration, Parameter, Where
from xtune.space.spaces import Space

SPACE = Space([Parameter("n", (1, 2), 1, Where.PROGRAM, ordered=True)])
SECOND = SecondGoal("latency", Goal.MINIMIZE)
REQUIRED = parse_requirement("latency<=10")


def launch(n: int | None, latency: float | None) -> Launch:
    metrics = () if latency is None else (("latency", latency),)
    return Launch(
        BARE if n is None else Configuration({"n": n}),
        str(n),
        Outcome.MEASURED,
        100.0,
        0.0,
        secondary=Secondary(1.0),
        metrics=metrics,
        requirements=((REQUIRED.text, latency),),
    )


@pytest.mark.parametrize(
    ("launches", "why"),
    [
        ([launch(None, None), launch(2, None)], "no launch has both values"),
        ([launch(None, 20), launch(2, 30)], "no launch with both values meets the requirements"),
        (
            [launch(None, 20), launch(2, 9), launch(2, 8)],
            "only one configuration has both values and meets the requirements",
        ),
        (
            [launch(None, 9), launch(2, 8)],
            "no configuration was launched twice, so the noise is unknown",
        ),
    ],
)
def test_no_front_is_told_with_the_reason(launches: list[Launch], why: str) -> None:
    objective = Objective("items/s", Goal.MAXIMIZE, (REQUIRED,))
    (line,) = front_lines(launches, SPACE, objective, SECOND)
    assert line == f"  front of items/s and latency: none, because {why}"


def test_only_one_configuration_has_both() -> None:
    objective = Objective("items/s", Goal.MAXIMIZE)
    (line,) = front_lines([launch(None, None), launch(2, 9)], SPACE, objective, SECOND)
    assert line.endswith(": none, because only one configuration has both values")
