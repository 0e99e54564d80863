# SPDX-License-Identifier: Apache-2.0
"""A measurer that does what a test says, on a clock that a test can read."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence

from xtune.launches.launch import NO_LIMITS, Goal, Launch, Limits, Objective, Outcome, Secondary
from xtune.search.events import Allowance
from xtune.search.records import Record, Stage
from xtune.search.strategy import Strategy
from xtune.space.parameters import BARE, Configuration, Parameter, Target
from xtune.space.spaces import Space
from xtune.tuning import next_step

RATE = Objective("items/s", Goal.MAXIMIZE)

SPACE = Space(
    [
        Parameter("allocator", ("auto", "glibc", "jemalloc", "tcmalloc"), "auto", Target.OPTION),
        Parameter("batch", (1, 2, 4, 8, 16), 4, Target.PROGRAM, ordered=True),
        Parameter("omp", ("auto", "gnu", "intel"), "auto", Target.OPTION),
        Parameter("smt", (False, True), False, Target.OPTION),
        Parameter("thp", ("auto", "never", "always"), "auto", Target.OPTION),
    ]
)
"""360 configurations."""

SMALL = Space([SPACE.parameter("allocator"), SPACE.parameter("smt")])
"""8 configurations."""

EFFECTS: Mapping[str, Mapping[object, float]] = {
    "allocator": {"tcmalloc": 0.2, "jemalloc": 0.1},
    "batch": {1: -0.4, 2: -0.1, 8: 0.15, 16: 0.05},
    "thp": {"always": 0.1},
    "smt": {True: -0.2},
}
BEST = SPACE.complete({"allocator": "tcmalloc", "batch": 8, "thp": "always"})
"""Whatever `omp` is; 1.57 times the default."""


def gain(configuration: Configuration) -> float:
    """The logarithm of the true speed; the bare command does what the default does."""
    return sum(EFFECTS.get(name, {}).get(value, 0.0) for name, value in configuration.items())


class ScriptedMeasurer:
    """A Measurer of a made-up speed."""

    def __init__(
        self,
        speed: Callable[[Configuration], float] = gain,
        *,
        noise: float = 0.01,
        seed: int = 0,
        launch_s: float = 10.0,
        bare_s: float | None = None,
        goal: Goal = Goal.MAXIMIZE,
        plan: Callable[[Configuration], str | None] = repr,
        outcomes: Callable[[Configuration], Outcome] = lambda _: Outcome.MEASURED,
        on_launch: Callable[[int], None] = lambda _: None,
        change: Callable[[Launch], Launch] = lambda launch: launch,
    ) -> None:
        """`speed`: logarithms. `on_launch`: told the number of each launch before it is made.

        `change`: what is seen of a launch.
        """
        self._speed = speed
        self._noise = noise
        self._random = random.Random(seed)
        self._launch_s = launch_s
        self._bare_s = launch_s if bare_s is None else bare_s
        self._sign = 1.0 if goal is Goal.MAXIMIZE else -1.0
        self._plan = plan
        self._outcomes = outcomes
        self._on_launch = on_launch
        self._change = change
        self.clock_s = 0.0
        self.measured: list[Configuration] = []
        self.cuts: list[float | None] = []
        self.limits: list[float | None] = []

    def plan_hash(self, configuration: Configuration) -> str | None:
        return self._plan(configuration)

    def now_s(self) -> float:
        return self.clock_s

    def measure(self, configuration: Configuration, limits: Limits = NO_LIMITS) -> Launch:
        self._on_launch(len(self.measured))
        self.measured.append(configuration)
        self.cuts.append(limits.cut_at)
        self.limits.append(limits.limit_s)
        began_s = self.clock_s
        took_s = self._bare_s if configuration == BARE else self._launch_s
        self.clock_s += took_s
        outcome = self._outcomes(configuration)
        log = self._sign * (self._speed(configuration) + self._random.gauss(0.0, self._noise))
        value = 100.0 * math.exp(log) if outcome is Outcome.MEASURED else None
        cut_at = limits.cut_at
        if cut_at is not None and value is not None and self._sign * (value - cut_at) < 0:
            outcome, value = Outcome.CUT, None
        made = Launch(
            configuration,
            self._plan(configuration) or "",
            outcome,
            value,
            began_s,
            secondary=Secondary(took_s, peak_rss_bytes=1 << 20),
            exit_code=1 if outcome is Outcome.CRASHED else 0,
            stderr_tail="it cannot" if outcome is Outcome.CRASHED else "",
        )
        return self._change(made)


def follow(
    strategy: Strategy,
    measurer: ScriptedMeasurer,
    count: int,
    *,
    total: float = 1000.0,
    records: Sequence[Record] = (),
    host: str = "here",
) -> list[Record]:
    """Make so many launches of a strategy, as a session would; fewer where it ends."""
    made = list(records)
    for _ in range(count):
        step = next_step(strategy, made, Allowance(total - len(made), total))
        if step is None:
            break
        launch = measurer.measure(step.configuration, Limits(step.cut_at))
        made.append(Record(len(made), step, host, launch))
    return made


def stages(records: Sequence[Record]) -> list[Stage]:
    return [record.step.stage for record in records]


def searched(records: Sequence[Record]) -> list[Configuration]:
    """What was launched of the space, but for the final."""
    return [
        record.step.configuration
        for record in records
        if record.step.configuration != BARE and record.step.stage is not Stage.FINAL
    ]
