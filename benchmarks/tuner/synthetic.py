# SPDX-License-Identifier: Apache-2.0
"""Made-up recordings, for when there is no recorded space of the kind that is wanted.

The logarithm of a value is a sum over the parameters, and over some pairs and triples of them. Many
values of many parameters do nothing, two may be the same plan, some combinations fail, launches
differ by a few per cent, and now and then one is much slower. All of it follows from a seed.
"""

from __future__ import annotations

import itertools
import random
from typing import NamedTuple

from benchmarks.tuner.recorded import Header, RecordedLaunch, RecordedPlan, Recording
from xtune.launches.launch import Goal, Launch, Objective, Outcome, Secondary
from xtune.space.parameters import BARE, Configuration, Parameter, Target
from xtune.space.spaces import Space

BARE_GAIN = -0.1
"""Of the bare command, relative to a space in which nothing does anything."""


class Shape(NamedTuple):
    """What kind of space to make."""

    name: str
    counts: tuple[int, ...]
    """Values of each parameter."""
    effect: float = 0.1
    """Standard deviation of what a value that does something does, in logarithms."""
    active: float = 0.6
    """Share of parameters that do something."""
    pairs: int = 2
    """Pairs of parameters that do not add up."""
    triples: int = 0
    tangle: float = 0.5
    """What a pair of values does besides, as a share of `effect`."""
    noise: float = 0.02
    slow_share: float = 0.03
    """Of launches that are hit by something."""
    failing: float = 0.03
    """Share of pairs of values that fail together."""
    same_plan: float = 0.0
    """Share of configurations that come to the plan of a neighbour."""
    launches_each: int = 5
    goal: Goal = Goal.MAXIMIZE


SHAPES = (
    Shape("quiet", (4, 5, 3, 3, 2), noise=0.01),
    Shape("usual", (4, 5, 3, 3, 2), noise=0.03),
    Shape("noisy", (4, 5, 3, 3, 2), noise=0.06, slow_share=0.08),
    Shape("tangled", (4, 5, 3, 3, 2), active=0.8, pairs=5, triples=2, tangle=0.8),
    Shape("steep", (6, 5, 4, 3), effect=0.4, failing=0.06, goal=Goal.MINIMIZE),
    Shape("flat", (4, 5, 3, 3, 2), effect=0.03, noise=0.03),
    Shape("small", (3, 4, 2, 2), noise=0.03),
    Shape("machine", (3, 7, 7, 3, 2), active=0.8, noise=0.02, failing=0.01, launches_each=3),
    Shape("large", (5, 6, 4, 3, 3, 2), noise=0.03, same_plan=0.2, launches_each=3),
)
"""Of 48 to 2160 configurations; `machine` has the sizes of what xtune searches on two CPUs."""


def synthetic_recording(shape: Shape, seed: int = 0) -> Recording:
    """A recording of a made-up space of that shape."""
    return _Maker(shape, seed).make()


