# SPDX-License-Identifier: Apache-2.0
"""Linears with packed weights."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

from xruntime.generation.linear_blocks import linear_by_blocks
from xruntime.generation.linear_layers import matrix
from xruntime.generation.linear_rows import linear_rows, only_torch
from xruntime.generation.packed_weights import PackedWeight
from xruntime.threads.torch_modes import transformed

MAX_ROWS: Final = 8
"""More rows of activations are multiplied by torch, with weights that are unpacked for the call."""

_NATIVE: Final = (torch.float32, torch.bfloat16)


class PackedLinear(nn.Linear):
    """A linear for inference with packed weights.

    It takes and returns values of any floating-point dtype, as autocast says where that is on. Values and sums
    are those of `linear_rows` for up to `MAX_ROWS` rows, and torch's in `dtype` for more.

    linear
        The layer whose weights are packed, of `linear_kinds`.
    dtype
        float32 or bfloat16: of the bias, and of the weights when torch multiplies them.
    packed
        The weights, if they were packed before.
    """

    packed_values: torch.Tensor
    packed_scales: torch.Tensor

    def __init__(
        self, linear: nn.Module, bits: int, dtype: torch.dtype, packed: PackedWeight | None = None
    ) -> None:
        nn.Module.__init__(self)
        weight = matrix(linear)
        self.out_features, self.in_features = weight.shape
        self.bits, self.dtype = bits, dtype
        packed = packed or PackedWeight.of(weight, bits)
        self.register_buffer("packed_values", packed.values)
        self.register_buffer("packed_scales", packed.scales)
        given: Any = linear.bias
        bias = None if given is None else nn.Parameter(given.detach().to(dtype), False)
        self.register_parameter("bias", bias)

    @property
    def packed(self) -> PackedWeight:
        """The weights."""
        return PackedWeight(self.packed_values, self.packed_scales, self.in_features, self.bits)

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]
        """The weights as a new tensor in `dtype`."""
        return self.packed.unpacked(self.dtype)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        """Return the outputs, in the dtype of the input or of autocast."""
        returned = input.dtype
        if torch.is_autocast_enabled("cpu"):
            returned = torch.get_autocast_dtype("cpu")
        if (
            torch.compiler.is_compiling()
            or transformed()
            or (torch.is_grad_enabled() and input.requires_grad)
        ):
            with torch.autocast("cpu", enabled=False):
                value = functional.linear(input.to(self.dtype), self.weight, self.bias)
            return value.to(returned)
        rows = input.numel() // max(1, self.in_features)
        fits = input.dim() > 0 and input.shape[-1] == self.in_features and returned in _NATIVE
        if fits and 0 < rows <= MAX_ROWS and input.is_cpu and not only_torch():
            return linear_rows(input.to(returned).contiguous(), self.packed, self.bias)
        return linear_by_blocks(input, self.packed, self.bias, self.dtype, returned)

    def extra_repr(self) -> str:
        """Return what is printed of it."""
        return f"{super().extra_repr()}, weight_bits={self.bits}"

    def _load_from_state_dict(self, *_: object) -> None:
        raise NotImplementedError(
            "packed weights cannot be loaded: load them into the original model, then optimize it"
        )
