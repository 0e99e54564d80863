# SPDX-License-Identifier: Apache-2.0
"""The native interaction: NaN and infinity.

`recorded/ops/interaction.py` compares its results, on every instruction set and several threads.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.kernels.ops.instruction_sets import ISAS  # noqa: E402
from tests.runtime_ext.nn.vision_references import interaction_reference  # noqa: E402

from xruntime import native  # noqa: E402

Library = ctypes.CDLL
Load = Callable[[str], Library]


def unaligned(values: torch.Tensor, padding: int = 0) -> torch.Tensor:
    """A copy that begins one element after an aligned address, with a gap behind each row."""
    rows, length = values.shape
    memory = torch.full((rows * (length + padding) + 1,), math.nan, dtype=values.dtype)
    return memory.as_strided((rows, length), (length + padding, 1), 1).copy_(values)


def addresses(tensors: Sequence[torch.Tensor]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])


def arguments(inputs: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    strides = (ctypes.c_int64 * len(inputs))(*[tensor.stride(0) for tensor in inputs])
    return addresses(inputs), strides, len(inputs), *inputs[0].shape, native.FLOAT32


def forward(library: Library, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    batch, features = inputs[0].shape
    pairs = len(inputs) * (len(inputs) - 1) // 2
    output = unaligned(torch.full((batch, features + pairs), math.nan, dtype=inputs[0].dtype))
    assert library.xk_interaction(*arguments(inputs), output.data_ptr()) == 0
    return output


def backward(
    library: Library, inputs: Sequence[torch.Tensor], gradient: torch.Tensor
) -> list[torch.Tensor]:
    results = [unaligned(torch.full_like(one, math.nan)) for one in inputs]
    code = library.xk_interaction_backward(
        *arguments(inputs), gradient.data_ptr(), addresses(results)
    )
    assert code == 0
    return results


def make(shape: tuple[int, int, int]) -> list[torch.Tensor]:
    count, batch, features = shape
    drawn = torch.Generator().manual_seed(count + features)
    values = torch.randn(count, batch, features, generator=drawn)
    return [unaligned(one, padding=index % 3) for index, one in enumerate(values)]


@pytest.mark.parametrize("isa", ISAS)
def test_nan_and_infinity_reach_what_they_reach_in_torch(load: Load, isa: str) -> None:
    inputs = make((5, 4, 19))
    inputs[1][2, 18] = math.nan
    inputs[3][0, 3] = math.inf
    exact = [one.double().requires_grad_() for one in inputs]
    wanted = interaction_reference(exact)
    output = forward(load(isa), inputs)
    assert torch.equal(output.isnan(), wanted.isnan())
    assert torch.equal(output.isinf(), wanted.isinf())
    gradient = torch.randn(wanted.shape)
    wanted.backward(gradient.double())
    for one, reference in zip(backward(load(isa), inputs, gradient), exact, strict=True):
        assert reference.grad is not None
        assert torch.equal(one.isfinite(), reference.grad.isfinite())
