# SPDX-License-Identifier: Apache-2.0
"""The verdict on the finalists (a gain, no gain, or inconclusive), its levels and its power.

gain
    A finalist's corrected interval is above 1, its estimate above the minimal effect, and the plain
    mean of all pairs, outliers included, above 1: a configuration that is usually 5 % faster but
    sometimes much slower is no gain. If nothing makes a difference (an A/A test), at most 2.5 % of
    finals claim a gain.
    Also a gain: the finalist meets a requirement that the baseline breaks, more often than by chance
    (the exact sign test on the blocks in which only one of them met it; McNemar 1947), at the same
    corrected level. That adds at most another 2.5 %.
no gain
    The upper end of every finalist's interval is below 1 + the minimal effect, and the bare command meets
    the requirements. Keep it.
inconclusive
    Anything else, with the launches that should settle it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from scipy import special

from xlaunch.text import counted
from xtune.evidence.noise import outliers
from xtune.evidence.ratios import (
    RatioInterval,
    degrees_of_freedom,
    ratio_interval,
    sign_flip_probability,
    student_quantile,
)
from xtune.space.parameters import Configuration


class VerdictKind(enum.Enum):
    """The kind of a verdict; the values appear in --json."""

    GAIN = "gain"
    NO_GAIN = "no-gain"
    INCONCLUSIVE = "inconclusive"


class ClaimRule(NamedTuple):
    """The confidence of claims, and the smallest gain that matters."""

    confidence: float = 0.95
    min_effect: float = 0.01
    """Smaller gains do not count: 0.01 is 1 %."""

    @property
    def error(self) -> float:
        """The error of each side of the interval, over all finalists and looks."""
        return 0.5 * (1.0 - self.confidence)


class FinalistResults(NamedTuple):
    """The results of one finalist, and what `judge` says of them."""

    configuration: Configuration
    changes: int
    """Settings that differ from xlaunch's defaults; of equal finalists, the one with fewer wins."""
    log_ratios: tuple[float | None, ...]
    """Log ratio to the baseline in each block; None if one of them has no value."""
    kept: tuple[bool | None, ...] = ()
    """Whether it met every requirement in each block; None if it was not measured."""
    memory_bytes: float | None = None
    """Median of its launches' peak memory."""
    out: str = ""
    """Why it was excluded (it failed or broke a requirement), or empty."""
    dropped: str = ""
    """Why it was not measured to the end (it was behind), or empty. It may still show that there is
    no gain."""
    interval: RatioInterval | None = None
    """None before the first pair. Of one that was dropped: the interval then."""
    step: float = 0.0
    """See `Objective.step`."""
    seed: int = 0
    """Seed of random sign flips."""
    is_gain: bool = False
    keeps_more: bool = False
    """Whether it meets requirements that the baseline breaks."""

    @property
    def seen(self) -> tuple[float, ...]:
        return tuple(value for value in self.log_ratios if value is not None)

    @property
    def chance(self) -> float:
        """Exact p-value of the sign-flip test, one-sided and uncorrected. It takes a while."""
        return sign_flip_probability(self.seen, seed=self.seed)

    @property
    def outlying(self) -> tuple[int, ...]:
        """Blocks, from 0, with an outlying pair: they count, and are reported."""
        blocks = [n for n, value in enumerate(self.log_ratios) if value is not None]
        return tuple(blocks[place] for place in outliers(self.seen))


class MoreBudget(NamedTuple):
    """The continuation that should settle an open final (90 % power)."""

    blocks: int
    launches: int
    seconds: float


class Verdict(NamedTuple):
    """The result of a search."""

    kind: VerdictKind
    best: Configuration
    """The configuration to use: the winner, or the baseline."""
    leader: Configuration | None
    """The finalist that `interval` belongs to: the winner, or the best one."""
    interval: RatioInterval | None
    reason: str
    finalists: tuple[FinalistResults, ...] = ()
    """The best first."""
    more: MoreBudget | None = None
    """The continuation that should settle an inconclusive final; None if unknown."""

    @property
    def gain(self) -> float | None:
        """The claimed ratio, or difference of values; None without a gain."""
        if self.kind is not VerdictKind.GAIN or self.interval is None:
            return None
        return self.interval.in_values(self.interval.estimate)


def undecided(baseline: Configuration, reason: str) -> Verdict:
    """The verdict of a search without a final: keep the bare command, nothing is shown."""
    return Verdict(VerdictKind.INCONCLUSIVE, baseline, None, None, reason)


