# SPDX-License-Identifier: Apache-2.0
"""The confidence that an interval needs when several finalists are looked at several times.

A 95 % interval misses once in 20 times. Take the best of three finalists, look after every block and
stop as soon as the result pleases, and it misses far more often. Two corrections prevent that.

Over looks
    A spending function (Lan and DeMets 1983) says how much of the error may be used up by each block,
    and each look gets the level that uses what the looks before it have left of that. The interval at
    such a level is a repeated confidence interval (Jennison and Turnbull 1989): all of them hold at
    once. So a final may be stopped at any block, by a time budget or by Ctrl-C, and continued later,
    as often as one likes, as long as the look at the stop counts as one.
Over finalists
    Bonferroni: each gets its share of the error. Holm's step-down procedure (1979) starts with the
    same level, for the largest effect, and only the largest effect is claimed; what Holm adds for the
    others has no interval to show. Dunnett's (1955), which knows that all share one baseline, would
    make the intervals of three finalists 3 % shorter, but it requires normal noise.

Each side has its own error: of a 95 % interval, 2.5 % for a gain that is none.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from xtune.evidence.distributions import normal_quantile, normal_tail

PLAN_SHARE = 0.9
"""Part of the error that may be used up by the end of the plan; the rest is for continuations."""


def spent_error(part: float, error: float) -> float:
    """The error that may be used up at a part of the planned blocks; 1 is the end of the plan.

    Within the plan it grows with the square of the blocks (Kim and DeMets 1987): gains that a tuner
    finds are often large, so it pays to be able to see them early. Of what is left at the end of the
    plan, half may be used by twice as many blocks, two thirds by three times as many, and so on.
    """
    if part <= 1.0:
        return error * PLAN_SHARE * part**2
    return error * (1.0 - (1.0 - PLAN_SHARE) / part)


def look_level(looks: tuple[int, ...], planned: int, error: float) -> float:
    """The one-sided level of the last of these looks, so that all err at most `error` together.

    looks
        After how many blocks each was or is, ascending, from 1 up; they may exceed the plan.
    planned
        Blocks of the plan. Looks beyond it share what the plan keeps for them.

    The boundary of each look comes from the density of the Brownian motion that has not crossed the
    earlier ones, integrated numerically (Armitage, McPherson and Rowe 1969). The other side is taken
    as never crossed, which is a little strict.
    """
    if not looks or looks[0] < 1 or any(np.diff(looks) < 1):
        raise ValueError(f"look_level: looks at {looks}; they have to ascend from 1 or more")
    return _state(looks, planned, error).level


Grid = NDArray[np.float64]


class _State(NamedTuple):
    """Where a motion may be that has crossed at none of some looks; time is counted in blocks."""

    level: float
    """Of the last of these looks."""
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
    """The position above which the motion lies with probability `share` after another step."""
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
    # Newton's steps from the left of a falling convex function stay there.
    for _ in range(4):
        away = (low - grid) / root
        excess = float(mass @ _tails(away)) - share
        low += excess * root * math.sqrt(2.0 * math.pi) / float(mass @ np.exp(-0.5 * away**2))
    return low


def _surviving(
    grid: Grid | None, density: Grid | None, step: float, time: float, boundary: float
) -> tuple[Grid, Grid]:
    """The density of where the motion is now, if it has never been above a boundary."""
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
    """Of Simpson's rule."""
    weights = np.full(len(grid), 2.0)
    weights[1::2] = 4.0
    weights[0] = weights[-1] = 1.0
    width = float(grid[1] - grid[0])
    return weights * (width / 3.0)


_tails = np.vectorize(normal_tail, otypes=[float])
