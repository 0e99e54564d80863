# SPDX-License-Identifier: Apache-2.0
"""Enumeration of the choices that the conditions of a space admit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from xtune.errors import SpaceError

MAX_COUNTED = 10_000
"""A space with conditions is counted up to this size."""

MAX_CHECKS = 400_000
"""Maximum number of evaluations of conditions: some seconds."""

Choices = tuple[int, ...]
"""The position of each parameter's value."""


class Check(NamedTuple):
    """A condition on the values of some parameters."""

    positions: tuple[int, ...]
    """The parameters that it depends on, ascending; at least one."""
    admits: Callable[[Sequence[int]], bool]
    """Called with at least the choices up to the last of `positions`."""


def admitted(sizes: Sequence[int], checks: Sequence[Check]) -> Iterator[Choices]:
    """Yield the choices that every check admits, the last parameter changing fastest.

    Raises `SpaceError` after too many checks.
    """
    due = [[c.admits for c in checks if c.positions[-1] == at] for at in range(len(sizes))]
    made = 0

    def complete(choices: list[int]) -> Iterator[Choices]:
        nonlocal made
        at = len(choices)
        if at == len(sizes):
            yield tuple(choices)
            return
        made += len(due[at]) * sizes[at]
        if made > MAX_CHECKS:
            raise SpaceError(
                "the conditions combine too many parameters to be solved; leave out a --when, or give"
                " parameters fewer values"
            )
        for choice in range(sizes[at]):
            choices.append(choice)
            if all(admits(choices) for admits in due[at]):
                yield from complete(choices)
            choices.pop()

    return complete([])
