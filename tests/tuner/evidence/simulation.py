# SPDX-License-Identifier: Apache-2.0
"""Workloads made of a formula and noise, to try rules on where the truth is known.

A rule that decides about gains has two numbers: how often it claims one where there is none (the A/A
test), and how often it finds one that is there. Both need thousands of searches, which no machine has
the time for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from tests.tuner.search.scripted import ScriptedMeasurer

from xtune.launches.launch import Goal
from xtune.space.parameters import Configuration, Value
from xtune.space.spaces import Space


class NoiseModel(NamedTuple):
    """What makes launches of the same configuration differ; factors, as logarithms."""

    spread: float = 0.03
    """Of each launch by itself: 0.03 is 3 %."""
    heavy_tails: bool = False
    """Student's t with 3 degrees of freedom in place of a normal: 1 launch in 75 is 4 spreads off."""
    drift: float = 0.0
    """What the machine moves from one launch to the next and keeps (a random walk)."""
    outlier_rate: float = 0.0
    outlier_loss: float = 0.30
    """What such launches lose: 0.3 is 30 % of their speed."""
    modes_apart: float = 0.0
    """Each launch is in one of two states so far apart (memory that happens to lie well, or not)."""


NOISES: Mapping[str, NoiseModel] = {
    "1 %": NoiseModel(0.01),
    "3 %": NoiseModel(0.03),
    "5 %": NoiseModel(0.05),
    "heavy tails": NoiseModel(0.02, heavy_tails=True),
    "drift": NoiseModel(0.02, drift=0.01),
    "outliers": NoiseModel(0.02, outlier_rate=0.05),
    "two states": NoiseModel(0.01, modes_apart=0.10),
}
"""Kinds of noise that a rule has to stand: of a quiet machine to a busy one."""


def simulated(
    speed: Callable[[Configuration], float],
    noise: NoiseModel,
    *,
    seed: int,
    goal: Goal = Goal.MAXIMIZE,
) -> ScriptedMeasurer:
    """A workload that does 100 times `speed(configuration)` items a second, with this noise."""
    generator = np.random.default_rng(seed)
    drifted = 0.0

    def log_speed(configuration: Configuration) -> float:
        """Every launch draws the same count of numbers."""
        nonlocal drifted
        step, own, *rest = generator.standard_normal(5).tolist()
        chance, mode = generator.random(2).tolist()
        drifted += noise.drift * step
        if noise.heavy_tails:
            own /= math.sqrt(sum(value * value for value in rest) / len(rest))
        log = math.log(speed(configuration)) + drifted + noise.spread * own
        if chance < noise.outlier_rate:
            log += math.log1p(-noise.outlier_loss)
        return float(log + (noise.modes_apart if mode < 0.5 else 0.0))

    return ScriptedMeasurer(log_speed, noise=0.0, goal=goal)


def speed_of(effects: Mapping[str, Mapping[Value, float]]) -> Callable[[Configuration], float]:
    """The speed of configurations whose settings multiply, relative to one that sets nothing.

    effects
        Of a parameter's value, its factor: ``{"allocator": {"tcmalloc": 1.3}}``; 1 where not named.
    """

    def speed(configuration: Configuration) -> float:
        factor = 1.0
        for name, value in configuration.items():
            factor *= effects.get(name, {}).get(value, 1.0)
        return factor

    return speed


def random_configurations(
    space: Space, count: int, generator: np.random.Generator
) -> list[Configuration]:
    """So many different configurations of the space, or all it has but the default, by chance."""
    found: dict[Configuration, None] = {}
    while len(found) < min(count, space.size - 1):
        drawn = Configuration(
            {
                row.name: row.values[int(generator.integers(len(row.values)))]
                for row in space.parameters
            }
        )
        if space.changes(drawn):
            found[drawn] = None
    return list(found)
