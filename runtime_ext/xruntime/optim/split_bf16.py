# SPDX-License-Identifier: Apache-2.0
"""Weights of fp32 as a bf16 half and a signed 16-bit remainder, in plain torch.

The bf16 half is the fp32 weight rounded to nearest, ties away from zero, and the fp32 bits are
(half << 16) + remainder. The native kernels use the same representation; these functions serve
checkpoints.

If other code has changed a half, its remainder belongs to another weight. The joined weight still
rounds to the half, because a remainder changes it by half a unit at most. Next to a zero or an
infinity a remainder could lead out of the range; there it is ignored.
"""

from __future__ import annotations

import torch

_EXPONENT = 0x7F800000
_SIGN_AND_EXPONENT = -0x800000  # 0xff800000


def join(half: torch.Tensor, remainder: torch.Tensor) -> torch.Tensor:
    """Return the fp32 weights of bf16 halves and int16 remainders: those that were split, exactly."""
    upper = half.detach().view(torch.int16).to(torch.int32) << 16
    bits = upper + remainder.to(torch.int32)
    # Only a remainder of another weight makes a NaN of a number.
    bits = torch.where((bits & 0x7FFFFFFF) > _EXPONENT, upper, bits)
    return bits.view(torch.float32)


def split(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the bf16 halves and int16 remainders of fp32 weights. A NaN loses its payload."""
    bits = weights.detach().view(torch.int32)
    quiet = (bits & _SIGN_AND_EXPONENT) | 0x400000
    bits = torch.where((bits & 0x7FFFFFFF) > _EXPONENT, quiet, bits)
    half = (bits + 0x8000) >> 16
    # The casts keep the low 16 bits, which are the two's complement.
    return half.to(torch.int16).view(torch.bfloat16), bits.to(torch.int16)
