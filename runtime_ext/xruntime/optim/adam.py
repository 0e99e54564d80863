# SPDX-License-Identifier: Apache-2.0
"""Adam and AdamW."""

from __future__ import annotations

import ctypes
import math
from typing import Any, ClassVar

import torch
from torch.optim.optimizer import Optimizer, ParamsT

from xruntime.optim.dense import StateNames
from xruntime.optim.native_optimizer import Group, NativeOptimizer, Rounding
from xruntime.optim.step_call import Update


class Adam(NativeOptimizer):
    """torch.optim.Adam for bf16 and fp32 parameters.

    params ... maximize, decoupled_weight_decay
        As in torch.optim.Adam.
    rounding, generator, foreach, fused
        As in `SGD`.
    state_dtype
        Dtype of the moments of bf16 parameters. With beta2 = 0.999 a second moment in bf16 shrinks in
        steps too small for bf16 and stays too large: torch.float32 is the better choice.

    Raises OptimizerError, for example for amsgrad, capturable and differentiable.
    """

    DELEGATE: ClassVar[type[Optimizer] | None] = torch.optim.Adam
    RANGES: ClassVar[dict[str, tuple[float, float]]] = {
        "lr": (0, math.inf),
        "betas": (0, 1),
        "eps": (0, math.inf),
        "weight_decay": (0, math.inf),
    }

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float | torch.Tensor, float | torch.Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
        rounding: Rounding = "split",
        state_dtype: torch.dtype = torch.float32,
        generator: torch.Generator | None = None,
    ) -> None:
        defaults: dict[str, Any] = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
            "fused": fused,
            "decoupled_weight_decay": decoupled_weight_decay,
            "rounding": rounding,
            "state_dtype": state_dtype,
        }
        super().__init__(params, defaults, generator)

    def _names(self, group: Group) -> StateNames:
        return StateNames("exp_avg", "exp_avg_sq", True, False)

    def _update(self, group: Group) -> Update:
        beta1, beta2 = map(float, group["betas"])
        lr, eps, weight_decay = (float(group[name]) for name in ("lr", "eps", "weight_decay"))
        decoupled = int(group["decoupled_weight_decay"])

        def update(library: ctypes.CDLL, tensors: object) -> int:
            return int(library.xk_adam(tensors, lr, beta1, beta2, eps, weight_decay, decoupled))

        return update


class AdamW(Adam):
    """torch.optim.AdamW for bf16 and fp32 parameters: Adam with decoupled weight decay.

    The arguments are those of `Adam`, with a weight decay of 0.01 unless another is given.
    """

    DELEGATE: ClassVar[type[Optimizer] | None] = torch.optim.AdamW

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float | torch.Tensor, float | torch.Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        rounding: Rounding = "split",
        state_dtype: torch.dtype = torch.float32,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=True,
            rounding=rounding,
            state_dtype=state_dtype,
            generator=generator,
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # State_dicts of torch before 2.7 do not have it.
        for group in self.param_groups:
            group["decoupled_weight_decay"] = True
