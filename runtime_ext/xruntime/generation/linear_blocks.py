# SPDX-License-Identifier: Apache-2.0
"""Linears of many rows, such as a prompt's, with weights that are converted for the product.

Packed weights are unpacked. Weights in bf16 become float32 on CPUs without instructions for bf16, where torch
multiplies bf16 several times as slowly as float32.
"""

from __future__ import annotations

import functools
import threading
from typing import Final

import torch
from torch.nn import functional

from xruntime.generation.packed_weights import PackedWeight

BLOCK_WEIGHTS: Final = 1 << 22
"""About so many weights are converted at once: all of most layers, but not of an output layer."""


@functools.cache
def has_bf16_products() -> bool:
    """Whether torch multiplies bf16 by instructions of this CPU for it."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001 - no public one


class _Buffer(threading.local):
    """Memory for converted weights, which each thread has once for all linears."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def tensor(self, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor with any values, on the same memory in each call."""
        size = shape[0] * shape[1] * dtype.itemsize
        if self._memory.numel() < size:
            # A call in inference mode must not make it one of that mode.
            with torch.inference_mode(False):
                self._memory = torch.empty(size, dtype=torch.uint8)
        return self._memory[:size].view(dtype).view(shape)


_buffer: Final = _Buffer()


def linear_by_blocks(
    value: torch.Tensor,
    weight: torch.Tensor | PackedWeight,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    returned: torch.dtype,
) -> torch.Tensor:
    """Return torch.nn.functional.linear of values, without a derivative, multiplied in `dtype`.

    dtype
        float32 or bfloat16.
    returned
        The dtype of the output.
    """
    if dtype is torch.bfloat16 and not has_bf16_products():
        dtype = torch.float32
    outputs, inputs = weight.shape
    blocks = max(1, round(outputs * inputs / BLOCK_WEIGHTS))  # none is a small rest
    rows = max(1, -(-outputs // blocks))
    parts = []
    with torch.autocast("cpu", enabled=False):
        value = value.to(dtype)
        for begin in range(0, outputs, rows):
            end = min(begin + rows, outputs)
            block = _buffer.tensor((end - begin, inputs), dtype)
            if isinstance(weight, PackedWeight):
                weight.rows(begin, end).unpack_into(block)
            else:
                if weight.stride(0) == 1:  # stored as (inputs, outputs)
                    block = block.view(inputs, end - begin).T
                block.copy_(weight.detach()[begin:end])
            part = None if bias is None else bias.detach()[begin:end].to(dtype)
            parts.append(functional.linear(value, block, part).to(returned))
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)
