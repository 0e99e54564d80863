# SPDX-License-Identifier: Apache-2.0
"""The fewest crossings that any placement has, found by trying all. For machines of a dozen cores."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from xlaunch.planning.placement import Core

Crossings = tuple[int, ...]


def fewest_crossings(cores: Sequence[Core], sizes: Sequence[int]) -> Crossings:
    """The least total crossings of disjoint instances of so many cores.

    Packages first, then nodes, caches and dies. Cores in the same domains at all levels are alike,
    so it is enough to try how many of each sort every instance takes.
    """
    sorts = sorted({core.domains for core in cores})
    held = tuple(sum(core.domains == sort for core in cores) for sort in sorts)

    @functools.cache
    def cost(taken: tuple[int, ...]) -> Crossings:
        touched = [sort for sort, number in zip(sorts, taken, strict=True) if number]
        return tuple(len(set(level)) - 1 for level in zip(*touched, strict=True))

    @functools.cache
    def best(free: tuple[int, ...], index: int) -> Crossings:
        if index == len(sizes):
            return (0,) * len(sorts[0])
        return min(
            add(cost(taken), best(subtract(free, taken), index + 1))
            for taken in selections(free, sizes[index])
        )

    return best(held, 0)


@functools.cache
def selections(free: tuple[int, ...], size: int) -> tuple[tuple[int, ...], ...]:
    """All ways to take `size` of things of several sorts."""
    if not free:
        return ((),) if size == 0 else ()
    return tuple(
        (number, *others)
        for number in range(min(free[0], size) + 1)
        for others in selections(free[1:], size - number)
    )


def add(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(x + y for x, y in zip(a, b, strict=True))


def subtract(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(x - y for x, y in zip(a, b, strict=True))
