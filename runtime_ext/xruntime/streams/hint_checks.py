# SPDX-License-Identifier: Apache-2.0
"""Checks that a hint fits the value that it describes, and what a hint says of each part of a nest."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import torch
from torch.nn.utils.rnn import PackedSequence

from xruntime.errors import BatchError, HintError
from xruntime.nests import Path, described, entries, leaves, place, shape_of
from xruntime.streams.hints import HintFields, HintNode, MultiStreamModuleHint


class Unmentioned:
    """Stands where a hint says nothing about a value."""


UNMENTIONED: Final = Unmentioned()
Hinted: TypeAlias = "HintNode | Unmentioned"


def hides_batch(value: Any) -> bool:
    """Whether something that is no nest holds tensors, or an array, where we do not look.

    To pass it whole would give every stream the items of all.
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
    return any(isinstance(leaf, torch.Tensor) and leaf.dim() for _, leaf in leaves(inner))


def hint_node(value: Any, dims: Mapping[Path, int], path: Path) -> HintNode:
    """The shortest hint that splits the tensors at `dims` along these dimensions, and no others."""
    if isinstance(value, torch.Tensor):
        return dims.get(path)
    inner = entries(value)
    if inner is None:
        return None
    nodes = [hint_node(item, dims, (*path, key)) for key, item in inner]
    if all(node is None for node in nodes):
        return None
    if all(isinstance(node, int) and node == nodes[0] for node in nodes):
        return nodes[0]
    if isinstance(value, (tuple, list)):
        return tuple(nodes)
    return HintFields(zip((key for key, _ in inner), nodes, strict=True))


def hints_by_key(nest: Any, hint: Hinted, path: Path) -> Mapping[Any, HintNode]:
    """The hints of what a nest holds, by index or key. A dict describes a NamedTuple by its fields.

    Raises BatchError where the hint is of another form than the nest.
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
            f"{described(hint)} is no hint: give a MultiStreamModuleHint, for instance"
            " MultiStreamModuleHint(0), or None"
        )


def check_tensor(tensor: torch.Tensor, dim: int, path: Path) -> None:
    """Raises BatchError for a tensor that cannot be split, or joined with others, along `dim`."""
    if not is_dense(tensor):
        kind = "nested" if tensor.is_nested else f"{tensor.layout}".removeprefix("torch.")
        remedy = "pad it (torch.nested.to_padded_tensor)" if tensor.is_nested else "use .to_dense()"
        raise BatchError(
            f"{place(path)} is a {kind} tensor, and only dense ones can be split and joined: {remedy},"
            " or write the hint None for it"
        )
    if not -tensor.dim() <= dim < tensor.dim():
        raise BatchError(
            f"{place(path)}: the hint says dimension {dim} and the tensor is {shape_of(tensor)}: give a"
            f" dimension that it has{_allowed_dims(tensor)}, or None"
        )


def _allowed_dims(tensor: torch.Tensor) -> str:
    return f" ({-tensor.dim()} to {tensor.dim() - 1})" if tensor.dim() else ""


def form_error(value: Any, hint: object, path: Path) -> BatchError:
    """Says that a hint does not describe the value at its place."""
    hint = dict(hint) if isinstance(hint, HintFields) else hint
    what = "a dimension" if isinstance(hint, int) else described(hint)
    return BatchError(
        f"{place(path)}: the hint {hint!r} is {what} and the value {described(value)}: write None for"
        " what is not split, a dimension for a tensor, and the same tuple, list or dict for one that"
        " holds tensors"
    )


def refuse_hidden(value: Any, path: Path) -> None:
    """Raises BatchError for what may hold a part of the batch where we do not look."""
    if hides_batch(value):
        raise BatchError(
            f"{place(path)} is {described(value)}, which may hold items of the batch, and only tensors in"
            " tuples, lists and dicts are split and joined: use these, or write the hint None if it is"
            " the same for all items"
        )
