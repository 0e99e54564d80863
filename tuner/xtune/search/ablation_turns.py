# SPDX-License-Identifier: Apache-2.0
"""Launches of the best configuration without some of its changes, before a final."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from xtune.evidence.verdicts import Rule
from xtune.launches.objectives import Objective
from xtune.search.ablation import leaner, not_launched, without_each
from xtune.search.budget import FinalSize
from xtune.search.proposers import ModelProposer
from xtune.search.records import Record, Stage, Step
from xtune.search.scale import Scale
from xtune.space.parameters import Configuration
from xtune.space.spaces import Space

MAX_ABLATIONS = 6
"""Maximum number of these launches."""

MAX_LOSS = math.log(1.4)
"""A greater loss without one change is taken for an outlier."""

TIE_DEVIATIONS = 1.0
"""Configurations within so many standard deviations count as equal if a final compares them."""


class AblationTurns:
    """Chooses the changes to leave out. Holds nothing that does not follow from the records."""

    def __init__(
        self,
        space: Space,
        model: ModelProposer,
        plan_hash: Callable[[Configuration], str | None],
        objective: Objective,
        rule: Rule,
    ) -> None:
        self._space = space
        self._model = model
        self._plan_hash = plan_hash
        self._objective = objective
        self._rule = rule

    def steps(self, records: Sequence[Record], size: FinalSize) -> list[Step]:
        """The ablations that remain to be launched; none unless the favourite is far ahead.

        First the favourite without the changes that seem to do nothing, then that without each of
        the others. A plan that was launched is skipped, but repeated if it was launched once and its
        change seems to matter.
        """
        scale = Scale(without_ablations(records), self._objective)
        if scale.bare is None or scale.lead <= self._rule.min_effect:
            return []
        favourites = self._model.favourites(scale.ratings, 1)
        if not favourites:
            return []
        seen = Scale(records, self._objective)
        lean = self.leanest(scale, seen, favourites[0], size)
        without = [
            (f"the best without its {name}", one) for name, one in without_each(self._space, lean)
        ]
        wanted = [("the best without what seems to do nothing", lean), *without]
        launched = Counter(record.step.plan_hash for record in records)
        steps = [
            self._step(configuration, origin)
            for origin, configuration in not_launched(wanted, self._plan_hash, launched)
        ]
        steps += [
            self._step(one, origin, "again ")
            for origin, one in without
            if launched[self._plan_hash(one) or ""] == 1 and self._seems_to_matter(seen, lean, one)
        ]
        return steps[:MAX_ABLATIONS]

    def leanest(
        self,
        scale: Scale,
        seen: Scale,
        configuration: Configuration,
        size: FinalSize,
        among: Collection[str] | None = None,
    ) -> Configuration:
        """The configuration without as many changes as cost nothing that matters.

        The model estimates the cost from the launches of `scale`. A leaner configuration is refused
        if its launches in `seen` failed, were cut or were slower than estimated. If the final has
        room for both, it may also be slower by the uncertainty of the model.

        among
            Plans to choose from; None for all that can be carried out.
        """
        if not self._model.learn(scale.ratings):
            return configuration
        best, best_deviation = self._model.believed(configuration)
        deviations = TIE_DEVIATIONS if size.finalists > 1 else 0.0
        refused = {
            rating.plan_hash
            for rating in seen.ratings
            if rating.is_cut
            or rating.score is None
            or rating.score < best - self._rule.min_effect - 2.0 * scale.spread
        }
        found = configuration
        for one in leaner(self._space, configuration, lambda one: self._model.believed(one)[0]):
            plan_hash = self._plan_hash(one)
            if plan_hash is None or plan_hash in refused:
                continue
            if among is not None and plan_hash not in among:
                continue
            mean, deviation = self._model.believed(one)
            reach = deviations * math.hypot(deviation, best_deviation)
            if mean >= best - max(self._rule.min_effect, reach):
                found = one
        return found

    def _step(self, configuration: Configuration, origin: str, again: str = "") -> Step:
        plan_hash = self._plan_hash(configuration)
        assert plan_hash is not None
        key = f"ablation {again}{plan_hash}"
        return Step(Stage.ABLATION, configuration, plan_hash, key, origin)

    def _seems_to_matter(self, seen: Scale, best: Configuration, without: Configuration) -> bool:
        """Whether leaving a change out costs more than noise, and less than an outlier would."""
        score = seen.mean_of(self._plan_hash(without) or "")
        whole = seen.mean_of(self._plan_hash(best) or "")
        if score is None or whole is None:
            return False
        return 2.0 * seen.spread < whole - score < MAX_LOSS


def without_ablations(records: Sequence[Record]) -> list[Record]:
    """The records without the plans that only ablations launched."""
    others = {r.step.plan_hash for r in records if r.step.stage is not Stage.ABLATION}
    return [
        record
        for record in records
        if record.step.stage is not Stage.ABLATION or record.step.plan_hash in others
    ]
