# SPDX-License-Identifier: Apache-2.0
"""Where passes apply and where they must not: hooked modules, few convolutions, changed inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.runtime_ext.stream_threads import in_threads
from torch import Tensor, nn

from xruntime import optimize
from xruntime.optimization import PassOutcome, explain


class Siblings(nn.Module):
    """Two linears with one input, called as `how` says; a shift changes it in place between them."""

    def __init__(self, how: str = "plainly") -> None:
        super().__init__()
        self.how = how
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        if how == "tied":
            self.second.weight = self.first.weight
        self.eval()

    def forward(self, values: Tensor, shift: Tensor | None = None) -> Tensor:
        first: Tensor = self.first(values)
        if shift is not None:
            values.add_(shift)
        second: Tensor = self.second(values)
        if self.how == "called twice":
            return first + second + self.first(second)
        if self.how == "weight read":
            return first + second + self.first.weight[0]
        return first.relu() - second.relu()


def outcome_of_joining(model: nn.Module, *sample: Any) -> PassOutcome:
    optimized = optimize(model, sample_input=sample, graph="none")
    torch.testing.assert_close(*(one(*(it.clone() for it in sample)) for one in (optimized, model)))
    return explain(optimized).step("join_linears").outcome


def test_linears_with_one_input_are_joined_where_it_is_the_same() -> None:
    values, shift = torch.randn(3, 4), torch.ones(4)
    assert outcome_of_joining(Siblings(), values) is PassOutcome.APPLIED
    assert outcome_of_joining(Siblings(), values, shift) is PassOutcome.SKIPPED
    for how in ("called twice", "tied", "weight read"):
        assert outcome_of_joining(Siblings(how), values) is PassOutcome.SKIPPED


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_joined_linears_see_what_changes_between_their_calls(mode: Any) -> None:
    """Parts of a model are called alone, too. Torch counts no changes of tensors made in inference mode."""
    model, sample = Siblings(), torch.randn(2, 4)
    optimized = optimize(model, sample_input=sample, graph="none")
    with mode():
        values = torch.randn(2, 4)
        for shift in (None, torch.ones(4), None):
            expected = model(values.clone(), shift)
            torch.testing.assert_close(optimized(values.clone(), shift), expected)
        optimized.first(values)
        values.mul_(2)
        torch.testing.assert_close(optimized.second(values), model.second(values))
    values = torch.randn(2, 4, requires_grad=True)
    with mode():
        optimized.first(values)
    assert optimized.second(input=values).requires_grad


def test_joined_linears_in_another_order_and_in_threads() -> None:
    model = Siblings()
    optimized = optimize(model, sample_input=torch.randn(3, 4), graph="none")
    one, two = torch.randn(2, 3, 4)
    for name, values in (("second", one), ("first", one), ("second", two), ("second", one)):
        part, expected = optimized.get_submodule(name), model.get_submodule(name)
        torch.testing.assert_close(part(values), expected(values))
        torch.testing.assert_close(part.weight, expected.weight)
        torch.testing.assert_close(part.bias, expected.bias)

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(200):
            values = torch.randn(3, 4, generator=generator)
            assert torch.allclose(optimized(values), model(values), atol=1e-5)

    in_threads(work, range(4))


def test_weights_of_modules_with_hooks_stay_in_float32() -> None:
    """A hook may read the weight, and expects what the model has."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).eval()
    seen: list[torch.dtype] = []
    model[2].register_forward_hook(lambda module, *_: seen.append(module.weight.dtype))
    optimized = optimize(model, dtype=torch.bfloat16)
    assert explain(optimized).step("weights").outcome is PassOutcome.APPLIED
    assert optimized[0].weight.dtype == torch.bfloat16
    optimized(torch.randn(3, 4))
    assert seen == [torch.float32]


@pytest.mark.parametrize(
    ("features", "share", "outcome"),
    [
        (12, "20%", PassOutcome.SKIPPED),
        (3, "50%", PassOutcome.APPLIED),
        (1, "75%", PassOutcome.APPLIED),
    ],
)
def test_convolutions_are_stored_channels_last_if_they_are_half_of_the_work(
    features: int, share: str, outcome: PassOutcome
) -> None:
    # 8 x 16 values of 3 products each, and `features` values of 8 x 16 products.
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Flatten(), nn.Linear(128, features)).eval()
    optimized = optimize(model, sample_input=torch.randn(2, 3, 4, 4), graph="none")
    step = explain(optimized).step("channels_last")
    assert step.outcome is outcome
    assert f"convolutions are {share} of the multiplications" in step.reason


