# SPDX-License-Identifier: Apache-2.0
"""Choice of the next launch from all launches so far.

First the bare command, then the seeds: xlaunch's default, presets, earlier winners, and the default
with the program's parameters at the other end of their ranges. A small space is raced, a larger one
searched with a model. The bare command is repeated every few launches, as a control. If the best is far
ahead, it is launched without the changes that seem to do nothing, then without each of the others. The
rest of the budget goes to the paired final.

A strategy keeps no state of its own: after a kill, or in another worker, the same records lead to the
same launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from xtune.evidence.advice import blocks_for, smallest_gain
from xtune.evidence.finals import Final, Finalist, plan_final
from xtune.evidence.verdicts import Rule
from xtune.launches.launch import Outcome
from xtune.launches.objectives import Objective
from xtune.search.ablation_turns import MAX_ABLATIONS, AblationTurns, without_ablations
from xtune.search.budget import MAX_BLOCKS, MIN_FINAL, FinalSize, final_size
from xtune.search.final_turns import FinalTurns, final_records
from xtune.search.proposers import ModelProposer
from xtune.search.racing import LAUNCHES_EACH, RaceState, Scores, block_order, race_state
from xtune.search.records import Rating, Record, Stage, Step, unscore
from xtune.search.scale import Scale
from xtune.space.parameters import BARE, Configuration, Value, Where
from xtune.space.spaces import Space

CONTROL_EVERY = 11
"""Launches between two controls."""

FIRST_CONTROLS = (4, 4, 25)
"""The same for the first controls: two come early, to learn the noise soon; the next comes late."""

MIN_KEPT = 3
"""Minimum number of launches reserved for ablations, since the best may change."""

CUT_SHARE = math.log(1.4)
CUT_SPREADS = 6.0
"""A launch is ended early if it is behind the best by 40 % and by six times the noise."""

FINALIST_DEVIATIONS = 2.0
"""A configuration further behind the favourite than this, by the model, is not a finalist."""


class Seed(NamedTuple):
    """A configuration worth trying first."""

    origin: str
    """**Ex.:** ``preset throughput``, ``winner of an earlier study``."""
    configuration: Configuration


class Allowance(NamedTuple):
    """Estimated number of launches that the budget allows; infinite without a limit."""

    left: float
    total: float
    """All launches of this search, including the final."""
    since: int = 0
    """Records with lower numbers belong to earlier searches of the study."""
    earlier: int = 0
    """Launches of earlier searches since the last final."""


class Resolution(NamedTuple):
    """The gains that a search can show with its budget."""

    spread: float
    """Noise between launches of the same plan: 0.03 is 3 %."""
    degrees: int
    """Degrees of freedom of `spread`."""
    gain: float
    """The smallest gain that the final finds with 80 % probability: 0.06 is 6 %."""


class Favourite(NamedTuple):
    """The configuration that is probably best so far."""

    configuration: Configuration
    value: float
    """Estimated by the model, in the unit of the metric."""
    low: float
    high: float
    """About 95 % by the model. This is not evidence; only the final is."""
    ratio: float | None
    """Ratio to the bare command, above 1 is better."""


class Strategy:
    """Chooses the next launch."""

    def __init__(
        self,
        space: Space,
        plan_hash: Callable[[Configuration], str | None],
        objective: Objective,
        *,
        host: str = "",
        seeds: Sequence[Seed] = (),
        rule: Rule | None = None,
        seed: int = 0,
    ) -> None:
        """
        plan_hash
            See `Measurer.plan_hash`.
        host
            The host of this worker; each host has its own controls.
        """
        self._space = space
        self._plan_hash = plan_hash
        self._objective = objective
        self._host = host
        self._rule = rule or Rule()
        self._seed = seed
        self._model = ModelProposer(space, plan_hash, seed)
        default = Seed("xlaunch", space.default)
        self._seeds = self._distinct([default, *seeds, *_other_end(space)])
        self._finals = FinalTurns(objective, self._hash)
        self._ablation_turns = AblationTurns(space, self._model, plan_hash, objective, self._rule)

    @property
    def plans(self) -> int | None:
        """The number of different plans; None if the space is too large to resolve."""
        pool = self._model.pool
        return len(pool.configurations) if pool.is_resolved else None

    def races(self, allowance: Allowance) -> bool:
        """Whether the space is small enough to launch all of it several times."""
        if self.plans is None or math.isinf(allowance.total):
            return False
        final = final_size(allowance.total, allowance.earlier)
        room = allowance.total - (final.launches if final else 0)
        return self.plans * LAUNCHES_EACH <= room

    def next(self, records: Sequence[Record], allowance: Allowance) -> Step | None:
        """The next launch. None: finished, or another worker runs the final."""
        if allowance.left < 1:
            return None
        final = self.final(records)
        if final is not None:
            made = final_records(records)
            if _is_under_way(made):
                return None
            is_of_this_search = made[-1].number >= allowance.since
            extended = self._finals.extended(
                final, allowance.left, was_stopped=not is_of_this_search
            )
            if extended.next() is not None:
                return self._finals.turn(extended, is_new=extended is not final)
            if extended.can_continue or is_of_this_search:
                return None
        first = self._baseline(records)
        if first is not None:
            return first
        scale = self._scale(records)
        races = self.races(allowance)
        size = self._size_of_final(scale, allowance)
        if size is not None and allowance.left <= size.launches:
            return self._begin_final(records, size, races=races)
        if size is not None and allowance.left <= size.launches + MAX_ABLATIONS and not races:
            left_out = self._ablation_turns.steps(records, size)
            if left_out and allowance.left <= size.launches + max(len(left_out), MIN_KEPT):
                return left_out[0]
            # Another search launch could find another best, about which less is known.
            if not left_out and records[-1].step.stage is Stage.ABLATION:
                return self._begin_final(records, size.with_rest(allowance.left), races=races)
        step = self._control(records)
        if step is None and not races:
            step = self._seeding(records) or self._searching(records, scale)
        elif step is None:
            step = self._racing(records, scale)
        if step is not None or _is_under_way(records):
            return step
        rest = self._size_of_final(scale, allowance, rest=True)
        if rest is None:
            return None
        if (
            not races
            and size is not None
            and (left_out := self._ablation_turns.steps(records, size))
        ):
            return left_out[0]
        return self._begin_final(records, rest, races=races)

    def favourite(self, records: Sequence[Record]) -> Favourite | None:
        """The configuration that is probably best so far; None before anything was measured."""
        scale = self._scale(records)
        rated = scale.ratings
        found = self._model.favourites(rated, 1)
        if not found:
            return None
        mean, deviation = self._believed(rated, found[0], scale)
        ends = [unscore(mean + side * 2.0 * deviation, self._objective) for side in (-1, 1)]
        ratio = None if scale.bare is None else math.exp(mean - scale.bare)
        value = unscore(mean, self._objective)
        return Favourite(found[0], value, min(ends), max(ends), ratio)

    def resolution(self, records: Sequence[Record], allowance: Allowance) -> Resolution | None:
        """The gains that the search can show; None before a plan was repeated, or without a final."""
        spread, degrees = self._scale(records).noise_seen
        final = self.final(records)
        if final is not None:
            finalists, blocks = len(final.plan.finalists), len(final.plan.orders)
        else:
            size = final_size(allowance.total, allowance.earlier)
            if size is not None and self.plans is not None and self.races(allowance):
                size = size._replace(finalists=min(size.finalists, self.plans))
                size = size.with_rest(allowance.total - LAUNCHES_EACH * self.plans)
            if size is None:
                return None
            finalists, blocks = size
        if not degrees:
            return None
        gain = smallest_gain(spread, blocks, finalists=finalists, rule=self._rule)
        return Resolution(spread, degrees, gain)

    def final(self, records: Sequence[Record]) -> Final | None:
        """The last final with all its launches; None before there is one."""
        return self._finals.last(records)

    def _baseline(self, records: Sequence[Record]) -> Step | None:
        """The bare command, once on each host; again if that launch failed."""
        mine = [record for record in records if record.host == self._host]
        tried = [record.launch for record in mine if record.step.stage is Stage.BASELINE]
        if any(launch is None or launch.outcome is Outcome.MEASURED for launch in tried):
            return None
        key = f"baseline {self._host} {len(tried)}"
        return Step(Stage.BASELINE, BARE, self._hash(BARE), key, "the bare command")

    def _control(self, records: Sequence[Record]) -> Step | None:
        """The bare command again, if a control is due on this host."""
        mine = [record for record in records if record.host == self._host]
        bare = [at for at, record in enumerate(mine) if record.step.configuration == BARE]
        if not bare:
            return None
        every = (*FIRST_CONTROLS, CONTROL_EVERY)[min(len(bare), len(FIRST_CONTROLS) + 1) - 1]
        if len(mine) - bare[-1] < every:
            return None
        key = f"control {self._host} {len(bare)}"
        return Step(Stage.CONTROL, BARE, self._hash(BARE), key, "the bare command")

    def _seeding(self, records: Sequence[Record]) -> Step | None:
        known = {record.step.plan_hash for record in records}
        for seed in self._seeds:
            plan_hash = self._hash(seed.configuration)
            if plan_hash not in known:
                key = f"seed {plan_hash}"
                return Step(Stage.SEED, seed.configuration, plan_hash, key, seed.origin)
        return None

    def _searching(self, records: Sequence[Record], scale: Scale) -> Step | None:
        taken = {record.step.plan_hash for record in records if record.launch is None}
        chosen = self._model.propose(scale.ratings, taken)
        if chosen is None:
            return None
        plan_hash = self._hash(chosen)
        before = sum(record.step.plan_hash == plan_hash for record in records)
        key = f"search {plan_hash} {before}"
        return Step(Stage.SEARCH, chosen, plan_hash, key, cut_at=self._cut_at(scale))

    def _racing(self, records: Sequence[Record], scale: Scale) -> Step | None:
        """The next launch of the block, or of the next one while other workers finish this one."""
        blocks, state = self._race(records, scale)
        if state.is_over:
            return None
        origins = {self._hash(seed.configuration): seed.origin for seed in self._seeds}
        for block in (len(blocks), len(blocks) + 1):
            launched = {r.step.plan_hash for r in records if _race_block(r) == block}
            order = block_order(state.survivors, block, self._seed)
            if block == 0:
                order.sort(key=lambda plan: plan not in origins)
            for plan_hash in order:
                if plan_hash not in launched:
                    configuration = self._model.pool.owner(plan_hash)
                    assert configuration is not None
                    key = f"race {block} {plan_hash}"
                    origin = origins.get(plan_hash, "")
                    cut_at = self._cut_at(scale) if block else None
                    details = {"block": block}
                    return Step(Stage.RACE, configuration, plan_hash, key, origin, cut_at, details)
        return None

    def _race(self, records: Sequence[Record], scale: Scale) -> tuple[list[Scores], RaceState]:
        """The complete blocks, and the race after them."""
        plans = [self._hash(one) for one in self._model.pool.configurations]
        wanted = 2
        blocks: list[Scores] = []
        state = race_state(plans, blocks, wanted)
        while not state.is_over:
            block = {
                record.step.plan_hash: scale.score_of(record)
                for record in records
                if _race_block(record) == len(blocks) and record.launch is not None
            }
            if not block.keys() >= set(state.survivors):
                break
            blocks.append(block)
            state = race_state(plans, blocks, wanted)
        return blocks, state

    def _cut_at(self, scale: Scale) -> float | None:
        """The value that a launch must reach; otherwise it may be ended early."""
        scores = [rating.score for rating in scale.ratings if not rating.is_cut]
        found = [one for one in scores if one is not None]
        if not found:
            return None
        return unscore(max(found) - max(CUT_SHARE, CUT_SPREADS * scale.spread), self._objective)

    def _size_of_final(
        self, scale: Scale, allowance: Allowance, *, rest: bool = False
    ) -> FinalSize | None:
        """The size of the final; smaller if the favourite is so far ahead that few blocks show it.

        rest
            Nothing else is left to launch: use the rest of the budget.
        """
        size = final_size(allowance.total, allowance.earlier)
        if rest:
            size = (size or MIN_FINAL).with_rest(allowance.left)
            size = size if size.launches <= allowance.left else None
        if size is None or scale.bare is None:
            return size
        ahead = scale.lead
        if ahead <= self._rule.min_effect:
            return size
        gain = math.expm1(ahead)
        needed = blocks_for(
            scale.spread, gain, size.blocks, finalists=size.finalists, rule=self._rule
        )
        return size if needed is None else size.with_blocks(needed)

    def _begin_final(
        self, records: Sequence[Record], size: FinalSize, *, races: bool
    ) -> Step | None:
        """The first launch of a new final; None without a finalist."""
        # An ablation with one lucky launch must not become a finalist.
        scale = self._scale(without_ablations(records))
        finalists = self._finalists(records, scale, size, races=races)
        if not finalists:
            return None
        earlier = final_records(records)
        attempt = earlier[-1].step.details["attempt"] + 1 if earlier else 0
        plan = plan_final(
            BARE,
            [Finalist(one, len(self._space.changes(one))) for one in finalists],
            blocks=min(size.launches // (len(finalists) + 1), max(size.blocks, MAX_BLOCKS)),
            rule=self._rule,
            seed=self._seed + attempt,
            attempt=attempt,
        )
        return self._finals.turn(Final(plan, self._objective), is_new=True)

    def _finalists(
        self, records: Sequence[Record], scale: Scale, size: FinalSize, *, races: bool
    ) -> list[Configuration]:
        """The best, and the leanest equally good configuration if there is room for both."""
        found = self._contenders(records, scale, size, races=races)
        if not found:
            return []
        launched = {record.step.plan_hash for record in records}
        lean = self._ablation_turns.leanest(scale, self._scale(records), found[0], size, launched)
        if size.finalists == 1 or self._hash(lean) == self._hash(found[0]):
            return [lean, *found[1:]]
        others = [one for one in found[1:] if self._hash(one) != self._hash(lean)]
        return [found[0], lean, *others][: size.finalists]

    def _contenders(
        self, records: Sequence[Record], scale: Scale, size: FinalSize, *, races: bool
    ) -> list[Configuration]:
        """The configurations that may be best, by the race or by the model; the best first."""
        rated = scale.ratings
        if races:
            survivors = self._race(records, scale)[1].survivors
            owners = [self._model.pool.owner(plan) for plan in survivors[: size.finalists]]
            return [owner for owner in owners if owner is not None]
        found = self._model.favourites(rated, size.finalists)
        if len(found) < 2:
            return found
        best, best_deviation = self._believed(rated, found[0], scale)
        chosen = found[:1]
        for configuration in found[1:]:
            mean, deviation = self._believed(rated, configuration, scale)
            reach = FINALIST_DEVIATIONS * math.hypot(deviation, best_deviation)
            if mean >= best - reach:
                chosen.append(configuration)
        return chosen

    def _believed(
        self, rated: Sequence[Rating], configuration: Configuration, scale: Scale
    ) -> tuple[float, float]:
        """Mean and standard deviation of a launched configuration's score."""
        scores = [rating.score for rating in rated if rating.score is not None]
        if len({rating.plan_hash for rating in rated if rating.score is not None}) < 2:
            return sum(scores) / len(scores), scale.spread / math.sqrt(len(scores))
        return self._model.believed(configuration)

    def _scale(self, records: Sequence[Record]) -> Scale:
        return Scale(records, self._objective)

    def _distinct(self, seeds: Sequence[Seed]) -> list[Seed]:
        """The seeds that can be carried out, each plan once."""
        found: dict[str, Seed] = {}
        for seed in seeds:
            complete = self._space.complete(seed.configuration)
            plan_hash = self._plan_hash(complete) if complete in self._space else None
            if plan_hash is not None:
                owner = self._model.pool.owner(plan_hash) or complete
                found.setdefault(plan_hash, Seed(seed.origin, owner))
        return list(found.values())

    def _hash(self, configuration: Configuration) -> str:
        plan_hash = self._plan_hash(configuration)
        assert plan_hash is not None, f"{configuration!r} was chosen but cannot be carried out"
        return plan_hash


def _other_end(space: Space) -> list[Seed]:
    """The default with each ordered parameter of the program at the other end of its range.

    Users who give a range of batch sizes usually expect the best at its other end.
    """
    changes: dict[str, Value] = {}
    for parameter in space.parameters:
        if parameter.where is Where.PROGRAM and parameter.ordered:
            values = parameter.values
            is_low = 2 * values.index(parameter.default) < len(values)
            changes[parameter.name] = values[-1] if is_low else values[0]
    if not changes:
        return []
    return [Seed(f"the other end of {', '.join(changes)}", space.complete(changes))]


def _race_block(record: Record) -> int | None:
    return record.step.details["block"] if record.step.stage is Stage.RACE else None


def _is_under_way(records: Sequence[Record]) -> bool:
    return any(record.launch is None for record in records)
