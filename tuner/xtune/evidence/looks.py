# SPDX-License-Identifier: Apache-2.0
"""Confidence levels for a look after every block of a final.

A 95 % interval misses the true value once in 20 times; the best of several looks misses far more often.
So each look has a level of its own, and all of them together have the error of one interval: they are
repeated confidence intervals (Jennison and Turnbull 1989). There is a look after every block, so a
final may be stopped anywhere, by a budget or by Ctrl-C, and continued any number of times.

Within the plan, levels grow with the square of the blocks, as in the spending of Kim and DeMets (1987):
large gains are found early, and the end keeps half of the error. They use 90 % of the error; looks
beyond the plan share the rest. The constants were computed by integrating the density of a Brownian
motion that has crossed no boundary (Armitage, McPherson and Rowe 1969); tests repeat that.
"""

from __future__ import annotations

MIN_PAIRS = 4
"""Minimum number of pairs for a claim. Three pairs of bimodal values agree too easily by chance."""

SHARES = {
    4: 0.9,
    5: 0.74,
    6: 0.67,
    7: 0.63,
    8: 0.59,
    10: 0.55,
    12: 0.53,
    15: 0.5,
    20: 0.47,
    30: 0.43,
}
LEAST_SHARE = 0.39
"""The level at the end of a plan of so many blocks, and of up to 60, relative to the error."""

ATTEMPT_SHARE = 0.91
"""Factor for half the error: rarer crossings are less dependent."""

BEYOND = 0.05
"""The level just beyond the plan, relative to the error; at twice as many blocks it is half of that."""


def look_level(block: int, planned: int, error: float, attempt: int = 0) -> float:
    """The one-sided level of the look after a block, so that all looks have a total error of `error`.

    planned
        Blocks of the plan, up to 60; more are allowed.
    attempt
        How often `error` has been halved.
    """
    planned = max(planned, MIN_PAIRS)
    error *= ATTEMPT_SHARE**attempt
    if block > planned:
        return error * BEYOND * planned / block
    share = next((share for blocks, share in SHARES.items() if blocks >= planned), LEAST_SHARE)
    return error * share * (block / planned) ** 2