class Viewing(nn.Module):
    """Two linears with one input; `how` says what is done with the first one's output."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.first, self.second = nn.Linear(4, 6), nn.Linear(4, 6)
        self.eval()

    def forward(self, values: Tensor) -> Tensor:
        first, second = self.first(values), self.second(values)
        if self.how == "heads":
            first = first.view(*values.shape[:-1], 2, 3).flatten(-2)
        if self.how == "rows of all sequences":
            first = first.view(-1, 6).view(second.shape)
        if self.how == "rows joined":
            return first.view(values.shape[0], -1).sum(1) + second.sum()
        if self.how == "all joined":
            return first.view(-1).sum() + second.sum()
        if self.how == "changed in place":
            first.mul_(2)
        if self.how == "returned":
            return first
        return first * second


@pytest.mark.parametrize(
    ("how", "outcome"),
    [
        ("heads", PassOutcome.APPLIED),
        ("rows of all sequences", PassOutcome.APPLIED),
        ("changed in place", PassOutcome.APPLIED),
        ("rows joined", PassOutcome.SKIPPED),
        ("all joined", PassOutcome.SKIPPED),
        ("returned", PassOutcome.SKIPPED),
    ],
)
@pytest.mark.parametrize("shape", [(1, 5, 4), (3, 1, 4), (2, 5, 4)])
def test_linears_are_joined_where_their_outputs_may_have_gaps(
    how: str, outcome: PassOutcome, shape: tuple[int, ...]
) -> None:
    """A view of a sample with a single row is no evidence for other sizes."""
    model, sample = Viewing(how), torch.randn(shape)
    optimized = optimize(model, sample_input=sample, graph="none")
    if how != "rows of all sequences" or shape[1] > 1:
        assert explain(optimized).step("join_linears").outcome is outcome
    for size in ((2, 5, 4), (4, 3, 4)):
        values = torch.randn(size, requires_grad=True)
        expected, outputs = model(values), optimized(values)
        torch.testing.assert_close(outputs, expected)
        assert outputs.stride() == expected.stride()
        wanted, found = (torch.autograd.grad(it.sum(), values) for it in (expected, outputs))
        torch.testing.assert_close(found, wanted)
    many = torch.randn(2, 2, 5, 4)
    torch.testing.assert_close(torch.vmap(optimized)(many), torch.vmap(model)(many))


@pytest.mark.parametrize("sampled", [True, False])
def test_outputs_are_as_contiguous_as_the_models(sampled: bool) -> None:
    model, images = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval(), torch.randn(2, 3, 8, 8)
    optimized = optimize(model, sample_input=images if sampled else None, graph="none")
    assert explain(optimized).step("channels_last").outcome is PassOutcome.APPLIED
    torch.testing.assert_close(optimized(images).view(2, -1), model(images).view(2, -1))
    if sampled:
        images = images.to(memory_format=torch.channels_last)
        optimized = optimize(model, sample_input=images, graph="none")
        assert optimized(images).stride() == model(images).stride() != (144, 36, 6, 1)


class Converting(nn.Module):
    """Returns its output in each of some dtypes."""

    def __init__(self, weights: torch.dtype, *returned: torch.dtype) -> None:
        super().__init__()
        self.linear, self.returned = nn.Linear(4, 4, dtype=weights), returned
        self.eval()

    def forward(self, values: Tensor) -> list[Tensor]:
        outputs = self.linear(values)
        return [outputs.to(dtype) for dtype in self.returned]


FP32, BF16, FP16, FP64 = torch.float32, torch.bfloat16, torch.float16, torch.float64


@pytest.mark.parametrize(
    ("weights", "returned", "outcome"),
    [
        (FP32, (FP32,), PassOutcome.APPLIED),
        (FP32, (BF16,), PassOutcome.APPLIED),
        (FP32, (FP32, FP64), PassOutcome.APPLIED),
        (FP16, (FP16,), PassOutcome.APPLIED),
        (FP32, (FP32, BF16), PassOutcome.SKIPPED),
    ],
)
def test_outputs_keep_their_dtypes(
    weights: torch.dtype, returned: tuple[torch.dtype, ...], outcome: PassOutcome
) -> None:
    model, values = Converting(weights, *returned), torch.randn(3, 4, dtype=weights)
    optimized = optimize(model, sample_input=values, graph="none", dtype=BF16)
    assert explain(optimized).step("precision").outcome is outcome
    assert tuple(it.dtype for it in optimized(values)) == returned
    if weights in returned:
        assert optimize(model, dtype=BF16)(values)[0].dtype == returned[0]


class ChangedBetween(nn.Module):
    """Two linears with one input, which a call may change between them."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)
        self.eval()

    def forward(self, values: Tensor, column: int | None = None) -> Tensor:
        value = values * 1.0
        first = self.one(value)
        if column is not None:
            value[:, column] *= 5.0
        return first + self.other(value)


@pytest.mark.parametrize("inference", [False, True])
def test_an_input_that_changes_between_joined_linears(inference: bool) -> None:
    model, values = ChangedBetween(), torch.randn(4, 8)
    fast = optimize(model, sample_input=values, graph="none")
    assert explain(fast).step("join_linears").outcome is PassOutcome.APPLIED
    with torch.inference_mode(inference), torch.no_grad():
        for column in (None, 0, 3, 6, 7):
            torch.testing.assert_close(fast(values, column), model(values, column))


class Storing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.held: list[Tensor] = []
        self.eval()

    def forward(self, values: Tensor) -> Tensor:
        self.held.append(self.linear(values))
        return self.held[-1].relu()


def test_a_model_that_stores_a_tensor_keeps_its_precision() -> None:
    fast = optimize(Storing(), sample_input=torch.randn(2, 8), dtype=torch.bfloat16, graph="none")
    assert "stores a tensor in held.0" in explain(fast).step("precision").reason
    assert fast.held == []
    fast(torch.randn(2, 8))
    assert fast.held[0].dtype == torch.float32
