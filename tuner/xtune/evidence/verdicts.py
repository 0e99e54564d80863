# SPDX-License-Identifier: Apache-2.0
"""What may be claimed of the finalists: a gain, no gain, or that it is not settled.

gain
    The corrected interval of a finalist lies above 1, its estimate above the minimal effect, and the
    plain mean of all its pairs, outliers included, above 1 as well: a configuration that is usually
    5 % faster and sometimes loses much more than that is no gain. If nothing makes a difference
    (an A/A test), this is claimed in at most 2.5 % of searches.
    Also a gain: the finalist keeps a requirement which the baseline breaks, more often than chance
    would have it (the exact sign test of the blocks where only one of both kept it; McNemar 1947), at
    the same corrected level: at most another 2.5 %.
no gain
    The upper end of every finalist's interval lies below 1 + the minimal effect: whatever they gain
    is less than what was said to matter, and the default keeps what is required. Keep the default.
inconclusive
    Anything else, with what more budget would settle it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import NamedTuple

from xtune.evidence.bootstrap import best_probabilities
from xtune.evidence.distributions import binomial_at_least, normal_quantile
from xtune.evidence.levels import Spending
from xtune.evidence.noise import outliers
from xtune.evidence.ratios import RatioInterval, ratio_interval, sign_flip_probability
from xtune.space.parameters import Configuration

MOST_BLOCKS = 10_000
"""Blocks beyond which it is not said how many more would settle it."""

FEWEST_PAIRS = 4
"""Pairs below which nothing is claimed. Of values that come in two sorts, 3 agree too easily."""

POWER = 0.8
"""With so many more blocks as are named, it is settled with this probability."""


class Kind(enum.Enum):
    """What a search found; the values are what --json says."""

    GAIN = "gain"
    NO_GAIN = "no-gain"
    INCONCLUSIVE = "inconclusive"


class Rule(NamedTuple):
    """How sure one wants to be, and what matters."""

    confidence: float = 0.95
    min_effect: float = 0.01
    """Gains below this are no gains: 0.01 is 1 %."""
    spending: Spending = Spending.QUADRATIC

    @property
    def error(self) -> float:
        """What each side of the interval may err, all finalists and looks together."""
        return 0.5 * (1.0 - self.confidence)


class Contender(NamedTuple):
    """What the final saw of one finalist."""

    configuration: Configuration
    changes: int
    """Settings that differ from the default; fewer is better where nothing else tells."""
    log_ratios: tuple[float | None, ...]
    """To the baseline, one of each block; None where one of both gave no value."""
    kept: tuple[bool | None, ...] = ()
    """Whether it kept every requirement, one of each block; None where it was not measured."""
    memory_bytes: float | None = None
    """Median peak of its launches."""
    wall_s: float = 0.0
    """Mean of its launches."""
    out: str = ""
    """Why it is no candidate any more: it failed, broke a requirement. Empty: it is one."""
    dropped: str = ""
    """Why it was not measured to the end: it was behind. It may still count as no gain."""
    frozen: RatioInterval | None = None
    """Its interval when it was dropped."""

    @property
    def seen(self) -> tuple[float, ...]:
        return tuple(value for value in self.log_ratios if value is not None)


class Standing(NamedTuple):
    """A finalist's place, as a report shows it."""

    contender: Contender
    interval: RatioInterval | None
    probability_best: float
    """Among the finalists and the baseline, by bootstrap of the blocks."""
    chance: float
    """The exact probability that noise alone favours it as much (sign-flip, one-sided, uncorrected)."""
    outlying: tuple[int, ...]
    """Blocks, from 0, whose pair is far from its others: kept, and said."""
    is_gain: bool
    keeps_more: bool
    """It keeps requirements that the baseline breaks."""


class MoreBudget(NamedTuple):
    """What would settle it with a probability of 80 %, if the noise stays as it was."""

    blocks: int
    launches: int
    seconds: float


class Verdict(NamedTuple):
    """What a search found, and what follows."""

    kind: Kind
    best: Configuration
    """What to run: the winner, or the baseline."""
    leader: Configuration | None
    """The finalist that `interval` speaks of: the winner, or the most promising one."""
    interval: RatioInterval | None
    reason: str
    standings: tuple[Standing, ...] = ()
    """The best first."""
    baseline_probability_best: float = 0.0
    more: MoreBudget | None = None
    """Where it is inconclusive and the noise is known."""

    @property
    def gain(self) -> float | None:
        """The ratio that is claimed; None where none is."""
        return self.interval.estimate if self.kind is Kind.GAIN and self.interval else None


def undecided(baseline: Configuration, reason: str) -> Verdict:
    """The verdict of a search that ended before its final: keep the default, nothing is shown."""
    return Verdict(Kind.INCONCLUSIVE, baseline, None, None, reason)