def judge(
    baseline: Configuration,
    finalists: Sequence[FinalistResults],
    *,
    rule: ClaimRule,
    level: float,
    baseline_kept: Sequence[bool | None] = (),
) -> Verdict:
    """The verdict on the results of a paired final so far.

    level
        The one-sided error of this look, before it is shared among the finalists: `rule.error` for a
        single look, `FinalPlan.level` otherwise.
    baseline_kept
        Whether the baseline met every requirement, for each block.
    """
    if not finalists:
        return undecided(baseline, "there was nothing to compare with the bare command")
    share = level / len(finalists)
    ranked = tuple(
        sorted(
            [_judged(row, rule, share, baseline_kept) for row in finalists],
            key=lambda row: (bool(row.out), bool(row.dropped), -_estimate(row)),
        )
    )
    alive = [row for row in ranked if not row.out and row.interval is not None]
    if not alive:
        reasons = "; ".join(dict.fromkeys(c.out or "no pair was measured" for c in finalists))
        reason = f"no finalist is left: {reasons}"
        return undecided(baseline, reason)._replace(finalists=ranked)
    gains = [row for row in alive if row.is_gain or row.keeps_more]
    if gains:
        winner = _fewest_changes(gains, rule)
        kind, best, leader = VerdictKind.GAIN, winner.configuration, winner
        reason = _gain_reason(winner, gains[0])
    else:
        leader = alive[0]
        best = baseline
        is_none = all(_is_no_gain(row, rule) or row.dropped for row in alive)
        broken = sum(kept is False for kept in baseline_kept)
        # Do not advise a bare command that breaks requirements.
        is_none = is_none and _is_no_gain(leader, rule) and broken <= 1
        kind = VerdictKind.NO_GAIN if is_none else VerdictKind.INCONCLUSIVE
        reason = _open_reason(leader)
        if is_none:
            reason = f"{_where(leader)}; gains below {100 * rule.min_effect:g} % do not matter"
        if broken > 1:
            measured = sum(kept is not None for kept in baseline_kept)
            reason += f"; the bare command broke requirements in {broken} of {measured} launches"
    return Verdict(kind, best, leader.configuration, leader.interval, reason, ranked)


def _judged(
    finalist: FinalistResults, rule: ClaimRule, share: float, baseline_kept: Sequence[bool | None]
) -> FinalistResults:
    """The finalist with its interval, and whether it is a gain."""
    interval = finalist.interval
    if interval is None and finalist.seen:
        interval = ratio_interval(finalist.seen, level=share, step=finalist.step)
    if finalist.out or interval is None:
        return finalist._replace(interval=interval)
    blocks = list(zip(finalist.kept, baseline_kept, strict=False))
    better, worse = blocks.count((True, False)), blocks.count((False, True))
    keeps_more = better > 0 and bool(special.bdtrc(better - 1, better + worse, 0.5) <= share)
    is_gain = _is_gain(interval, rule)
    return finalist._replace(interval=interval, is_gain=is_gain, keeps_more=keeps_more)


def _estimate(row: FinalistResults) -> float:
    return row.interval.estimate if row.interval is not None else 0.0


def _is_gain(interval: RatioInterval, rule: ClaimRule) -> bool:
    return (
        interval.pairs >= MIN_PAIRS
        and interval.low > 1.0
        and interval.estimate > 1.0 + rule.min_effect
        and interval.mean > 1.0
    )


def _is_no_gain(row: FinalistResults, rule: ClaimRule) -> bool:
    interval = row.interval
    is_known = interval is not None and interval.pairs >= MIN_PAIRS
    return is_known and interval is not None and interval.high < 1.0 + rule.min_effect


def _fewest_changes(gains: Sequence[FinalistResults], rule: ClaimRule) -> FinalistResults:
    """Among ties with the best gain, the one with the fewest changes, then the least memory."""
    best = gains[0]
    ties = [row for row in gains if is_tie(row, best, rule)]
    return min(
        ties,
        key=lambda row: (
            row.changes,
            math.inf if row.memory_bytes is None else row.memory_bytes,
            -_estimate(row),
        ),
    )


def differences(one: FinalistResults, other: FinalistResults) -> tuple[float, ...]:
    """The log ratios of one finalist to another, for the blocks in which both were measured."""
    return tuple(
        mine - theirs
        for mine, theirs in zip(one.log_ratios, other.log_ratios, strict=False)
        if mine is not None and theirs is not None
    )


