# SPDX-License-Identifier: Apache-2.0
"""The configurations that may be proposed, each standing for a plan of its own."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

from xtune.search.surrogate import Encoder, Rows
from xtune.space.parameters import Configuration
from xtune.space.spaces import Space

MOST_RESOLVED = 512
"""Configurations that are all resolved to plans beforehand; a larger space is as it is searched."""

MOST_HELD = 3000
"""Configurations of a larger space that are judged at once: a sample, and what is near the best."""


class Pool:
    """Configurations of a space, one for each plan as far as that is known."""

    def __init__(
        self,
        space: Space,
        plan_hash: Callable[[Configuration], str | None],
        encoder: Encoder,
        seed: int,
    ) -> None:
        """`plan_hash`: as a Measurer has it."""
        self._space = space
        self._plan_hash = plan_hash
        self._encoder = encoder
        self._hashes: dict[Configuration, str | None] = {}
        self._owners: dict[str, Configuration] = {}
        self._members: dict[Configuration, None] = {}
        self._rows: Rows | None = None
        self._random = random.Random(f"{seed} pool")  # noqa: S311 - no secret
        self.is_whole = space.size <= MOST_HELD
        """It holds the whole space."""
        self.is_resolved = space.size <= MOST_RESOLVED
        """Its configurations are known to be of different plans, all that can be carried out."""
        self.add(space if self.is_whole else self._sample(MOST_HELD // 2))
        if self.is_resolved:
            # Of equal plans the one with the fewest changes stands for all.
            changes = {one: len(space.changes(one)) for one in self._members}
            for configuration in sorted(self._members, key=lambda one: changes[one]):
                self.resolve(configuration)

    @property
    def configurations(self) -> Sequence[Configuration]:
        return tuple(self._members)

    @property
    def rows(self) -> Rows:
        """Of `configurations`, in their order."""
        if self._rows is None:
            self._rows = self._encoder.rows(self.configurations)
        return self._rows

    def add(self, configurations: Iterable[Configuration]) -> None:
        """Hold these too, unless they are known to be the plan of another, or of none."""
        for configuration in configurations:
            known = self._hashes.get(configuration, "")
            owner = self._owners.get(known or "", configuration)
            if known is not None and owner == configuration:
                self._members.setdefault(configuration)
        self._rows = None

    def add_neighbours(self, configuration: Configuration) -> None:
        """Hold what differs in one parameter, where the pool is not whole."""
        if not self.is_whole and len(self._members) < MOST_HELD and configuration in self._space:
            self.add(self._space.neighbours(configuration))

    def resolve(self, configuration: Configuration) -> str | None:
        """The plan's hash; one that is none, or that another stands for, leaves the pool."""
        if configuration not in self._hashes:
            self._hashes[configuration] = self._plan_hash(configuration)
        known = self._hashes[configuration]
        if known is None or self._owners.setdefault(known, configuration) != configuration:
            self._members.pop(configuration, None)
            self._rows = None
        return known

    def owner(self, plan_hash: str) -> Configuration | None:
        """The configuration that stands for a plan, if it was resolved."""
        return self._owners.get(plan_hash)

    def _sample(self, count: int) -> list[Configuration]:
        found = {self._space.default: None}
        found |= dict.fromkeys(self._space.random(self._random) for _ in range(count))
        return list(found)
