# SPDX-License-Identifier: Apache-2.0
"""The power of a final: the gains that it can find, and the launches that settle an open one."""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy import special

from xtune.evidence.ratios import RatioInterval, degrees_of_freedom, student_quantile
from xtune.evidence.verdicts import MIN_PAIRS, Rule, look_level

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
    spread: float, blocks: int, *, finalists: int = 1, rule: Rule | None = None
) -> float:
    """The gain that a final of `blocks` blocks finds with 80 % probability: 0.05 is 5 %.

    Counts only the look at its end; earlier ones find a little more.

    spread
        Standard deviation of a launch's logarithm: 0.03 is noise of 3 % from launch to launch.
    """
    rule = rule or Rule()
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
    spread: float, gain: float, limit: int, *, finalists: int = 1, rule: Rule | None = None
) -> int | None:
    """The minimum number of blocks to find a gain with 80 % probability; None if above `limit`."""
    for blocks in range(MIN_PAIRS, limit + 1):
        if smallest_gain(spread, blocks, finalists=finalists, rule=rule) <= gain:
            return blocks
    return None


def settling_blocks(
    interval: RatioInterval, level_after: Callable[[int], float], rule: Rule, *, finalists: int = 1
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


def settle_probability(interval: RatioInterval, more: int, level: float, rule: Rule) -> float:
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
    return sum(float(special.stdtr(degrees, -one / moves)) for one in short)
