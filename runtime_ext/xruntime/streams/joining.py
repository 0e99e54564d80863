# SPDX-License-Identifier: Apache-2.0
"""Joins what the parts of one call returned into what the whole call would have returned."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

import torch
from torch import Tensor, inference_mode, is_inference_mode_enabled

from xruntime.errors import BatchError
from xruntime.nests import Path, described, entries, leaves, place, rebuilt, shape_of
from xruntime.streams.hint_checks import (
    UNMENTIONED,
    Hinted,
    check_hint,
    check_tensor,
    form_error,
    hint_node,
    hints_by_key,
    refuse_hidden,
)
from xruntime.streams.hints import HintNode, MultiStreamModuleHint

_NOTHING: Final = contextlib.nullcontext()


def join(
    outputs: Sequence[Any],
    hint: MultiStreamModuleHint | None,
    concat: bool = True,
    *,
    sizes: Sequence[int] | None = None,
) -> Any:
    """What the call would have returned, from what its parts returned, in their order.

    With `concat` off: the list of the outputs. A single output: itself. Otherwise tensors are
    concatenated (one allocation, one copy, channels_last kept) and nests built anew as the same types.

    With a hint, every returned tensor must be covered by it. Without one, every tensor in tuples,
    lists and dicts is concatenated along dimension 0; where the parts' `sizes` are given, a tensor
    that does not have its part's size there is refused, since it may not hold the batch at all. What
    is no tensor, and was not given the hint None, must be equal in all parts.

    Raises BatchError when that is not so, when parts returned different forms or shapes that do not
    fit, for tensors without dimensions (a loss), for sparse and nested tensors, and when hint and
    output have different forms; HintError when `hint` is no hint.
    """
    if not outputs:
        raise BatchError("there are no outputs to join: a call has at least one part")
    if not concat:
        return list(outputs)
    if len(outputs) == 1:
        return outputs[0]
    return _Joint(outputs, hint, sizes).joined()


class _Joint:
    """Joins the outputs of one call's parts."""

    def __init__(
        self,
        outputs: Sequence[Any],
        hint: MultiStreamModuleHint | None,
        sizes: Sequence[int] | None,
    ) -> None:
        self._outputs = outputs
        self._hint = hint
        # A hint is the user's word that its outputs hold the batch; without one we look.
        self._sizes = sizes if hint is None else None

    def joined(self) -> Any:
        if self._hint is None:
            return self._every(self._outputs, 0, ("output",))
        check_hint(self._hint)
        return self._visit(self._outputs, self._hint.whole, ("output",))

    def _visit(self, values: Sequence[Any], hint: Hinted, path: Path) -> Any:
        first = values[0]
        if hint is None:
            return first
        if isinstance(first, Tensor):
            if isinstance(hint, int):
                return self._concatenated(values, hint, path)
            if hint is not UNMENTIONED:
                raise form_error(first, hint, path)
            raise BatchError(
                f"the output hint {self._hint!r} says nothing about {place(path)} {shape_of(first)}. Give"
                " it the dimension along which it is to be concatenated, or None to take the first"
                f" part's, for instance {self._suggestion()}"
            )
        inner = entries(first)
        if hint is UNMENTIONED:
            return self._equal(values, path) if inner is None else self._each(values, {}, path)
        if first is None:  # an optional output that is absent
            return self._equal(values, path)
        if inner is None:
            raise form_error(first, hint, path)
        if isinstance(hint, int):
            if inner and not any(isinstance(leaf, Tensor) for _, leaf in leaves(first)):
                raise form_error(first, hint, path)
            return self._every(values, hint, path)
        return self._each(values, hints_by_key(first, hint, path), path)

    def _each(self, values: Sequence[Any], hints: Mapping[Any, HintNode], path: Path) -> Any:
        """Nests whose values have hints of their own."""
        columns = self._columns(values, path)
        joined = [
            self._visit(column, hints.get(key, UNMENTIONED), (*path, key))
            for key, column in columns.items()
        ]
        return rebuilt(values[0], joined, path)

    def _every(self, values: Sequence[Any], dim: int, path: Path) -> Any:
        """Values all of whose tensors are concatenated along `dim`."""
        first = values[0]
        if isinstance(first, Tensor):
            return self._concatenated(values, dim, path)
        if entries(first) is None:
            return self._equal(values, path)
        columns = self._columns(values, path)
        joined = [self._every(column, dim, (*path, key)) for key, column in columns.items()]
        return rebuilt(first, joined, path)

    def _columns(self, values: Sequence[Any], path: Path) -> dict[Any, list[Any]]:
        """For each key of nests that are alike, its values in all parts."""
        kind = type(values[0])
        rows = [dict(entries(value) or ()) for value in values]
        for value, row in zip(values, rows, strict=True):
            if type(value) is not kind or row.keys() != rows[0].keys():
                raise _unlike_error(values[0], value, path)
        return {key: [row[key] for row in rows] for key in rows[0]}

    def _concatenated(self, values: Sequence[Any], dim: int, path: Path) -> Tensor:
        for value in values:
            if type(value) is not Tensor and not isinstance(value, Tensor):
                raise _unlike_error(values[0], value, path)
            if not value.dim():
                raise BatchError(
                    f"{place(path)} is a tensor without dimensions, such as a loss, which cannot be"
                    " concatenated: take the first part's by the output hint None, for instance"
                    f" {self._suggestion()}, or all parts' by"
                    " concat_output=False"
                )
            check_tensor(value, dim, path)
        if self._sizes is not None and any(
            value.shape[dim] != size for value, size in zip(values, self._sizes, strict=True)
        ):
            raise self._sizes_error(values, self._sizes, path)
        try:
            # Keeps channels_last where all parts have it, and gives what a single part would be: an
            # inference tensor or not.
            inference = values[0].is_inference()
            with (
                _NOTHING if inference is is_inference_mode_enabled() else inference_mode(inference)
            ):
                return torch.cat(values, dim)  # type: ignore[arg-type]  # any sequence will do
        except RuntimeError as error:
            shapes = [list(value.shape) for value in values]
            for shape in shapes:
                if len(shape) == len(shapes[0]):
                    shape[dim] = 0
            if all(shape == shapes[0] for shape in shapes):
                raise
            raise BatchError(
                f"{place(path)}: the parts' tensors fit together along dimension {dim} only if all"
                f" other dimensions are equal, and they are"
                f" {', '.join(shape_of(value) for value in values)}. A module that pads to the longest of"
                " its items does so for each part: pad to a fixed length before or in the module, or"
                " take the parts as they are by concat_output=False"
            ) from error

    def _sizes_error(
        self, values: Sequence[Tensor], sizes: Sequence[int], path: Path
    ) -> BatchError:
        others = {
            path
            for path, leaf in leaves(self._outputs[0], ("output",))
            if isinstance(leaf, Tensor) and leaf.dim() and leaf.shape[0] != sizes[0]
        }
        return BatchError(
            f"{place(path)} does not have one row for each item: parts of {', '.join(map(str, sizes))}"
            f" items returned {', '.join(shape_of(value) for value in values)}. Say in the output hint"
            " along which dimension it is to be concatenated, or None where it holds no items and the"
            f" first part's is right, for instance {self._suggestion(others)}"
        )

    def _equal(self, values: Sequence[Any], path: Path) -> Any:
        first = values[0]
        for value in values:
            if value is first:
                continue
            refuse_hidden(first, path)
            if type(value) is not type(first):
                raise _unlike_error(first, value, path)
            if not _are_equal(first, value):
                raise BatchError(
                    f"{place(path)} is no tensor, and the parts returned different values"
                    f" ({described(first)}, {described(value)}): take the first part's by the output hint"
                    f" None, for instance {self._suggestion()},"
                    " or all parts' by concat_output=False"
                )
        return first

    def _suggestion(self, others: Set[Path] = frozenset()) -> MultiStreamModuleHint:
        """The hint as it is, and 0 for all other tensors that have a dimension, save `others`."""
        stated = 0 if self._hint is None else self._hint.whole
        dims = {}
        for path, leaf in leaves(self._outputs[0], ("output",)):
            if isinstance(leaf, Tensor) and leaf.dim() and path not in others:
                dim = _stated_dim(stated, path[1:])
                if dim is not None:
                    dims[path] = dim
        return MultiStreamModuleHint(hint_node(self._outputs[0], dims, ("output",)))


def _stated_dim(hint: HintNode, path: Path) -> int | None:
    """What a hint says of the tensor at the end of a path; 0 where it says nothing."""
    for key in path:
        if hint is None or isinstance(hint, int):
            break
        if isinstance(hint, tuple):
            hint = hint[key] if isinstance(key, int) and key < len(hint) else 0
        else:
            hint = hint.get(key, 0)
    return hint if hint is None or isinstance(hint, int) else 0


def _are_equal(left: Any, right: Any) -> bool:
    try:
        return bool(left == right)
    except (TypeError, ValueError, RuntimeError):  # an array's comparison is an array
        return False


def _unlike_error(left: Any, right: Any, path: Path) -> BatchError:
    return BatchError(
        f"{place(path)}: the parts returned {described(left)} and {described(right)}, which do not fit"
        " together: let the module return the same form for every batch, give it the output hint None"
        " to take the first part's, or take all parts' by concat_output=False"
    )
