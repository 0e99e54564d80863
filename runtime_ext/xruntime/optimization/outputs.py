# SPDX-License-Identifier: Apache-2.0
"""Outputs of any form: tensors, nests, dataclasses; and samples that no call can change."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any, Final

import torch

from xruntime.compilation.samples import Sample
from xruntime.errors import BatchError
from xruntime.pytrees import constant_key, entries, leaves, rebuilt

MAX_DEPTH = 32

CHANNELS_LAST: Final = {4: torch.channels_last, 5: torch.channels_last_3d}
"""The memory format by the number of dimensions."""


def with_tensors(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Return `value` with each tensor in it replaced by `function` of it.

    Looks into tuples, lists, dicts, their subclasses such as ModelOutput, and dataclasses. Values in which
    nothing changes, and classes that cannot be built again, are returned as they are.
    """
    return _with_tensors(function, value, 0)


def _with_tensors(function: Callable[[torch.Tensor], torch.Tensor], value: Any, depth: int) -> Any:
    if isinstance(value, torch.Tensor):
        return function(value)
    inner = entries(value)
    if depth == MAX_DEPTH:
        return value
    if inner is not None:
        made = [_with_tensors(function, item, depth + 1) for _, item in inner]
        if all(new is old for new, (_, old) in zip(made, inner, strict=True)):
            return value
        try:
            return rebuilt(value, made, ())
        except BatchError:
            return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: getattr(value, field.name)
            for field in dataclasses.fields(value)
            if field.init
        }
        new = {name: _with_tensors(function, item, depth + 1) for name, item in fields.items()}
        if any(new[name] is not fields[name] for name in fields):
            return dataclasses.replace(value, **new)
    return value


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors that `with_tensors` finds."""
    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    with_tensors(note, value)
    return found


def comparable(value: Any) -> Any:
    """Return `value` for the accuracy check: dataclasses as dicts, nested tensors as lists."""
    if isinstance(value, torch.Tensor) and value.is_nested:
        return list(value.unbind())
    inner = None if isinstance(value, torch.Tensor) else entries(value)
    if inner is not None:
        return {str(key): comparable(item) for key, item in inner}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: comparable(getattr(value, field.name))
            for field in dataclasses.fields(value)
        }
    return value


def is_channels_last(tensor: torch.Tensor) -> bool:
    """Whether a tensor is stored channels-last, and not contiguous at the same time."""
    layout = CHANNELS_LAST.get(tensor.dim()) if tensor.layout is torch.strided else None
    return (
        layout is not None
        and tensor.is_contiguous(memory_format=layout)
        and not tensor.is_contiguous()
    )


def copied(call: Sample) -> Sample:
    """Return the same call on copies of its arguments, into which a model may write.

    Modules are not copied, and of arguments that cannot be copied only the tensors are.
    """
    arguments = [*call.args, *call.kwargs.values()]
    made: dict[int, Any] = {
        id(leaf): leaf for _, leaf in leaves(arguments) if isinstance(leaf, torch.nn.Module)
    }
    for tensor in tensors_in(arguments):
        made[id(tensor)] = tensor.detach().clone()
    try:
        given = copy.deepcopy(arguments, dict(made))
    except Exception:  # noqa: BLE001 - any error of an argument's own class
        given = with_tensors(lambda tensor: made[id(tensor)], arguments)
    count = len(call.args)
    return Sample(tuple(given[:count]), dict(zip(call.kwargs, given[count:], strict=True)))


def is_unchanged(call: Sample, before: Sample) -> bool:
    """Whether a call holds what it held before; no if that cannot be told. NaN equals itself."""
    now, old = list(leaves([call.args, call.kwargs])), list(leaves([before.args, before.kwargs]))
    if [path for path, _ in now] != [path for path, _ in old]:
        return False
    return are_equal([value for _, value in now], [value for _, value in old])


def are_equal(values: list[Any], others: list[Any]) -> bool:
    """Whether two calls have equal tensors and plain values at each place; no where that cannot be told."""
    return all(map(_is_equal, values, others))


def _is_equal(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return constant_key(one) is not None and constant_key(one) == constant_key(other)
    if type(one) not in (torch.Tensor, torch.nn.Parameter) or one.layout is not torch.strided:
        return one is other
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one, other) or bool(
        ((one == other) | ((one != one) & (other != other))).all()
    )
