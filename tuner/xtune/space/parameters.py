# SPDX-License-Identifier: Apache-2.0
"""Parameters, and the configurations that assign values to them."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

Value: TypeAlias = str | int | float | bool
"""One value of a parameter: text as on xlaunch's command line, a number, or a switch."""


class Target(enum.Enum):
    """What a parameter changes."""

    OPTION = "option"
    """An option of xlaunch. **Ex.:** ``allocator=tcmalloc`` is ``--allocator tcmalloc``."""
    VARIABLE = "variable"
    """An environment variable of the program. **Ex.:** ``ONEDNN_DEFAULT_FPMATH_MODE``."""
    PROGRAM = "program"
    """`{name}` in the program's arguments and in --env. **Ex.:** ``--param batch=1,2,4``."""


class Parameter(NamedTuple):
    """A parameter that a search varies.

    **Ex.:** ``Parameter("allocator", ("auto", "glibc", "tcmalloc"), "auto", Target.OPTION)``
    """

    name: str
    values: tuple[Value, ...]
    """At least one, each once. Numbers ascend where `ordered`."""
    default: Value
    """xlaunch's own choice, or the first value of a user's parameter; one of `values`."""
    where: Target
    ordered: bool = False
    """Neighbouring values behave alike: counts and sizes."""
    changes_results: bool = False
    """It may change the program's results (bf16 arithmetic), so it is searched only on request."""
    reason: str = ""
    """Why it is searched, in one line."""


class Configuration(Mapping[str, Value]):
    """One value for each parameter of a space; immutable, compared and hashed by content.

    Parameters that it does not name have their defaults: `Configuration({})` is all defaults.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = dict(sorted(values.items()))

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(tuple(self._values.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configuration) and self._values == other._values

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value}" for name, value in self._values.items())
        return f"Configuration({inside or 'all defaults'})"

    def with_value(self, name: str, value: Value) -> Configuration:
        """A copy with another value of one parameter."""
        return Configuration(self._values | {name: value})


BARE = Configuration({"xlaunch": False})
"""The command without xlaunch: the baseline of every search, in no space.

Its plan's hash differs from that of `Configuration({})`, which is xlaunch with its defaults.
"""
