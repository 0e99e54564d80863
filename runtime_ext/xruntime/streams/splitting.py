# SPDX-License-Identifier: Apache-2.0
"""Splits the arguments of one call into a part for each stream.

Functions of their arguments alone: nothing of a call is kept once its parts are dropped, so any
number of threads may split at once.

Two kinds of batch cannot be split here: one whose tensors say where the items of others begin (the
offsets of an EmbeddingBag), and one that is a list with an element for each item.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias

import torch
from torch import Tensor

from xruntime.errors import BatchError
from xruntime.nests import Path, entries, leaves, place, rebuilt, shape_of
from xruntime.streams.hint_checks import (
    UNMENTIONED,
    Hinted,
    check_hint,
    check_tensor,
    form_error,
    hint_node,
    hints_by_key,
    is_dense,
    refuse_hidden,
)
from xruntime.streams.hints import HintNode, MultiStreamModuleHint

__all__ = ["Call", "count_items", "even_sizes", "proportional_sizes", "split"]

Call: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""The positional and the keyword arguments of a call."""


def split(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    hint: MultiStreamModuleHint | None,
    streams: int,
    *,
    sizes: Sequence[int] | None = None,
) -> list[Call]:
    """The call in at most `streams` parts: views of its tensors, each with some items of the batch.

    The parts are in the order of the items; their sizes are `sizes`, or differ by at most one:
    4 items over 3 streams are parts of 2, 1 and 1. Fewer items than streams make as many parts as
    there are items. A part that would hold everything (one item, one stream, an empty batch) is the
    call itself.

    With a hint, every tensor that has a dimension must be covered by it; what it does not mention
    besides is passed whole. Without one, every such tensor in tuples, lists and dicts is split along
    dimension 0. What is passed whole is the same object for all parts.

    Raises BatchError when the tensors hold different numbers of items, when one is not covered, when
    none is to be split, when hint and arguments have different forms, for sparse and nested tensors,
    and when `sizes` do not add up; HintError when `hint` is no hint.
    """
    if streams < 1:
        raise BatchError(f"{streams} streams: a call is split over at least one")
    dim = _lone_dim(args, kwargs, hint)
    if dim is not None:
        shares = _shares(args[0].shape[dim], streams, sizes)
        if len(shares) < 2:
            return [(args, kwargs)]
        return [((view,), kwargs) for view in _views(args[0], dim, shares)]
    search = _Search(args, kwargs, hint)
    shares = _shares(search.items, streams, sizes)
    if len(shares) < 2:
        return [(args, kwargs)]
    return list(zip(_parts(search.args, shares), _parts(search.kwargs, shares), strict=True))


def count_items(
    args: tuple[Any, ...], kwargs: dict[str, Any], hint: MultiStreamModuleHint | None
) -> int:
    """How many items the batch of a call holds. Raises as `split` does."""
    dim = _lone_dim(args, kwargs, hint)
    return _Search(args, kwargs, hint).items if dim is None else args[0].shape[dim]


def _lone_dim(
    args: tuple[Any, ...], kwargs: dict[str, Any], hint: MultiStreamModuleHint | None
) -> int | None:
    """The dimension to split along if the call is nothing but one tensor.

    The common case, on the way of every request that a server answers, and it needs no search. What
    is wrong with such a call, the search tells.
    """
    if len(args) != 1 or kwargs or type(args[0]) is not Tensor:
        return None
    dim: HintNode = 0
    if hint is not None:
        check_hint(hint)
        dim = hint.args[0] if hint.args else None
    rank = args[0].dim()
    return dim if type(dim) is int and -rank <= dim < rank and is_dense(args[0]) else None


def even_sizes(items: int, streams: int) -> list[int]:
    """At most `streams` sizes that add up to `items` and differ by at most one, the larger first.

    **Ex.:** 4 items over 3 streams: ``[2, 1, 1]``; 2 over 3: ``[1, 1]``; none: ``[0]``.
    """
    size, larger = divmod(items, streams)
    if size == 0:
        return [1] * items or [0]
    return [size + 1] * larger + [size] * (streams - larger)


