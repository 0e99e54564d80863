# SPDX-License-Identifier: Apache-2.0
"""Checks that a hint fits the value that it describes, and lookup of the hints inside a nest."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import torch
from torch.nn.utils.rnn import PackedSequence

from xruntime.errors import BatchError, HintError
from xruntime.pytrees import Path, described, place, shape_of, tensor_leaves
from xruntime.streams.hints import HintFields, HintNode, MultiStreamModuleHint


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
    """The hints of a nest's values, by index or key. A dict describes a NamedTuple by its fields.

    Raises BatchError if hint and nest have different forms.
    """
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
    if not -tensor.dim() <= dim < tensor.dim():
        raise BatchError(
            f"{place(path)}: the hint says dimension {dim} and the tensor is {shape_of(tensor)}: give one"
            f" of its dimensions{_allowed_dims(tensor)}, or None"
        )


def _allowed_dims(tensor: torch.Tensor) -> str:
    return f" ({-tensor.dim()} to {tensor.dim() - 1})" if tensor.dim() else ""


def form_error(value: Any, hint: object, path: Path) -> BatchError:
    """The error for a hint whose form differs from the value's."""
    hint = dict(hint) if isinstance(hint, HintFields) else hint
    what = "a dimension" if isinstance(hint, int) else described(hint)
    return BatchError(
        f"{place(path)}: the hint {hint!r} is {what} and the value {described(value)}: write a"
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
