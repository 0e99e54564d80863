# SPDX-License-Identifier: Apache-2.0
"""The launches that a search may make next. `xtune.tuning.next_step` chooses among them.

Nothing is kept that does not follow from the records: after a kill, or in another worker, the same
records lead to the same launch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from xtune.evidence.finals import Final, Finalist, FinalPlan
from xtune.evidence.verdicts import ClaimRule, blocks_for, smallest_gain, spread_range
from xtune.launches.launch import Objective, Outcome
from xtune.launches.summaries import compared
from xtune.search.ablation import without_each
from xtune.search.budget import MAX_BLOCKS, MIN_FINAL, FinalSize, final_size
from xtune.search.events import Allowance, Favourite, Resolution, Seed
from xtune.search.proposer import Belief, Proposer, failed_plans
from xtune.search.records import (
    FinalDetails,
    NextLaunch,
    Record,
    ScoreScale,
    Stage,
    bare_walls_s,
    ended_launches,
)
from xtune.space.parameters import BARE, Configuration
from xtune.space.spaces import Space

CONTROL_EVERY = 11
"""Launches between two controls."""

FIRST_CONTROLS = (6, 4, 25)
"""The distances of the first controls: two come early, to estimate the noise soon, but after the first
configurations; the third comes late."""

LAUNCHES_EACH = 2
"""Once every plan was launched, the best are repeated until there are so many launches for each plan."""

CUT_SHARE = math.log(1.4)
CUT_SPREADS = 6.0
"""A launch is ended early if it is behind the best by 40 % and by six times the noise."""

FINALIST_DEVIATIONS = 2.0
"""A configuration further behind the favourite than this, by the model, is not a finalist."""

MAX_CHECKS = 6
"""Maximum number of changes of the best that are left out, one at a time, before a final."""


class Strategy:
    """What could be launched next, after some records."""

    def __init__(
        self,
        space: Space,
        plan_hash: Callable[[Configuration], str | None],
        objective: Objective,
        *,
        host: str = "",
        seeds: Sequence[Seed] = (),
        rule: ClaimRule | None = None,
        seed: int = 0,
    ) -> None:
        """`plan_hash`: see `Resolver.plan_hash`. `host`: this worker's; each host has its own controls."""
        self._space = space
        self._objective = objective
        self._host = host
        self._rule = rule or ClaimRule()
        self._seed = seed
        self._proposer = Proposer(space, plan_hash, seed)
        default = Seed("xlaunch", space.default)
        self._seeds = self._distinct([default, *seeds])

    @property
    def plans(self) -> int | None:
        """The number of different plans; None if the space is too large to resolve."""
        return self._proposer.plans

    # Launches of the search.

    def bare_command(self, records: Sequence[Record]) -> NextLaunch | None:
        """The bare command, once on each host; again if that launch failed."""
        mine = [record for record in records if record.host == self._host]
        tried = [record.launch for record in mine if record.step.stage is Stage.BASELINE]
        if any(launch is None or launch.outcome is Outcome.MEASURED for launch in tried):
            return None
        key = f"baseline {self._host} {len(tried)}"
        return self._step(Stage.BASELINE, BARE, key, "the bare command")

    def control(self, records: Sequence[Record]) -> NextLaunch | None:
        """The bare command again, if a control is due on this host."""
        mine = [record for record in records if record.host == self._host]
        bare = [at for at, record in enumerate(mine) if record.step.configuration == BARE]
        if not bare:
            return None
        every = (*FIRST_CONTROLS, CONTROL_EVERY)[min(len(bare), len(FIRST_CONTROLS) + 1) - 1]
        if len(mine) - bare[-1] < every:
            return None
        key = f"control {self._host} {len(bare)}"
        return self._step(Stage.CONTROL, BARE, key, "the bare command")

    def starting_point(self, records: Sequence[Record]) -> NextLaunch | None:
        """Xlaunch's defaults, presets and earlier winners, each once."""
        launched = {record.step.plan_hash for record in records}
        for seed in self._seeds:
            plan_hash = self._hash(seed.configuration)
            if plan_hash not in launched:
                return self._step(Stage.SEED, seed.configuration, f"seed {plan_hash}", seed.origin)
        return None

    def proposal(self, records: Sequence[Record]) -> NextLaunch | None:
        """A new configuration, or the best again; None after `LAUNCHES_EACH` times the plans."""
        scale = ScoreScale(records, self._objective)
        plans = self._proposer.plans
        if plans is not None and len(scale.ratings) >= LAUNCHES_EACH * plans:
            return None
        taken = {record.step.plan_hash for record in records if record.launch is None}
        chosen = self._proposer.propose(scale.ratings, scale.spread, taken)
        if chosen is None:
            return None
        plan_hash = self._hash(chosen)
        before = sum(record.step.plan_hash == plan_hash for record in records)
        step = self._step(Stage.SEARCH, chosen, f"search {plan_hash} {before}")
        return step._replace(cut_at=self._cut_at(scale))

    def _cut_at(self, scale: ScoreScale) -> float | None:
        """The value that a launch must reach; otherwise it may be ended early."""
        scores = [
            rating.score
            for rating in scale.ratings
            if rating.score is not None and not rating.is_cut
        ]
        if not scores:
            return None
        behind = max(CUT_SHARE, CUT_SPREADS * scale.spread)
        return scale.objective.value_at(max(scores) - behind)

    def check(self, records: Sequence[Record]) -> NextLaunch | None:
        """The best without one of its changes, then without all that seem to do nothing.

        None unless the best is clearly ahead, and after `MAX_CHECKS` changes. The launches show
        which changes matter; only the last one can change what the final compares.
        """
        best = self._clear_best(records)
        if best is None:
            return None
        launched = {record.step.plan_hash for record in records}
        lean = self._lean(records, best)
        wanted = [*self._without(best)]
        if lean != best:
            wanted.append(("the best without what seems to do nothing", lean))
        for origin, configuration in wanted:
            plan_hash = self._proposer.resolve(configuration)
            if plan_hash is not None and plan_hash not in launched:
                return self._step(Stage.ABLATION, configuration, f"ablation {plan_hash}", origin)
        return None

    def checks_left(self, records: Sequence[Record]) -> int:
        """The number of launches that `check` may still make."""
        best = self._clear_best(records)
        if best is None:
            return 0
        launched = {record.step.plan_hash for record in records}
        plans = [self._proposer.resolve(one) for _, one in self._without(best)]
        return sum(plan not in launched for plan in plans) + 1

    def _clear_best(self, records: Sequence[Record]) -> Configuration | None:
        """The favourite if it is ahead of the bare command by more than noise."""
        scale = ScoreScale(_without_checks(records), self._objective)
        if scale.bare is None or scale.lead <= self._rule.min_effect:
            return None
        return next(iter(self._favourites(scale, 1)), None)

    def _without(self, best: Configuration) -> list[tuple[str, Configuration]]:
        ablations = without_each(self._space, best)[:MAX_CHECKS]
        return [(f"the best without its {name}", one) for name, one in ablations]

    def _lean(self, records: Sequence[Record], best: Configuration) -> Configuration:
        """The best without the changes whose loss was within the noise; the best if that was slower."""
        scale = ScoreScale(records, self._objective)
        whole = scale.mean_of(self._hash(best))
        if whole is None:
            return best
        least = whole - max(self._rule.min_effect, scale.spread)

        def is_as_good(one: Configuration) -> bool:
            mean = scale.mean_of(self._proposer.resolve(one) or "")
            return mean is not None and mean >= least

        checked = without_each(self._space, best)[:MAX_CHECKS]
        useless = [name for name, ablation in checked if is_as_good(ablation)]
        defaults = {name: self._space.parameter(name).default for name in useless}
        lean = self._space.complete({**best, **defaults})
        if lean not in self._space or self._proposer.resolve(lean) is None:
            return best
        is_known = any(rating.plan_hash == self._hash(lean) for rating in scale.ratings)
        return best if is_known and not is_as_good(lean) else lean

    # Launches of the final.

    def final(self, records: Sequence[Record]) -> Final | None:
        """The last final with all its launches; None before there is one."""
        final_launches = final_records(records)
        if not final_launches:
            return None
        launches = {
            (details.block, details.candidate): record.launch
            for details, record in final_launches
            if record.launch is not None
        }
        objective = compared(self._objective, ended_launches(records))
        return Final(final_launches[0][0].plan, objective, launches)

    def final_step(self, final: Final, left: float) -> NextLaunch | None:
        """The next launch of a final; None if it is over, or another block does not fit."""
        launch = final.next(left)
        if launch is None:
            return None
        plans = tuple([self._hash(configuration) for configuration in final.plan.configurations])
        attempt = final.plan.attempt
        details = FinalDetails(attempt, launch.block, launch.candidate, final.plan, plans)
        key = f"final {attempt} {launch.block} {launch.candidate}"
        return self._step(Stage.FINAL, launch.configuration, key)._replace(details=details)

    def first_of_final(self, records: Sequence[Record], size: FinalSize) -> NextLaunch | None:
        """The first launch of a new final; None without a finalist."""
        finalists = self._finalists(records, size.finalists)
        if not finalists:
            return None
        earlier = final_records(records)
        attempt = earlier[-1][0].attempt + 1 if earlier else 0
        changes = [len(self._space.changes(finalist)) for finalist in finalists]
        plan = FinalPlan(
            BARE,
            tuple(map(Finalist, finalists, changes)),
            planned=min(size.launches // (len(finalists) + 1), max(size.blocks, MAX_BLOCKS)),
            rule=self._rule,
            seed=self._seed + attempt,
            attempt=attempt,
        )
        return self.final_step(Final(plan, self._objective), size.launches)

    def size_of_final(
        self, records: Sequence[Record], allowance: Allowance, *, rest: bool = False
    ) -> FinalSize | None:
        """The size of the final; smaller if the favourite is so far ahead that few blocks show it.

        `rest`: nothing else is left to launch: use the rest of the budget.
        """
        size = final_size(allowance.total, allowance.earlier)
        if rest:
            size = (size or MIN_FINAL).with_rest(allowance.left)
            size = size if size.launches <= allowance.left else None
        scale = ScoreScale(records, self._objective)
        if size is None or scale.bare is None or scale.lead <= self._rule.min_effect:
            return size
        gain = math.expm1(scale.lead)
        needed = blocks_for(
            scale.spread, gain, size.blocks, finalists=size.finalists, rule=self._rule
        )
        return size if needed is None else size.with_blocks(needed)

    def cost_of_final(
        self, records: Sequence[Record], size: FinalSize, allowance: Allowance
    ) -> float:
        """The launches to reserve for a final, which may take longer than those so far if time is limited."""
        bare_s = bare_walls_s(records)
        if not allowance.launch_s or not bare_s:
            return size.launches
        return size.blocks * (size.finalists + max(1.0, max(bare_s) / allowance.launch_s)) + 1.0

    def _finalists(self, records: Sequence[Record], count: int) -> list[Configuration]:
        """The best, and its lean form if there is room for both, or in its place."""
        # A check with one lucky launch must not become a finalist.
        scale = ScoreScale(_without_checks(records), self._objective)
        # What failed in most of its launches of finals is not tried in another one.
        finals = [record for record in records if record.step.stage is Stage.FINAL]
        out = failed_plans(ScoreScale(finals, self._objective).ratings)
        favourites = self._favourites(scale, count + len(out))
        favourites = [one for one in favourites if self._hash(one) not in out][:count]
        if not favourites:
            return []
        means, deviations = self._belief(scale).of(favourites)
        reach = FINALIST_DEVIATIONS * (deviations**2 + deviations[0] ** 2) ** 0.5
        near = list(itertools.compress(favourites, means >= means[0] - reach))
        best = self._clear_best(records)
        is_out = best is None or self._hash(best) in out
        lean = favourites[0] if best is None or is_out else self._lean(records, best)
        launched = {record.step.plan_hash for record in records}
        if self._hash(lean) == self._hash(near[0]) or (count == 1 and self._hash(lean) in launched):
            near = [lean, *near[1:]]
        elif self._hash(lean) in launched:
            near = [near[0], lean, *near[1:]]
        chosen: dict[str, Configuration] = {}
        for configuration in near:
            chosen.setdefault(self._hash(configuration), configuration)
        return list(chosen.values())[:count]

    # What is told meanwhile.

    def favourite(self, records: Sequence[Record]) -> Favourite | None:
        """The configuration that is probably best so far; None before anything was measured."""
        scale = ScoreScale(records, self._objective)
        favourites = self._favourites(scale, 2)
        if not favourites:
            return None
        mean = float(self._belief(scale).of(favourites)[0][0])
        ratio = None if scale.bare is None else math.exp(mean - scale.bare)
        objective = scale.objective
        second = favourites[1] if len(favourites) > 1 else None
        return Favourite(favourites[0], objective.value_at(mean), ratio, second, objective.step)

    def resolution(self, records: Sequence[Record], allowance: Allowance) -> Resolution | None:
        """The gains that the search can show; None before a plan was repeated, or without a final."""
        spread, degrees = ScoreScale(records, self._objective).noise_seen
        final = self.final(records)
        if final is not None:
            size = FinalSize(len(final.plan.finalists), max(final.plan.planned, final.blocks))
        else:
            planned = final_size(allowance.total, allowance.earlier)
            if planned is None:
                return None
            size = planned
        if not degrees:
            return None
        # The worst case: no finalist drops out, and the final gets no more than its share.
        gain, low, high = (
            smallest_gain(value, size.blocks, finalists=size.finalists, rule=self._rule)
            for value in (spread, *spread_range(spread, degrees))
        )
        return Resolution(spread, degrees, gain, low, high)

    def _favourites(self, scale: ScoreScale, count: int) -> list[Configuration]:
        return self._proposer.favourites(scale.ratings, self._belief(scale), count)

    def _belief(self, scale: ScoreScale) -> Belief:
        return Belief(self._proposer, scale.ratings, scale.spread)

    def _step(
        self, stage: Stage, configuration: Configuration, key: str, origin: str = ""
    ) -> NextLaunch:
        return NextLaunch(stage, configuration, self._hash(configuration), key, origin)

    def _distinct(self, seeds: Sequence[Seed]) -> list[Seed]:
        """The seeds that can be carried out, each plan once."""
        by_hash: dict[str, Seed] = {}
        for seed in seeds:
            complete = self._space.complete(seed.configuration)
            plan_hash = self._proposer.resolve(complete) if complete in self._space else None
            if plan_hash is not None:
                owner = self._proposer.owners.get(plan_hash, complete)
                by_hash.setdefault(plan_hash, Seed(seed.origin, owner))
        return list(by_hash.values())

    def _hash(self, configuration: Configuration) -> str:
        plan_hash = self._proposer.resolve(configuration)
        assert plan_hash is not None, f"{configuration!r} was chosen but cannot be carried out"
        return plan_hash


def final_records(records: Sequence[Record]) -> list[tuple[FinalDetails, Record]]:
    """The launches of the last final: those of its attempt and plan, started in the same way."""
    rows = [(record.step.details, record) for record in records if record.step.details is not None]
    if not rows:
        return []
    last, _ = max(rows, key=lambda row: (row[0].attempt, row[1].number))
    return [row for row in rows if (row[0].plan, row[0].plans) == (last.plan, last.plans)]


def _without_checks(records: Sequence[Record]) -> list[Record]:
    """The records without plans that were only launched as ablations."""
    others = {r.step.plan_hash for r in records if r.step.stage is not Stage.ABLATION}
    return [record for record in records if record.step.plan_hash in others]
