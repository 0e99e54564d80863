# SPDX-License-Identifier: Apache-2.0
"""GELUs of models that are optimized for training: which are native, and that they train as before."""

from __future__ import annotations

import copy
import importlib.util
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.runtime_ext.conftest import Needs
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from xruntime import optimize
from xruntime.optimization import PassOutcome, explain

VALUES = torch.randn(64, 16, 64, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    """Two linears with an activation between them, perhaps in a checkpoint."""

    def __init__(self, activation: nn.Module, reentrant: bool | None = None) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)
        self.activation, self.reentrant = activation, reentrant

    def inner(self, value: Tensor) -> Tensor:
        return self.down(self.activation(self.up(value)))  # type: ignore[no-any-return]

    def forward(self, value: Tensor) -> Tensor:
        if self.reentrant is None:
            return self.inner(value)
        return checkpoint(self.inner, value, use_reentrant=self.reentrant)  # type: ignore[no-any-return]


def trained(model: nn.Module, **options: Any) -> nn.Module:
    """The model, optimized for training."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    return optimize(model.train(), optimizer=optimizer, **options)[0]


def gradients(model: nn.Module) -> tuple[set[str], list[Tensor | None]]:
    """The operators of a step, and the gradients of the input and of all parameters."""
    given = VALUES.clone().requires_grad_()
    with torch.autograd.profiler.profile() as profile:
        model(given).square().sum().backward()
    ran = {event.name for event in profile.function_events}
    return ran, [given.grad, *(parameter.grad for parameter in model.parameters())]


def of_transformers(name: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        from transformers.activations import ACT2FN

        activation: nn.Module = ACT2FN[name]
        return activation

    return make


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "nn.GELU": nn.GELU,
    "nn.GELU by tanh": lambda: nn.GELU("tanh"),
    **{
        name: of_transformers(name)
        for name in ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh")
    },
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("reentrant", [None, False, True])
def test_gradients_are_those_of_the_model(name: str, reentrant: bool | None, needs: Needs) -> None:
    if not name.startswith("nn."):
        needs(importlib.util.find_spec("transformers"), "transformers")
    block = Block(ACTIVATIONS[name](), reentrant)
    model = trained(block)
    step = explain(model).step("gelu_training")
    assert (step.outcome, step.reason) == (
        PassOutcome.APPLIED,
        "1 GELU: one native pass in forward, and one in backward",
    )
    ran, found = gradients(model)
    assert {"xruntime::gelu", "xruntime::gelu_backward"} <= ran
    stock, wanted = gradients(block)
    assert not any("xruntime" in operator for operator in stock)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_shared_module_with_a_hook_in_a_frozen_model(dtype: torch.dtype) -> None:
    shared = nn.GELU()
    given = nn.Sequential(Block(shared), Block(shared))
    given[0].requires_grad_(False)
    calls: list[torch.dtype] = []
    shared.register_forward_hook(lambda *call: calls.append(call[2].dtype))
    model = trained(given, dtype=dtype, inplace=True)
    ran, found = gradients(model)
    assert "xruntime::gelu_backward" in ran
    assert calls == [dtype] * 2
    assert [one is None for one in found[1:]] == [True] * 4 + [False] * 4


def test_other_activations_and_switched_off_ones_are_left() -> None:
    class Own(nn.GELU):
        pass

    for activation, passes in ((nn.GELU(), {"gelu_training": False}), (Own(), {}), (nn.SiLU(), {})):
        model = trained(Block(activation), passes=passes)
        assert explain(model).step("gelu_training").outcome is PassOutcome.SKIPPED
        assert type(model) is Block
        assert not any("xruntime" in operator for operator in gradients(model)[0])


def test_copies_are_plain_modules() -> None:
    plain = copy.deepcopy(trained(Block(nn.GELU("tanh"))))
    assert type(plain) is Block
    assert type(plain.activation) is nn.GELU
    assert pickle.loads(pickle.dumps(plain)).activation.approximate == "tanh"


@pytest.mark.long
def test_the_result_can_be_compiled() -> None:
    block = Block(nn.GELU())
    _, wanted = gradients(block)
    ran, found = gradients(torch.compile(trained(block), fullgraph=True))  # type: ignore[arg-type]
    assert not any("xruntime" in operator for operator in ran)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
