# SPDX-License-Identifier: Apache-2.0
"""Replays of strategies on recorded spaces: what each has found after so many launches.

`ours` is a whole search, with baseline, controls and final, run anew for each budget; what it
recommends is the verdict's best where there is a gain, the bare command where there is none, and the
favourite where it is open. `search` is what such a search has found before its final begins: its
favourite after so many launches, baseline and controls included. The others are one run each, as such
tools are used: a launch a configuration, the best value seen so far is the answer, the bare command
before there is one. They give no verdict, so `search` is what compares with them.

A plan is as good as the mean of its recorded launches. What a run sees of it is that mean times the
noise of one of its launches; what it chose is judged by the mean alone, as a share of the best. So no
luck makes both what is seen and what judges, and none makes one at the other's cost: were one of a
plan's five launches held out to judge it, then a slow one would do that exactly where the other four
look good, and who chooses well among equals would seem to choose badly.

A recording's rounds lie hours apart, so what a round came to as a whole, over or under the others, is
taken out first. A/A searches see the launches as they were.
"""

from __future__ import annotations

import math
import random
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.tuner.proposers import GridProposer, OptunaProposer, Proposer, RandomProposer
from benchmarks.tuner.recorded import (
    MemoryStore,
    RecordedLaunch,
    RecordedMeasurer,
    Recording,
    read_recording,
)
from benchmarks.tuner.synthetic import SHAPES, synthetic_recording
from xtune.evidence.verdicts import VerdictKind
from xtune.launches.launch import Launch, Limits, Outcome, Secondary
from xtune.search.budget import Budget
from xtune.search.events import Allowance, SearchOutcome
from xtune.search.records import NextLaunch, Rating, Record, ScoreScale, Stage
from xtune.search.strategy import Strategy
from xtune.space.parameters import BARE, Configuration
from xtune.tuning import Search, next_step

XTUNE = "ours"
SEARCH = "search"
SLOW = "gp"
"""Of Optuna's samplers the one whose every proposal takes a tenth of a second and more."""

Source = str
"""A file, or a shape of made-up spaces. **Ex.:** ``digits.jsonl.gz``, ``noisy``."""

SPACES_EACH = 10
"""Made-up spaces of each shape; they take turns with the seeds."""


class Curve(NamedTuple):
    """What one run had found."""

    seed: int | str
    shares: tuple[float, ...]
    """Of the best recorded plan; one for each budget."""


class Summary(NamedTuple):
    """A mean over seeds and the half of its 95 % interval."""

    mean: float
    reach: float


def load(source: Source, seed: int = 0) -> Recording:
    """The recording of a source, for a run."""
    return _load(source, _number(source, seed))


def _number(source: Source, seed: int) -> int:
    """Of the made-up space."""
    return seed % SPACES_EACH if source in {shape.name for shape in SHAPES} else 0


@lru_cache(maxsize=SPACES_EACH)
def _level(source: Source, number: int) -> Recording:
    return levelled(_load(source, number))


def levelled(recording: Recording) -> Recording:
    """A recording whose every round is at the same level, by the plans that never failed."""
    deviations: dict[int, list[float]] = {}
    means = {
        plan_hash: statistics.fmean(_logs(recording.by_plan[plan_hash]))
        for plan_hash in recording.truth
    }
    for number, launch in recording.launches:
        if launch.plan_hash in means:
            (log,) = _logs([launch])
            deviations.setdefault(number, []).append(log - means[launch.plan_hash])
    levels = {number: math.exp(statistics.fmean(logs)) for number, logs in deviations.items()}

    def at_level(one: RecordedLaunch) -> RecordedLaunch:
        value = one.launch.value
        if value is None:
            return one
        return one._replace(launch=one.launch._replace(value=value / levels.get(one.round, 1.0)))

    launches = [at_level(launch) for launch in recording.launches]
    return Recording(recording.header, recording.plans, launches)


def _logs(launches: Sequence[Launch]) -> list[float]:
    return [math.log(launch.value or math.nan) for launch in launches]


@lru_cache(maxsize=SPACES_EACH)
def _load(source: Source, number: int) -> Recording:
    shapes = {shape.name: shape for shape in SHAPES}
    if source in shapes:
        return synthetic_recording(shapes[source], number)
    return read_recording(Path(source))


def describe(source: Source) -> str:
    """A recording in a line."""
    recording = load(source)
    plans = [plan for plan in recording.plans if plan.plan_hash is not None]
    failing = sum(plan.plan_hash not in recording.truth for plan in plans)
    return (
        f"{source}: {len(plans) - 1} plans ({failing} fail), {exhaustive_launches(source)} launches"
    )


Noise = Mapping[str, Sequence[float]]
"""Of each plan that never failed: of each launch the logarithm of its value, relative to their mean."""


