# SPDX-License-Identifier: Apache-2.0
"""How the machine itself changed while it was searched, by control launches of the baseline.

A search takes an hour, and a laptop that heats up or a neighbour that wakes up makes later trials look
worse. Every few trials the baseline is launched again; what it does over time is the machine's, and
other trials can be divided by it. Only where it moves more than its own noise explains, though: a
control is as noisy as any launch, and dividing by noise adds noise.
"""

from __future__ import annotations

import itertools
import math
import statistics
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from xtune.evidence.noise import Caution, Trouble
from xtune.evidence.ratios import NoRatioError, has_ratio

FEWEST_CONTROLS = 5
"""Controls below which there is no telling: the smallest probability of 4 is 1 in 12."""

SHUFFLES = 2000
SURELY = 0.01
"""Drift is modelled where noise alone would move the controls as smoothly once in 100 searches."""

STEADY_NOISE = 0.005
"""A control that moves by less than 0.5 % in all has not drifted, however smoothly it does."""


class Control(NamedTuple):
    """A launch of the baseline."""

    at_s: float
    """When it began, on the clock of the other launches."""
    value: float


class Drift(NamedTuple):
    """The level of the machine over time, relative to its median: 1.0 where nothing drifts."""

    times_s: tuple[float, ...]
    """Of the controls, ascending."""
    log_levels: tuple[float, ...]
    """The smoothed control at these times, minus the median; all 0 where it does not drift."""
    has_drifted: bool
    """The controls follow each other more smoothly than noise would."""
    probability: float
    """That noise alone follows itself so smoothly; 1 with fewer than 5 controls."""
    noise: float
    """Standard deviation of a control around the level, as a logarithm."""
    span: float
    """The highest level over the lowest, less 1: 0.08 is 8 %."""

    def level(self, at_s: float) -> float:
        """What the machine gave then, relative to its median; before and after, as at the ends."""
        if not self.has_drifted:
            return 1.0
        right = bisect_right(self.times_s, at_s)
        if right in (0, len(self.times_s)):
            return math.exp(self.log_levels[0 if right == 0 else -1])
        began, ended = self.times_s[right - 1], self.times_s[right]
        part = (at_s - began) / (ended - began)
        return math.exp((1.0 - part) * self.log_levels[right - 1] + part * self.log_levels[right])

    def normalised(self, value: float, at_s: float) -> float:
        """What a launch would have come to had the machine been at its median; for either goal."""
        return value / self.level(at_s)

    @property
    def caution(self) -> Caution | None:
        """What to say of it, where there is something to say."""
        if not self.has_drifted:
            return None
        return Caution(
            Trouble.DRIFT,
            f"the machine drifted: control launches of the default moved by {self.span:.1%} over"
            f" {(self.times_s[-1] - self.times_s[0]) / 60:.0f} min, and differ by {self.noise:.1%}"
            " from launch to launch; values of the search are corrected for it, and the final, whose"
            " launches take turns, does not need to be",
        )


def drift_of(controls: Sequence[Control], *, seed: int = 0) -> Drift:
    """The drift that control launches show, or that they show none.

    Two questions. Is there drift? A slow motion makes neighbours alike, so their squared differences
    are compared (von Neumann 1941) with those after shuffling the order 2,000 times: that finds
    trends, waves and steps, and asks for no distribution. Of 15 controls with 2 % noise, trends of
    15 %, steps of 15 % and waves of 10 % are found in 99 of 100 hours, with one outlier of 40 % among
    them in 97; by ranks, as Bartels (1982) has it, the steps in 81 and with the outlier in none.
    What is the level? The median of each three neighbours, then their average with weights 1, 2, 1
    (Tukey 1977): an outlier is gone, a step stays. Between controls, a straight line.

    Raises `NoRatioError` for a value that is not above 0.
    """
    if not controls:
        return Drift((), (), False, 1.0, 0.0, 0.0)
    ordered = sorted(controls)
    for control in ordered:
        if not has_ratio(control.value):
            raise NoRatioError(
                f"a control launch came to {control.value:g}; drift is a ratio, of values above 0"
            )
    times = [control.at_s for control in ordered]
    logs = [math.log(control.value) for control in ordered]
    centre = statistics.median(logs)
    noise = _noise(logs)
    probability = _probability(logs, seed)
    smooth = [value - centre for value in _smoothed(logs)]
    span = math.expm1(max(smooth) - min(smooth))
    has_drifted = probability <= SURELY and span >= STEADY_NOISE
    merged = dict(zip(times, smooth, strict=True)) if has_drifted else dict.fromkeys(times, 0.0)
    return Drift(
        times_s=tuple(merged),
        log_levels=tuple(merged.values()),
        has_drifted=has_drifted,
        probability=probability,
        noise=noise,
        span=span if has_drifted else 0.0,
    )


def _noise(logs: Sequence[float]) -> float:
    """The spread of a control around its level, from differences of neighbours, which drift spares."""
    steps = [abs(after - before) for before, after in itertools.pairwise(logs)]
    return 1.4826 * statistics.median(steps) / math.sqrt(2.0) if steps else 0.0


def _probability(logs: Sequence[float], seed: int) -> float:
    """How often shuffled controls have neighbours as alike as these."""
    count = len(logs)
    if count < FEWEST_CONTROLS:
        return 1.0
    values = np.asarray(logs)
    centre = np.median(values)
    # What one outlier may do is limited twice: where it lies, and how far its neighbours are. The
    # scale is that of all controls, drift included: a straight trend ends 1.35 of it from the median.
    scale = 1.4826 * float(np.median(np.abs(values - centre))) or float(values.std())
    held = np.clip(values, centre - 2.0 * scale, centre + 2.0 * scale)
    shuffled = np.random.default_rng(seed).permuted(np.tile(held, (SHUFFLES, 1)), axis=1)
    observed = _roughness(held[None, :], scale)[0]
    seen = _roughness(shuffled, scale)
    return (int((seen <= observed * (1.0 + 1e-9)).sum()) + 1) / (SHUFFLES + 1)


def _roughness(rows: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
    """Of each row the squared differences of neighbours, none counted as more than 1.5 scales."""
    steps = np.minimum(np.abs(np.diff(rows, axis=1)), 1.5 * scale)
    return np.asarray((steps**2).sum(axis=1))


def _smoothed(logs: Sequence[float]) -> list[float]:
    """Running medians of 3, then weights 1, 2, 1; at the ends, Tukey's rule."""
    count = len(logs)
    if count < 3:
        return list(logs)
    medians = [statistics.median(logs[place - 1 : place + 2]) for place in range(1, count - 1)]
    first = _end(logs[0], medians[0], medians[min(1, count - 3)])
    last = _end(logs[-1], medians[-1], medians[max(count - 4, 0)])
    held = [first, *medians, last]
    inside = [
        0.25 * held[place - 1] + 0.5 * held[place] + 0.25 * held[place + 1]
        for place in range(1, count - 1)
    ]
    return [held[0], *inside, held[-1]]


def _end(value: float, nearest: float, next_but_one: float) -> float:
    """The smoothed end: the value itself, unless it lies off the line through its neighbours."""
    return statistics.median((value, nearest, 3 * nearest - 2 * next_but_one))
