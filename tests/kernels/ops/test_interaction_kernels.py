# SPDX-License-Identifier: Apache-2.0
"""The native interaction: NaN and infinity, empty inputs, and what it refuses.

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
from xruntime.native import ArgumentProblem  # noqa: E402

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


@pytest.mark.parametrize("shape", [(3, 0, 4), (1, 2, 0), (3, 2, 0)])
def test_empty_inputs(load: Load, shape: tuple[int, int, int]) -> None:
    library = load(ISAS[-1])
    count, batch, features = shape
    inputs = [torch.empty(batch, features) for _ in range(count)]
    output = forward(library, inputs)
    assert torch.equal(output, torch.zeros_like(output))
    backward(library, inputs, torch.ones_like(output))


WRONG: dict[str, tuple[int, Any, ArgumentProblem]] = {
    "no inputs": (0, None, ArgumentProblem.INVALID_POINTER),
    "no strides": (1, None, ArgumentProblem.INVALID_POINTER),
    "no input": (2, 0, ArgumentProblem.INVALID_SIZE),
    "too many inputs": (2, 2**15, ArgumentProblem.INVALID_SIZE),
    "a negative batch": (3, -1, ArgumentProblem.INVALID_SIZE),
    "a negative size": (4, -1, ArgumentProblem.INVALID_SIZE),
    "a batch that is too large": (3, 2**41, ArgumentProblem.INVALID_SIZE),
    "a size that is too large": (4, 2**31, ArgumentProblem.INVALID_SIZE),
    "an unknown type": (5, 3, ArgumentProblem.INVALID_TYPE),
    "no output": (6, None, ArgumentProblem.INVALID_POINTER),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_argument_is_refused(load: Load, wrong: str) -> None:
    library = load(ISAS[-1])
    inputs = make((3, 2, 5))
    output = torch.full((2, 8), 7.0)
    changed = [*arguments(inputs), output.data_ptr()]
    at, value, problem = WRONG[wrong]
    changed[at] = value
    assert library.xk_interaction(*changed) == problem
    results = [torch.full((2, 5), 7.0) for _ in inputs]
    assert library.xk_interaction_backward(*changed, addresses(results)) == problem
    for tensor in (output, *results):
        assert torch.equal(tensor, torch.full_like(tensor, 7))


def test_odd_addresses_and_null_inputs_are_refused(load: Load) -> None:
    library = load(ISAS[-1])
    inputs = make((3, 2, 5))
    output = torch.empty(2, 8)
    for address in (None, inputs[1].data_ptr() + 2):
        changed = list(arguments(inputs))
        changed[0][1] = address
        assert (
            library.xk_interaction(*changed, output.data_ptr()) == ArgumentProblem.INVALID_POINTER
        )


def test_without_an_isa_the_operators_refuse(load: Load) -> None:
    library = load("v9")
    inputs = make((3, 2, 5))
    output = torch.empty(2, 8)
    assert library.xk_interaction(*arguments(inputs), output.data_ptr()) == native.NO_ISA