def is_tie(one: FinalistResults, best: FinalistResults, rule: ClaimRule) -> bool:
    """Whether a finalist ties with the best one.

    It does if it is behind by less than the minimal effect, or by less than one standard error of the
    difference, as Breiman et al. (1984) choose among models.
    """
    ahead = differences(best, one)
    if len(ahead) < 2:
        return one is best
    seen = ratio_interval(ahead)
    return math.log(seen.estimate) <= max(math.log1p(rule.min_effect), seen.error)


def _ahead(interval: RatioInterval, ratio: float) -> str:
    """One of its ratios. **Ex.:** ``+5.2 %``; for differences ``+0.31``."""
    if math.isinf(ratio):
        return "any"
    if interval.step:
        return f"{interval.in_values(ratio):+.4g}"
    return f"{100.0 * (ratio - 1.0):+.1f} %"


def _gain_reason(winner: FinalistResults, first: FinalistResults) -> str:
    interval = winner.interval
    assert interval is not None
    pairs = counted(interval.pairs, "pair")
    text, least = f"{interval.estimate:.3f} times the bare command", f"{interval.low:.3f}"
    if interval.step:
        text = f"{_ahead(interval, interval.estimate)} against the bare command"
        least = _ahead(interval, interval.low)
    text += f" in {pairs}"
    if interval.low > 0.0:
        text += f", with 95 % confidence at least {least}"
    if winner.keeps_more and not winner.is_gain:
        text = f"it meets the requirements and the bare command does not; {text}"
    if winner is not first:
        text += (
            f"; preferred to one at {_ahead(first.interval or interval, _estimate(first))}, which is not"
            " clearly better and changes more or takes more memory"
        )
    return text


def _open_reason(leader: FinalistResults) -> str:
    interval = leader.interval
    assert interval is not None
    if interval.pairs < MIN_PAIRS:
        few = f"{counted(interval.pairs, 'pair')} {'is' if interval.pairs == 1 else 'are'} too few"
        return f"{few}; a verdict needs at least {MIN_PAIRS}"
    if interval.low > 1.0 and interval.mean <= 1.0:
        return (
            f"the best finalist is usually at {_ahead(interval, interval.estimate)}, but with its outliers"
            f" the mean is {_ahead(interval, interval.mean)}"
        )
    return _where(leader)


def _where(leader: FinalistResults) -> str:
    """The estimate of the best finalist and its interval, in words."""
    interval = leader.interval
    assert interval is not None
    estimate, low, high = (
        _ahead(interval, bound) for bound in (interval.estimate, interval.low, interval.high)
    )
    span = f"95 % confidence interval: {low} to {high}"
    if interval.estimate < 1.0:
        return f"no finalist is ahead of the bare command: the best is at {estimate} ({span})"
    return f"the best finalist is at {estimate} ({span})"


MIN_PAIRS = 4
"""Minimum number of pairs for a claim. Three pairs of bimodal values agree too easily by chance."""

SHARES = {
    4: 0.9, 5: 0.74, 6: 0.67, 7: 0.63, 8: 0.59, 10: 0.55, 12: 0.53, 15: 0.5, 20: 0.47, 30: 0.43,
}  # fmt: skip
MIN_SHARE = 0.39
"""The level at the end of a plan of so many blocks, and of up to 60, relative to the error."""

ATTEMPT_SHARE = 0.91
"""Factor on the level for each halving of the error: rarer crossings are less dependent."""

SHARE_BEYOND_PLAN = 0.05
"""The level just beyond the plan, relative to the error; at twice as many blocks it is half of that."""


def look_level(block: int, planned: int, error: float, attempt: int = 0) -> float:
    """The one-sided level of the look after a block, so that all looks have a total error of `error`.

    The looks are repeated confidence intervals (Jennison and Turnbull 1989), so a final may be stopped
    anywhere, and continued any number of times. Within the plan, levels grow with the square of the
    blocks (Kim and DeMets 1987): large gains are found early, and the end keeps half of the error. They
    use 90 % of it; looks beyond the plan share the rest. `SHARES` was computed by integrating the density
    of a Brownian motion that has crossed no boundary (Armitage, McPherson and Rowe 1969).

    planned
        Blocks of the plan, up to 60; more are allowed.
    attempt
        How often `error` has been halved.
    """
    planned = max(planned, MIN_PAIRS)
    error *= ATTEMPT_SHARE**attempt
    if block > planned:
        return error * SHARE_BEYOND_PLAN * planned / block
    share = next((share for blocks, share in SHARES.items() if blocks >= planned), MIN_SHARE)
    return error * share * (block / planned) ** 2


