# SPDX-License-Identifier: Apache-2.0
"""Adagrad."""

from __future__ import annotations

import ctypes
import math
from typing import ClassVar

import torch
from torch.optim.optimizer import Optimizer, ParamsT

from xruntime.optim.dense import StateNames, as_count
from xruntime.optim.layout import empty_like, is_dense
from xruntime.optim.native_optimizer import Group, NativeOptimizer, Rounding
from xruntime.optim.step_call import Update


class Adagrad(NativeOptimizer):
    """torch.optim.Adagrad for bf16 and fp32 parameters.

    params ... maximize
        As in torch.optim.Adagrad.
    rounding, generator, foreach, fused
        As in `SGD`.
    state_dtype
        Dtype of the sums of bf16 parameters. A sum in bf16 stops growing when a squared gradient is
        less than a 256th of it: torch.float32 is the better choice.

    Sparse gradients are supported without weight decay. Raises OptimizerError.
    """

    DELEGATE: ClassVar[type[Optimizer] | None] = torch.optim.Adagrad
    RANGES: ClassVar[dict[str, tuple[float, float]]] = {
        "lr": (0, math.inf),
        "lr_decay": (0, math.inf),
        "weight_decay": (0, math.inf),
        "initial_accumulator_value": (0, math.inf),
        "eps": (0, math.inf),
    }

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        rounding: Rounding = "split",
        state_dtype: torch.dtype = torch.float32,
        generator: torch.Generator | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "lr_decay": lr_decay,
            "eps": eps,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "fused": fused,
            "rounding": rounding,
            "state_dtype": state_dtype,
        }
        super().__init__(params, defaults, generator)

    def add_param_group(self, param_group: Group) -> None:
        """Add a group of parameters; as in torch's Adagrad, their state begins here."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for parameter in group["params"]:
            weights = parameter.detach()
            block = weights if is_dense(weights) else weights.contiguous()
            sums = empty_like(block, self._state_dtype(group, parameter))
            sums.fill_(group["initial_accumulator_value"])
            self.state[parameter].update(step=as_count(0), sum=sums)

    def _names(self, group: Group) -> StateNames:
        return StateNames("sum", None, True, False, float(group["initial_accumulator_value"]))

    def _update(self, group: Group) -> Update:
        numbers = [float(group[name]) for name in ("lr", "lr_decay", "weight_decay", "eps")]

        def update(library: ctypes.CDLL, tensors: object) -> int:
            return int(library.xk_adagrad(tensors, *numbers))

        return update

    def _sparse_obstacle(self, group: Group) -> str | None:
        if group["weight_decay"] == 0:
            return None
        return (
            f"sparse gradients with weight_decay={group['weight_decay']} are not supported; use"
            " weight_decay=0 for parameters with sparse gradients, in a group of their own"
        )
