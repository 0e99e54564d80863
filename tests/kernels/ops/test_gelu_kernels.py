# SPDX-License-Identifier: Apache-2.0
"""The native GELU beside torch's in fp64, on every instruction set."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
from tests.kernels.ops.instruction_sets import ISAS  # noqa: E402

from xruntime import native  # noqa: E402
from xruntime.nn.native_operators import TYPES  # noqa: E402

Load = Callable[[str], ctypes.CDLL]
WAYS = pytest.mark.parametrize("by_tanh", [False, True])
PROBABILITY_ERROR = 2e-7
"""What xkernels/gelu.h promises."""


def values(count: int, dtype: torch.dtype, scale: float = 4.0) -> torch.Tensor:
    """`count` values, of which some end up in the tails."""
    return (torch.randn(count, generator=torch.Generator().manual_seed(1)) * scale).to(dtype)


def computed(
    library: ctypes.CDLL, value: torch.Tensor, gradient: torch.Tensor | None, by_tanh: bool
) -> torch.Tensor:
    output = torch.full_like(value, 7)
    given = None if gradient is None else gradient.data_ptr()
    shape = value.numel(), TYPES[value.dtype], by_tanh
    assert library.xk_gelu(value.data_ptr(), given, *shape, output.data_ptr()) == 0
    return output


def reference(value: torch.Tensor, gradient: torch.Tensor | None, by_tanh: bool) -> torch.Tensor:
    exact, approximate = value.double().requires_grad_(), "tanh" if by_tanh else "none"
    output = torch.nn.functional.gelu(exact, approximate=approximate)
    if gradient is None:
        return output.detach()
    (found,) = torch.autograd.grad(output, exact, gradient.double())
    return found


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("count", [0, 1, 15, 64, 1000, 40_001])
@WAYS
def test_values_and_gradients_are_those_of_fp64(
    load: Load, isa: str, dtype: torch.dtype, count: int, by_tanh: bool
) -> None:
    value, factor = values(count, dtype), values(count, dtype, 1.0).flip(0)
    sizes = value.double().abs()
    rounding = torch.finfo(dtype).eps / 2
    smallest = torch.finfo(dtype).smallest_normal * rounding
    for gradient in (None, factor):
        wanted = reference(value, gradient, by_tanh)
        factors = sizes if gradient is None else (1 + sizes) * gradient.double().abs()
        # Computing in fp32 takes some further roundings.
        allowed = factors * 2 * PROBABILITY_ERROR + wanted.abs() * rounding * 1.01 + smallest * 2
        found = computed(load(isa), value, gradient, by_tanh)
        assert ((found.double() - wanted).abs() <= allowed).all()


@pytest.mark.parametrize("isa", ISAS)
@WAYS
def test_special_values_are_as_torchs(load: Load, isa: str, by_tanh: bool) -> None:
    value = torch.tensor([0.0, -0.0, 1e30, -1e18, -200.0, 1e-40, math.inf, -math.inf, math.nan])
    wanted = reference(value, None, by_tanh).float()
    found = computed(load(isa), value, None, by_tanh)
    torch.testing.assert_close(found, wanted, equal_nan=True)
    assert torch.equal(found.signbit()[:2], wanted.signbit()[:2])
    value[2] = 1e18
    one = torch.ones_like(value)
    slopes = computed(load(isa), value, one, by_tanh)
    torch.testing.assert_close(slopes, reference(value, one, by_tanh).float(), equal_nan=True)


def test_bits_do_not_depend_on_the_number_of_threads(
    load: Load, team: Callable[[int], object]
) -> None:
    library, value = load(ISAS[-1]), values(40_001, torch.float32)
    found = []
    for threads in (1, 3):
        library.xk_team_resize(threads)
        found.append(computed(library, value, value.flip(0), by_tanh=False))
    library.xk_team_resize(1)
    assert torch.equal(*found)


@pytest.mark.parametrize("where", ["input", "gradient"])
def test_the_output_may_be_an_argument(load: Load, where: str) -> None:
    library, value = load(ISAS[-1]), values(1000, torch.bfloat16)
    gradient = value.flip(0)
    wanted = computed(library, value, gradient, by_tanh=False)
    output = value if where == "input" else gradient
    arguments = value.data_ptr(), gradient.data_ptr(), 1000, native.BFLOAT16, 0
    assert library.xk_gelu(*arguments, output.data_ptr()) == 0
    assert torch.equal(output, wanted)
