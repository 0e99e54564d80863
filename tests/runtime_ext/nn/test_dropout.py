# SPDX-License-Identifier: Apache-2.0
"""The native dropout beside torch's: layouts, gradients, random numbers, transforms."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from xruntime.nn.dropout_operator import dropout
from xruntime.nn.native_operators import MIN_VALUES

P = 0.3

LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "row-major": lambda: torch.randn(16, 16, 12, 12),
    "channels-last": lambda: torch.randn(16, 16, 12, 12).to(memory_format=torch.channels_last),
    "transposed": lambda: torch.randn(16, 12, 16, 12).transpose(1, 2),
    "a slice": lambda: torch.randn(16, 16, 12, 20)[..., 3:15],
    "expanded": lambda: torch.randn(16, 16, 1, 12).expand(-1, -1, 12, -1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_are_multiplied_by_a_mask_and_gradients_by_the_same(
    layout: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(1)
    given = LAYOUTS[layout]().to(dtype, memory_format=torch.preserve_format)
    given.requires_grad_()
    output = dropout(given, P)
    stock = functional.dropout(given, P)
    assert (output.dtype, output.stride()) == (dtype, stock.stride())
    factors = (output != 0) / (1 - P)
    assert 0.25 < 1 - (output != 0).float().mean() < 0.35
    kind = torch.finfo(dtype)
    rounding = {"rtol": kind.eps, "atol": kind.eps * kind.smallest_normal}
    torch.testing.assert_close(output.float(), given.detach().float() * factors, **rounding)
    # The gradient has another layout.
    gradient = torch.randn(given.shape[::-1]).permute(3, 2, 1, 0).to(dtype)
    output.backward(gradient)
    assert given.grad is not None
    torch.testing.assert_close(given.grad.float(), gradient.float() * factors, **rounding)


def test_in_place_and_on_views() -> None:
    values = torch.ones(1000, 100)
    result = dropout(values[:, :60], P, inplace=True)
    assert result.data_ptr() == values.data_ptr()
    assert set(values[:, :60].unique().tolist()) == {0.0, torch.tensor(1 / (1 - P)).item()}
    assert torch.equal(values[:, 60:], torch.ones(1000, 40))
    leaf = torch.ones(200, 200, requires_grad=True)
    output = dropout(leaf * 2, P, inplace=True)
    output.sum().backward()
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, output.detach())


@pytest.mark.parametrize(("p", "training"), [(0.0, True), (P, False)])
def test_without_dropping_the_input_is_returned(p: float, training: bool) -> None:
    given = torch.randn(200, 200)
    assert torch.equal(dropout(given, p, training), given)


@pytest.mark.parametrize("shape", [(0,), (3, 0, 5), (MIN_VALUES - 1,)])
def test_empty_and_small_tensors_are_torchs(shape: tuple[int, ...]) -> None:
    given = torch.ones(shape)
    torch.manual_seed(3)
    expected = functional.dropout(given, P)
    torch.manual_seed(3)
    assert torch.equal(dropout(given, P), expected)


def test_all_values_are_dropped_with_a_probability_of_one() -> None:
    assert not dropout(torch.ones(200, 200), 1.0).any()
    with pytest.raises(ValueError, match="has to be between 0 and 1"):
        dropout(torch.ones(200, 200), 1.5)


def test_masks_follow_from_torchs_generator() -> None:
    given = torch.ones(200, 2000)
    torch.manual_seed(5)
    first, second = dropout(given, P), dropout(given, P)
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    with torch.random.fork_rng():
        assert torch.equal(dropout(given, P), first)
    assert torch.equal(dropout(given, P), first)
    torch.manual_seed(6)
    assert not torch.equal(dropout(given, P), first)


def test_the_operator_has_what_torch_expects() -> None:
    for make, order in (("row-major", []), ("channels-last", [0, 2, 3, 1])):
        value = LAYOUTS[make]().requires_grad_()
        arguments = (value, P, torch.tensor([1, 2]), order)
        torch.library.opcheck(torch.ops.xruntime.dropout.default, arguments)


def test_the_second_derivative_is_that_of_a_multiplication() -> None:
    given = torch.randn(200, 200, requires_grad=True)
    output = dropout(given, P)
    (first,) = torch.autograd.grad((output**2).sum(), given, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), given)
    torch.testing.assert_close(second, 2 * (output != 0) / (1 - P) ** 2)


def test_under_vmap_torchs_own_is_called() -> None:
    given = torch.ones(4, 200, 200)
    masks = torch.vmap(lambda value: dropout(value, P), randomness="different")(given)
    assert not torch.equal(masks[0], masks[1])


@pytest.mark.long
def test_compiled_code_draws_a_new_mask_in_each_call() -> None:
    compiled = torch.compile(dropout, fullgraph=True)
    given = torch.ones(200, 200, requires_grad=True)
    first, second = compiled(given, P), compiled(given, P)
    assert not torch.equal(first, second)
    second.sum().backward()
    assert given.grad is not None
    assert torch.equal(given.grad, second.detach())