def proportional_sizes(items: int, weights: Sequence[int]) -> list[int]:
    """One size for each weight, in proportion to it, all together `items`.

    Each is the exact share rounded down or up; a share may be none at all, and such streams are to be
    left out of `sizes` of `split`. Equal weights give what `even_sizes` gives.

    **Ex.:** 8 items over streams of 4, 4 and 2 cores: ``[3, 3, 2]``.
    """
    total = sum(weights)
    if total < 1 or min(weights) < 0:
        raise BatchError(f"weights {list(weights)}: none may be negative, and one must be above 0")
    shares = [divmod(items * weight, total) for weight in weights]
    sizes = [size for size, _ in shares]
    by_rest = sorted(range(len(shares)), key=lambda index: -shares[index][1])
    for index in by_rest[: items - sum(sizes)]:
        sizes[index] += 1
    return sizes


class _Leaf(NamedTuple):
    """A tensor that is split."""

    path: Path
    tensor: Tensor
    dim: int


class _Branch(NamedTuple):
    """A nest in which something is split."""

    path: Path
    value: Any
    inner: list[_Plan]


_Plan: TypeAlias = "_Leaf | _Branch | _Whole"


class _Whole(NamedTuple):
    """What all parts receive as it is."""

    value: Any


class _Search:
    """Finds the tensors of one call that are to be split, and that they agree."""

    def __init__(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], hint: MultiStreamModuleHint | None
    ) -> None:
        self._call = (args, kwargs)
        self._found: list[_Leaf] = []
        self._uncovered: list[tuple[Path, Tensor]] = []
        if hint is None:
            self.args = self._every(args, 0, ("args",))
            self.kwargs = self._every(kwargs, 0, ("kwargs",))
        else:
            check_hint(hint)
            self.args = self._each(args, dict(enumerate(hint.args)), ("args",))
            self.kwargs = self._each(kwargs, hint.kwargs, ("kwargs",))
        self.items = self._agreed_items(hint)

    def _visit(self, value: Any, hint: Hinted, path: Path) -> _Plan:
        if hint is None:
            return _Whole(value)
        if isinstance(value, Tensor):
            if isinstance(hint, int):
                return self._leaf(value, hint, path)
            if hint is not UNMENTIONED:
                raise form_error(value, hint, path)
            if value.dim():
                self._uncovered.append((path, value))
            return _Whole(value)
        inner = entries(value)
        if hint is UNMENTIONED:
            if inner is not None:
                return self._each(value, {}, path)
            refuse_hidden(value, path)
            return _Whole(value)
        if value is None:  # an optional argument that is absent
            return _Whole(value)
        if inner is None:
            raise form_error(value, hint, path)
        if isinstance(hint, int):
            if not isinstance(plan := self._every(value, hint, path), _Whole):
                return plan
            if any(leaf is not None for _, leaf in leaves(value)):
                raise form_error(value, hint, path)
            return plan
        return self._each(value, hints_by_key(value, hint, path), path)

    def _each(self, nest: Any, hints: Mapping[Any, HintNode], path: Path) -> _Plan:
        """A nest whose values have hints of their own."""
        return self._branch(
            nest,
            [
                self._visit(item, hints.get(key, UNMENTIONED), (*path, key))
                for key, item in entries(nest) or ()
            ],
            path,
        )

    def _every(self, value: Any, dim: int, path: Path) -> _Plan:
        """A value all of whose tensors are split along `dim`."""
        if isinstance(value, Tensor):
            return self._leaf(value, dim, path) if value.dim() else _Whole(value)
        inner = entries(value)
        if inner is None:
            refuse_hidden(value, path)
            return _Whole(value)
        return self._branch(
            value, [self._every(item, dim, (*path, key)) for key, item in inner], path
        )

    def _branch(self, nest: Any, inner: list[_Plan], path: Path) -> _Plan:
        if all(type(plan) is _Whole for plan in inner):
            return _Whole(nest)
        return _Branch(path, nest, inner)

    def _leaf(self, tensor: Tensor, dim: int, path: Path) -> _Leaf:
        check_tensor(tensor, dim, path)
        leaf = _Leaf(path, tensor, dim)
        self._found.append(leaf)
        return leaf

    def _agreed_items(self, hint: MultiStreamModuleHint | None) -> int:
        found = self._found
        if self._uncovered:
            dims = {leaf.path: leaf.dim for leaf in found} | dict.fromkeys(
                (path for path, _ in self._uncovered), 0
            )
            listed = ", ".join(
                f"{place(path)} {shape_of(tensor)}" for path, tensor in self._uncovered
            )
            raise BatchError(
                f"the hint {hint!r} says nothing about tensors of this call: {listed}. Give each the"
                " dimension that holds its items, or None to hand it whole to every stream, for"
                f" instance {self._suggestion(dims)}"
            )
        if not found:
            raise BatchError(
                "this call holds nothing to split"
                + (": no tensor with a dimension" if hint is None else f" by the hint {hint!r}")
                + ". Call the module itself, or give a tensor of the batch a dimension in the hint"
            )
        items = found[0].tensor.shape[found[0].dim]
        for leaf in found:
            if leaf.tensor.shape[leaf.dim] != items:
                self._refuse_items()
        return items

    def _refuse_items(self) -> NoReturn:
        counts = Counter(leaf.tensor.shape[leaf.dim] for leaf in self._found)
        # What has one row is more likely the same for all items than a batch of one.
        usual = max(counts, key=lambda items: (items > 1, counts[items], items))
        dims = {leaf.path: leaf.dim for leaf in self._found if leaf.tensor.shape[leaf.dim] == usual}
        listed = ", ".join(
            f"{place(leaf.path)} {leaf.tensor.shape[leaf.dim]} (dimension {leaf.dim} of"
            f" {shape_of(leaf.tensor)})"
            for leaf in self._found
        )
        raise BatchError(
            f"the tensors to split hold different numbers of items: {listed}. Give each the dimension"
            " that holds its items, or None to hand it whole to every stream, for instance"
            f" {self._suggestion(dims)}"
        )

    def _suggestion(self, dims: Mapping[Path, int]) -> MultiStreamModuleHint:
        args, kwargs = self._call
        return MultiStreamModuleHint(
            *(hint_node(value, dims, ("args", index)) for index, value in enumerate(args)),
            **{name: hint_node(value, dims, ("kwargs", name)) for name, value in kwargs.items()},
        )