def judge(
    baseline: Configuration,
    contenders: Sequence[Contender],
    *,
    rule: Rule,
    level: float,
    baseline_kept: Sequence[bool | None] = (),
    baseline_wall_s: float = 0.0,
    seed: int = 0,
    with_chances: bool = True,
) -> Verdict:
    """The verdict on what a paired final has seen so far.

    level
        The one-sided error of this look, before it is shared among the finalists: `rule.error` for a
        single look that was planned; `levels.look_levels` otherwise.
    baseline_kept
        Whether the baseline kept every requirement, one of each block.
    with_chances
        False leaves out the probabilities that decide nothing and take most of the time.

    May be asked after any block. Pure: the same contenders get the same verdict.
    """
    if not contenders:
        return undecided(baseline, "there was nothing to compare the default with")
    share = level / len(contenders)
    best_shares = _best_shares(contenders, seed if with_chances else None)
    chances = [
        sign_flip_probability(row.seen, seed=seed) if with_chances else 1.0 for row in contenders
    ]
    standings = _standings(contenders, rule, share, baseline_kept, best_shares[1:], chances)
    alive = [row for row in standings if not row.contender.out and row.interval is not None]
    if not alive:
        reasons = "; ".join(dict.fromkeys(c.out or "no pair was measured" for c in contenders))
        return Verdict(
            Kind.INCONCLUSIVE, baseline, None, None, f"no finalist is left: {reasons}", standings
        )
    gains = [row for row in alive if row.is_gain or row.keeps_more]
    if gains:
        winner = _fewest_changes(gains, rule)
        kind, best, leader = Kind.GAIN, winner.contender.configuration, winner
        reason = _gain_reason(winner, gains[0], rule)
    else:
        leader = alive[0]
        best = baseline
        is_none = all(_is_no_gain(row, rule) or row.contender.dropped for row in alive)
        broken = sum(kept is False for kept in baseline_kept)
        # "Keep the default" is no advice where the default does not do what was required.
        is_none = is_none and _is_no_gain(leader, rule) and broken <= 1
        kind = Kind.NO_GAIN if is_none else Kind.INCONCLUSIVE
        reason = _no_gain_reason(leader, rule) if is_none else _open_reason(leader, rule)
        if broken > 1:
            measured = sum(kept is not None for kept in baseline_kept)
            reason += f"; the default broke what was required in {broken} of {measured} launches"
    rest = [row for row in alive if not row.contender.dropped]
    return Verdict(
        kind=kind,
        best=best,
        leader=leader.contender.configuration,
        interval=leader.interval,
        reason=reason,
        standings=standings,
        baseline_probability_best=best_shares[0],
        more=_more_budget(leader, rest, rule, len(contenders), baseline_wall_s)
        if kind is Kind.INCONCLUSIVE
        else None,
    )


def _standings(
    contenders: Sequence[Contender],
    rule: Rule,
    share: float,
    baseline_kept: Sequence[bool | None],
    best_shares: Sequence[float],
    chances: Sequence[float],
) -> tuple[Standing, ...]:
    rows = []
    for contender, best_share, chance in zip(contenders, best_shares, chances, strict=True):
        interval = contender.frozen
        if interval is None and contender.seen:
            interval = ratio_interval(contender.seen, level=share)
        is_candidate = not contender.out and interval is not None
        rows.append(
            Standing(
                contender=contender,
                interval=interval,
                probability_best=best_share,
                chance=chance,
                outlying=_outlying(contender),
                is_gain=is_candidate and interval is not None and _is_gain(interval, rule),
                keeps_more=is_candidate and _keeps_more(contender.kept, baseline_kept, share),
            )
        )
    rows.sort(
        key=lambda row: (bool(row.contender.out), row.contender.frozen is not None, -_estimate(row))
    )
    return tuple(rows)


def _outlying(contender: Contender) -> tuple[int, ...]:
    blocks = [n for n, value in enumerate(contender.log_ratios) if value is not None]
    return tuple(blocks[place] for place in outliers(contender.seen))


def _best_shares(contenders: Sequence[Contender], seed: int | None) -> tuple[float, ...]:
    rows = [() if contender.out else contender.log_ratios for contender in contenders]
    blocks = max(len(contender.log_ratios) for contender in contenders)
    if blocks < 2 or seed is None:
        return (0.0,) * (len(contenders) + 1)
    padded = [tuple(row) + (None,) * (blocks - len(row)) for row in rows]
    return best_probabilities(padded, seed=seed)


def _estimate(row: Standing) -> float:
    return row.interval.estimate if row.interval is not None else 0.0


def _is_gain(interval: RatioInterval, rule: Rule) -> bool:
    return (
        interval.pairs >= FEWEST_PAIRS
        and interval.low > 1.0
        and interval.estimate > 1.0 + rule.min_effect
        and interval.plain > 1.0
    )


def _is_no_gain(row: Standing, rule: Rule) -> bool:
    interval = row.interval
    return (
        interval is not None
        and interval.pairs >= FEWEST_PAIRS
        and interval.high < 1.0 + rule.min_effect
    )


