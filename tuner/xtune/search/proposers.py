# SPDX-License-Identifier: Apache-2.0
"""Choice of the next launch by a model of the space.

`benchmarks/tuner replay` compares it with Optuna's samplers, grids and random search on recorded spaces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from xtune.search.failures import success_chances
from xtune.search.pool import Pool
from xtune.search.records import Rating
from xtune.search.surrogate import Belief, Encoder, Floats, Rows, Surrogate
from xtune.space.parameters import Configuration
from xtune.space.spaces import Space

PlanHash = Callable[[Configuration], str | None]

MIN_CHANCE = 0.2
"""Configurations with a lower probability of success are launched last."""

SAME_DIGITS = 6
"""Merits that agree in this many digits count as equal."""

BEST_AROUND = 3
"""Number of best configurations whose neighbours become candidates in a large space."""

CUT_MARGIN = 0.02
"""A launch that was cut counts as 2 % worse than the value that it missed."""

AGAIN = 3.0
"""Multiplier on the knowledge gradient of repeated launches; tuned by replay.

The model assumes normal noise. Real launches have heavier tails, so repeating them is worth more.
"""


class ModelProposer:
    """Proposes the configuration with the greatest expected improvement by a Gaussian process.

    New configurations are ranked by augmented expected improvement (Huang et al. 2006). A configuration
    is repeated if its knowledge gradient (Frazier et al. 2009) is greater than that of any new one:
    without repeats, the best of many single launches is mostly luck.
    """

    def __init__(self, space: Space, plan_hash: PlanHash, seed: int = 0) -> None:
        self._encoder = Encoder(space)
        self.pool = Pool(space, plan_hash, seed)
        self._seed = seed
        self._surrogate = Surrogate(self._encoder, np.random.default_rng(seed))
        self._learnt: list[Rating] = []

    def propose(
        self, ratings: Sequence[Rating], taken: Collection[str] = ()
    ) -> Configuration | None:
        """The next configuration; None if nothing is left to try.

        ratings
            Those of all launches so far, in order.
        taken
            Plans that other workers are launching.
        """
        scored = [rating for rating in ratings if rating.score is not None]
        failed = _failed(ratings)
        refused = {*taken, *(rating.plan_hash for rating in failed)}
        launched: dict[str, Configuration] = {}
        for rating in ratings:
            launched.setdefault(rating.plan_hash, rating.configuration)
        members = self.pool.around(launched.values(), self.favourites(ratings, BEST_AROUND))
        rows = self._encoder.rows(members)
        if self.learn(ratings):
            improvements, gains = self._merits(scored, rows)
        else:
            improvements = np.ones(len(members))
            gains = np.zeros_like(improvements)
        worked = self._encoder.rows([rating.configuration for rating in scored])
        broken = self._encoder.rows([rating.configuration for rating in failed])
        chances = success_chances(rows, worked, broken)
        chances = np.where(chances < MIN_CHANCE, 0.0, chances)
        chance = np.random.default_rng((self._seed, len(ratings)))
        by_gain, by_improvement = (
            [members[at] for at in best_first(merits * chances, chance)]
            for merits in (gains, improvements)
        )
        if gains.any():
            most_telling = self._first_without(by_gain, launched, refused)
            if most_telling is not None and self.pool.resolve(most_telling) in launched:
                return most_telling
        found = self._first_without(by_improvement, launched, refused | launched.keys())
        return found or self._first_without(by_improvement, launched, refused)

    def _first_without(
        self,
        configurations: Sequence[Configuration],
        launched: Mapping[str, Configuration],
        refused: Collection[str],
    ) -> Configuration | None:
        """The first that can be carried out, represents its plan, and is not refused."""
        for configuration in configurations:
            plan_hash = self.pool.resolve(configuration)
            if plan_hash is None or plan_hash in refused:
                continue
            if launched.get(plan_hash, configuration) == configuration:
                return configuration
        return None

    def favourites(self, ratings: Sequence[Rating], count: int) -> list[Configuration]:
        """The launched configurations that are probably best, the best first; none that failed."""
        failed = {rating.plan_hash for rating in _failed(ratings)}
        whole = {
            r.plan_hash: r.configuration for r in ratings if r.score is not None and not r.is_cut
        }
        choices = [one for plan_hash, one in whole.items() if plan_hash not in failed]
        if not self.learn(ratings):
            return choices[:count]
        means = self._surrogate.believe(self._encoder.rows(choices)).means.mean(axis=0)
        return [choices[at] for at in np.argsort(-means, kind="stable")[:count]]

    def believed(self, configuration: Configuration) -> tuple[float, float]:
        """Mean and standard deviation of a configuration's score, by the last fit."""
        belief = self._surrogate.believe(self._encoder.rows([configuration]))
        means = belief.means[:, 0]
        variance = float(belief.variances[:, 0].mean() + means.var())
        return float(means.mean()), math.sqrt(variance)

    def learn(self, ratings: Sequence[Rating]) -> bool:
        """Fit the model; False for launches of fewer than two plans."""
        scored = [rating for rating in ratings if rating.score is not None]
        if len({rating.plan_hash for rating in scored}) < 2:
            return False
        if scored != self._learnt:
            self._learnt = scored
            rows = self._encoder.rows([rating.configuration for rating in scored])
            values = [_taken_for(rating) for rating in scored]
            self._surrogate.fit(rows, np.array(values))
        return True

    def _merits(self, scored: Sequence[Rating], members: Rows) -> tuple[Floats, Floats]:
        """The augmented improvement and the knowledge gradient of each member, averaged over the fits.

        The gradient of one that was launched already is multiplied by `AGAIN`.
        """
        launched = list(dict.fromkeys(rating.configuration for rating in scored))
        rows = self._encoder.rows(launched)
        seen = self._surrogate.believe(rows).means
        belief = self._surrogate.believe(members)
        covariances = self._surrogate.covariances(members, rows)
        improvements: Floats = augmented_improvement(belief, seen.max(axis=1)).mean(axis=0)
        gains: Floats = knowledge_gradient(belief, seen, covariances).mean(axis=0)
        again = (members[:, None] == rows[None]).all(axis=2).any(axis=1)
        return improvements, np.where(again, AGAIN * gains, gains)


