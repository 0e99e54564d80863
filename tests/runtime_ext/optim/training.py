# SPDX-License-Identifier: Apache-2.0
"""What tests of the optimizers share: optimizers with options, parameters, gradients in both dtypes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from xruntime import optim
from xruntime.optim.native_optimizer import NativeOptimizer
from xruntime.optim.split_bf16 import join

OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    "nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "plain": ("SGD", {"lr": 0.1}),
    "adagrad": ("Adagrad", {"lr": 0.1, "lr_decay": 0.01, "initial_accumulator_value": 0.1}),
    "adam": ("Adam", {"lr": 0.01, "weight_decay": 0.1, "betas": (0.8, 0.95)}),
    "adamw": ("AdamW", {"lr": 0.01, "weight_decay": 0.1}),
}
"""Optimizers that torch has, by a short name."""

ONLY_OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "lamb": ("Lamb", {"lr": 0.01, "weight_decay": 0.1}),
    "lars": ("Lars", {"lr": 0.5, "momentum": 0.9, "weight_decay": 0.01, "trust_coefficient": 0.1}),
}
EVERY = OPTIONS | ONLY_OURS

SHAPES = ((3, 5), (1,), (0,), (17, 33), ())

Parameters = list[torch.nn.Parameter]


def ours(name: str, parameters: Any, **options: Any) -> NativeOptimizer:
    kind, defaults = EVERY[name]
    return getattr(optim, kind)(parameters, **(defaults | options))


def torchs(name: str, parameters: Any, **options: Any) -> torch.optim.Optimizer:
    kind, defaults = OPTIONS[name]
    return getattr(torch.optim, kind)(parameters, **(defaults | options))


def parameters_of(dtype: torch.dtype, shapes: Sequence[tuple[int, ...]] = SHAPES) -> Parameters:
    drawn = torch.Generator().manual_seed(0)
    return [
        torch.nn.Parameter(torch.randn(s, generator=drawn).bfloat16().to(dtype)) for s in shapes
    ]


def set_gradients(*lists: Sequence[torch.Tensor], seed: int) -> None:
    """The parameters of each list get the same gradients, in their dtypes."""
    drawn = torch.Generator().manual_seed(seed)
    for alike in zip(*lists, strict=True):
        gradient = torch.randn(alike[0].shape, generator=drawn).bfloat16()
        for parameter in alike:
            parameter.grad = gradient.to(parameter.dtype, copy=True)


def masters(optimizer: NativeOptimizer, parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The fp32 weights of split bf16 parameters."""
    return [join(p, optimizer.state[p]["remainder"]) for p in parameters]


def train(
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[torch.Tensor],
    seeds: range,
    after: Callable[[], object] = lambda: None,
) -> None:
    for seed in seeds:
        set_gradients(parameters, seed=seed)
        optimizer.step()
        after()
