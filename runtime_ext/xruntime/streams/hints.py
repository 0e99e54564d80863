# SPDX-License-Identifier: Apache-2.0
"""Hints: the dimension along which each tensor of a call is split, and each output joined. Checks that one fits.

MultiStreamModuleHint(0)                    # forward(x): split x along dimension 0
MultiStreamModuleHint(0, None, 1)           # forward(x, flag, y): all streams get the whole flag
MultiStreamModuleHint((0, 0), mask=0)       # forward((a, b), mask=m)
MultiStreamModuleHint(0, {"scores": 0})     # a module that returns (tensor, {"scores": tensor})
"""

from __future__ import annotations

import dataclasses
import keyword
import unicodedata
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import torch
from torch.nn.utils.rnn import PackedSequence

from xruntime.errors import BatchError, HintError, refusing
from xruntime.pytrees import Path, described, place, shape_of, tensor_leaves

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


class Unmentioned:
    """The type of UNMENTIONED, which marks a value that a hint does not mention."""


UNMENTIONED: Final = Unmentioned()
EXAMPLE: Final = (
    "for example MultiStreamModuleHint(0, None): dimension 0 of the first, the second whole"
)
"""Ends the errors that a hint would cure."""

Hinted: TypeAlias = "HintNode | Unmentioned"


def hides_batch(value: Any) -> bool:
    """Whether a value that is not a nest holds tensors, or is an array.

    Passed whole, it could give every stream the items of all.
    """
    inner: Sequence[Any]
    if isinstance(value, PackedSequence):
        return True
    if isinstance(value, (set, frozenset, deque)):
        inner = list(value)
    elif isinstance(value, Mapping):
        inner = list(value.values())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        inner = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    else:
        return hasattr(type(value), "__array__") and getattr(value, "ndim", 0) > 0
    return any(tensor.dim() for _, tensor in tensor_leaves(inner))


def hints_by_key(nest: Any, hint: Hinted, path: Path) -> Mapping[Any, HintNode]:
    """The hints of a nest's values, by index, key or a NamedTuple's field. Raises BatchError."""
    if isinstance(nest, (tuple, list)):
        if isinstance(hint, tuple) and len(hint) <= len(nest):
            return dict(enumerate(hint))
        if isinstance(hint, HintFields) and hasattr(nest, "_fields"):
            fields = enumerate(nest._fields)
            return {index: hint[name] for index, name in fields if name in hint}
    elif isinstance(hint, HintFields):
        return hint
    raise form_error(nest, hint, path)


def is_dense(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested


def check_hint(hint: object) -> None:
    if not isinstance(hint, MultiStreamModuleHint):
        raise HintError(
            f"{described(hint)} is not a hint: give a MultiStreamModuleHint, for instance"
            " MultiStreamModuleHint(0), or None"
        )


def check_tensor(tensor: torch.Tensor, dim: int, path: Path) -> None:
    """Raise BatchError for a tensor that cannot be split, or joined with others, along `dim`."""
    if not is_dense(tensor):
        kind = "nested" if tensor.is_nested else f"{tensor.layout}".removeprefix("torch.")
        remedy = "pad it (torch.nested.to_padded_tensor)" if tensor.is_nested else "use .to_dense()"
        raise BatchError(
            f"{place(path)} is a {kind} tensor, and only dense ones can be split and joined: {remedy},"
            " or write the hint None for it"
        )
    rank = tensor.dim()
    if not -rank <= dim < rank:
        allowed = f" ({-rank} to {rank - 1})" if rank else ""
        raise BatchError(
            f"{place(path)}: the hint says dimension {dim} and the tensor is {shape_of(tensor)}: give one"
            f" of its dimensions{allowed}, or None"
        )


def form_error(value: Any, hint: object, path: Path) -> BatchError:
    """The error for a hint whose form differs from the value's."""
    hint = dict(hint) if isinstance(hint, HintFields) else hint
    form = "a dimension" if isinstance(hint, int) else described(hint)
    return BatchError(
        f"{place(path)}: the hint {hint!r} is {form} and the value {described(value)}: write a"
        " dimension for a tensor, a tuple, list or dict of hints for one that holds tensors, and None for"
        " what is not split"
    )


def refuse_hidden(value: Any, path: Path) -> None:
    """Raise BatchError for a value that is not split but may hold a part of the batch."""
    if hides_batch(value):
        raise BatchError(
            f"{place(path)} is {described(value)}, which may hold items of the batch. Only tensors in"
            " tuples, lists and dicts are split and joined: use these, or write the hint None if the value"
            " is the same for all items"
        )
