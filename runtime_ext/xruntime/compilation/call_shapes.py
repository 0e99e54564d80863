# SPDX-License-Identifier: Apache-2.0
"""The shape of a call: what torch compares to decide whether compiled code fits it.

torch compiles new code where an argument differs from those that its code was compiled for, even in
ways that do not change what is computed. `CallShape` removes those differences.
"""

from __future__ import annotations

import contextlib
import enum
from typing import Any

import torch
from torch.utils import dlpack

from xruntime.errors import BatchError
from xruntime.pytrees import CONSTANT_TYPES, entries, rebuilt

_SCALARS = CONSTANT_TYPES | {range}
"""Types whose values torch compares by value."""


class CallShape:
    """The shape of one call, collected while its arguments are made plain."""

    __slots__ = ("_tensors", "opaque", "parts")

    def __init__(self) -> None:
        self.opaque = False
        """Whether an argument is of an unknown class: then the key equals no other key."""

        self.parts: list[Any] = []
        self._tensors: list[torch.Tensor] = []

    def key(self) -> tuple[Any, ...]:
        """Return a key that is equal for calls that the same code serves."""
        if len(self._tensors) > 1:
            numbers = [id(tensor) for tensor in self._tensors]
            if len(set(numbers)) < len(numbers):
                # torch compiles separate code for calls that pass one tensor twice.
                self.parts.append(tuple([numbers.index(number) for number in numbers]))
        return tuple(self.parts)

    def plain_call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the call, each as of `plain`."""
        args = tuple([self.plain(value) for value in args])
        self.parts.extend(kwargs)
        return args, {key: self.plain(value) for key, value in kwargs.items()}

    def plain(self, value: Any) -> Any:
        """Return `value` with plain tensors on the same memory, for which the code was compiled.

        torch compiles separate code for tensors that were made in inference mode, require gradients or
        are Parameters, and for views, such as a stream's part of a batch, even by their offset.
        """
        kind = type(value)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            return self._plain_tensor(value)
        if kind in _SCALARS or isinstance(value, enum.Enum):
            self.parts += (kind, value)
            return value
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
                or value._is_view()  # noqa: SLF001 - torch has no public function for it
                or kind is torch.nn.Parameter
            ):
                value = of_its_own(value)
            self.parts.append(value.stride())
        self._tensors.append(value)
        return value


def form_of(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a call's key without sizes, strides and numbers."""

    def form(part: Any) -> Any:
        if type(part) is torch.Size:
            return len(part)
        return None if type(part) in (tuple, int, float, object) else part

    return tuple(map(form, key))


def of_its_own(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor on the same memory that torch does not treat as a view of the other."""
    # It is documented and in __all__; mypy does not see it there.
    to_dlpack: Any = dlpack.__dict__["to_dlpack"]
    capsule = to_dlpack(tensor.detach().resolve_conj().resolve_neg())
    if not torch.is_inference_mode_enabled():
        return dlpack.from_dlpack(capsule)
    with torch.inference_mode(False):
        return dlpack.from_dlpack(capsule)
