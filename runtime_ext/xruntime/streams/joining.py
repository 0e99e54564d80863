# SPDX-License-Identifier: Apache-2.0
"""Joining of the parts' outputs into the output of the whole call."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, inference_mode, is_inference_mode_enabled

from xruntime.errors import BatchError
from xruntime.pytrees import Path, described, entries, place, rebuilt, shape_of, tensor_leaves
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
    refuse_hidden,
)

_NOTHING: Final = contextlib.nullcontext()


def join(
    outputs: Sequence[Any],
    hint: MultiStreamModuleHint | None,
    concat: bool = True,
    *,
    sizes: Sequence[int] | None = None,
) -> Any:
    """Return what the whole call would have returned; `outputs` are the parts', in their order.

    Without `concat`, return the list of the outputs; a single output is returned itself. Otherwise
    concatenate tensors (one allocation, one copy, channels_last kept) and rebuild nests as the same types.

    A hint must cover every tensor. Without one, every tensor in tuples, lists and dicts is concatenated
    along dimension 0; if the parts' `sizes` are given, a tensor of another size there is an error,
    since it may not hold the batch. Other values must be equal in all parts unless their hint is None.

    Raises BatchError if they are not, if the parts returned different forms or shapes that do not
    fit, for tensors without dimensions (a loss), for sparse and nested tensors, and if hint and
    output have different forms; HintError if `hint` is not a hint.
    """
    if not outputs:
        raise BatchError("there are no outputs to join: a call has at least one part")
    if not concat:
        return list(outputs)
    if len(outputs) == 1:
        return outputs[0]
    return _JointOutput(outputs, hint, sizes).joined()


class _JointOutput:
    """The outputs of one call's parts, to be joined."""

    def __init__(
        self,
        outputs: Sequence[Any],
        hint: MultiStreamModuleHint | None,
        sizes: Sequence[int] | None,
    ) -> None:
        self._outputs = outputs
        self._hint = hint
        # A hint already says which outputs hold the batch.
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
                f"the output hint {self._hint!r} does not cover {place(path)} {shape_of(first)}. Give it"
                f" the dimension of its items, or None to take the first part's; {EXAMPLE}"
            )
        inner = entries(first)
        if hint is UNMENTIONED:
            return self._equal(values, path) if inner is None else self._each(values, {}, path)
        if first is None:  # an optional output that is absent
            return self._equal(values, path)
        if inner is None:
            raise form_error(first, hint, path)
        if isinstance(hint, int):
            if inner and not any(tensor_leaves(first)):
                raise form_error(first, hint, path)
            return self._every(values, hint, path)
        return self._each(values, hints_by_key(first, hint, path), path)

    def _each(self, values: Sequence[Any], hints: Mapping[Any, HintNode], path: Path) -> Any:
        """Nests with a hint for each of their values."""
        columns = self._columns(values, path)
        joined = [
            self._visit(column, hints.get(key, UNMENTIONED), (*path, key))
            for key, column in columns.items()
        ]
        return rebuilt(values[0], joined, path)

    def _every(self, values: Sequence[Any], dim: int, path: Path) -> Any:
        """Values in which every tensor is concatenated along `dim`."""
        first = values[0]
        if isinstance(first, Tensor):
            return self._concatenated(values, dim, path)
        if entries(first) is None:
            return self._equal(values, path)
        columns = self._columns(values, path)
        joined = [self._every(column, dim, (*path, key)) for key, column in columns.items()]
        return rebuilt(first, joined, path)

    def _columns(self, values: Sequence[Any], path: Path) -> dict[Any, list[Any]]:
        """For each key of nests of one form, its values in all parts."""
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
                    " concatenated: take the first part's by the output hint None, or all parts' by"
                    f" concat_output=False; {EXAMPLE}"
                )
            check_tensor(value, dim, path)
        if self._sizes is not None and any(
            value.shape[dim] != size for value, size in zip(values, self._sizes, strict=True)
        ):
            raise self._sizes_error(values, self._sizes, path)
        try:
            # cat keeps channels_last if all parts have it. The result is an inference tensor if the
            # parts are.
            inference = values[0].is_inference()
            is_set = inference is is_inference_mode_enabled()
            with _NOTHING if is_set else inference_mode(inference):
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
                f" {', '.join(shape_of(value) for value in values)}. A module that pads to its longest"
                " item does so for each part: pad to a fixed length, or take the parts as they are by"
                " concat_output=False"
            ) from error

    def _sizes_error(
        self, values: Sequence[Tensor], sizes: Sequence[int], path: Path
    ) -> BatchError:
        return BatchError(
            f"{place(path)} does not have one row for each item: parts of {', '.join(map(str, sizes))}"
            f" items returned {', '.join(shape_of(value) for value in values)}. Give an output hint with"
            " the dimension of the items, or None where the first part's value is right;"
            f" {EXAMPLE}"
        )

    def _equal(self, values: Sequence[Any], path: Path) -> Any:
        first = values[0]
        for value in values:
            if value is first:
                continue
            refuse_hidden(first, path)
            if type(value) is not type(first):
                raise _unlike_error(first, value, path)
            if not are_equal(first, value):
                raise BatchError(
                    f"{place(path)} is not a tensor, and the parts returned different values"
                    f" ({described(first)}, {described(value)}): take the first part's by the output hint"
                    f" None, or all parts' by concat_output=False; {EXAMPLE}"
                )
        return first


def are_equal(left: Any, right: Any) -> bool:
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
