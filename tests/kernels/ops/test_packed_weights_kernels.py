# SPDX-License-Identifier: Apache-2.0
"""Packing weights: its error beside llama.cpp's formulas, and equal bits on every instruction set.

`recorded/ops/linear_rows.py` and `decode.py` compare products with packed weights.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from tests.kernels.ops.instruction_sets import ISAS  # noqa: E402

from xruntime import native  # noqa: E402
from xruntime.generation.packed_weights import DTYPES, GROUP, PackedWeight  # noqa: E402

Load = Callable[[str], ctypes.CDLL]
FORMATS = {8: native.PACKED8, 4: native.PACKED4}


def packed_by(library: ctypes.CDLL, weight: torch.Tensor, bits: int) -> PackedWeight:
    outputs, inputs = weight.shape
    groups = -(-inputs // GROUP)
    values = torch.full((outputs, groups * GROUP * bits // 8), 7, dtype=torch.uint8)
    scales = torch.full((outputs, groups), math.nan, dtype=torch.bfloat16)
    code = library.xk_pack_weights(
        *(weight.data_ptr(), DTYPES[weight.dtype], inputs, outputs),
        *(FORMATS[bits], values.data_ptr(), scales.data_ptr()),
    )
    assert code == 0
    return PackedWeight(values, scales, inputs, bits)


def by_llama_cpp(weight: torch.Tensor, bits: int) -> torch.Tensor:
    """q8_0 and q4_0: groups of 32, scales in fp16 of max / 127 and max / -8."""
    groups = weight.view(len(weight), -1, 32)
    if bits == 8:
        scale = groups.abs().amax(-1, keepdim=True) / 127
        integers = torch.round(groups / scale)
    else:
        scale = groups.gather(-1, groups.abs().argmax(-1, keepdim=True)) / -8
        integers = (groups / scale + 8.5).floor().clamp(0, 15) - 8
    return (integers * scale.half().float()).view(weight.shape)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bits", FORMATS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 31), (2, 32), (5, 70), (4, 640), (70, 1030), (0, 8)])
def test_every_instruction_set_packs_the_same_bits(
    load: Load, isa: str, bits: int, shape: tuple[int, int]
) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    for dtype in DTYPES:
        stored = weight.to(dtype)
        packed, first = (packed_by(load(one), stored, bits) for one in (isa, ISAS[0]))
        assert torch.equal(packed.values, first.values)
        assert torch.equal(packed.scales, first.scales)
        for output in (torch.float32, torch.bfloat16):
            unpacked = torch.full(shape, math.nan, dtype=output)
            described = packed.c_weights()
            load(isa).xk_unpack_weights(
                ctypes.byref(described), shape[1], shape[0], DTYPES[output], unpacked.data_ptr()
            )
            assert torch.equal(unpacked, packed.unpacked(output))


@pytest.mark.parametrize("bits", FORMATS)
@pytest.mark.parametrize("kind", ["normal", "uniform", "heavy-tailed"])
def test_the_error_is_below_that_of_llama_cpp(load: Load, bits: int, kind: str) -> None:
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(200, 1024, generator=generator)
    if kind == "uniform":
        weight = torch.rand(200, 1024, generator=generator) - 0.5
    elif kind == "heavy-tailed":
        weight = weight**3
    weight = weight * 0.02
    unpacked = packed_by(load(ISAS[-1]), weight, bits).unpacked(torch.float32)
    ours, theirs = ((one - weight).norm() for one in (unpacked, by_llama_cpp(weight, bits)))
    assert ours < theirs


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bits", FORMATS)
def test_exact_and_tiny_and_large_weights(load: Load, isa: str, bits: int) -> None:
    half = 1 << (bits - 1)
    integers = torch.arange(-half, half).float()
    exact = torch.cat([integers, integers.new_zeros(-len(integers) % GROUP)])[None] * 2**-9
    exact[:, ::GROUP] = -half * 2**-9  # each group has the largest
    found = packed_by(load(isa), exact, bits).unpacked(torch.float32)
    assert torch.equal(found, exact)
    for size in (0.0, 1e-42, 1e-37, 1e38):
        weight = torch.full((1, 40), size)
        found = packed_by(load(isa), weight, bits).unpacked(torch.float32)
        assert bool(found.isfinite().all())
        torch.testing.assert_close(found, weight, rtol=0.01, atol=2e-36)
