# SPDX-License-Identifier: Apache-2.0
"""SGD with momentum."""

from __future__ import annotations

import ctypes
import math
from typing import ClassVar

import torch
from torch.optim.optimizer import Optimizer, ParamsT

from xruntime.errors import OptimizerError
from xruntime.optim.dense import StateNames
from xruntime.optim.native_optimizer import Group, NativeOptimizer, Rounding
from xruntime.optim.step_call import Update


class SGD(NativeOptimizer):
    """Stochastic gradient descent: torch.optim.SGD for bf16 and fp32 parameters.

    params ... maximize
        As in torch.optim.SGD.
    rounding
        How bf16 weights are kept: "split" (fp32 accuracy, by a remainder in the state) or "stochastic".
    state_dtype
        Dtype of the momentum of bf16 parameters, torch.float32 or torch.bfloat16.
    generator
        Draws the random numbers of stochastic rounding.
    foreach, fused
        Accepted and ignored.

    Sparse gradients are supported without momentum and weight decay. Raises OptimizerError.
    """

    DELEGATE: ClassVar[type[Optimizer] | None] = torch.optim.SGD
    RANGES: ClassVar[dict[str, tuple[float, float]]] = {
        "lr": (0, math.inf),
        "momentum": (0, math.inf),
        "weight_decay": (0, math.inf),
    }

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
        rounding: Rounding = "split",
        state_dtype: torch.dtype = torch.float32,
        generator: torch.Generator | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
            "foreach": foreach,
            "differentiable": differentiable,
            "fused": fused,
            "rounding": rounding,
            "state_dtype": state_dtype,
        }
        super().__init__(params, defaults, generator)

    def _check_group(self, group: Group) -> None:
        super()._check_group(group)
        check_nesterov(self._name, group)

    def _names(self, group: Group) -> StateNames:
        return momentum_names(group)

    def _update(self, group: Group) -> Update:
        lr, momentum = float(group["lr"]), float(group["momentum"])
        dampening, weight_decay = float(group["dampening"]), float(group["weight_decay"])
        nesterov = int(group["nesterov"])

        def update(library: ctypes.CDLL, tensors: object) -> int:
            return int(library.xk_sgd(tensors, lr, momentum, dampening, weight_decay, nesterov))

        return update

    def _sparse_obstacle(self, group: Group) -> str | None:
        for option in ("momentum", "weight_decay"):
            if group[option] != 0:
                return (
                    f"sparse gradients with {option}={group[option]} are not supported; use"
                    f" {option}=0 for parameters with sparse gradients, in a group of their own"
                )
        return None


def momentum_names(group: Group) -> StateNames:
    """Return the state of SGD and Lars with a group's options."""
    remembers = group["momentum"] != 0
    return StateNames("momentum_buffer" if remembers else None, None, False, remembers)


def check_nesterov(name: str, group: Group) -> None:
    """Raise OptimizerError for Nesterov momentum without momentum or with dampening."""
    if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
        raise OptimizerError(
            f"{name}: nesterov=True with momentum={group['momentum']} and"
            f" dampening={group['dampening']}: it needs a momentum above 0 and a dampening of 0"
        )