class _Maker:
    def __init__(self, shape: Shape, seed: int) -> None:
        self._shape = shape
        self._random = random.Random(f"{shape.name} {seed}")
        self._name = f"{shape.name}-{seed}"
        self._space = tuple(self._parameter(*one) for one in enumerate(shape.counts))
        self._effects = self._main_effects() | self._interactions()
        self._space = self._with_sensible_defaults()
        self._failures = self._failing_pairs()

    def make(self) -> Recording:
        shape, sign = self._shape, 1.0 if self._shape.goal is Goal.MAXIMIZE else -1.0
        objective = Objective("images/s" if sign > 0 else "wall", shape.goal)
        space = Space(self._space)
        header = Header(self._name, space, "made up", ("made-up.py",), objective)
        plans = self._plans()
        rounds = []
        for number in range(shape.launches_each):
            order = list(plans)
            self._random.shuffle(order)
            # The bare command between others, as a recorder does it.
            every = max(1, len(order) // 10)
            for place in range(0, len(order), every):
                order.insert(place + place // every, plans[0])
            rounds += [RecordedLaunch(number, self._launch(plan, sign)) for plan in order]
        return Recording(header, plans, rounds)

    def _parameter(self, index: int, count: int) -> Parameter:
        ordered = index % 3 == 0
        values = tuple(2**i for i in range(count)) if ordered else tuple("abcdefgh"[:count])
        default = values[self._random.randrange(count)]
        return Parameter(f"p{index}", values, default, Target.OPTION, ordered)

    def _with_sensible_defaults(self) -> tuple[Parameter, ...]:
        """The best of three drawn configurations: who chose the defaults has measured a little."""
        drawn = [
            [(parameter.name, self._random.choice(parameter.values)) for parameter in self._space]
            for _ in range(3)
        ]
        best = max(drawn, key=lambda settings: self._gain(set(settings)))
        pairs = zip(self._space, best, strict=True)
        return tuple(parameter._replace(default=value) for parameter, (_, value) in pairs)

    def _main_effects(self) -> dict[tuple, float]:
        effects: dict[tuple, float] = {}
        for parameter in self._space:
            if self._random.random() >= self._shape.active:
                continue
            walk = 0.0
            for value in parameter.values:
                step = self._random.gauss(0, self._shape.effect)
                walk = walk + step if parameter.ordered else step
                # Some values do what the one before does.
                if value != parameter.default and self._random.random() < 0.8:
                    effects[((parameter.name, value),)] = walk
        return effects

    def _interactions(self) -> dict[tuple, float]:
        effects: dict[tuple, float] = {}
        sizes = [2] * self._shape.pairs + [3] * self._shape.triples
        for size in sizes:
            chosen = self._random.sample(self._space, min(size, len(self._space)))
            for values in itertools.product(*(parameter.values for parameter in chosen)):
                if self._random.random() < 0.3:
                    key = tuple((p.name, value) for p, value in zip(chosen, values, strict=True))
                    effects[key] = self._random.gauss(0, self._shape.tangle * self._shape.effect)
        return effects

    def _failing_pairs(self) -> list[tuple]:
        pairs = []
        for one, other in itertools.combinations(self._space, 2):
            for values in itertools.product(one.values, other.values):
                defaults = (one.default, other.default)
                if values != defaults and self._random.random() < self._shape.failing / 3:
                    pairs.append(((one.name, values[0]), (other.name, values[1])))
        return pairs

    def _plans(self) -> list[RecordedPlan]:
        names = [parameter.name for parameter in self._space]
        plans = [RecordedPlan("bare", (BARE,))]
        numbered = enumerate(itertools.product(*(p.values for p in self._space)))
        for number, values in numbered:
            configuration = Configuration(dict(zip(names, values, strict=True)))
            if len(plans) > 1 and self._random.random() < self._shape.same_plan:
                last = plans.pop()
                plans.append(RecordedPlan(last.plan_hash, (*last.configurations, configuration)))
            else:
                plans.append(RecordedPlan(f"{number:04x}", (configuration,)))
        return plans

    def _launch(self, plan: RecordedPlan, sign: float) -> Launch:
        configuration = plan.configurations[0]
        settings = set(configuration.items())
        began_s = 0.0
        if any(set(pair) <= settings for pair in self._failures):
            return Launch(
                configuration, plan.plan_hash or "", Outcome.CRASHED, None, began_s,
                secondary=Secondary(0.5), exit_code=1, stderr_tail="it cannot",
            )  # fmt: skip
        gain = BARE_GAIN if configuration == BARE else self._gain(settings)
        noise = self._random.gauss(0, self._shape.noise)
        if self._random.random() < self._shape.slow_share:
            noise -= self._random.uniform(0.05, 0.3)
        value = 100.0 * 2.718281828 ** (sign * (gain + noise))
        wall_s = value if sign < 0 else 10.0
        return Launch(
            configuration, plan.plan_hash or "", Outcome.MEASURED, value, began_s,
            secondary=Secondary(wall_s),
        )  # fmt: skip

    def _gain(self, settings: set) -> float:
        return sum(effect for key, effect in self._effects.items() if set(key) <= settings)