class ResampledMeasurer(RecordedMeasurer):
    """Answers with the mean that a plan came to, and the noise of one of its recorded launches.

    Of plans that failed now and then the launches are drawn as they are.
    """

    def __init__(self, recording: Recording, noise: Noise, seed: int) -> None:
        super().__init__(recording, seed)
        self._noise = noise
        self._chance = random.Random(f"{seed} noise")

    def draw(self, plan_hash: str) -> Launch:
        launch = super().draw(plan_hash)
        if plan_hash not in self._noise:
            return launch
        noise = self._chance.choice(self._noise[plan_hash])
        return launch._replace(value=self.recording.truth[plan_hash] * math.exp(noise))


def measurer_of_run(source: Source, seed: int) -> ResampledMeasurer:
    """What the run of that seed sees."""
    number = _number(source, seed)
    return ResampledMeasurer(_level(source, number), _noise(source, number), seed)


@lru_cache(maxsize=SPACES_EACH)
def _noise(source: Source, number: int) -> Noise:
    return noise_of(_level(source, number))


def noise_of(recording: Recording) -> Noise:
    """Stretched, for a mean of few launches follows each of them; none where there is only one."""
    noise = {}
    for plan_hash in recording.truth:
        logs = _logs(recording.by_plan[plan_hash])
        mean, count = statistics.fmean(logs), len(logs)
        stretch = math.sqrt(count / max(1, count - 1))
        noise[plan_hash] = [(log - mean) * stretch for log in logs]
    return noise


def share(recording: Recording, configuration: Configuration) -> float:
    """What a run's choice reaches of the best recorded plan."""
    return recording.share(recording.plan_hash(configuration))


class NullMeasurer(RecordedMeasurer):
    """A Measurer of a space whose settings do nothing: all launches are the same but for noise.

    The noise is that of the recorded launches, each relative to the mean of its plan, in the order
    of recording from a random start, so slow changes of the machine are kept.
    """

    def __init__(self, recording: Recording, seed: int) -> None:
        super().__init__(recording)
        self._noise = _in_order(recording)
        self._next = random.Random(f"{seed} noise").randrange(len(self._noise))

    def draw(self, plan_hash: str) -> Launch:
        value = 100.0 * math.exp(self._noise[self._next])
        self._next = (self._next + 1) % len(self._noise)
        return Launch(BARE, plan_hash, Outcome.MEASURED, value, 0.0, secondary=Secondary(10.0))


def _in_order(recording: Recording) -> list[float]:
    """The noise of each recorded launch, but of those that are the only ones of their plan."""
    noise = noise_of(recording)
    left = {plan_hash: iter(logs) for plan_hash, logs in noise.items() if len(logs) > 1}
    plans = [recorded.launch.plan_hash for recorded in recording.launches]
    return [next(left[plan_hash]) for plan_hash in plans if plan_hash in left]


def search(
    recording: Recording, launches: int, seed: int, measurer: RecordedMeasurer
) -> SearchOutcome:
    """One of our searches."""
    space, objective = recording.header.space, recording.header.objective
    strategy = Strategy(space, recording.plan_hash, objective, host="here", seed=seed)
    budget = Budget(launches=launches)
    return Search(space, strategy, measurer, MemoryStore(), objective, budget).run()


def recommended(result: SearchOutcome) -> Configuration:
    """What a reader of the verdict would try."""
    if result.verdict.kind is VerdictKind.INCONCLUSIVE and result.favourite is not None:
        return result.favourite.configuration
    return result.verdict.best


def our_curve(source: Source, budgets: Sequence[int], seed: int) -> Curve:
    recording = _level(source, _number(source, seed))
    searches = [
        search(recording, budget, seed, measurer_of_run(source, seed)) for budget in budgets
    ]
    return Curve(seed, tuple(share(recording, recommended(one)) for one in searches))


def search_curve(source: Source, budgets: Sequence[int], seed: int) -> Curve:
    measurer = measurer_of_run(source, seed)
    recording = measurer.recording
    space, objective = recording.header.space, recording.header.objective
    strategy = Strategy(space, recording.plan_hash, objective, host="here", seed=seed)
    records: list[Record] = []
    chosen = [BARE]
    total = BEFORE_FINAL * max(budgets)
    for number in range(max(budgets)):
        step = next_step(strategy, records, Allowance(total - number, total))
        if step is not None:
            launch = measurer.measure(step.configuration, Limits(step.cut_at))
            records.append(Record(number, step, "here", launch))
        favourite = strategy.favourite(records) if number + 1 in budgets else None
        chosen.append(BARE if favourite is None else favourite.configuration)
    return Curve(seed, tuple(share(recording, chosen[budget]) for budget in budgets))


