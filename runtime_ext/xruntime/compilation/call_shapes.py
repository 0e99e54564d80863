# SPDX-License-Identifier: Apache-2.0
"""What tells one call of compiled code from another, in the eyes of torch.

torch compares every argument with what its code was made for, and makes new code where one differs.
Most differences do not matter to what is computed; these are taken away here.
"""

from __future__ import annotations

import contextlib
import enum
from typing import Any

import torch
from torch.utils import dlpack

from xruntime.errors import BatchError
from xruntime.nests import entries, rebuilt

_SCALARS = frozenset(
    (
        *(int, float, complex, bool, str, bytes, type(None), range, torch.Size),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format),
    )
)
"""Values that torch compares whole."""


class CallShape:
    """What tells one call from calls of other shapes, gathered while its arguments are made plain."""

    __slots__ = ("_tensors", "opaque", "parts")

    def __init__(self) -> None:
        self.opaque = False
        """An argument is of a class that is not known here: such a call's key is like no other."""

        self.parts: list[Any] = []
        self._tensors: list[torch.Tensor] = []

    def key(self) -> tuple[Any, ...]:
        """Equal for calls that the same code serves."""
        if len(self._tensors) > 1:
            numbers = [id(tensor) for tensor in self._tensors]
            if len(set(numbers)) < len(numbers):
                # torch makes code that reads a tensor once where it is given twice.
                self.parts.append(tuple([numbers.index(number) for number in numbers]))
        return tuple(self.parts)

    def plain(self, value: Any) -> Any:
        """`value` as the code was compiled for it.

        torch makes other code for a tensor that was made in inference mode, that requires gradients, or is
        a Parameter, and for a view of another tensor, such as a stream's part of a batch: there even where
        in the batch it begins counts. So all come as plain tensors of their own on the same memory.
        """
        kind = type(value)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            return self._plain_tensor(value)
        if kind is tuple or kind is list:
            self.parts += (kind, len(value))
            return kind([self.plain(item) for item in value])
        if kind is dict:
            self.parts += (kind, *value)
            return {key: self.plain(item) for key, item in value.items()}
        if kind in _SCALARS or isinstance(value, enum.Enum):
            self.parts += (kind, value)
            return value
        # A NamedTuple, OrderedDict or ModelOutput.
        inner = entries(value)
        if inner is not None:
            self.parts += (kind, *(key for key, _ in inner))
            with contextlib.suppress(BatchError):
                return rebuilt(value, [self.plain(item) for _, item in inner], ())
        self.parts += (kind, object())
        self.opaque = True
        return value

    def _plain_tensor(self, value: torch.Tensor) -> torch.Tensor:
        kind = type(value)
        self.parts += (kind, value.dtype, value.device, value.shape)
        if value.layout is not torch.strided:
            self.parts.append(value.layout)
        else:
            if (
                value.requires_grad
                or value.is_inference()
                or value.storage_offset()
                or value._is_view()  # noqa: SLF001 - torch has no public question for it
                or kind is torch.nn.Parameter
            ):
                value = _of_its_own(value)
            self.parts.append(value.stride())
        self._tensors.append(value)
        return value


def form_of(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """A call's key without sizes, strides and numbers."""
    return tuple(
        [
            len(part)
            if type(part) is torch.Size
            else None
            if type(part) in (tuple, int, float, object)
            else part
            for part in key
        ]
    )


def _of_its_own(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on the same memory that knows nothing of the other."""
    # It is in the documentation and in __all__, where mypy does not see it.
    to_dlpack: Any = dlpack.__dict__["to_dlpack"]
    capsule = to_dlpack(tensor.detach().resolve_conj().resolve_neg())
    if not torch.is_inference_mode_enabled():
        return dlpack.from_dlpack(capsule)
    with torch.inference_mode(False):
        return dlpack.from_dlpack(capsule)
