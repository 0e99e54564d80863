# SPDX-License-Identifier: Apache-2.0
"""Choice of the next configuration: expected improvement by a Gaussian process with a fixed kernel.

The kernel is the mean of the similarities of all parameters plus their product: the first carries
effects that add up, the second those of a combination. Nothing in it is fitted, since a few dozen
launches cannot tell much about a dozen hyperparameters; only level, spread and noise are estimated.
`benchmarks/tuner replay` compares it with Optuna's samplers, grids and random search.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

from xtune.search.records import Rating
from xtune.space.parameters import Configuration
from xtune.space.spaces import Space

Floats = NDArray[np.float64]
PlanHash = Callable[[Configuration], str | None]

REPEAT_EVERY = 5
"""Every fifth launch repeats the best: the best of many single launches is mostly luck."""

SECOND_LOOKS_AFTER = 3
"""Launches before the first second look."""

SECOND_LOOK_EVERY = 2
MAX_VALUES_LOOKED_AT = 3
MIN_LOOKS = 2
"""Every second launch is a second look: the best with another value of a small unordered parameter that
was launched fewer than twice. In a launch that changed much else, its effect cannot be seen."""

MAX_FAILURES = 1
MAX_FAILED_SHARE = 0.5
"""A plan is not launched again if its failures exceed both limits; one bad launch may be chance."""

FAILED_MERIT = 0.5
"""Factor for a plan that has failed once, so that similar plans are tried before it."""

MIN_SPREAD = 0.02
"""Minimum assumed standard deviation between configurations: 2 %."""

CUT_MARGIN = 0.02
"""A launch that was cut counts as 2 % worse than the value that it missed."""

PRIOR_TIMES = 2.0
"""The assumed standard deviation of configurations, relative to that of the launched ones."""

SIMILARITY_RATE = 1.0
"""Similarity of the values of an ordered parameter: 1/e between its ends."""

MAX_RESOLVED = 512
"""Spaces up to this size are resolved to plans beforehand, larger ones during the search."""

MAX_HELD = 3000
"""Spaces up to this size are held completely. In larger ones, candidates are a sample of half as many,
the launched configurations, and the neighbours of the best."""

BEST_AROUND = 3
"""Number of best configurations whose neighbours become candidates in a large space."""


class Belief:
    """The estimates of configurations after some launches."""

    def __init__(self, model: Proposer, ratings: Sequence[Rating], spread: float) -> None:
        """`spread`: standard deviation between launches of one plan."""
        scores: dict[str, list[float]] = {}
        self.launched: dict[str, Configuration] = {}
        """The first configuration of each plan that has a score."""
        for rating in ratings:
            if rating.score is not None:
                self.launched.setdefault(rating.plan_hash, rating.configuration)
                score = rating.score - CUT_MARGIN * rating.is_cut
                scores.setdefault(rating.plan_hash, []).append(score)
        self._model = model
        self._rows = model.rows(list(self.launched.values()))
        if not scores:
            return
        means = np.array([sum(plan_scores) / len(plan_scores) for plan_scores in scores.values()])
        self._level = float(means.mean())
        self._scale = PRIOR_TIMES * max(float(means.std()), MIN_SPREAD)
        noise = [spread**2 / len(plan_scores) for plan_scores in scores.values()]
        kernel = model.kernel(self._rows, self._rows) + np.diag(noise) / self._scale**2
        self._inverse = np.linalg.inv(kernel)
        self._weights = self._inverse @ (means - self._level) / self._scale

    def of(self, configurations: Sequence[Configuration]) -> tuple[Floats, Floats]:
        """The means and standard deviations of their scores."""
        shared = self._model.kernel(self._model.rows(configurations), self._rows)
        means = self._level + self._scale * (shared @ self._weights)
        unexplained = 1.0 - np.einsum("ij,jk,ik->i", shared, self._inverse, shared)
        return means, self._scale * np.sqrt(np.maximum(unexplained, 1e-12))


class Proposer:
    """Proposes what to launch next; its answers follow from the ratings and the seed."""

    def __init__(self, space: Space, plan_hash: PlanHash, seed: int = 0) -> None:
        """`plan_hash`: see `Resolver.plan_hash`."""
        self._space = space
        self._plan_hash = plan_hash
        self._seed = seed
        self._hashes: dict[Configuration, str | None] = {}
        self.owners: dict[str, Configuration] = {}
        """The configurations that represent the known plans."""
        self._parameters = [p for p in space.parameters if len(p.values) > 1]
        self._alike = [_similarities(space, p.name) for p in self._parameters]
        self._pool = self._make_pool(random.Random(f"{seed} pool"))  # noqa: S311 - no secret

    @property
    def plans(self) -> int | None:
        """The number of different plans; None if the space is too large to resolve."""
        return len(self._pool) if self._space.size <= MAX_RESOLVED else None

    def resolve(self, configuration: Configuration) -> str | None:
        """The hash of the plan; None if it cannot be carried out."""
        if configuration not in self._hashes:
            self._hashes[configuration] = self._plan_hash(configuration)
        return self._hashes[configuration]

    def propose(
        self, ratings: Sequence[Rating], spread: float, taken: Collection[str] = ()
    ) -> Configuration | None:
        """The next configuration; None if nothing is left to try.

        ratings
            Those of all launches so far, in order.
        spread
            Standard deviation of scores between launches of one plan.
        taken
            Plans that other workers are launching.
        """
        belief = Belief(self, ratings, spread)
        best = self.favourites(ratings, belief, BEST_AROUND)
        out = {*taken, *failed_plans(ratings)}
        free = [configuration for configuration in best if self.resolve(configuration) not in out]
        if free and (len(ratings) + 1) % REPEAT_EVERY == 0:
            return free[0]
        launched = belief.launched
        members = self._around(launched.values(), best)
        if len(ratings) > SECOND_LOOKS_AFTER and len(ratings) % SECOND_LOOK_EVERY == 0 and best:
            members = self._second_looks(ratings, best[0], {*out, *launched}) or members
        chance = np.random.default_rng((self._seed, len(ratings)))
        merits = np.ones(len(members))
        if launched:
            means, deviations = belief.of(members)
            merits = improvement(means, deviations, float(belief.of(best)[0][0]) if best else 0.0)
        failed = {rating.configuration: rating.plan_hash for rating in ratings if rating.is_failure}
        merits *= self._success(members, ratings)
        merits *= [FAILED_MERIT if member in failed else 1.0 for member in members]
        # Ties are broken at random: otherwise the order of the space would decide about the untried.
        rounded = np.round(merits / (merits.max() or 1.0), 6)
        order = np.lexsort((chance.random(len(members)), -rounded))
        again: Configuration | None = None
        for at in map(int, order):
            plan_hash = self.resolve(members[at])
            if plan_hash is None or plan_hash in out:
                continue
            if plan_hash in launched:
                again = again or launched[plan_hash]
            elif members[at] in failed or plan_hash not in failed.values():
                return members[at]
        return again

    def favourites(
        self, ratings: Sequence[Rating], belief: Belief, count: int
    ) -> list[Configuration]:
        """The measured configurations, sorted by their estimated score, the best first."""
        failed = failed_plans(ratings)
        whole = {
            rating.plan_hash for rating in ratings if rating.score is not None and not rating.is_cut
        }
        choices = [c for p, c in belief.launched.items() if p in whole and p not in failed]
        if not choices:
            return []
        means = belief.of(choices)[0]
        return [choices[at] for at in np.argsort(-means, kind="stable")[:count]]

    def kernel(self, rows: NDArray[np.intp], others: NDArray[np.intp]) -> Floats:
        """(rows, others): the assumed correlations, 1 for equal rows."""
        each = [
            alike[rows[:, at][:, None], others[:, at][None]] for at, alike in enumerate(self._alike)
        ]
        chances: Floats = 0.5 * (np.mean(each, axis=0) + np.prod(each, axis=0))
        return chances

    def rows(self, configurations: Sequence[Configuration]) -> NDArray[np.intp]:
        """(configurations, parameters): the position of each value."""
        positions = [
            [p.values.index(configuration.get(p.name, p.default)) for p in self._parameters]
            for configuration in configurations
        ]
        return np.array(positions, dtype=np.intp).reshape(-1, len(self._parameters))

    def _second_looks(
        self, ratings: Sequence[Rating], best: Configuration, known: Collection[str]
    ) -> Sequence[Configuration]:
        """The best with one rarely launched value of a small unordered parameter, unless known."""
        small = [
            parameter
            for parameter in self._parameters
            if len(parameter.values) <= MAX_VALUES_LOOKED_AT and not parameter.ordered
        ]
        rarely_tried = [
            best.with_value(one.name, value)
            for one in small
            for value in one.values
            if sum(rating.configuration.get(one.name, one.default) == value for rating in ratings)
            < MIN_LOOKS
        ]
        return [
            configuration
            for configuration in rarely_tried
            if configuration in self._space and self.resolve(configuration) not in {*known, None}
        ]

    def _success(self, members: Sequence[Configuration], ratings: Sequence[Rating]) -> Floats:
        """(members,): the probability of success, from the setting with the most failures."""
        tried = self.rows([rating.configuration for rating in ratings])
        failed = np.array([rating.is_failure for rating in ratings], dtype=bool)
        chances = np.ones(len(members))
        for at, column in enumerate(self.rows(members).T if failed.any() else ()):
            count = len(self._parameters[at].values)
            worked = np.bincount(tried[~failed, at], minlength=count)
            broke = np.bincount(tried[failed, at], minlength=count)
            chances = np.minimum(chances, ((worked + 1.0) / (worked + broke + 1.0))[column])
        return chances

    def _around(
        self, launched: Collection[Configuration], best: Sequence[Configuration]
    ) -> Sequence[Configuration]:
        if self._space.size <= MAX_HELD:
            return self._pool
        candidates = dict.fromkeys((*self._pool, *launched))
        for one in best:
            candidates |= dict.fromkeys(self._space.neighbours(one) if one in self._space else ())
        return tuple(candidates)

    def _make_pool(self, rng: random.Random) -> Sequence[Configuration]:
        space = self._space
        if space.size > MAX_HELD:
            drawn = [space.random(rng) for _ in range(MAX_HELD // 2)]
            return tuple(dict.fromkeys([space.default, *drawn]))
        members = list(space)
        if space.size > MAX_RESOLVED:
            return tuple(members)
        # The configuration with the fewest changes represents its plan.
        for member in sorted(members, key=lambda one: len(space.changes(one))):
            if (plan_hash := self.resolve(member)) is not None:
                self.owners.setdefault(plan_hash, member)
        owners = set(self.owners.values())
        return tuple([member for member in members if member in owners])


def failed_plans(ratings: Sequence[Rating]) -> set[str]:
    """The plans that failed, or broke a requirement, too often to be chosen."""
    failures: dict[str, list[bool]] = {}
    for rating in ratings:
        failures.setdefault(rating.plan_hash, []).append(rating.is_failure)
    return {
        plan_hash
        for plan_hash, plan_failures in failures.items()
        if sum(plan_failures) > max(MAX_FAILURES, MAX_FAILED_SHARE * len(plan_failures))
    }


def improvement(means: Floats, deviations: Floats, best: float) -> Floats:
    """The expected improvement on `best` (Mockus 1975)."""
    distances = (means - best) / deviations
    density = np.exp(-0.5 * distances**2) / math.sqrt(2.0 * math.pi)
    improvements: Floats = deviations * (distances * special.ndtr(distances) + density)
    return improvements


def _similarities(space: Space, name: str) -> Floats:
    """(values, values): 1 for equal values; with an order it decreases with the distance, else 0."""
    count = len(space.parameter(name).values)
    places = space.places(name)
    if count == 2 or places is None:
        return np.eye(count)
    points = np.array(places)
    distances = np.sqrt(((points[:, None] - points[None]) ** 2).sum(axis=2))
    similarities: Floats = np.exp(-SIMILARITY_RATE * distances)
    return similarities