def plain_curve(source: Source, budgets: Sequence[int], seed: int, name: str) -> Curve:
    """A proposer alone: every launch is one it proposed."""
    measurer = measurer_of_run(source, seed)
    recording = measurer.recording
    objective = recording.header.objective
    proposer = PROPOSERS[name](recording, seed)
    ratings: list[Rating] = []
    best, best_score = None, -math.inf
    chosen = [BARE]
    for number in range(max(budgets)):
        configuration = proposer.propose(ratings)
        if configuration is not None:
            plan_hash = recording.plan_hash(configuration) or ""
            step = NextLaunch(Stage.SEARCH, configuration, plan_hash, str(number))
            record = Record(number, step, "here", measurer.measure(configuration))
            (rating,) = ScoreScale([record], objective).ratings
            ratings.append(rating)
            if rating.score is not None and rating.score > best_score:
                best, best_score = configuration, rating.score
        chosen.append(BARE if best is None else best)
    return Curve(seed, tuple(share(recording, chosen[budget]) for budget in budgets))


def _grid(recording: Recording, seed: int) -> Proposer:
    """Which parameter changes fastest is drawn, for no grid is the grid."""
    names = [parameter.name for parameter in recording.header.space.parameters]
    random.Random(f"{seed} grid").shuffle(names)
    return GridProposer(recording.header.space, recording.plan_hash, names)


def _sampler(name: str, recording: Recording, seed: int) -> Proposer:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    if name == SLOW:
        import torch

        torch.set_num_threads(1)
        sampler: optuna.samplers.BaseSampler = optuna.samplers.GPSampler(seed=seed)
    else:
        sampler = optuna.samplers.TPESampler(seed=seed)
    return OptunaProposer(recording.header.space, recording.plan_hash, sampler)


PROPOSERS: dict[str, Callable[[Recording, int], Proposer]] = {
    "random": lambda recording, seed: RandomProposer(
        recording.header.space, recording.plan_hash, seed
    ),
    "grid": _grid,
    "tpe": partial(_sampler, "tpe"),
    "gp": partial(_sampler, "gp"),
    # The space in its order, equal plans as often as they come.
    "hypertune": lambda recording, _: GridProposer(
        recording.header.space, recording.plan_hash, skip_equal=False
    ),
}
STRATEGIES = (XTUNE, SEARCH, *PROPOSERS)

BEFORE_FINAL = 2.0
"""A search of so many times the launches has not begun its final yet."""


def replay(
    source: Source, name: str, budgets: Sequence[int], seeds: Sequence[int], jobs: int
) -> list[Curve]:
    """A curve a seed, in several processes."""
    with ProcessPoolExecutor(jobs) as pool:
        return list(pool.map(partial(_curve, source, budgets, name), seeds, chunksize=5))


def _curve(source: Source, budgets: Sequence[int], name: str, seed: int) -> Curve:
    if name == XTUNE:
        return our_curve(source, budgets, seed)
    if name == SEARCH:
        return search_curve(source, budgets, seed)
    return plain_curve(source, budgets, seed, name)


def replay_aa(source: Source, budget: int, seeds: Sequence[int], jobs: int) -> list[str]:
    """The verdicts of searches in which nothing differs, a verdict a seed."""
    with ProcessPoolExecutor(jobs) as pool:
        return list(pool.map(partial(_aa_verdict, source, budget), seeds, chunksize=5))


def _aa_verdict(source: Source, budget: int, seed: int) -> str:
    recording = load(source, seed)
    return search(recording, budget, seed, NullMeasurer(recording, seed)).verdict.kind.value


def summarise(values: Sequence[float]) -> Summary:
    """The mean, by the normal approximation: seeds are many."""
    if len(values) < 2:
        return Summary(statistics.fmean(values), math.inf)
    return Summary(
        statistics.fmean(values), 1.96 * statistics.stdev(values) / math.sqrt(len(values))
    )


def by_budget(curves: Sequence[Curve]) -> list[Summary]:
    """One for each budget."""
    return [summarise(values) for values in zip(*(curve.shares for curve in curves), strict=True)]


def ahead(ours: Sequence[Curve], theirs: Sequence[Curve]) -> list[Summary]:
    """By how much ours is ahead at each budget, seed by seed."""
    other = {curve.seed: curve for curve in theirs}
    pairs = [(curve, other[curve.seed]) for curve in ours if curve.seed in other]
    differences = [
        [mine - other for mine, other in zip(one.shares, two.shares, strict=True)]
        for one, two in pairs
    ]
    return [summarise(values) for values in zip(*differences, strict=True)]


def exhaustive_launches(source: Source) -> int:
    """Launches of configurations in a recording."""
    return sum(launch.launch.configuration != BARE for launch in load(source).launches)


def binomial_interval(count: int, total: int) -> tuple[float, float]:
    """The exact 95 % interval of a rate (Clopper and Pearson 1934)."""
    from scipy.stats import binomtest

    interval = binomtest(count, total).proportion_ci(0.95, "exact")
    return float(interval.low), float(interval.high)
