# SPDX-License-Identifier: Apache-2.0
"""Weights of linears in 8 or 4 bits: fewer bytes to read for each token.

Each row is divided into groups of 32 inputs. A weight is an integer times the scale of its group, which is stored
in bf16: it has the range of float32, and costs half a bit a weight, as much as llama.cpp's scales in fp16. In groups
of 64 the error of normal weights would be above that of llama.cpp's formats q8_0 and q4_0, which have groups of 32, too.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from typing import Final, Self

import torch

from xruntime import native
from xruntime.errors import OperatorError

GROUP: Final = 32
"""XK_WEIGHT_GROUP of xkernels.h: so many inputs have one scale."""

BITS: Final = (8, 4)

COPIED_WEIGHTS: Final = 1 << 22

DTYPES: Final = {
    torch.float32: native.FLOAT32,
    torch.bfloat16: native.BFLOAT16,
    torch.float16: native.FLOAT16,
}
"""Of weights that can be packed."""

_FORMATS: Final = {8: native.PACKED8, 4: native.PACKED4}

_ADDRESS, _INT32, _INT64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
native.declare(
    "xk_pack_weights", arguments=(_ADDRESS, _INT32, _INT64, _INT64, _INT32, _ADDRESS, _ADDRESS)
)
native.declare(
    "xk_unpack_weights",
    arguments=(ctypes.POINTER(native.CWeights), _INT64, _INT64, _INT32, _ADDRESS),
)


def packed_bytes(shape: Sequence[int], bits: int) -> int:
    """Return the bytes of values and scales of a matrix of (outputs, inputs)."""
    outputs, inputs = shape
    return outputs * -(-inputs // GROUP) * (GROUP * bits // 8 + torch.bfloat16.itemsize)


class PackedWeight:
    """Weights of one linear, packed.

    values
        uint8 of shape (outputs, bytes of a row), as XK_PACKED8 or XK_PACKED4 of xkernels.h.
    scales
        bfloat16 of shape (outputs, groups of a row).
    """

    dtype: Final = torch.uint8

    def __init__(self, values: torch.Tensor, scales: torch.Tensor, inputs: int, bits: int) -> None:
        self.values = values
        self.scales = scales
        self.inputs = inputs
        self.bits = bits

    @classmethod
    def of(cls, weight: torch.Tensor, bits: int) -> Self:
        """Pack a matrix of float32, bfloat16 or float16 on the CPU.

        Raises OperatorError for other tensors, and for values that are not finite.
        """
        outputs, inputs = weight.shape
        groups = -(-inputs // GROUP)
        if weight.numel() and not all(bool(bound.isfinite()) for bound in torch.aminmax(weight)):
            raise OperatorError("weights that are not finite cannot be packed")
        values = torch.empty((outputs, groups * GROUP * bits // 8), dtype=torch.uint8)
        scales = torch.empty((outputs, groups), dtype=torch.bfloat16)
        # Weights that are stored otherwise are copied, some rows at a time.
        rows = outputs if weight.is_contiguous() else max(1, COPIED_WEIGHTS // inputs)
        for begin in range(0, outputs, max(1, rows)):
            block = weight.detach()[begin : begin + rows].contiguous()
            native.check(
                native.library().xk_pack_weights(
                    *(block.data_ptr(), DTYPES.get(weight.dtype, -1), inputs, len(block)),
                    *(_FORMATS[bits], values[begin:].data_ptr(), scales[begin:].data_ptr()),
                ),
                lambda problem: OperatorError(
                    f"weights in {weight.dtype} of shape {tuple(weight.shape)} cannot be packed ({problem.name})"
                ),
            )
        return cls(values, scales, inputs, bits)

    @classmethod
    def within(cls, memory: torch.Tensor, shape: Sequence[int], bits: int) -> Self:
        """Return weights of (outputs, inputs) that lie at the start of `memory`, which is uint8: values, then scales."""
        outputs, inputs = shape
        groups = -(-inputs // GROUP)
        values = outputs * groups * GROUP * bits // 8
        scales = memory[values : packed_bytes(shape, bits)].view(torch.bfloat16)
        return cls(memory[:values].view(outputs, -1), scales.view(outputs, groups), inputs, bits)

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return len(self.values), self.inputs

    @property
    def nbytes(self) -> int:
        """Bytes of values and scales."""
        return self.values.nbytes + self.scales.nbytes

    def data_ptr(self) -> int:
        """Return where the values are."""
        return self.values.data_ptr()

    def detach(self) -> Self:
        """Return itself, as a tensor without a derivative does."""
        return self

    def rows(self, begin: int, end: int) -> PackedWeight:
        """Return a view of outputs `begin` to `end` - 1."""
        return PackedWeight(self.values[begin:end], self.scales[begin:end], self.inputs, self.bits)

    def split(self, rows: list[int]) -> list[PackedWeight]:
        """Return views of parts of so many outputs, as torch.split does."""
        ends = list(itertools.accumulate(rows))
        return [self.rows(end - count, end) for count, end in zip(rows, ends, strict=True)]

    def c_weights(self) -> native.CWeights:
        """Return the description for native code."""
        return native.CWeights(self.values.data_ptr(), self.scales.data_ptr(), _FORMATS[self.bits])

    def unpack_into(self, output: torch.Tensor) -> torch.Tensor:
        """Write the weights, rounded to the dtype of `output`, which is dense float32 or bfloat16, and return it."""
        native.check(
            native.library().xk_unpack_weights(
                *(ctypes.byref(self.c_weights()), self.inputs, self.shape[0]),
                *(DTYPES[output.dtype], output.data_ptr()),
            ),
            lambda problem: OperatorError(f"packed weights are refused ({problem.name})"),
        )
        return output

    def unpacked(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the weights by operators of torch, which it can trace, compile and export."""
        outputs, groups = self.scales.shape
        if self.bits == 8:
            unsigned = self.values.view(outputs, groups, GROUP)
        else:
            lower, upper = self.values.view(outputs, groups, 8, 2).unbind(-1)
            nibbles = (lower & 15, lower >> 4, upper & 15, upper >> 4)
            unsigned = torch.stack(nibbles, 2).view(outputs, groups, GROUP)
        half = 1 << (self.bits - 1)
        integers = (unsigned ^ half).to(torch.int16) - half  # two's complement
        weights = integers.to(torch.float32) * self.scales.to(torch.float32)[..., None]
        return weights.flatten(1)[:, : self.inputs].to(dtype)
