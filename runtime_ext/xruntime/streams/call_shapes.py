# SPDX-License-Identifier: Apache-2.0
"""What tells one call of compiled code from another, in the eyes of torch.

torch compares every argument with what its code was made for, and makes new code where one differs.
Most differences do not matter to what is computed; these are taken away here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import dlpack

_SCALARS = (int, float, bool, str, type(None), torch.dtype, torch.device)


def plain(value: Any, shape: list[Any]) -> Any:
    """`value` as the code was compiled for it; appends to `shape` what tells it from other shapes.

    torch makes other code for a tensor that was made in inference mode, that requires gradients, or is
    a Parameter, and for a view of another tensor, such as a stream's part of a batch: there even where
    in the batch it begins counts. So all come as plain tensors of their own on the same memory.
    """
    kind = type(value)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        if value.layout is not torch.strided:
            shape += (kind, value.dtype, value.shape, value.layout)
            return value
        if (
            value.requires_grad
            or value.is_inference()
            or value.storage_offset()
            or value._is_view()  # noqa: SLF001 - torch has no public question for it
            or kind is torch.nn.Parameter
        ):
            value = _of_its_own(value)
        shape += (kind, value.dtype, value.shape, value.stride())
        return value
    if kind is tuple or kind is list:
        shape += (kind, len(value))
        return kind([plain(item, shape) for item in value])
    if kind is dict:
        shape += (kind, *value)
        return {key: plain(item, shape) for key, item in value.items()}
    # What is in anything else is not looked at, so that such a call is like no other.
    shape += (kind, value if kind in _SCALARS else object())
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
