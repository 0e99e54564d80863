# SPDX-License-Identifier: Apache-2.0
"""Detection of the warm-up in a series of values, and of a steady state after it.

The series is split where its level changes, by the exact least-cost partition (Jackson et al. 2005;
PELT is its pruned form). The cost is robust against outliers; the penalty of each split grows with the
noise and its autocorrelation. Then, as in Barrett et al. (2017, "Virtual machine warmup blows hot and
cold"), the last level is steady if it lasts long enough; earlier levels that equal it belong to it.
The values before it were slower (a warm-up) or faster (a slow-down).

A single outlier among steady values counts as steady. Outliers at the very beginning are warm-up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from xlaunch.text import number
from xtune.launches.launch import Steadiness

Floats = NDArray[np.float64]

MIN_VALUES = 10
"""Minimum number of values to detect a warm-up."""

SAME_LEVEL = 0.01
"""Levels that differ by less than this share of the last count as equal."""

MIN_STEADY_SHARE = 0.25
"""Minimum share of values in the last level; in Barrett's study 500 of 2,000 iterations."""

MIN_STEADY = 5

MIN_CHANGE = 0.05
"""A change shorter than this share of values, with equal levels on both sides, is ignored."""

MAX_BLOCKS = 400
"""Longer series are averaged into this many blocks, since the partition takes quadratic time."""

_ODD = 4.0
"""Values are clipped to this many standard deviations from the median of their neighbours."""

_MAD_TO_SIGMA = 1.4826
_NEIGHBOURS = 7


class SteadyRange(NamedTuple):
    """A range of values without a change of level."""

    start: int
    stop: int
    """The first value after it."""
    mean: float


class Judgement(NamedTuple):
    """The result of `judge`."""

    steadiness: Steadiness
    start: int
    """Index of the first steady value; 0 if nothing is dropped or nothing is steady."""
    levels: tuple[SteadyRange, ...]
    """In order; empty for too few values."""
    note: str
    """What was dropped or is wrong; may be empty."""