def _parts(plan: _Plan, sizes: Sequence[int]) -> Sequence[Any]:
    """A value's parts, one for each size."""
    if type(plan) is _Whole:
        return [plan.value] * len(sizes)
    if type(plan) is _Leaf:
        return _views(plan.tensor, plan.dim, sizes)
    assert type(plan) is _Branch
    columns = [_parts(inner, sizes) for inner in plan.inner]
    return [rebuilt(plan.value, list(row), plan.path) for row in zip(*columns, strict=True)]


def _views(tensor: Tensor, dim: int, sizes: Sequence[int]) -> Sequence[Tensor]:
    """Views of a tensor on which a module may work in place wherever it may on the whole."""
    if tensor.requires_grad and torch.is_grad_enabled():
        # One by one: autograd forbids to change one of several views that one function returned.
        starts = itertools.accumulate(sizes, initial=0)
        return [tensor.narrow(dim, start, size) for start, size in zip(starts, sizes, strict=False)]
    # Not views to autograd: to multiply one by a weight would make all of them require gradients,
    # under the hands of the other streams.
    return [view.detach() for view in tensor.split_with_sizes(sizes, dim)]


def _shares(items: int, streams: int, sizes: Sequence[int] | None) -> Sequence[int]:
    if sizes is None:
        return even_sizes(items, streams)
    if sum(sizes) != items or (items and min(sizes) < 1) or len(sizes) > streams:
        raise BatchError(
            f"sizes {list(sizes)} for a batch of {items} and {streams} streams: they must add up to"
            f" {items}, each at least 1, and be no more than the streams"
        )
    return sizes if items else [0]
