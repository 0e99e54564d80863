# SPDX-License-Identifier: Apache-2.0
"""Splitting of one call's arguments into a part for each stream.

The functions have no state, so many threads may call them at once.

Two kinds of batch cannot be split: one whose tensors say where the items of others begin (the
offsets of an EmbeddingBag), and a list with one element for each item.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from xruntime.errors import BatchError
from xruntime.pytrees import Path, entries, leaves, place, rebuilt, shape_of
from xruntime.streams.hints import (
    EXAMPLE,
    UNMENTIONED,
    Hinted,
    HintNode,
    MultiStreamModuleHint,
    check_hint,
    check_tensor,
    form_error,
    hints_by_key,
    is_dense,
    refuse_hidden,
)

Call: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""The positional and the keyword arguments of a call."""


def split(
    args: tuple[Any, ...], kwargs: dict[str, Any], hint: MultiStreamModuleHint | None, streams: int
) -> list[Call]:
    """Split the call into at most `streams` parts: views of its tensors, each with some items.

    The parts keep the order of the items, and their sizes differ by at most one: 4 items over 3
    streams are parts of 2, 1 and 1. Fewer items than streams make one part for each item. A single
    part (one item, one stream, an empty batch) is the call itself.

    A hint must cover every tensor that has a dimension; other values that it does not mention are
    passed whole. Without a hint, every such tensor in tuples, lists and dicts is split along
    dimension 0. What is passed whole is the same object in all parts.

    Raises BatchError if the tensors hold different numbers of items, one is not covered, none is to be
    split, hint and arguments have different forms, or a tensor is sparse or nested; HintError if
    `hint` is not a hint.
    """
    if streams < 1:
        raise BatchError(f"{streams} streams: a call is split over at least one")
    dim = lone_dim(args, kwargs, hint)
    if dim is not None:
        sizes = even_sizes(args[0].shape[dim], streams)
        if len(sizes) < 2:
            return [(args, kwargs)]
        return [((view,), kwargs) for view in _views(args[0], dim, sizes)]
    plan = SplitPlan(args, kwargs, hint)
    sizes = even_sizes(plan.items, streams)
    return [(args, kwargs)] if len(sizes) < 2 else plan.parts(sizes)


def count_items(
    args: tuple[Any, ...], kwargs: dict[str, Any], hint: MultiStreamModuleHint | None
) -> int:
    """Count the items of a call's batch. Raises as `split` does."""
    dim = lone_dim(args, kwargs, hint)
    return SplitPlan(args, kwargs, hint).items if dim is None else args[0].shape[dim]


def lone_dim(
    args: tuple[Any, ...], kwargs: dict[str, Any], hint: MultiStreamModuleHint | None
) -> int | None:
    """The dimension to split along if the call is a single tensor, the common case; else None."""
    if len(args) != 1 or kwargs or type(args[0]) is not Tensor:
        return None
    dim: HintNode = 0
    if hint is not None:
        check_hint(hint)
        dim = hint.args[0] if hint.args else None
    rank = args[0].dim()
    return dim if type(dim) is int and -rank <= dim < rank and is_dense(args[0]) else None


def even_sizes(items: int, streams: int) -> list[int]:
    """Return at most `streams` sizes that add up to `items` and differ by at most one, larger first.

    **Ex.:** 4 items over 3 streams: ``[2, 1, 1]``; 2 over 3: ``[1, 1]``; none: ``[0]``.
    """
    size, larger = divmod(items, streams)
    if size == 0:
        return [1] * items or [0]
    return [size + 1] * larger + [size] * (streams - larger)


class Leaf(NamedTuple):
    """A tensor that is split."""

    path: Path
    tensor: Tensor
    dim: int


class Branch(NamedTuple):
    """A nest in which something is split."""

    path: Path
    value: Any
    inner: list[Plan]


Plan: TypeAlias = "Leaf | Branch | UnsplitValue"


class UnsplitValue(NamedTuple):
    """A value that all parts receive unchanged."""

    value: Any


