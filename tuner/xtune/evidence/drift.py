# SPDX-License-Identifier: Apache-2.0
"""Detection of drift of the machine during a search, from control launches of the baseline.

During a search, heat or other work on the host may slow down later launches. Every few launches the
baseline is launched again; its changes over time are those of the machine. There are too few controls
to correct values, so drift is only reported. It does not affect the paired final, whose launches are
interleaved.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from xtune.evidence.ratios import NoRatioError, has_ratio

MIN_CONTROLS = 5
"""With 4 controls, noise alone is as smooth as drift in 1 of 12 searches."""

SHUFFLES = 2000

MAX_PROBABILITY = 0.01
"""Drift is reported if noise alone would be as smooth in at most 1 of 100 searches."""

MIN_SPAN = 0.005
"""A total change of less than 0.5 % is not drift."""


class Control(NamedTuple):
    """A launch of the baseline."""

    at_s: float
    """When it began, on the clock of the other launches."""
    value: float


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
    """Test control launches for drift.

    Drift makes neighbours similar, so their squared differences are compared (von Neumann 1941) with
    those of 2,000 shuffled orders. This finds trends, waves and steps without assuming a distribution.
    In 15 controls with 2 % noise, trends of 15 %, steps of 15 % and waves of 10 % are found 99 times in
    100; with one outlier of 40 % among them, 97 times.

    Raises `NoRatioError` for a value that is not above 0.
    """
    if not controls:
        return Drift(False, 1.0, 0.0, 0.0, 0.0)
    ordered = sorted(controls)
    for control in ordered:
        if not has_ratio(control.value):
            raise NoRatioError(
                f"the value of a control launch is {control.value:g}; drift needs values above 0"
            )
    logs = [math.log(control.value) for control in ordered]
    probability = _probability(logs, seed)
    span = _span(logs)
    has_drifted = probability <= MAX_PROBABILITY and span >= MIN_SPAN
    return Drift(
        has_drifted,
        probability,
        _noise(logs),
        span if has_drifted else 0.0,
        ordered[-1].at_s - ordered[0].at_s,
    )


def _span(logs: Sequence[float]) -> float:
    """The range of medians of three neighbours, which ignores single outliers."""
    medians = [statistics.median(logs[at : at + 3]) for at in range(max(1, len(logs) - 2))]
    return math.expm1(max(medians) - min(medians))


def _noise(logs: Sequence[float]) -> float:
    """The noise of controls, from differences of neighbours, which exclude drift."""
    steps = [abs(after - before) for before, after in itertools.pairwise(logs)]
    return 1.4826 * statistics.median(steps) / math.sqrt(2.0) if steps else 0.0


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
