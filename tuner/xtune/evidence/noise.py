# SPDX-License-Identifier: Apache-2.0
"""Noise between launches of the same configuration, and drift of the machine during a search.

Values of one launch share its address-space layout, page placement and neighbours, which differ between
launches. Only more launches average that out, not more values (Kalibera and Jones 2013), so launches
are counted. All computations use logarithms: a spread of 0.02 is 2 % of the value.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from xlaunch.text import counted
from xtune.launches.launch import Launch

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


def pooled_spread(groups: Iterable[Sequence[float]]) -> PooledSpread:
    """The pooled spread of the `groups` of levels, one for each configuration; 0 if none has two."""
    squares, degrees = 0.0, 0
    for group in groups:
        if len(group) > 1:
            squares += (len(group) - 1) * statistics.variance(group)
            degrees += len(group) - 1
    return PooledSpread(math.sqrt(squares / max(degrees, 1)), degrees)


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


def noise_cautions(values: Sequence[float], levels: Sequence[float]) -> Iterator[str]:
    """Warnings about two or more launches of one configuration, in the order launched.

    `values`, `levels`: what they measured, and `Objective.level` of it.

    Each is a line: the fact, then the remedy. The same as pyperf's checks, and hyperfine's of the
    first run.
    """
    mean = statistics.fmean(values)
    share = statistics.stdev(values) / abs(mean or 1.0)
    if share >= WIDE_SPREAD:
        yield (
            f"launches differ by {share:.0%} (standard deviation); stop other programs, or make"
            " launches longer"
        )
    for name, extreme in (("lowest", min(values)), ("highest", max(values))):
        if abs(extreme - mean) >= WIDE_RANGE * abs(mean):
            yield (
                f"the {name} launch is {abs(extreme - mean) / abs(mean or 1.0):.0%} away from the mean;"
                " check what else ran then"
            )
    odd = outliers(levels)
    if 0 in odd:
        yield (
            "the first launch is an outlier, probably with cold caches (files, compiled code); run the"
            " workload once before"
        )
    outlying_launches = [place + 1 for place in odd if place]
    if outlying_launches:
        yield (
            f"launch {', '.join(map(str, outlying_launches))} of {len(values)} is an outlier; it is kept, and"
            " trimmed if there are enough others"
        )


MAX_WAIT_DIFFERENCE = 0.1
"""A pair of launches is disturbed if one waited longer for other programs by more than this share."""


def disturbance_of(pairs: Iterable[tuple[Launch, Launch]]) -> str:
    """What to say in place of effects if the scheduler may have made the difference; else empty."""
    waits = [(one.secondary.waited, other.secondary.waited) for one, other in pairs]
    differences = [abs(a - b) for a, b in waits if a is not None and b is not None]
    disturbed = sum(difference > MAX_WAIT_DIFFERENCE for difference in differences)
    if 2 * disturbed <= len(differences):
        return ""
    return (
        f"not known: in {disturbed} of {counted(len(differences), 'pair')} of launches one waited"
        f" much longer (by over {MAX_WAIT_DIFFERENCE:.0%} of the time) for CPUs that other programs"
        " used; end these, or give CPUs of their own by --cpus"
    )


MIN_CONTROLS = 5
"""Minimum number of controls: with 4, noise alone looks as smooth as drift in 1 of 12 searches."""

SHUFFLES = 2000

MAX_PROBABILITY = 0.01
"""Drift is reported if noise alone would be as smooth in at most 1 of 100 searches."""

MIN_SPAN = 0.005
"""A total change of less than 0.5 % is not drift."""


class Control(NamedTuple):
    """A launch of the baseline."""

    at_s: float
    """When it began, on the clock of the other launches."""
    level: float
    """See `Objective.level`."""


class Drift(NamedTuple):
    """The change of control launches over time."""

    has_drifted: bool
    """The controls change more smoothly than noise would."""
    probability: float
    """Probability that noise alone is as smooth; 1 with fewer than 5 controls."""
    noise: float
    """Standard deviation of a control around its level, as a logarithm."""
    span: float
    """The highest level relative to the lowest, minus 1: 0.08 is 8 %. 0 without drift."""
    lasted_s: float
    """From the first control to the last."""

    @property
    def caution(self) -> str:
        """The warning, in a line; empty without drift."""
        if not self.has_drifted:
            return ""
        return (
            f"the machine drifted: control launches of the bare command moved by {self.span:.1%} over"
            f" {self.lasted_s / 60:.0f} min, and differ by {self.noise:.1%} from launch to launch;"
            " values of the search are not corrected; the final is not affected, because its launches"
            " are interleaved"
        )


def drift_of(controls: Sequence[Control], *, seed: int = 0) -> Drift:
    """Test control launches of the baseline for drift, by heat or other work on the host.

    Drift makes neighbours similar, so their squared differences are compared (von Neumann 1941) with
    those of 2,000 shuffled orders. This finds trends, waves and steps without assuming a distribution.
    In 15 controls with 2 % noise, trends of 15 %, steps of 15 % and waves of 10 % are found 99 times in
    100; with one outlier of 40 % among them, 97 times.
    """
    if not controls:
        return Drift(False, 1.0, 0.0, 0.0, 0.0)
    ordered = sorted(controls)
    logs = [control.level for control in ordered]
    # Medians of three neighbours ignore single outliers, and differences of neighbours exclude drift.
    medians = [statistics.median(logs[at : at + 3]) for at in range(max(1, len(logs) - 2))]
    span = math.expm1(max(medians) - min(medians))
    steps = [abs(after - before) for before, after in itertools.pairwise(logs)]
    noise = 1.4826 * statistics.median(steps) / math.sqrt(2.0) if steps else 0.0
    probability = _probability(logs, seed)
    has_drifted = probability <= MAX_PROBABILITY and span >= MIN_SPAN
    lasted_s = ordered[-1].at_s - ordered[0].at_s
    return Drift(has_drifted, probability, noise, span if has_drifted else 0.0, lasted_s)


def _probability(logs: Sequence[float], seed: int) -> float:
    """The probability that shuffled controls have equally similar neighbours."""
    count = len(logs)
    if count < MIN_CONTROLS:
        return 1.0
    values = np.asarray(logs)
    centre = np.median(values)
    # Outliers are limited twice: in the distance from the median, and from their neighbours. The scale
    # includes drift: the ends of a straight trend are 1.35 scales from the median.
    scale = 1.4826 * float(np.median(np.abs(values - centre))) or float(values.std())
    held = np.clip(values, centre - 2.0 * scale, centre + 2.0 * scale)
    shuffled = np.random.default_rng(seed).permuted(np.tile(held, (SHUFFLES, 1)), axis=1)
    observed = _roughness(held[None, :], scale)[0]
    seen = _roughness(shuffled, scale)
    return (int((seen <= observed * (1.0 + 1e-9)).sum()) + 1) / (SHUFFLES + 1)


def _roughness(rows: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
    """Sum of squared differences of neighbours in each row, each difference limited to 1.5 scales."""
    steps = np.minimum(np.abs(np.diff(rows, axis=1)), 1.5 * scale)
    return np.asarray((steps**2).sum(axis=1))