class SplitPlan:
    """The tensors of one call that are split, and their common number of items. Raises as `split` does."""

    def __init__(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], hint: MultiStreamModuleHint | None
    ) -> None:
        self._leaves: list[Leaf] = []
        self._uncovered: list[tuple[Path, Tensor]] = []
        if hint is None:
            self.args = self._every(args, 0, ("args",))
            self.kwargs = self._every(kwargs, 0, ("kwargs",))
        else:
            check_hint(hint)
            self.args = self._each(args, dict(enumerate(hint.args)), ("args",))
            self.kwargs = self._each(kwargs, hint.kwargs, ("kwargs",))
        self.items = self._agreed_items(hint)

    def parts(self, sizes: Sequence[int]) -> list[Call]:
        """Return a part of the call for each size; `sizes` add up to `items`."""
        return list(zip(_parts(self.args, sizes), _parts(self.kwargs, sizes), strict=True))

    def _visit(self, value: Any, hint: Hinted, path: Path) -> Plan:
        if hint is None:
            return UnsplitValue(value)
        if isinstance(value, Tensor):
            if isinstance(hint, int):
                return self._leaf(value, hint, path)
            if hint is not UNMENTIONED:
                raise form_error(value, hint, path)
            if value.dim():
                self._uncovered.append((path, value))
            return UnsplitValue(value)
        inner = entries(value)
        if hint is UNMENTIONED:
            if inner is not None:
                return self._each(value, {}, path)
            refuse_hidden(value, path)
            return UnsplitValue(value)
        if value is None:  # an optional argument that is absent
            return UnsplitValue(value)
        if inner is None:
            raise form_error(value, hint, path)
        if isinstance(hint, int):
            if not isinstance(plan := self._every(value, hint, path), UnsplitValue):
                return plan
            if any(leaf is not None for _, leaf in leaves(value)):
                raise form_error(value, hint, path)
            return plan
        return self._each(value, hints_by_key(value, hint, path), path)

    def _each(self, nest: Any, hints: Mapping[Any, HintNode], path: Path) -> Plan:
        """A nest with a hint for each of its values."""
        inner = [
            self._visit(item, hints.get(key, UNMENTIONED), (*path, key))
            for key, item in entries(nest) or ()
        ]
        return self._branch(nest, inner, path)

    def _every(self, value: Any, dim: int, path: Path) -> Plan:
        """A value in which every tensor is split along `dim`."""
        if isinstance(value, Tensor):
            return self._leaf(value, dim, path) if value.dim() else UnsplitValue(value)
        inner = entries(value)
        if inner is None:
            refuse_hidden(value, path)
            return UnsplitValue(value)
        plans = [self._every(item, dim, (*path, key)) for key, item in inner]
        return self._branch(value, plans, path)

    def _branch(self, nest: Any, inner: list[Plan], path: Path) -> Plan:
        if all(type(plan) is UnsplitValue for plan in inner):
            return UnsplitValue(nest)
        return Branch(path, nest, inner)

    def _leaf(self, tensor: Tensor, dim: int, path: Path) -> Leaf:
        check_tensor(tensor, dim, path)
        leaf = Leaf(path, tensor, dim)
        self._leaves.append(leaf)
        return leaf

    def _agreed_items(self, hint: MultiStreamModuleHint | None) -> int:
        if self._uncovered:
            named = [f"{place(path)} {shape_of(tensor)}" for path, tensor in self._uncovered]
            listed = ", ".join(named)
            raise BatchError(
                f"the hint {hint!r} does not cover these tensors: {listed}. Give each the dimension of"
                f" its items, or None to pass it whole to every stream; {EXAMPLE}"
            )
        if not self._leaves:
            raise BatchError(
                "this call has nothing to split"
                + (": no tensor with a dimension" if hint is None else f" by the hint {hint!r}")
                + f". Call the module itself, or name the batch's dimension in the hint; {EXAMPLE}"
            )
        first = self._leaves[0]
        items = first.tensor.shape[first.dim]
        if any(leaf.tensor.shape[leaf.dim] != items for leaf in self._leaves):
            listed = ", ".join(
                f"{place(leaf.path)} {leaf.tensor.shape[leaf.dim]} (dimension {leaf.dim} of"
                f" {shape_of(leaf.tensor)})"
                for leaf in self._leaves
            )
            raise BatchError(
                f"the tensors to split hold different numbers of items: {listed}. Give each the"
                f" dimension of its items, or None to pass it whole to every stream; {EXAMPLE}"
            )
        return items


def _parts(plan: Plan, sizes: Sequence[int]) -> Sequence[Any]:
    """A value's parts, one for each size."""
    if type(plan) is UnsplitValue:
        return [plan.value] * len(sizes)
    if type(plan) is Leaf:
        return _views(plan.tensor, plan.dim, sizes)
    assert type(plan) is Branch
    columns = [_parts(inner, sizes) for inner in plan.inner]
    return [rebuilt(plan.value, list(row), plan.path) for row in zip(*columns, strict=True)]


def _views(tensor: Tensor, dim: int, sizes: Sequence[int]) -> Sequence[Tensor]:
    """Views of a tensor that a module may change in place wherever it may change the whole."""
    if tensor.requires_grad and torch.is_grad_enabled():
        # One by one: autograd forbids in-place changes of a view that one function returned with others.
        starts = itertools.accumulate(sizes, initial=0)
        return [tensor.narrow(dim, start, size) for start, size in zip(starts, sizes, strict=False)]
    # Detached: otherwise an in-place product of one with a weight would make the others, which other
    # streams use, require gradients.
    return [view.detach() for view in tensor.split_with_sizes(sizes, dim)]
