# SPDX-License-Identifier: Apache-2.0
"""What cannot be done is one line, before any parameter is changed."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from tests.runtime_ext.optim.training import EVERY, ours, parameters_of, set_gradients

from xruntime import optim
from xruntime.errors import OptimizerError


def weight(dtype: torch.dtype = torch.bfloat16) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.ones(4, 3, dtype=dtype))


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("Adam", {"amsgrad": True}, "Adam: amsgrad=True is not supported"),
        ("AdamW", {"capturable": True}, "AdamW: capturable=True is not supported"),
        ("SGD", {"differentiable": True}, "SGD: differentiable=True is not supported"),
        ("SGD", {"lr": -1}, "SGD: lr=-1: allowed is at least 0"),
        ("SGD", {"lr": float("nan")}, "SGD: lr=nan"),
        ("Adam", {"betas": (0.9, 1.0)}, r"betas=\(0.9, 1.0\): allowed is at least 0 and below 1"),
        ("SGD", {"nesterov": True}, "nesterov=True with momentum=0 and dampening=0"),
        ("Lars", {"nesterov": True, "momentum": 0.9, "dampening": 0.1}, "and dampening=0.1"),
        ("Lamb", {"rounding": "up"}, "rounding='up': allowed are 'split', 'stochastic'"),
        ("Lamb", {"state_dtype": torch.float16}, "state_dtype=torch.float16: allowed are"),
    ],
)
def test_options(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptimizerError, match=message):
        getattr(optim, kind)([weight()], **options)


@pytest.mark.parametrize("name", EVERY)
def test_foreach_and_fused_are_accepted(name: str) -> None:
    for value in (None, True, False):
        ours(name, [weight(), weight(torch.float32)], foreach=value, fused=value)


@pytest.mark.parametrize(
    ("name", "dtype"), [("sgd", torch.float16), ("lamb", torch.float64), ("adam", torch.complex64)]
)
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    with pytest.raises(OptimizerError, match=f"a parameter has dtype {dtype}; allowed are"):
        ours(name, [weight(dtype)])


def test_devices() -> None:
    with pytest.raises(OptimizerError, match="a parameter is on meta"):
        ours("sgd", [torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16, device="meta"))])


def test_a_refused_group_is_not_added() -> None:
    optimizer = ours("sgd", [weight()])
    with pytest.raises(OptimizerError, match="float16"):
        optimizer.add_param_group({"params": [weight(torch.float16)]})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": [weight()], "lr": 0.5})
    assert optimizer.param_groups[1]["rounding"] == "split"


def refused_step(optimizer: torch.optim.Optimizer, message: str) -> None:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    before = [p.detach().clone() for p in parameters]
    with pytest.raises(OptimizerError, match=message) as caught:
        optimizer.step()
    assert len(str(caught.value).splitlines()) == 1
    for parameter, value in zip(parameters, before, strict=True):
        assert torch.equal(parameter, value)


@pytest.mark.parametrize("name", EVERY)
def test_parameters_that_share_memory(name: str) -> None:
    memory = torch.ones(20, dtype=torch.bfloat16)
    parameters = [torch.nn.Parameter(memory[:12]), torch.nn.Parameter(memory[8:])]
    set_gradients(parameters, seed=1)
    refused_step(ours(name, [weight(), *parameters]), "share memory")


def test_a_parameter_that_shares_memory_with_itself() -> None:
    parameter = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16).expand(3))
    parameter.grad = torch.ones(3, dtype=torch.bfloat16)
    refused_step(ours("sgd", [parameter]), r"elements of a parameter of shape \(3,\) share memory")


def test_a_gradient_that_shares_memory_with_a_weight_at_first_or_later() -> None:
    parameters = [weight(), weight()]
    optimizer = ours("sgd", parameters)
    set_gradients(parameters, seed=1)
    good = parameters[1].grad
    parameters[1].grad = parameters[0].detach()
    refused_step(optimizer, "a gradient of shape .* shares memory")
    parameters[1].grad = good
    optimizer.step()
    parameters[1].grad = parameters[0].detach()
    refused_step(optimizer, "a gradient of shape .* shares memory")


@pytest.mark.parametrize("name", ["adam", "adamw", "lamb", "lars"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_sparse_gradients_of_other_optimizers(name: str, dtype: torch.dtype) -> None:
    parameters = [weight(dtype), weight(dtype)]
    set_gradients(parameters, seed=1)
    parameters[1].grad = torch.ones(4, 3, dtype=dtype).to_sparse(1)
    refused_step(ours(name, parameters), "it does not support sparse gradients")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("SGD", {"momentum": 0.9}),
        ("SGD", {"weight_decay": 0.1}),
        ("Adagrad", {"weight_decay": 0.1}),
    ],
)
def test_sparse_gradients_with_what_would_change_every_row(
    kind: str, options: dict[str, float]
) -> None:
    parameter = weight()
    parameter.grad = torch.ones(4, 3, dtype=torch.bfloat16).to_sparse(1)
    ((option, value),) = options.items()
    refused_step(
        getattr(optim, kind)([parameter], **options),
        f"sparse gradients with {option}={value} are not supported",
    )


def test_sparse_gradients_of_single_elements() -> None:
    parameter = weight()
    parameter.grad = torch.ones(4, 3, dtype=torch.bfloat16).to_sparse(2)
    refused_step(ours("plain", [parameter]), "2 sparse dimensions")


def test_a_failed_step_leaves_momentum_to_be_set_by_the_next() -> None:
    """With dampening, the first step sets the momentum differently from later ones."""
    parameters, reference = parameters_of(torch.bfloat16), parameters_of(torch.bfloat16)
    optimizer, other = ours("sgd", parameters), ours("sgd", reference)
    set_gradients(parameters, reference, seed=1)
    good = parameters[3].grad
    parameters[3].grad = parameters[3].detach()
    refused_step(optimizer, "shares memory")
    parameters[3].grad = good
    optimizer.step()
    other.step()
    for one, wanted in zip(parameters, reference, strict=True):
        assert torch.equal(one, wanted)


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam", "AdamW"])
def test_arguments_are_torchs_and_three_more(name: str) -> None:
    """In torch's order, with torch's defaults."""
    found = inspect.signature(getattr(optim, name)).parameters
    theirs = inspect.signature(getattr(torch.optim, name)).parameters
    assert [*found][: len(theirs)] == [*theirs]
    assert [*found][len(theirs) :] == ["rounding", "state_dtype", "generator"]
    for option, wanted in theirs.items():
        assert (found[option].default, found[option].kind) == (wanted.default, wanted.kind)
