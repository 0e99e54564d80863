# SPDX-License-Identifier: Apache-2.0
"""Nests of tuples, lists and dicts that hold tensors: looking into one, building it again, naming it."""

from __future__ import annotations

import copy
import dataclasses
import reprlib
from collections import OrderedDict
from collections.abc import (
    Callable,
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
)
from typing import Any, Final, TypeAlias

import torch
from torch.nn.utils.rnn import PackedSequence

from xruntime.errors import BatchError

MAX_DEPTH: Final = 32
"""Values below this depth are not looked into: an object may refer to itself."""

Path: TypeAlias = tuple[Any, ...]
"""The name of a root, then the indices and keys that lead to a value: ("args", 0, "mask")."""

CONSTANT_TYPES: Final = frozenset(
    (
        *(type(None), bool, int, float, complex, str, bytes),
        *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format),
    )
)
"""Types whose values cannot change: calls with equal ones may share compiled code, or run as one."""


def place(path: Path) -> str:
    """Format a path as a user would write it: ``args[0]['mask']``."""
    return f"{path[0]}" + "".join(f"[{key!r}]" for key in path[1:])


def entries(value: Any) -> Collection[tuple[Any, Any]] | None:
    """Return the values of a nest by index or key, in its order; None for what is not a nest.

    Nests are tuples, lists and dicts, classes derived from them (NamedTuple, torch's return types,
    OrderedDict, transformers' ModelOutput), and other mutable mappings (BatchEncoding). torch.Size and
    PackedSequence are tuples but not nests: one holds numbers, the other's tensors belong together.
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
    """Build a nest of the same type and keys as `value` that holds `inner` instead.

    Raises BatchError for a class that cannot be built this way.
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
        # A copy keeps the default factory and other attributes.
        container = copy.copy(value)
        if isinstance(value, list):
            container[:] = inner
        else:
            for key, item in zip(value, inner, strict=True):
                container[key] = item
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        raise BatchError(
            f"{place(path)}: a {kind.__name__} cannot be rebuilt ({error}): use a tuple, list or dict, or"
            " write the hint None for it"
        ) from error
    return container


def parts(value: Any) -> Collection[tuple[Any, Any]] | None:
    """As `entries`, also of dataclasses by field, and of nested tensors."""
    if isinstance(value, torch.Tensor):
        return list(enumerate(value.unbind())) if value.is_nested else None
    inner = entries(value)
    if inner is None and dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return [(name, getattr(value, name)) for name in names]
    return inner


def with_tensors(function: Callable[[torch.Tensor], Any], value: Any, depth: int = 0) -> Any:
    """Return `value` with each tensor in it replaced by `function` of it, also in dataclasses.

    Values in which nothing changes, and classes that cannot be built again, are returned as they are.
    """
    if isinstance(value, torch.Tensor):
        return function(value)
    inner = parts(value) if depth < MAX_DEPTH else None
    if not inner:
        return value
    items = [with_tensors(function, item, depth + 1) for _, item in inner]
    # torch.compile cannot compare containers by identity.
    if not torch.compiler.is_compiling() and all(
        new is old for new, (_, old) in zip(items, inner, strict=True)
    ):
        return value
    try:
        if entries(value) is not None:
            return rebuilt(value, items, ())
        fields = {field.name for field in dataclasses.fields(value) if field.init}
        new = {key: item for (key, _), item in zip(inner, items, strict=True) if key in fields}
        return dataclasses.replace(value, **new)
    except (BatchError, TypeError, ValueError):
        return value


def leaves(
    value: Any, path: Path = (), inside: Callable[[Any], Any] = entries
) -> Iterator[tuple[Path, Any]]:
    """Yield every value in which `inside` finds no others, with its path."""
    is_tensor = isinstance(value, torch.Tensor) and inside is entries
    inner = None if is_tensor or len(path) > MAX_DEPTH else inside(value)
    if inner is None:
        yield path, value
        return
    for key, item in inner:
        yield from leaves(item, (*path, key), inside)


def tensor_leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, torch.Tensor]]:
    """Yield the tensors of a nest, with their paths."""
    return ((at, leaf) for at, leaf in leaves(value, path) if isinstance(leaf, torch.Tensor))


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors of a nest, also those in dataclasses."""
    return [leaf for _, leaf in leaves(value, (), parts) if isinstance(leaf, torch.Tensor)]


def are_equal(values: Iterable[Any], others: Iterable[Any]) -> bool:
    """Whether there are equal tensors and constants at each place; no where that cannot be told.

    NaN equals itself.
    """
    return all(map(_is_equal, values, others))


def _is_equal(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return constant_key(one) is not None and constant_key(one) == constant_key(other)
    plain = type(one) in (torch.Tensor, torch.nn.Parameter) and one.layout is torch.strided
    if not plain or one.is_nested or other.is_nested:
        return one is other
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one, other) or bool(
        ((one == other) | ((one != one) & (other != other))).all()
    )


def described(value: Any) -> str:
    """Describe a value for a message: ``a list of 2``, ``a tensor (4, 3)``, ``a bool (True)``."""
    if value is None:
        return "None"
    if isinstance(value, torch.Tensor):
        return f"a tensor {shape_of(value)}"
    kind = type(value).__name__
    named = f"{'an' if kind.startswith((*'AEIOUaeiou', 'nd')) else 'a'} {kind}"
    if isinstance(value, Mapping):
        return f"{named} with the keys {', '.join(map(repr, value)) or '(none)'}"
    if isinstance(value, (tuple, list)):
        return f"{named} of {len(value)}"
    if isinstance(value, (bool, int, float, complex, str, bytes)):
        return f"{named} ({reprlib.repr(value)})"
    return named


def constant_key(value: Any) -> Hashable | None:
    """Return a key that two constants share if they give the same results; None for other types."""
    kind = type(value)
    if kind is float or kind is complex:
        return (kind, repr(value))  # NaN equals itself, and 0.0 is not -0.0
    return (kind, value) if kind in CONSTANT_TYPES else None


def shape_of(tensor: torch.Tensor) -> str:
    return "(nested)" if tensor.is_nested else str(tuple(tensor.shape))
