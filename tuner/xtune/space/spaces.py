# SPDX-License-Identifier: Apache-2.0
"""A space: parameters, conditions, and the configurations that meet them."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from xtune.errors import SpaceError
from xtune.space.conditions import Condition, parse_condition
from xtune.space.parameters import Configuration, Parameter, Value
from xtune.space.plain_values import digest, from_plain, to_plain

MAX_COUNTED = 10_000
"""Maximum size up to which a space with conditions is counted."""

MAX_CHECKS = 400_000
"""Maximum number of evaluations of conditions: some seconds."""

Choices = tuple[int, ...]
"""The position of each parameter's value."""


Check = tuple[tuple[int, ...], Condition]
"""A condition, and the positions of the parameters that it depends on, ascending; at least one."""

SCHEMA_VERSION = 1
"""Of `Space.to_plain`: increased when a key changes its meaning or is removed."""

MAX_DRAWN = 1000
"""Maximum number of random draws until one meets the conditions."""


class DerivedValue(NamedTuple):
    """A value derived from one parameter's, for use in conditions.

    **Ex.:** ``DerivedValue("ncores", "layout", (4, 1))`` where layout is ``1x4`` or ``4x1``.
    """

    name: str
    parameter: str
    """Empty: the value is the same in every configuration."""
    values: tuple[Value, ...]
    """One for each value of the parameter, in its order; exactly one without a parameter."""


