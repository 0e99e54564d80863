# SPDX-License-Identifier: Apache-2.0
"""Dropouts of models that are optimized for training: which are reached, where, and in checkpoints."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from scipy.stats import ks_2samp
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from xruntime import optimize
from xruntime.optimization import PassOutcome, explain


class Module(nn.Module):
    """A dropout that is a module."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(64, 64), nn.Dropout(0.4)

    def forward(self, value: Tensor) -> Tensor:
        return self.dropout(self.linear(value))


class Function(Module):
    """A function, in the code of the module."""

    def forward(self, value: Tensor) -> Tensor:
        return functional.dropout(self.linear(value), 0.4, self.training)


class Attention(Module):
    """Within scaled_dot_product_attention."""

    def forward(self, value: Tensor) -> Tensor:
        heads = self.linear(value).unflatten(-1, (4, 16)).transpose(1, 2)
        p = 0.4 if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=p)
        return mixed.transpose(1, 2).flatten(2)


class Multihead(nn.Module):
    """Within one of torch's layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(64, 4, dropout=0.4, batch_first=True)

    def forward(self, value: Tensor) -> Tensor:
        output: Tensor = self.layer(value, value, value)[0]
        return output


class Around(nn.Module):
    """A model of one layer, which a checkpoint computes."""

    def __init__(self, layer: nn.Module, reentrant: bool | None = None) -> None:
        super().__init__()
        self.layer, self.reentrant = layer, reentrant

    def forward(self, value: Tensor) -> Tensor:
        if self.reentrant is None:
            return self.layer(value)  # type: ignore[no-any-return]
        return checkpoint(self.layer, value, use_reentrant=self.reentrant)  # type: ignore[no-any-return]


class Closure(nn.Module):
    """A checkpoint of a function that is not a module."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.scale, self.reentrant = nn.Parameter(torch.ones(64)), reentrant

    def forward(self, value: Tensor) -> Tensor:
        def drop(scaled: Tensor) -> Tensor:
            return functional.dropout(scaled, 0.4, self.training)

        return checkpoint(drop, value * self.scale, use_reentrant=self.reentrant)  # type: ignore[no-any-return]


KINDS = (Module, Function, Attention, Multihead)
VALUES = torch.randn(8, 64, 64, generator=torch.Generator().manual_seed(0))


