# SPDX-License-Identifier: Apache-2.0
"""Hints: the dimension along which each tensor of a call is split, and each output joined.

MultiStreamModuleHint(0)                    # forward(x): split x along dimension 0
MultiStreamModuleHint(0, None, 1)           # forward(x, flag, y): all streams get the whole flag
MultiStreamModuleHint((0, 0), mask=0)       # forward((a, b), mask=m)
MultiStreamModuleHint(0, {"scores": 0})     # a module that returns (tensor, {"scores": tensor})
"""

from __future__ import annotations

import dataclasses
import keyword
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from xruntime.errors import HintError, refusing

HintNode: TypeAlias = "int | tuple[HintNode, ...] | HintFields | None"
"""A dimension, None, or a nest of these like the value that it describes."""


class HintFields(dict[Any, HintNode]):
    """The hints of a dict's values, by key; immutable."""

    __slots__ = ()

    def __hash__(self) -> int:  # type: ignore[override]  # dict is mutable and has none
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return HintFields, (dict(self),)

    _refuse = refusing(TypeError, "a hint cannot be changed: write a new MultiStreamModuleHint")
    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse


@dataclasses.dataclass(frozen=True, init=False, repr=False, slots=True)
class MultiStreamModuleHint:
    """The dimension that holds the items of the batch, for each tensor of a call or return value.

    Positional hints describe positional arguments, keyword hints keyword arguments. Each is an
    int, None, or a tuple, list or dict of these:

    - an int for a tensor: the dimension along which it is split (input) or concatenated (output);
      negative ones count from the end. An int for a tuple, list or dict holds for every tensor in it;
      other values, and tensors without dimensions, are passed whole.
    - None: every stream receives the same value (input); the first stream's value is taken (output).

    For outputs, one positional hint describes the whole return value, several a tuple, keyword hints
    a dict, and both together a tuple that ends with the dict.

    Lists and tuples mean the same. Hints are immutable and compared by value.
    Raises HintError (a TypeError) for anything else.
    """

    args: tuple[HintNode, ...]
    kwargs: HintFields

    def __init__(self, *args: object, **kwargs: object) -> None:
        if not args and not kwargs:
            raise HintError(
                "MultiStreamModuleHint() is empty: give one hint for each argument or output, an int (a"
                " dimension) or None (not split), for example MultiStreamModuleHint(0)"
            )
        object.__setattr__(self, "args", tuple(_nodes(enumerate(args), "argument ")))
        fields = zip(kwargs, _nodes(kwargs.items(), "keyword "), strict=True)
        object.__setattr__(self, "kwargs", HintFields(fields))

    @property
    def whole(self) -> HintNode:
        """The hint of the whole return value."""
        if not self.kwargs:
            return self.args[0] if len(self.args) == 1 else self.args
        return (*self.args, self.kwargs) if self.args else self.kwargs

    def __repr__(self) -> str:
        """The code that makes it."""
        written = [repr(node) for node in self.args]
        if all(map(_is_keyword_argument, self.kwargs)):
            written += [f"{name}={node!r}" for name, node in self.kwargs.items()]
        else:
            written.append(f"**{self.kwargs!r}")
        return f"MultiStreamModuleHint({', '.join(written)})"


def _nodes(entries: Iterable[tuple[Any, object]], place: str) -> list[HintNode]:
    return [_node(value, f"{place}{key!r}") for key, value in entries]


def _node(value: object, place: str) -> HintNode:
    """The immutable form of one part of a hint."""
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, (tuple, list)):
        return tuple(_node(inner, f"{place}[{index}]") for index, inner in enumerate(value))
    if isinstance(value, Mapping):
        return HintFields((key, _node(inner, f"{place}[{key!r}]")) for key, inner in value.items())
    shown = f"{value!r}, a" if isinstance(value, (bool, str, bytes, float, complex)) else "a"
    raise HintError(
        f"MultiStreamModuleHint, {place}: {shown} {type(value).__name__} is not a hint. Allowed are an int"
        " (the dimension that holds the items), None (not split, or the first stream's value), and a"
        " tuple, list or dict of these"
    )


def _is_keyword_argument(name: str) -> bool:
    """Whether `f(name=...)` can pass it: Python normalizes names that it reads (PEP 3131)."""
    as_read = unicodedata.normalize("NFKC", name)
    return name == as_read and name.isidentifier() and not keyword.iskeyword(name)
