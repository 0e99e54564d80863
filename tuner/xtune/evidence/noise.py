# SPDX-License-Identifier: Apache-2.0
"""Noise between launches of the same configuration.

Values of one launch share its address-space layout, page placement and neighbours, which differ between
launches. Only more launches average that out, not more values (Kalibera and Jones 2013), so launches
are counted. All computations use logarithms: a spread of 0.02 is 2 % of the value.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from xtune.evidence.ratios import NoRatioError, has_ratio

OUTLIER_Z = 3.5
"""The modified z-score that Iglewicz and Hoaglin (1993) call an outlier."""

MIN_SPREAD = 1e-3
"""Values within 0.1 % of each other are never outliers."""

WIDE_SPREAD = 0.10
WIDE_RANGE = 0.50
"""As pyperf warns: a standard deviation of 10 %, an extreme 50 % away from the mean."""


class PooledSpread(NamedTuple):
    """A common spread, from all configurations that were launched more than once."""

    spread: float
    degrees: int
    """Launches beyond the first of each configuration."""


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


def noise_cautions(values: Sequence[float]) -> Iterator[str]:
    """Warnings about two or more launches of one configuration, in the order launched.

    Each is a line: the fact, then the remedy. The same as pyperf's checks, and hyperfine's of the
    first run.
    """
    mean = statistics.fmean(values)
    share = statistics.stdev(values) / mean
    if share >= WIDE_SPREAD:
        yield (
            f"launches differ by {share:.0%} (standard deviation); stop other programs, or make"
            " launches longer"
        )
    for name, extreme in (("lowest", min(values)), ("highest", max(values))):
        if abs(extreme - mean) >= WIDE_RANGE * mean:
            yield (
                f"the {name} launch is {abs(extreme - mean) / mean:.0%} away from the mean;"
                " check what else ran then"
            )
    odd = outliers(_logs(values))
    if 0 in odd:
        yield (
            "the first launch is an outlier, probably with cold caches (files, compiled code); run the"
            " workload once before"
        )
    rest = [place + 1 for place in odd if place]
    if rest:
        yield (
            f"launch {', '.join(map(str, rest))} of {len(values)} is an outlier; it is kept, and"
            " trimmed if there are enough others"
        )


def _logs(values: Sequence[float]) -> list[float]:
    for value in values:
        if not has_ratio(value):
            raise NoRatioError(f"a measured value is {value:g}; the spread needs values above 0")
    return [math.log(value) for value in values]
