# SPDX-License-Identifier: Apache-2.0
"""The native linear for few rows: NaN and infinity, threads, and what it refuses.

`recorded/ops/linear_rows.py` compares its results, on every instruction set and several threads.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.kernels.ops.instruction_sets import ISAS  # noqa: E402

from xruntime import native  # noqa: E402
from xruntime.generation.linear_rows import c_weights  # noqa: E402
from xruntime.native import ArgumentProblem  # noqa: E402

Load = Callable[[str], ctypes.CDLL]
TYPES = {torch.float32: native.FLOAT32, torch.bfloat16: native.BFLOAT16}


def unaligned(values: torch.Tensor) -> torch.Tensor:
    """A copy that begins one element after an aligned address."""
    memory = torch.empty(values.numel() + 1, dtype=values.dtype)
    return memory[1:].view(values.shape).copy_(values)


def computed(library: ctypes.CDLL, value: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    output = unaligned(torch.full((len(value), len(weight)), math.nan, dtype=value.dtype))
    code = library.xk_linear_rows(
        *(value.data_ptr(), len(value), value.shape[1], TYPES[value.dtype]),
        *(ctypes.byref(c_weights(weight)), None, native.FLOAT32, weight.shape[1], len(weight)),
        output.data_ptr(),
    )
    assert code == 0
    return output


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", TYPES)
def test_nan_and_infinity_stay_in_their_outputs(load: Load, isa: str, dtype: torch.dtype) -> None:
    weight = torch.ones(6, 70, dtype=dtype)
    weight[1, 69], weight[4, 3] = math.nan, math.inf
    expected = torch.tensor([70, math.nan, 70, 70, math.inf, 70], dtype=dtype).expand(2, 6)
    for stored in (unaligned(weight), unaligned(weight.T).T):
        output = computed(load(isa), unaligned(torch.ones(2, 70, dtype=dtype)), stored)
        torch.testing.assert_close(output, expected, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("isa", ISAS)
def test_rounding_to_bf16_is_to_nearest_even(load: Load, isa: str) -> None:
    exact = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8 - 2**-20, 3.3e38, -3.4e38])
    one = torch.ones(1, 1, dtype=torch.bfloat16)
    output = computed(load(isa), one, exact[:, None])
    assert output.tolist() == [exact.bfloat16().tolist()]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize("by_input", [False, True])
def test_the_bits_do_not_depend_on_threads(
    load: Load, team: Callable[[int], object], isa: str, rows: int, by_input: bool
) -> None:
    generator = torch.Generator().manual_seed(rows)
    value = torch.randn(rows, 301, generator=generator)
    weight = torch.randn(263, 301, generator=generator).bfloat16()
    weight = weight.T.contiguous().T if by_input else weight
    found = []
    for threads in (1, 2, 5):
        team(threads)
        found.append(computed(load(isa), value, weight))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


VALUES = torch.ones(64)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({3: native.FLOAT16}, ArgumentProblem.INVALID_TYPE),
        ({6: 7}, ArgumentProblem.INVALID_TYPE),
        ({1: -1}, ArgumentProblem.INVALID_SIZE),
        ({2: -1}, ArgumentProblem.INVALID_SIZE),
        ({7: 2**31}, ArgumentProblem.INVALID_SIZE),
        ({8: -4}, ArgumentProblem.INVALID_SIZE),
        ({0: None}, ArgumentProblem.INVALID_POINTER),
        ({4: None}, ArgumentProblem.INVALID_POINTER),
        ({4: native.CWeights(None, None, 0)}, ArgumentProblem.INVALID_POINTER),
        ({4: native.CWeights(VALUES.data_ptr(), None, 7)}, ArgumentProblem.INVALID_TYPE),
        ({4: native.CWeights(VALUES.data_ptr(), None, 0, -3)}, ArgumentProblem.INVALID_SIZE),
        (
            {4: native.CWeights(VALUES.data_ptr(), VALUES.data_ptr(), native.PACKED8, 3)},
            ArgumentProblem.INVALID_SIZE,
        ),
        ({5: VALUES.data_ptr() + 1}, ArgumentProblem.INVALID_POINTER),
        ({9: VALUES.data_ptr() + 2}, ArgumentProblem.INVALID_POINTER),
    ],
)
def test_refusals(load: Load, change: dict[int, Any], problem: ArgumentProblem) -> None:
    address, fp32 = VALUES.data_ptr(), native.FLOAT32
    weights = c_weights(VALUES)
    arguments: list[Any] = [address, 2, 4, fp32, weights, None, fp32, 4, 3, address]
    for at, value in change.items():
        arguments[at] = value
    assert load(ISAS[-1]).xk_linear_rows(*arguments) == problem
    assert bool((VALUES == 1).all())


def test_without_an_instruction_set(load: Load) -> None:
    address, fp32 = VALUES.data_ptr(), native.FLOAT32
    code = load("nonsense").xk_linear_rows(
        *(address, 2, 4, fp32, c_weights(VALUES), None, fp32, 4, 3, address)
    )
    assert code == native.NO_ISA
