# SPDX-License-Identifier: Apache-2.0
"""Nests of tuples, lists and dicts that hold tensors, and the hints that describe them.

What splitting arguments and joining outputs have in common: looking into a nest, building it again,
and refusing what a hint does not fit.
"""

from __future__ import annotations

import copy
import dataclasses
import reprlib
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Final, TypeAlias

import torch
from torch.nn.utils.rnn import PackedSequence

from xruntime.errors import BatchError, HintError
from xruntime.streams.hints import HintFields, HintNode, MultiStreamModuleHint

Path: TypeAlias = tuple[Any, ...]
"""The name of a root, then the indices and keys that lead to a value: ("args", 0, "mask")."""


class Unmentioned:
    """Stands where a hint says nothing about a value."""


UNMENTIONED: Final = Unmentioned()
Hinted: TypeAlias = "HintNode | Unmentioned"


def place(path: Path) -> str:
    """A path as a user would write it: ``args[0]['mask']``."""
    return f"{path[0]}" + "".join(f"[{key!r}]" for key in path[1:])


def entries(value: Any) -> Collection[tuple[Any, Any]] | None:
    """What a nest holds, by index or key and in its order; None for what is no nest.

    Nests are tuples, lists, and dicts with all that is derived from them (NamedTuple, torch's
    return types, OrderedDict, transformers' ModelOutput), and what else behaves like a dict that
    can be changed (BatchEncoding). A torch.Size and a PackedSequence are tuples by accident: the one
    is a number of numbers, the tensors of the other cannot be split or joined one by one.
    """
    kind = type(value)
    if kind is tuple or kind is list:
        return list(enumerate(value))
    if kind is dict:
        return value.items()  # type: ignore[no-any-return]
    if isinstance(value, (torch.Size, PackedSequence)):
        return None
    if isinstance(value, (tuple, list)):
        return list(enumerate(value))
    if isinstance(value, MutableMapping):
        return value.items()
    return None


def rebuilt(value: Any, inner: list[Any], path: Path) -> Any:
    """A nest of the same type as `value`, its keys in the same order, which holds `inner` instead.

    Raises BatchError for a class of the user's that cannot be made anew.
    """
    kind = type(value)
    if kind is list:
        return inner
    if kind is tuple:
        return tuple(inner)
    if kind is dict or kind is OrderedDict:
        return kind(zip(value, inner, strict=True))
    try:
        if isinstance(value, tuple):
            # A NamedTuple takes its fields one by one, other tuples all in one.
            return kind._make(inner) if hasattr(kind, "_make") else kind(inner)
        # A copy keeps what else the object knows: a default factory, attributes.
        made = copy.copy(value)
        if isinstance(value, list):
            made[:] = inner
        else:
            for key, item in zip(value, inner, strict=True):
                made[key] = item
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        raise BatchError(
            f"{place(path)}: of a {kind.__name__} no second one can be made ({error}): use a tuple, list"
            " or dict, or write the hint None for it"
        ) from error
    return made


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """All that is no nest, with the way to it."""
    inner = None if isinstance(value, torch.Tensor) else entries(value)
    if inner is None:
        yield path, value
        return
    for key, item in inner:
        yield from leaves(item, (*path, key))


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


def described(value: Any) -> str:
    """A value in a few words, for a message: ``a list of 2``, ``a tensor (4, 3)``, ``a bool (True)``."""
    if value is None:
        return "None"
    if isinstance(value, torch.Tensor):
        return f"a tensor {shape_of(value)}"
    kind = "dict" if isinstance(value, HintFields) else type(value).__name__
    named = f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"
    if isinstance(value, Mapping):
        return f"{named} with the keys {', '.join(map(repr, value)) or '(none)'}"
    if isinstance(value, (tuple, list)):
        return f"{named} of {len(value)}"
    if isinstance(value, (bool, int, float, complex, str, bytes)):
        return f"{named} ({reprlib.repr(value)})"
    return named


def shape_of(tensor: torch.Tensor) -> str:
    return "(nested)" if tensor.is_nested else str(tuple(tensor.shape))
