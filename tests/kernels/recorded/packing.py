# SPDX-License-Identifier: Apache-2.0
"""Packed weights with random integers and scales, as XK_PACKED8 and XK_PACKED4 of xkernels.h have them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from tests.kernels.recorded.cases import Array, from_bf16, to_bf16

GROUP = 32
FORMATS = {8: 16, 4: 17}
"""The numbers of xkernels.h, by bits."""


class Packed(NamedTuple):
    """Weights of shape (..., outputs, inputs)."""

    values: Array
    """As words of 16 bits, which may not be aligned to more."""
    scales: Array
    exact: Array
    """In fp64."""


def packed(random: np.random.Generator, shape: tuple[int, ...], bits: int) -> Packed:
    """Random weights, of about the size of 1."""
    *outer, inputs = shape
    groups = -(-inputs // GROUP)
    half = 1 << (bits - 1)
    integers = random.integers(-half, half, (*outer, groups, GROUP))
    integers.reshape(*outer, groups * GROUP)[..., inputs:] = 0
    scales = to_bf16(random.uniform(-2, 2, (*outer, groups)) / half)
    exact = (integers * from_bf16(scales)[..., None]).reshape(*outer, groups * GROUP)
    if bits == 8:
        values = integers.astype("i1").view("<i2")
    else:
        nibbles = (integers & 15).reshape(*outer, groups, 4, 8)
        values = sum(nibbles[..., part, :] << 4 * part for part in range(4)).astype("<u2")
    return Packed(values.view("<i2"), scales, exact[..., :inputs])


def rounding(x: Array, weights: Array) -> float:
    """An error that products with activations rounded to 16 bits stay below."""
    largest, length = np.abs(x).max(initial=0), np.sqrt((weights**2).sum(-1)).max(initial=0)
    return float(6 * largest / 65534 * length)
