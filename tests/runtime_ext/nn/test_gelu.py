# SPDX-License-Identifier: Apache-2.0
"""The native GELU beside torch's: layouts, derivatives, transforms."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from xruntime.nn.gelu_operator import gelu
from xruntime.nn.native_operators import MIN_VALUES

WAYS = pytest.mark.parametrize("approximate", ["none", "tanh"])
LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "row-major": lambda: torch.randn(300, 400),
    "transposed": lambda: torch.randn(300, 400).T,
    "a slice": lambda: torch.randn(300, 500)[:, 7:407],
    "channels-last": lambda: torch.randn(20, 30, 20, 10).to(memory_format=torch.channels_last),
    "small": lambda: torch.randn(MIN_VALUES - 1),
    "empty": lambda: torch.randn(0, 7),
}


@WAYS
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_and_gradients_are_torchs_within_rounding(
    layout: str, dtype: torch.dtype, approximate: str
) -> None:
    given = LAYOUTS[layout]().to(dtype, memory_format=torch.preserve_format).requires_grad_()
    gradient = torch.randn(given.shape[::-1]).permute(*range(given.dim())[::-1]).to(dtype)
    output = gelu(given, approximate)
    (found,) = torch.autograd.grad(output, given, gradient)
    stock = functional.gelu(given, approximate=approximate)
    assert (output.dtype, output.stride()) == (dtype, stock.stride())
    exact = given.detach().double().requires_grad_()
    wanted = functional.gelu(exact, approximate=approximate)
    (slopes,) = torch.autograd.grad(wanted, exact, gradient.double())
    # Half a unit of rounding where it is native; torch's own may take more.
    tolerance = {"rtol": torch.finfo(dtype).eps * 2, "atol": max(2e-6, torch.finfo(dtype).eps / 4)}
    torch.testing.assert_close(output.double(), wanted, **tolerance)
    torch.testing.assert_close(found.double(), slopes, **tolerance)


@WAYS
def test_the_second_derivative_is_torchs(approximate: str) -> None:
    given = torch.randn(200, 200, requires_grad=True)
    found = []
    for function in (gelu, functional.gelu):
        output = function(given, approximate=approximate)
        (first,) = torch.autograd.grad((output**2).sum(), given, create_graph=True)
        found.append(torch.autograd.grad(first.sum(), given)[0])
    torch.testing.assert_close(*found)


@WAYS
def test_the_operators_have_what_torch_expects(approximate: str) -> None:
    given, by_tanh = torch.randn(200, 200), approximate == "tanh"
    operators = torch.ops.xruntime
    torch.library.opcheck(operators.gelu.default, (given.requires_grad_(), by_tanh))
    torch.library.opcheck(
        operators.gelu_backward.default, (given.detach(), given.detach(), by_tanh)
    )


def test_under_transforms_torchs_own_is_called() -> None:
    given = torch.randn(4, 200, 200)
    mapped = torch.vmap(gelu)(given)
    torch.testing.assert_close(mapped, functional.gelu(given))
    _, tangent = torch.func.jvp(gelu, (given,), (torch.ones_like(given),))
    _, wanted = torch.func.jvp(functional.gelu, (given,), (torch.ones_like(given),))
    torch.testing.assert_close(tangent, wanted)


def test_an_unknown_approximation_is_torchs_error() -> None:
    with pytest.raises(RuntimeError, match="approximate"):
        gelu(torch.randn(200, 200), "sigmoid")