def _keeps_more(
    kept: Sequence[bool | None], baseline_kept: Sequence[bool | None], share: float
) -> bool:
    better = sum(
        mine is True and theirs is False for mine, theirs in zip(kept, baseline_kept, strict=False)
    )
    worse = sum(
        mine is False and theirs is True for mine, theirs in zip(kept, baseline_kept, strict=False)
    )
    return better > 0 and binomial_at_least(better, better + worse, 0.5) <= share


def _fewest_changes(gains: Sequence[Standing], rule: Rule) -> Standing:
    """Of those that are as good as the best, the one that changes least, then takes least memory.

    As good: less behind than the minimal effect, or than one standard error of the difference, as
    Breiman et al. (1984) choose among models.
    """
    best = gains[0]
    ties = [row for row in gains if is_tie(row.contender, best.contender, rule)]
    return min(
        ties,
        key=lambda row: (
            row.contender.changes,
            math.inf if row.contender.memory_bytes is None else row.contender.memory_bytes,
            -_estimate(row),
        ),
    )


def differences(one: Contender, other: Contender) -> tuple[float, ...]:
    """The log ratios of one finalist to another, of the blocks in which both were measured."""
    return tuple(
        mine - theirs
        for mine, theirs in zip(one.log_ratios, other.log_ratios, strict=False)
        if mine is not None and theirs is not None
    )


def is_tie(one: Contender, best: Contender, rule: Rule) -> bool:
    """Whether a finalist is as good as the best one for all that is known and all that matters."""
    ahead = differences(best, one)
    if len(ahead) < 2:
        return one is best
    seen = ratio_interval(ahead)
    return math.log(seen.estimate) <= max(math.log1p(rule.min_effect), seen.error)


def _more_budget(
    leader: Standing,
    rest: Sequence[Standing],
    rule: Rule,
    finalists: int,
    baseline_wall_s: float,
) -> MoreBudget | None:
    """What it takes if the estimate is the truth: a proof that it is a gain, or that it is too small.

    None where that would be out of all proportion, which it is close to the minimal effect.
    """
    interval = leader.interval
    if interval is None or not math.isfinite(interval.error):
        return None
    spread = interval.error * math.sqrt(interval.pairs)
    least, estimate = math.log1p(rule.min_effect), math.log(interval.estimate)
    distance = estimate if estimate > least else least - estimate
    needed = _blocks_for(distance, spread, rule.error / finalists)
    if needed is None:
        return None
    blocks = max(1, needed - interval.pairs)
    block_s = baseline_wall_s + sum(row.contender.wall_s for row in rest)
    return MoreBudget(blocks, blocks * (1 + len(rest)), blocks * block_s)


def _blocks_for(distance: float, spread: float, share: float) -> int | None:
    """Pairs after which an interval is shorter than a distance, with 80 % probability."""
    reach = normal_quantile(1.0 - share) + normal_quantile(POWER)
    if distance <= reach * spread / math.sqrt(MOST_BLOCKS):
        return None
    # Two more than the normal formula has, for the spread is estimated (Guenther 1981).
    return math.ceil((reach * spread / distance) ** 2 + 0.5 * normal_quantile(1.0 - share) ** 2)


def blocks_for(
    spread: float, effect: float, *, finalists: int = 3, rule: Rule | None = None
) -> int | None:
    """Blocks in which a gain is found with 80 % probability; None above 10,000.

    spread
        The standard deviation of the log ratio of two launches: 1.41 times that of one.
    effect
        The gain to find: 0.05 is 5 %.
    """
    return _blocks_for(math.log1p(effect), spread, (rule or Rule()).error / finalists)


def _percent(ratio: float) -> str:
    return f"{100.0 * (ratio - 1.0):+.1f} %"


def _gain_reason(winner: Standing, first: Standing, rule: Rule) -> str:
    interval = winner.interval
    assert interval is not None
    text = (
        f"{interval.estimate:.3f} times the default, surely above {interval.low:.3f},"
        f" in {interval.pairs} pairs"
    )
    if winner.keeps_more and not winner.is_gain:
        text = f"it keeps what was required and the default does not; {text}"
    if winner is not first:
        text += (
            f"; chosen before one of {_estimate(first):.3f} times that is no surer to be better"
            " and changes more or takes more memory"
        )
    return text


def _no_gain_reason(leader: Standing, rule: Rule) -> str:
    interval = leader.interval
    assert interval is not None
    return (
        f"the most promising is at {_percent(interval.estimate)}, surely below"
        f" {_percent(interval.high)}; gains below {100 * rule.min_effect:g} % were said not to matter"
    )


def _open_reason(leader: Standing, rule: Rule) -> str:
    interval = leader.interval
    assert interval is not None
    if interval.pairs < FEWEST_PAIRS:
        return f"too few pairs to tell: {interval.pairs}, and {FEWEST_PAIRS} are the least"
    where = f"the most promising is at {_percent(interval.estimate)}"
    span = f"between {_percent(interval.low)} and {_percent(interval.high)}"
    if interval.low > 1.0 and interval.plain <= 1.0:
        return (
            f"{where} as a rule, but outliers take it back: the mean is {_percent(interval.plain)}"
        )
    return f"{where}, surely only {span}"
