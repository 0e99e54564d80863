# SPDX-License-Identifier: Apache-2.0
"""What xtune's model is compared with: one of Optuna's samplers, a grid, chance."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from xtune.search.records import Rating
from xtune.space.parameters import Configuration
from xtune.space.spaces import Space

if TYPE_CHECKING:
    import optuna

PlanHash = Callable[[Configuration], str | None]

MAX_ASKED = 200
"""Times that a sampler is asked for a configuration that can be carried out."""

CUT_MARGIN = 0.02
"""What was cut is taken to be 2 % worse than the value that it did not reach."""


class Proposer(Protocol):
    """Says which configuration to launch next."""

    def propose(self, ratings: Sequence[Rating]) -> Configuration | None:
        """A configuration that can be carried out; None where nothing is left to try.

        ratings
            Of all launches so far, in order. It only ever grows between calls.
        """
        ...


class RandomProposer:
    """Every plan once, in random order; then all over again."""

    def __init__(self, space: Space, plan_hash: PlanHash, seed: int = 0) -> None:
        self._space = space
        self._plan_hash = plan_hash
        self._random = random.Random(f"{seed} random")
        self._seen: set[str] = set()

    def propose(self, ratings: Sequence[Rating]) -> Configuration | None:
        self._seen |= {rating.plan_hash for rating in ratings}
        possible = None
        for _ in range(MAX_ASKED):
            configuration = self._space.random(self._random)
            plan_hash = self._plan_hash(configuration)
            if plan_hash is None:
                continue
            possible = configuration
            if plan_hash not in self._seen:
                break
        return possible


class GridProposer:
    """The configurations in the order of the space, each plan once."""

    def __init__(
        self,
        space: Space,
        plan_hash: PlanHash,
        order: Sequence[str] | None = None,
        *,
        skip_equal: bool = True,
    ) -> None:
        """`order`: of the parameters, the last one changing fastest; `skip_equal`: equal plans."""
        self._plan_hash = plan_hash
        self._skip_equal = skip_equal
        self._seen: set[str] = set()
        self._left = _grid(space, order)

    def propose(self, ratings: Sequence[Rating]) -> Configuration | None:
        for configuration in self._left:
            plan_hash = self._plan_hash(configuration)
            if plan_hash is None or (self._skip_equal and plan_hash in self._seen):
                continue
            self._seen.add(plan_hash)
            return configuration
        return None


def _grid(space: Space, order: Sequence[str] | None) -> Iterator[Configuration]:
    if order is None:
        yield from space
        return
    parameters = [space.parameter(name) for name in order]
    for values in itertools.product(*(parameter.values for parameter in parameters)):
        configuration = space.complete(dict(zip(order, values, strict=True)))
        if configuration in space:
            yield configuration


class OptunaProposer:
    """One of Optuna's samplers, asked and told.

    Failures are told as worse than anything seen, for a sampler learns nothing from a trial that
    Optuna calls failed.
    """

    def __init__(
        self, space: Space, plan_hash: PlanHash, sampler: optuna.samplers.BaseSampler
    ) -> None:
        import optuna

        self._space = space
        self._plan_hash = plan_hash
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._distributions = _distributions(space)
        self._asked: optuna.Trial | None = None
        """The trial of the launch that is rated last."""
        self._worst: float | None = None

    def propose(self, ratings: Sequence[Rating]) -> Configuration | None:
        if self._asked is not None:
            score = ratings[-1].score
            value = None if score is None else score - CUT_MARGIN * ratings[-1].is_cut
            self._finish(self._asked, value)
            self._asked = None
        for _ in range(MAX_ASKED):
            trial = self._study.ask(self._distributions)
            configuration = _from_internal(self._space, trial.params)
            plan_hash = self._plan_hash(configuration) if configuration in self._space else None
            if plan_hash is not None:
                self._asked = trial
                return configuration
            self._finish(trial, None)
        return None

    def _finish(self, trial: optuna.Trial, value: float | None) -> None:
        """Tell a value; of a failure the worst one seen, once there is one."""
        import optuna

        if value is not None:
            self._worst = value if self._worst is None else min(self._worst, value)
        told = value if value is not None else self._worst
        if told is None:
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(trial, told)


def _distributions(space: Space) -> dict[str, optuna.distributions.BaseDistribution]:
    """Ordered values as their ranks, anything else as it is."""
    from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

    distributions: dict[str, BaseDistribution] = {}
    for parameter in space.parameters:
        if parameter.ordered:
            distributions[parameter.name] = IntDistribution(0, len(parameter.values) - 1)
        else:
            distributions[parameter.name] = CategoricalDistribution(parameter.values)
    return distributions


def _from_internal(space: Space, params: dict[str, Any]) -> Configuration:
    return Configuration(
        {
            p.name: p.values[params[p.name]] if p.ordered else params[p.name]
            for p in space.parameters
        }
    )
