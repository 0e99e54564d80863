# SPDX-License-Identifier: Apache-2.0
"""Noise between launches of the same configuration.

Values of one launch share its address-space layout, page placement and neighbours, which differ between
launches. Only more launches average that out, not more values (Kalibera and Jones 2013), so launches
are counted. All computations use logarithms: a spread of 0.02 is 2 % of the value.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from xtune.evidence.distributions import student_quantile
from xtune.evidence.ratios import NoRatioError, has_ratio

MAX_LAUNCHES = 10_000
"""A larger number of needed launches is not reported."""

OUTLIER_Z = 3.5
"""The modified z-score that Iglewicz and Hoaglin (1993) call an outlier."""

MIN_SPREAD = 1e-3
"""Values within 0.1 % of each other are never outliers."""

WIDE_SPREAD = 0.10
WIDE_RANGE = 0.50
"""As pyperf warns: a standard deviation of 10 %, an extreme 50 % away from the mean."""


class Trouble(enum.Enum):
    """The subject of a caution."""

    WIDE_SPREAD = "wide spread"
    WIDE_RANGE = "wide range"
    SLOW_FIRST = "slow first launch"
    OUTLIER = "outlier"
    TOO_FEW = "too few launches"
    MORE_THAN_NEEDED = "more launches than needed"
    DRIFT = "drift"


class Caution(NamedTuple):
    """A warning in one line: the fact, then the remedy."""

    trouble: Trouble
    text: str


class PooledSpread(NamedTuple):
    """A common spread, from all configurations that were launched more than once."""

    spread: float
    degrees: int
    """Launches beyond the first of each configuration."""

    def interval(
        self, values: Sequence[float], *, confidence: float = 0.95
    ) -> tuple[float, float, float]:
        """Estimate, low and high of a configuration's value, even from a single launch.

        Uses the pooled spread, as in an analysis of variance.
        """
        centre = statistics.fmean(_logs(values))
        reach = student_quantile(0.5 * (1.0 - confidence), self.degrees) * self.spread
        reach /= math.sqrt(len(values))
        return math.exp(centre), math.exp(centre - reach), math.exp(centre + reach)


def pooled_spread(groups: Iterable[Sequence[float]]) -> PooledSpread | None:
    """The pooled spread between launches of the same configuration; None if none has two.

    groups
        The values of the launches of each configuration.
    """
    squares, degrees = 0.0, 0
    for group in groups:
        if len(group) > 1:
            squares += (len(group) - 1) * statistics.variance(_logs(group))
            degrees += len(group) - 1
    return PooledSpread(math.sqrt(squares / degrees), degrees) if degrees else None


def launches_for(spread: float, *, precision: float = 0.01, confidence: float = 0.95) -> int | None:
    """Launches that determine a value to 1 % with 95 % confidence; None if more than 10,000.

    The smallest n with a short enough t interval, as in pyperf's `check`.
    """
    reach, miss = math.log1p(precision), 0.5 * (1.0 - confidence)
    low, high = 2, MAX_LAUNCHES
    if student_quantile(miss, high - 1) * spread > reach * math.sqrt(high):
        return None
    while low < high:
        middle = (low + high) // 2
        if student_quantile(miss, middle - 1) * spread <= reach * math.sqrt(middle):
            high = middle
        else:
            low = middle + 1
    return low


def outliers(values: Sequence[float]) -> tuple[int, ...]:
    """The positions of outliers.

    Modified z-score: the distance to the median in units of 1.4826 median absolute deviations, above
    3.5 (Iglewicz and Hoaglin 1993). Empty for fewer than 5 values. Pass logarithms or log ratios.
    """
    if len(values) < 5:
        return ()
    centre = statistics.median(values)
    away = [abs(value - centre) for value in values]
    scale = max(1.4826 * statistics.median(away), MIN_SPREAD)
    return tuple(place for place, distance in enumerate(away) if distance > OUTLIER_Z * scale)


def noise_cautions(
    values: Sequence[float], *, precision: float = 0.01, confidence: float = 0.95
) -> tuple[Caution, ...]:
    """Warnings about the values of one configuration's launches, in the order launched.

    The same as pyperf's checks, and hyperfine's of the first run.
    """
    if len(values) < 2:
        return (
            Caution(
                Trouble.TOO_FEW,
                f"{len(values)} launch does not show the noise; launch it again",
            ),
        )
    found = []
    mean = statistics.fmean(values)
    share = statistics.stdev(values) / mean
    if share >= WIDE_SPREAD:
        found.append(
            Caution(
                Trouble.WIDE_SPREAD,
                f"launches differ by {share:.0%} (standard deviation); stop other programs, or make"
                " launches longer",
            )
        )
    for name, extreme in (("lowest", min(values)), ("highest", max(values))):
        if abs(extreme - mean) >= WIDE_RANGE * mean:
            found.append(
                Caution(
                    Trouble.WIDE_RANGE,
                    f"the {name} launch is {abs(extreme - mean) / mean:.0%} away from the mean;"
                    " check what else ran then",
                )
            )
    logs = _logs(values)
    odd = outliers(logs)
    if 0 in odd:
        found.append(
            Caution(
                Trouble.SLOW_FIRST,
                "the first launch is an outlier, probably with cold caches (files, compiled code); run the"
                " workload once before",
            )
        )
    rest = [place + 1 for place in odd if place]
    if rest:
        found.append(
            Caution(
                Trouble.OUTLIER,
                f"launch {', '.join(map(str, rest))} of {len(values)} is an outlier; it is kept, and"
                " trimmed if there are enough others",
            )
        )
    needed = launches_for(statistics.stdev(logs), precision=precision, confidence=confidence)
    named = f"{100 * precision:g} % with {100 * confidence:g} % confidence"
    if needed is None or needed > len(values):
        count = f"more than {MAX_LAUNCHES}" if needed is None else str(needed)
        found.append(
            Caution(
                Trouble.TOO_FEW, f"{len(values)} launches; a precision of {named} takes {count}"
            )
        )
    elif len(values) > 2 * needed:
        found.append(
            Caution(
                Trouble.MORE_THAN_NEEDED,
                f"{len(values)} launches; {needed} are enough for a precision of {named}",
            )
        )
    return tuple(found)


def _logs(values: Sequence[float]) -> list[float]:
    for value in values:
        if not has_ratio(value):
            raise NoRatioError(f"a measured value is {value:g}; the spread needs values above 0")
    return [float(log) for log in np.log(np.asarray(values, dtype=np.float64))]
