# SPDX-License-Identifier: Apache-2.0
"""The configurations that may be proposed, one for each plan."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

from xtune.space.parameters import Configuration
from xtune.space.spaces import Space

MAX_RESOLVED = 512
"""Spaces up to this size are resolved to plans beforehand, larger ones during the search."""

MAX_HELD = 3000
"""Spaces up to this size are held completely. In larger ones, candidates are a sample of half as many,
the launched configurations, and the neighbours of the best."""


class Pool:
    """Configurations of a space, one for each known plan."""

    def __init__(
        self,
        space: Space,
        plan_hash: Callable[[Configuration], str | None],
        seed: int,
    ) -> None:
        """`plan_hash`: see `Measurer.plan_hash`."""
        self._space = space
        self._plan_hash = plan_hash
        self._hashes: dict[Configuration, str | None] = {}
        self._owners: dict[str, Configuration] = {}
        self._random = random.Random(f"{seed} pool")  # noqa: S311 - no secret
        self.is_whole = space.size <= MAX_HELD
        """The pool holds the whole space."""
        self.is_resolved = space.size <= MAX_RESOLVED
        """It holds exactly one configuration for each plan that can be carried out."""
        members = list(space) if self.is_whole else self._sample(MAX_HELD // 2)
        if self.is_resolved:
            # The configuration with the fewest changes represents its plan.
            changes = {one: len(space.changes(one)) for one in members}
            for configuration in sorted(members, key=lambda one: changes[one]):
                known = self.resolve(configuration)
                if known is not None:
                    self._owners.setdefault(known, configuration)
            owners = set(self._owners.values())
            members = [one for one in members if one in owners]
        self.configurations: Sequence[Configuration] = tuple(members)

    def around(
        self, launched: Iterable[Configuration], best: Iterable[Configuration]
    ) -> Sequence[Configuration]:
        """The candidates; in a large space a sample, the launched ones, and the neighbours of the best.

        It depends only on the arguments and the seed.
        """
        if self.is_whole:
            return self.configurations
        found = dict.fromkeys((*self.configurations, *launched))
        for configuration in best:
            if configuration in self._space:
                found |= dict.fromkeys(self._space.neighbours(configuration))
        return tuple(found)

    def resolve(self, configuration: Configuration) -> str | None:
        """The hash of the plan; None if it cannot be carried out."""
        if configuration not in self._hashes:
            self._hashes[configuration] = self._plan_hash(configuration)
        return self._hashes[configuration]

    def owner(self, plan_hash: str) -> Configuration | None:
        """The configuration that represents a plan; None unless the pool is resolved."""
        return self._owners.get(plan_hash)

    def _sample(self, count: int) -> list[Configuration]:
        found = {self._space.default: None}
        found |= dict.fromkeys(self._space.random(self._random) for _ in range(count))
        return list(found)