def judge(values: Sequence[float], *, larger_is_better: bool | None) -> Judgement:
    """Classify the course of `values` over time.

    larger_is_better
        Distinguishes a warm-up from a slow-down; None: unknown, every change is a warm-up.
    """
    count = len(values)
    if count < MIN_VALUES:
        # A single value cannot have a warm-up.
        note = f"{count} values: too few to see a warm-up" if count > 1 else ""
        return Judgement(Steadiness.TOO_FEW, 0, (), note)
    # Avoid overflow and underflow of squares.
    scale = float(np.max(np.abs(values))) or 1.0
    scaled = np.asarray(values, dtype=np.float64) / scale
    clipped = _clip(scaled)
    size = -(-count // MAX_BLOCKS)
    starts = np.arange(0, count - size // 2, size)
    blocks = np.add.reduceat(clipped, starts) / np.diff(np.append(starts, count))
    cuts = [int(starts[cut]) for cut in _partition(blocks, _variance_of(blocks))]
    levels = tuple(
        SteadyRange(start, stop, float(clipped[start:stop].mean()))
        for start, stop in zip([0, *cuts], [*cuts, count], strict=True)
    )
    start = _steady_start(levels)
    told = tuple(level._replace(mean=level.mean * scale) for level in levels)
    if count - start < max(MIN_STEADY, MIN_STEADY_SHARE * count):
        means = [number(mean(level.mean for level in told)) for mean in (min, max)]
        note = (
            f"no steady state: levels between {means[0]} and {means[1]}, the last change after"
            f" {told[-1].start} of {count} values"
        )
        return Judgement(Steadiness.NOT_STEADY, 0, told, note)
    start = _after_odd_beginning(scaled, start)
    if start == 0:
        return Judgement(Steadiness.FLAT, 0, told, "")
    name = _name_of_change(scaled, start, levels, larger_is_better=larger_is_better)
    before, after = scale * scaled[:start].mean(), scale * scaled[start:].mean()
    dropped = f"the first {start} of {count} values were dropped"
    note = f"{name.value}: {dropped} (mean {number(before)}, then {number(after)})"
    return Judgement(name, start, told, note)


def _variance_of(values: Floats) -> float:
    """The variance of the noise around levels, by which that of a mean over n values is 1/n.

    Estimated from differences, which do not depend on levels. The median ignores the few that cross a
    change. Correlated noise makes the differences of neighbours smaller than those of distant values; the
    ratio gives the autocorrelation.
    """
    lag = max(2, min(5, len(values) // 6))
    steps, strides = values[1:] - values[:-1], values[lag:] - values[:-lag]
    # Around their median: a slope is not noise. With coarse values the median step may be zero.
    steps = steps - np.median(steps)
    near = max(_scatter(steps), _trimmed(steps, 0.9)) ** 2 / 2
    far = _scatter(strides - np.median(strides)) ** 2 / 2
    floor = (1e-4 * float(np.median(np.abs(values)))) ** 2 + 1e-300
    variance = max(near, far, floor)
    correlation = min(0.9, max(0.0, 1 - max(near, floor) / variance))
    return variance * (1 + correlation) / (1 - correlation)


def _scatter(deviations: Floats) -> float:
    """A robust standard deviation; up to half of the deviations may be outliers."""
    return float(_MAD_TO_SIGMA * np.median(np.abs(deviations)))


def _trimmed(deviations: Floats, share: float) -> float:
    """The root mean square of the smallest `share` of them."""
    smallest = np.sort(np.abs(deviations))[: max(1, int(share * len(deviations)))]
    return float(np.sqrt(np.mean(smallest**2)))


def _clip(values: Floats) -> Floats:
    """The values with outliers clipped to the noise around their neighbours."""
    half = _NEIGHBOURS // 2
    padded = np.pad(values, half, mode="reflect")
    middle = np.median(np.lib.stride_tricks.sliding_window_view(padded, _NEIGHBOURS), axis=1)
    width = _ODD * (_scatter(values - middle) or _trimmed(values - middle, 0.95))
    return np.clip(values, middle - width, middle + width)


def _partition(values: Floats, variance: float) -> list[int]:
    """The changes of level with the least total cost, ascending."""
    count = len(values)
    shortest = max(3, count // 50)
    # The cost of a cut, in variances. Higher for few values, whose noise is uncertain.
    price = 4 * math.log(count) + 200 / count
    centred = (values - values.mean()) / np.sqrt(variance)
    sums = np.concatenate(([0.0], np.cumsum(centred)))
    squares = np.concatenate(([0.0], np.cumsum(centred**2)))
    best = np.full(count + 1, np.inf)
    best[0] = -price
    came_from = np.zeros(count + 1, dtype=np.intp)
    for stop in range(shortest, count + 1):
        begins = np.arange(stop - shortest + 1)
        lengths = stop - begins
        cost = squares[stop] - squares[begins] - (sums[stop] - sums[begins]) ** 2 / lengths
        total = best[begins] + cost + price
        came_from[stop] = int(np.argmin(total))
        best[stop] = total[came_from[stop]]
    cuts = []
    stop = int(came_from[count])
    while stop > 0:
        cuts.append(stop)
        stop = int(came_from[stop])
    return cuts[::-1]


def _steady_start(levels: tuple[SteadyRange, ...]) -> int:
    """The start of the last level, with equal levels before it and short ones between."""
    last = levels[-1]
    start, reach = last.start, SAME_LEVEL * abs(last.mean)
    for level in levels[-2::-1]:
        if abs(level.mean - last.mean) <= reach:
            start = level.start
        elif start - level.start > MIN_CHANGE * last.stop:
            break
    return start


def _after_odd_beginning(values: Floats, start: int) -> int:
    """`start`, moved past outliers at the beginning of the steady part."""
    steady_part = values[start:]
    middle = float(np.median(steady_part))
    width = _ODD * (_scatter(steady_part - middle) or _trimmed(steady_part - middle, 0.95))
    width = max(width, SAME_LEVEL * abs(middle))
    latest = start + len(steady_part) // 4
    while start < latest and abs(values[start] - middle) > width:
        start += 1
    return start


def _name_of_change(
    values: Floats, start: int, levels: tuple[SteadyRange, ...], *, larger_is_better: bool | None
) -> Steadiness:
    steady = float(values[start:].mean())
    before = [level.mean for level in levels if level.stop <= start]
    before = before or [float(values[:start].mean())]
    reach = SAME_LEVEL * abs(steady)
    faster = larger_is_better is not None and any(
        (mean - steady if larger_is_better else steady - mean) > reach for mean in before
    )
    return Steadiness.SLOW_DOWN if faster else Steadiness.WARM_UP
