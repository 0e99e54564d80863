# SPDX-License-Identifier: Apache-2.0
"""Workloads made of a formula and noise, to try strategies and rules on where the truth is known.

A rule that decides about gains has two numbers: how often it claims one where there is none (the A/A
test), and how often it finds one that is there. Both need thousands of searches, which no machine has
the time for. `SimulatedWorkload` is a `Measurer`: whatever searches real workloads searches it too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from xtune.evidence.finals import Final, Finalist, FinalPlan
from xtune.evidence.verdicts import ClaimRule, Verdict
from xtune.launches.launch import Goal, Launch, Objective, Outcome, Secondary
from xtune.space.parameters import Configuration, Parameter, Value


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


class SimulatedWorkload:
    """A `Measurer` whose values are a known speed times noise; seeded, with a clock of its own."""

    def __init__(
        self,
        speed: Callable[[Configuration], float],
        noise: NoiseModel,
        *,
        seed: int,
        goal: Goal = Goal.MAXIMIZE,
        launch_s: float = 10.0,
    ) -> None:
        """A workload that does `speed(configuration)` items a second, or takes 1 / that many seconds.

        launch_s
            What a launch takes on the workload's clock, whatever its speed.
        """
        self._speed = speed
        self._noise = noise
        self._goal = goal
        self._launch_s = launch_s

        self._generator = np.random.default_rng(seed)
        self._drifted = 0.0
        self._now_s = 0.0

    def plan_hash(self, configuration: Configuration) -> str | None:
        return repr(configuration)

    def now_s(self) -> float:
        return self._now_s

    def measure(
        self,
        configuration: Configuration,
        *,
        cut_at: float | None = None,
        limit_s: float | None = None,
    ) -> Launch:
        """One launch. `cut_at` and `limit_s` are left unheeded: a simulated launch costs nothing."""
        began_s = self._now_s
        self._now_s += self._launch_s
        log = self._draw() + math.log(self._speed(configuration))
        return Launch(
            configuration=configuration,
            plan_hash=repr(configuration),
            outcome=Outcome.MEASURED,
            value=math.exp(log if self._goal is Goal.MAXIMIZE else -log),
            began_s=began_s,
            secondary=Secondary(self._launch_s),
        )

    def _draw(self) -> float:
        """The logarithm of this launch's luck. Every launch draws the same count of numbers."""
        noise = self._noise
        step, own, *rest = self._generator.standard_normal(5).tolist()
        chance, mode = self._generator.random(2).tolist()
        self._drifted += noise.drift * step
        if noise.heavy_tails:
            own /= math.sqrt(sum(value * value for value in rest) / len(rest))
        log = self._drifted + noise.spread * own
        if chance < noise.outlier_rate:
            log += math.log1p(-noise.outlier_loss)
        return float(log + (noise.modes_apart if mode < 0.5 else 0.0))


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
    parameters: Sequence[Parameter], count: int, generator: np.random.Generator
) -> list[Configuration]:
    """So many different configurations of the space, or all it has but the defaults, by chance."""
    found: dict[Configuration, None] = {}
    most = math.prod(len(parameter.values) for parameter in parameters) - 1
    while len(found) < min(count, most):
        drawn = Configuration(
            {row.name: row.values[int(generator.integers(len(row.values)))] for row in parameters}
        )
        if changes_of(drawn, parameters):
            found[drawn] = None
    return list(found)


def changes_of(configuration: Configuration, parameters: Sequence[Parameter]) -> int:
    """How many settings differ from their defaults."""
    return sum(configuration.get(row.name, row.default) != row.default for row in parameters)


def simulate_search(
    workload: SimulatedWorkload,
    parameters: Sequence[Parameter],
    objective: Objective,
    *,
    trials: int = 20,
    finalists: int = 3,
    blocks: int = 12,
    rule: ClaimRule | None = None,
    seed: int = 0,
    stops_when: Callable[[Verdict], bool] | None = None,
) -> tuple[Verdict, int]:
    """The simplest search there is, and its verdict: random trials, the luckiest few to the final.

    Returns the verdict and the launches that the final took.

    stops_when
        Somebody watches the verdict after every block and presses Ctrl-C when this holds.
    """
    generator = np.random.default_rng(seed)
    baseline = Configuration({row.name: row.default for row in parameters})
    seen = [workload.measure(c) for c in random_configurations(parameters, trials, generator)]
    measured = [launch for launch in seen if objective.is_feasible(launch)]
    measured.sort(key=lambda launch: -objective.sign * (launch.value or 0.0))
    chosen = [
        Finalist(launch.configuration, changes_of(launch.configuration, parameters))
        for launch in measured[:finalists]
    ]
    final = Final(
        FinalPlan(baseline, chosen, planned=blocks, rule=rule or ClaimRule(), seed=seed), objective
    )
    while final.blocks < blocks and (turn := final.next()) is not None:
        final.record(turn, workload.measure(turn.configuration))
        if stops_when is not None and turn.block < final.blocks:
            verdict = final.verdict()
            if stops_when(verdict):
                return verdict, len(final.launches)
    return final.verdict(), len(final.launches)
