# SPDX-License-Identifier: Apache-2.0
"""Counting the admissible choices among many, without going through them one by one.

Choices are made one parameter after the other. What is left to choose depends only on those made
already that a condition still waits for; so each such case is counted once. A space of billions
with a few conditions is counted in some thousand steps, and its n-th member found in a few more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

from xtune.errors import SpaceError

MAX_CHECKS = 400_000
"""Times that conditions are asked: some seconds at most. More comes from conditions that tie most of the
parameters of a large space together."""

Choices = tuple[int, ...]
"""For each parameter the position of its value."""


class Check(NamedTuple):
    """A condition on the values of some parameters."""

    positions: tuple[int, ...]
    """Of the parameters that it asks for; ascending, at least one."""
    admits: Callable[[Sequence[int]], bool]
    """Asked with at least the choices up to the last of `positions`."""


class Counting:
    """The admissible choices of a space in lexicographic order."""

    def __init__(self, sizes: Sequence[int], checks: Sequence[Check]) -> None:
        """`sizes`: how many values each parameter has."""
        count = len(sizes)
        self._sizes = tuple(sizes)
        self._due = [[c.admits for c in checks if c.positions[-1] == at] for at in range(count)]
        # Of the choices before a parameter those that later conditions wait for.
        self._awaited = [
            sorted({p for c in checks if c.positions[-1] >= at for p in c.positions if p < at})
            for at in range(count + 1)
        ]
        self._free = [
            prod(self._sizes[at:]) if all(c.positions[-1] < at for c in checks) else None
            for at in range(count + 1)
        ]
        self._counted: dict[tuple[int, ...], int] = {}
        self._fewest: dict[tuple[int, ...], int] = {}
        self._checks = tuple(checks)
        self._checks_made = 0

    @property
    def total(self) -> int:
        """How many admissible choices there are. Raises `SpaceError` when that takes too long."""
        return self._completions([])

    def at(self, index: int) -> Choices:
        """The choices with `index` others before them; 0 to ``total - 1``."""
        choices: list[int] = []
        for size in self._sizes:
            for choice in range(size):
                choices.append(choice)
                count = self._completions(choices) if self._admits(choices) else 0
                if index < count:
                    break
                index -= count
                choices.pop()
        return tuple(choices)

    def index_of(self, choices: Choices) -> int:
        """How many admissible choices come before these, which are admissible."""
        before, made = 0, list[int]()
        for chosen in choices:
            for choice in range(chosen):
                made.append(choice)
                before += self._completions(made) if self._admits(made) else 0
                made.pop()
            made.append(chosen)
        return before

    def admits(self, choices: Choices) -> bool:
        """Whether all conditions hold."""
        return all(check.admits(choices) for check in self._checks)

    def nearest(self, wanted: Choices) -> Choices:
        """The admissible choices that differ from `wanted` for the fewest parameters.

        Of several those that differ for the last ones, and there by the least. There must be some.
        """
        choices: list[int] = []
        for at, size in enumerate(self._sizes):
            order = sorted(range(size), key=lambda choice: abs(choice - wanted[at]))
            costs = [self._cost([*choices, choice], wanted) for choice in order]
            choices.append(order[costs.index(min(costs))])
        return tuple(choices)

    def _completions(self, choices: list[int]) -> int:
        """How many ways there are to go on after `choices`, which break no condition so far."""
        at = len(choices)
        free = self._free[at]
        if free is not None:
            return free
        key = (at, *(choices[position] for position in self._awaited[at]))
        known = self._counted.get(key)
        if known is not None:
            return known
        self._count_checks(at)
        total = 0
        for choice in range(self._sizes[at]):
            choices.append(choice)
            if self._admits(choices):
                total += self._completions(choices)
            choices.pop()
        self._counted[key] = total
        return total

    def _cost(self, choices: list[int], wanted: Choices) -> int:
        """The fewest parameters that differ from `wanted` in what `choices` can become."""
        differs = int(choices[-1] != wanted[len(choices) - 1])
        if not self._admits(choices):
            return len(self._sizes) + 1
        return differs + self._cost_after(choices, wanted)

    def _cost_after(self, choices: list[int], wanted: Choices) -> int:
        at = len(choices)
        if self._free[at] is not None:
            return 0
        key = (at, *(choices[position] for position in self._awaited[at]), *wanted[at:])
        known = self._fewest.get(key)
        if known is None:
            self._count_checks(at)
            known = min(self._cost([*choices, choice], wanted) for choice in range(self._sizes[at]))
            self._fewest[key] = known
        return known

    def _admits(self, choices: Sequence[int]) -> bool:
        """Whether the conditions hold that the last of `choices` decides."""
        return all(admits(choices) for admits in self._due[len(choices) - 1])

    def _count_checks(self, at: int) -> None:
        """Raise `SpaceError` when asking for every value of one more parameter is too much."""
        self._checks_made += len(self._due[at]) * self._sizes[at]
        if self._checks_made > MAX_CHECKS:
            raise SpaceError(
                "the conditions tie too many parameters together to be counted; leave some --when "
                "out, or give parameters fewer values"
            )
