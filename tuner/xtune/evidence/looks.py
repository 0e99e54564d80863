# SPDX-License-Identifier: Apache-2.0
"""Confidence levels for several looks at several finalists.

A 95 % interval misses the true value once in 20 times. It misses far more often for the best of three
finalists with a look after every block and a stop at the first good result. Two corrections prevent
that.

Looks
    A spending function (Lan and DeMets 1983) limits the error used up to each block; each look gets
    the level that uses the part not used by earlier looks. The interval at that level is a repeated
    confidence interval (Jennison and Turnbull 1989): all intervals hold jointly. So a final may be
    stopped at any block, by a time budget or by Ctrl-C, and continued any number of times, as long as
    the look at the stop is counted.
Finalists
    Bonferroni: each gets an equal share of the error. Holm's step-down procedure (1979) has the same
    level for the largest effect, and only that is claimed. Dunnett's (1955) uses that all share one
    baseline and would shorten the intervals of three finalists by 3 %, but requires normal noise.

Each side has its own error: for a 95 % interval, 2.5 % for a false gain.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from xtune.evidence.distributions import normal_quantile, normal_tail

PLAN_SHARE = 0.9
"""Part of the error for the plan; the rest is for continuations."""


def spent_error(part: float, error: float) -> float:
    """The error that may be used up to a part of the planned blocks; 1 is the end of the plan.

    Within the plan it grows with the square of the blocks (Kim and DeMets 1987), so that large gains
    are found early. Of the rest, half is available at twice as many blocks, two thirds at three times
    as many, and so on.
    """
    if part <= 1.0:
        return error * PLAN_SHARE * part**2
    return error * (1.0 - (1.0 - PLAN_SHARE) / part)


def look_level(looks: tuple[int, ...], planned: int, error: float) -> float:
    """The one-sided level of the last look, so that the total error of all looks is `error`.

    looks
        The number of blocks at each look, ascending from 1; may exceed the plan.
    planned
        Blocks of the plan. Looks beyond it share the error reserved for continuations.

    The boundary of each look follows from the density of a Brownian motion that has not crossed the
    earlier boundaries, integrated numerically (Armitage, McPherson and Rowe 1969). Crossings of the
    other side are ignored, which is slightly conservative.
    """
    if not looks or looks[0] < 1 or any(np.diff(looks) < 1):
        raise ValueError(f"look_level: looks at {looks}; they must ascend from 1 or more")
    return _state(looks, planned, error).level


Grid = NDArray[np.float64]


class _State(NamedTuple):
    """The distribution of a motion that has crossed no boundary; time is in blocks."""

    level: float
    """Level of the last look."""
    grid: Grid | None
    density: Grid | None


@functools.lru_cache(maxsize=1024)
def _state(looks: tuple[int, ...], planned: int, error: float) -> _State:
    if not looks:
        return _State(0.0, None, None)
    *before, look = looks
    _, grid, density = _state(tuple(before), planned, error)
    last = before[-1] if before else 0
    share = spent_error(look / planned, error) - spent_error(last / planned, error)
    step = float(look - last)
    boundary = _boundary(grid, density, step, share)
    level = normal_tail(boundary / math.sqrt(look))
    return _State(level, *_surviving(grid, density, step, look, boundary))


def _boundary(grid: Grid | None, density: Grid | None, step: float, share: float) -> float:
    """The boundary that the motion exceeds with probability `share` after another step."""
    if grid is None or density is None:
        return -normal_quantile(share) * math.sqrt(step)
    mass, root = density * _weights(grid), math.sqrt(step)
    low, high = float(grid[0]), float(grid[-1]) + 12.0 * root
    for _ in range(12):
        middle = 0.5 * (low + high)
        if float(mass @ _tails((middle - grid) / root)) > share:
            low = middle
        else:
            high = middle
    # Newton's method from the left of a decreasing convex function stays on the left.
    for _ in range(4):
        away = (low - grid) / root
        excess = float(mass @ _tails(away)) - share
        low += excess * root * math.sqrt(2.0 * math.pi) / float(mass @ np.exp(-0.5 * away**2))
    return low


def _surviving(
    grid: Grid | None, density: Grid | None, step: float, time: float, boundary: float
) -> tuple[Grid, Grid]:
    """The density of the motion's position if it has never exceeded a boundary."""
    low = -7.0 * math.sqrt(time)
    high = min(boundary, 7.0 * math.sqrt(time))
    # The kernel is sqrt(step) wide; a dozen points on it make Simpson's rule exact to 1e-8.
    count = 2 * math.ceil((high - low) / (math.sqrt(step) / 6.0) / 2.0) + 1
    points = np.linspace(low, high, max(count, 101))
    scale = math.sqrt(2.0 * math.pi * step)
    if grid is None or density is None:
        return points, np.exp(-(points**2) / (2.0 * step)) / scale
    kernel = np.exp(-((points[:, None] - grid[None, :]) ** 2) / (2.0 * step)) / scale
    return points, kernel @ (density * _weights(grid))


def _weights(grid: Grid) -> Grid:
    """The weights of Simpson's rule."""
    weights = np.full(len(grid), 2.0)
    weights[1::2] = 4.0
    weights[0] = weights[-1] = 1.0
    width = float(grid[1] - grid[0])
    return weights * (width / 3.0)


_tails = np.vectorize(normal_tail, otypes=[float])