def trained(model: nn.Module, **options: Any) -> nn.Module:
    """The model, optimized for training."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return optimize(model.train(), optimizer=optimizer, **options)[0]


def operators_of(function: Any) -> set[str]:
    """The operators that a call and its backward run."""
    with torch.autograd.profiler.profile() as profile:
        output = function()
        if output.requires_grad:
            output.sum().backward()
    return {event.name for event in profile.function_events}


@pytest.mark.parametrize("kind", KINDS)
def test_dropouts_are_computed_natively_within_calls_of_the_model(kind: type[nn.Module]) -> None:
    model = trained(Around(kind()))
    ran = operators_of(lambda: model(VALUES))
    assert "xruntime::dropout" in ran
    assert "aten::bernoulli_" not in ran
    step = explain(model).step("dropout_training")
    assert step.outcome is PassOutcome.APPLIED
    assert step.reason.endswith(
        "run natively: masks follow from torch's generator, with other values than torch's own"
    )
    # Neither other models, nor evaluation.
    for other in (lambda: Around(kind())(VALUES), lambda: functional.dropout(VALUES)):
        ran = operators_of(other)
        assert "aten::bernoulli_" in ran
        assert "xruntime::dropout" not in ran
    model.eval()
    assert torch.equal(model(VALUES), model(VALUES))


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.bfloat16])
def test_the_model_keeps_its_precision(dtype: torch.dtype | None) -> None:
    model = trained(Around(Attention()), dtype=dtype)
    output = model(VALUES)
    assert output.dtype == torch.float32
    output.sum().backward()
    assert all(parameter.grad is not None for parameter in model.layer.linear.parameters())  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_computes_the_same_mask_again(kind: type[nn.Module], reentrant: bool) -> None:
    layer, gradients = kind(), []
    for choice in (None, reentrant):
        model = trained(Around(copy.deepcopy(layer), choice))
        given = VALUES.clone().requires_grad_()
        torch.manual_seed(1)
        assert "aten::bernoulli_" not in operators_of(lambda: model(given))  # noqa: B023 - called here
        gradients.append([given.grad, *(parameter.grad for parameter in model.parameters())])
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_of_a_function_computes_the_same_mask_again(reentrant: bool) -> None:
    model = trained(Closure(reentrant))
    given = torch.ones_like(VALUES, requires_grad=True)
    output = model(given)
    output.sum().backward()
    assert given.grad is not None
    assert torch.equal(given.grad, output.detach())


def test_a_call_that_fails_leaves_torchs_dropout() -> None:
    model = trained(Around(Function()))
    with pytest.raises(RuntimeError):
        model(VALUES[..., :3])
    assert "aten::bernoulli_" in operators_of(lambda: functional.dropout(VALUES))


def test_the_pass_can_be_switched_off() -> None:
    given = Around(Function())
    model = trained(given, passes={"dropout_training": False})
    assert "aten::bernoulli_" in operators_of(lambda: model(VALUES))
    assert type(model) is Around


def test_models_without_dropouts_are_left() -> None:
    model = trained(nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.0), nn.Dropout2d(0.5)))
    step = explain(model).step("dropout_training")
    assert (step.outcome, step.reason) == (PassOutcome.SKIPPED, "there is no dropout")


def test_copies_are_plain_modules() -> None:
    model = trained(Around(nn.Sequential(Module(), Function())))
    layer = model.layer
    assert isinstance(layer, nn.Sequential)
    assert type(layer[0].dropout).__name__ == "Dropout"  # type: ignore[union-attr]
    plain = copy.deepcopy(model)
    assert [type(module) for module in plain.modules()] == [
        *(Around, nn.Sequential, Module, nn.Linear, nn.Dropout, Function, nn.Linear, nn.Dropout)
    ]
    pickle.loads(pickle.dumps(plain))
    assert "xruntime::dropout" not in operators_of(lambda: plain(VALUES))


@pytest.mark.long
@pytest.mark.parametrize("kind", [Module, Function])
def test_the_result_can_be_compiled(kind: type[nn.Module]) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = kind()
            self.inner.linear = nn.Identity()  # type: ignore[assignment]
            self.scale = nn.Parameter(torch.ones(64))

        def forward(self, value: Tensor) -> Tensor:
            return self.inner(value * self.scale)  # type: ignore[no-any-return]

    model = torch.compile(trained(Scaled()), fullgraph=True)
    given = torch.ones_like(VALUES, requires_grad=True)
    first, output = model(given), model(given)
    assert not torch.equal(first, output)
    output.sum().backward()
    assert given.grad is not None
    torch.testing.assert_close(given.grad, output.detach())
    assert 0.35 < (output == 0).float().mean() < 0.45


@pytest.mark.long
def test_losses_have_the_same_distribution_as_with_torchs_masks() -> None:
    losses: dict[bool, list[float]] = {True: [], False: []}
    target = VALUES.roll(1, -1).tanh()
    for seed in range(20):
        for native, found in losses.items():
            torch.manual_seed(seed)
            model = nn.Sequential(Function(), nn.ReLU(), Module(), nn.Linear(64, 64))
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            faster, stepper = optimize(
                model, optimizer=optimizer, passes={"dropout_training": native}
            )
            for _ in range(40):
                stepper.zero_grad()
                loss = functional.mse_loss(faster(VALUES), target)
                loss.backward()
                stepper.step()
            found.append(loss.item())
    assert ks_2samp(losses[True], losses[False]).pvalue > 0.01