def best_first(merits: Floats, chance: np.random.Generator) -> NDArray[np.intp]:
    """Positions by descending merit; ties are broken at random.

    At first all untried values tie; otherwise their order in the space would always decide.
    """
    largest = merits.max()
    rounded = np.round(merits / largest, SAME_DIGITS) if largest > 0.0 else np.zeros_like(merits)
    return np.lexsort((chance.random(len(merits)), -rounded))


def augmented_improvement(belief: Belief, best: Floats) -> Floats:
    """(fits, configurations): expected improvement on `best`, reduced for noise."""
    deviations = np.sqrt(belief.variances)
    distances = (belief.means - best[:, None]) / deviations
    improvements = deviations * (distances * _normal_cdf(distances) + _normal_density(distances))
    noise = belief.noise[:, None]
    hidden: Floats = improvements * (1.0 - np.sqrt(noise / (belief.variances + noise)))
    return hidden


def knowledge_gradient(belief: Belief, seen: Floats, covariances: Floats) -> Floats:
    """(fits, configurations): expected increase of the best mean by a launch of each.

    The best is a launched configuration, or the configuration itself.

    seen
        (fits, launched), means.
    covariances
        (fits, configurations, launched).
    """
    deviations = np.sqrt(belief.variances + belief.noise[:, None])
    moves_itself = belief.variances / deviations
    moves_others = covariances / deviations[:, :, None]
    raised = np.zeros_like(belief.means)
    for point, weight in zip(_POINTS, _WEIGHTS, strict=True):
        others = (seen[:, None, :] + point * moves_others).max(axis=2)
        raised += weight * np.maximum(others, belief.means + point * moves_itself)
    gains: Floats = raised - seen.max(axis=1)[:, None]
    return gains


_POINTS, _WEIGHTS = np.polynomial.hermite_e.hermegauss(11)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
"""Quadrature for a standard normal variable."""

_GRID = np.linspace(-8.0, 8.0, 4001)
_CDF = np.array([0.5 * math.erfc(-point / math.sqrt(2.0)) for point in _GRID])


def _normal_cdf(points: Floats) -> Floats:
    found: Floats = np.interp(points, _GRID, _CDF)
    return found


def _normal_density(points: Floats) -> Floats:
    density: Floats = np.exp(-0.5 * points**2) / math.sqrt(2.0 * math.pi)
    return density


def _taken_for(rating: Rating) -> float:
    assert rating.score is not None
    return rating.score - CUT_MARGIN if rating.is_cut else rating.score


def _failed(ratings: Sequence[Rating]) -> list[Rating]:
    return [rating for rating in ratings if rating.is_failure]