POWER = 0.8
"""Probability that a final finds the reported smallest gain."""

SETTLING_POWER = 0.9
"""Probability that the advised blocks settle an open final, for any true ratio in the interval. If
nothing makes a difference, 8 of 10 finals are settled; with 0.8 here, 4 of 10."""

EXPECTED_MAX = (0.0, 0.56, 0.85, 1.03)
"""Mean of the maximum of 1, 2, ... standard normal values: the share of luck in the best."""

MAX_ADVISED_BLOCKS = 1000
"""Maximum number of blocks that are advised."""


NOISE_CONFIDENCE = 0.9
"""Confidence of the range of noise, and so of smallest gains."""


def smallest_gain(
    spread: float, blocks: int, *, finalists: int = 1, rule: ClaimRule | None = None
) -> float:
    """The gain that a final of `blocks` blocks finds with 80 % probability: 0.05 is 5 %.

    Counts only the look at its end; earlier ones find a little more.

    spread
        Standard deviation of a launch's logarithm: 0.03 is noise of 3 % from launch to launch.
    """
    rule = rule or ClaimRule()
    level = look_level(blocks, blocks, rule.error) / finalists
    degrees = degrees_of_freedom(blocks)
    reach = float(special.nctdtrinc(degrees, 1.0 - POWER, student_quantile(level, degrees)))
    return max(math.expm1(reach * spread * math.sqrt(2.0 / blocks)), rule.min_effect)


def spread_range(spread: float, degrees: int) -> tuple[float, float]:
    """The 90 % confidence interval of a noise that was estimated with so many degrees of freedom."""
    miss = 0.5 * (1.0 - NOISE_CONFIDENCE)
    low, high = (
        spread * math.sqrt(degrees / special.chdtri(degrees, tail)) for tail in (miss, 1.0 - miss)
    )
    return low, high


def blocks_for(
    spread: float, gain: float, limit: int, *, finalists: int = 1, rule: ClaimRule | None = None
) -> int | None:
    """The minimum number of blocks to find a gain with 80 % probability; None if above `limit`."""
    for blocks in range(MIN_PAIRS, limit + 1):
        if smallest_gain(spread, blocks, finalists=finalists, rule=rule) <= gain:
            return blocks
    return None


def settling_blocks(
    interval: RatioInterval,
    level_after: Callable[[int], float],
    rule: ClaimRule,
    *,
    finalists: int = 1,
) -> int | None:
    """How many more blocks settle an open verdict with 90 % probability; None if more than 1,000.

    interval
        That of the leading finalist. The result is also None if it is behind the baseline by more
        than noise: more launches would only show that there is no gain.
    level_after
        The one-sided level of a look after a number of further blocks, finalists considered.
    finalists
        The number of finalists it leads: part of its estimate is luck.
    """
    luck = EXPECTED_MAX[min(finalists, len(EXPECTED_MAX)) - 1] * interval.error
    estimate = math.log(interval.estimate)
    if not math.isfinite(interval.error) or estimate < -interval.error:
        return None

    possible = [interval._replace(estimate=math.exp(estimate - part * luck)) for part in (0, 1)]

    def is_enough(more: int) -> bool:
        if interval.pairs + more < MIN_PAIRS:
            return False
        level = level_after(more)
        return all(settle_probability(one, more, level, rule) >= SETTLING_POWER for one in possible)

    low, high = 0, 1
    while not is_enough(high):
        if high == MAX_ADVISED_BLOCKS:
            return None
        low, high = high, min(2 * high, MAX_ADVISED_BLOCKS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def settle_probability(interval: RatioInterval, more: int, level: float, rule: ClaimRule) -> float:
    """The probability that `more` pairs show a gain, or its absence.

    The true ratio is unknown, so this is the predictive probability: the new estimate differs from the
    present one by the noise of the new pairs and the error of the present one.
    """
    if not interval.error > 0.0:
        return 1.0
    pairs = interval.pairs + more
    spread = interval.error * math.sqrt(interval.pairs)
    moves = spread * math.sqrt(more / (interval.pairs * pairs))
    reach = student_quantile(level, degrees_of_freedom(pairs)) * spread / math.sqrt(pairs)
    minimal, estimate = math.log1p(rule.min_effect), math.log(interval.estimate)
    degrees = degrees_of_freedom(interval.pairs)
    short = (max(reach, minimal) - estimate, estimate - (minimal - reach))
    return sum(float(special.stdtr(degrees, -distance / moves)) for distance in short)