class Space:
    """All configurations that meet the conditions; immutable, compared by content.

    Iteration changes the last parameter fastest.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        conditions: Sequence[str] = (),
        derived: Sequence[DerivedValue] = (),
        *,
        words: Collection[str] = (),
    ) -> None:
        """`conditions`: see `xtune.space.conditions`; `words`: text that they may name.

        Raises `SpaceError` for an invalid parameter, for a condition that cannot be read, and if no
        configuration meets all conditions.
        """
        self.parameters = tuple(parameters)
        self.derived = tuple(derived)
        self.words = tuple(sorted(words))
        self._by_name = {parameter.name: parameter for parameter in self.parameters}
        self._positions = {parameter.name: at for at, parameter in enumerate(self.parameters)}
        twice = [name for name, n in Counter(p.name for p in self.parameters).items() if n > 1]
        if twice:
            raise SpaceError(f"there are two parameters named {twice[0]!r}")
        names = {parameter.name: parameter.values for parameter in self.parameters}
        names |= {value.name: value.values for value in self.derived}
        self.conditions = tuple([parse_condition(text, names, words) for text in conditions])
        self._sizes = [len(p.values) for p in self.parameters]
        checks = [(self._asked(condition), condition) for condition in self.conditions]
        self._checks = [check for check in checks if check[0]]
        for condition in self.conditions:
            if not self._possible(condition):
                raise SpaceError(f"--when {condition.text!r}: no configuration meets it")
        self._members: tuple[Choices, ...] = ()
        """With conditions: all configurations, or the first ones if there are too many to count."""
        if self._checks:
            members = itertools.islice(self._admitted(self._checks), MAX_COUNTED + 1)
            self._members = tuple(members)
        self.is_counted = len(self._members) <= MAX_COUNTED
        """Whether `size` is exact."""
        if self._checks and not self._members:
            listed = ", ".join([repr(condition.text) for condition in self.conditions])
            raise SpaceError(f"no configuration meets every --when: {listed}")

    @property
    def size(self) -> int:
        """The number of configurations; a lower bound for a large space with conditions."""
        if not self._checks:
            return math.prod(self._sizes)
        return min(len(self._members), MAX_COUNTED)

    @functools.cached_property
    def default(self) -> Configuration:
        """All defaults; if conditions rule that out, the configuration nearest to it."""
        wanted = self._choices({})
        if self._admits(wanted):
            return self._configuration(wanted)

        def distance(choices: Choices) -> tuple[object, ...]:
            moved = [at for at, choice in enumerate(choices) if choice != wanted[at]]
            steps = [abs(choices[at] - wanted[at]) for at in moved]
            return len(moved), [-at for at in moved], steps

        return self._configuration(min(self._members, key=distance))

    @property
    def name(self) -> str:
        """16 hexadecimal digits; equal for equal spaces, whatever their reasons."""
        plain = self.to_plain()
        del plain["words"]
        for parameter in plain["parameters"]:
            del parameter["reason"]
        return digest(plain)[:16]

    def parameter(self, name: str) -> Parameter:
        """The parameter of that name. Raises `SpaceError` if there is none."""
        if name not in self._by_name:
            names = ", ".join(self._by_name) or "none"
            raise SpaceError(f"there is no parameter {name!r} in this space; there are {names}")
        return self._by_name[name]

    def require_choice(self) -> None:
        """Raise `SpaceError` unless there are two configurations to choose between."""
        if self.size > 1:
            return
        raise SpaceError(
            "there is only one configuration, so nothing to search: give a --param several values, or "
            "drop what fixes the others (--only-params, --when, options of xlaunch)"
        )

    def __iter__(self) -> Iterator[Configuration]:
        for choices in self._admitted(self._checks):
            yield self._configuration(choices)

    def __contains__(self, configuration: object) -> bool:
        if not isinstance(configuration, Configuration):
            return False
        try:
            return self._admits(self._choices(configuration))
        except SpaceError:
            return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Space) and self.to_plain() == other.to_plain()

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        inside = " x ".join([f"{p.name} ({len(p.values)})" for p in self.parameters])
        more = "" if self.is_counted else "more than "
        return f"Space({inside}: {more}{self.size} configurations)"

    def complete(self, configuration: Mapping[str, Value]) -> Configuration:
        """The configuration with defaults for what it lacks. Raises `SpaceError`; ignores conditions."""
        return self._configuration(self._choices(configuration))

    def changes(self, configuration: Mapping[str, Value]) -> dict[str, Value]:
        """The values that differ from the default, in the order of the parameters."""
        complete = self.complete(configuration)
        return {p.name: complete[p.name] for p in self.parameters if complete[p.name] != p.default}

    def random(self, rng: random.Random) -> Configuration:
        """A random configuration, uniformly; in a space too large to count with few of them, an early one."""
        if self._checks and self.is_counted:
            return self._configuration(rng.choice(self._members))
        for _ in range(MAX_DRAWN):
            choices = tuple([rng.randrange(size) for size in self._sizes])
            if self._admits(choices):
                return self._configuration(choices)
        return self._configuration(rng.choice(self._members))

    def neighbours(self, configuration: Configuration) -> tuple[Configuration, ...]:
        """The configurations that differ in one parameter: for numbers, the next one up and down.

        Raises `SpaceError` for a configuration that is not in the space.
        """
        choices = self._choices(configuration)
        configurations: list[Configuration] = []
        for at, parameter in enumerate(self.parameters):
            others = [
                (*choices[:at], choice, *choices[at + 1 :])
                for choice in range(len(parameter.values))
                if choice != choices[at]
            ]
            others = [other for other in others if self._admits(other)]
            if parameter.ordered:
                below = [other for other in others if other < choices]
                others = [*below[-1:], *others[len(below) :][:1]]
            configurations += map(self._configuration, others)
        return tuple(configurations)

    def places(self, name: str) -> tuple[tuple[float, ...], ...] | None:
        """A point for each value of a parameter, whose distances measure similarity.

        An ordered parameter is placed by its rank, one with derived numbers (a layout) by their
        logarithms, so that twice and half the instances are equally far away; coordinates go from 0 to 1.
        None for any other, whose values are equally unlike.
        """
        parameter = self.parameter(name)
        numbers = [value.values for value in self.derived if value.parameter == name]
        axes: list[list[float]] = []
        if parameter.ordered:
            axes = [[float(rank) for rank in range(len(parameter.values))]]
        elif all(isinstance(n, int | float) and n > 0 for axis in numbers for n in axis):
            axes = [[math.log2(float(n)) for n in axis] for axis in numbers]
        axes = [axis for axis in axes if min(axis) < max(axis)]
        scaled = [[(n - min(axis)) / (max(axis) - min(axis)) for n in axis] for axis in axes]
        return tuple(zip(*scaled, strict=True)) or None

    def to_plain(self) -> dict[str, Any]:
        """The space as plain lists, dicts, text and numbers, for JSON."""
        return {
            "schema_version": SCHEMA_VERSION,
            "parameters": to_plain(self.parameters),
            "conditions": [condition.text for condition in self.conditions],
            "derived": to_plain(self.derived),
            "words": list(self.words),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Space:
        """The inverse of `to_plain`. Raises `SpaceError` for another version."""
        version = plain.get("schema_version")
        if version != SCHEMA_VERSION:
            raise SpaceError(
                f"the stored space has format version {version!r}; this xtune reads {SCHEMA_VERSION}"
            )
        parameters = [from_plain(Parameter, parameter) for parameter in plain["parameters"]]
        derived = [from_plain(DerivedValue, value) for value in plain["derived"]]
        return cls(parameters, plain["conditions"], derived, words=plain["words"])

    def _choices(self, configuration: Mapping[str, Value]) -> Choices:
        for name in configuration:
            self.parameter(name)
        choices = []
        for parameter in self.parameters:
            value = configuration.get(parameter.name, parameter.default)
            if value not in parameter.values:
                allowed = ", ".join(map(str, parameter.values))
                raise SpaceError(f"{parameter.name}={value}: the space has {allowed}")
            choices.append(parameter.values.index(value))
        return tuple(choices)

    def _configuration(self, choices: Choices) -> Configuration:
        pairs = zip(self.parameters, choices, strict=True)
        return Configuration({parameter.name: parameter.values[at] for parameter, at in pairs})

    def _values(self, choices: Sequence[int]) -> dict[str, Value]:
        """The values that conditions may use, as far as `choices` goes."""
        pairs = zip(self.parameters, choices, strict=False)
        values = {parameter.name: parameter.values[at] for parameter, at in pairs}
        for derived in self.derived:
            at = self._positions.get(derived.parameter, -1)
            if at < len(choices):
                values[derived.name] = derived.values[choices[at] if at >= 0 else 0]
        return values

    def _asked(self, condition: Condition) -> tuple[int, ...]:
        """The positions of the parameters that a condition depends on."""
        sources = {derived.name: derived.parameter for derived in self.derived}
        names = {sources.get(name, name) for name in condition.names} - {""}
        return tuple(sorted([self._positions[name] for name in names]))

    def _admits(self, choices: Choices) -> bool:
        return all(condition.holds(self._values(choices)) for _, condition in self._checks)

    def _admitted(self, checks: Sequence[Check]) -> Iterator[Choices]:
        """Yield the choices that every check admits, the last parameter changing fastest.

        Raises `SpaceError` after too many checks.
        """
        sizes = self._sizes
        due = [[check for places, check in checks if places[-1] == at] for at in range(len(sizes))]
        visited = 0

        def complete(choices: list[int]) -> Iterator[Choices]:
            nonlocal visited
            at = len(choices)
            if at == len(sizes):
                yield tuple(choices)
                return
            visited += len(due[at]) * sizes[at]
            if visited > MAX_CHECKS:
                raise SpaceError(
                    "the conditions combine too many parameters to be solved; leave out a --when, or"
                    " give parameters fewer values"
                )
            for choice in range(sizes[at]):
                choices.append(choice)
                if all(condition.holds(self._values(choices)) for condition in due[at]):
                    yield from complete(choices)
                choices.pop()

        return complete([])

    def _possible(self, condition: Condition) -> bool:
        """Whether a condition can hold by itself."""
        places = self._asked(condition)
        if not places:
            return condition.holds(self._values(()))
        return next(self._admitted([(places, condition)]), None) is not None
