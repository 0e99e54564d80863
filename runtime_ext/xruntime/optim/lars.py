# SPDX-License-Identifier: Apache-2.0
"""Lars: SGD with a local learning rate for each parameter, for large batches."""

from __future__ import annotations

import ctypes
import math
from typing import ClassVar

import torch
from torch.optim.optimizer import ParamsT

from xruntime.optim.dense import StateNames
from xruntime.optim.native_optimizer import Group, NativeOptimizer, Rounding
from xruntime.optim.sgd import check_nesterov, momentum_names
from xruntime.optim.step_call import Update


class Lars(NativeOptimizer):
    """Lars (https://arxiv.org/abs/1708.03888) for bf16 and fp32 parameters.

    params ... nesterov, maximize
        As in torch.optim.SGD.
    trust_coefficient, eps
        The gradient with weight decay is multiplied by
        trust_coefficient * |w| / (|g| + weight_decay * |w| + eps) for each parameter.
    adaptive
        False for plain SGD; set it in the group of biases and norms.
    rounding, state_dtype, generator, foreach, fused
        As in `SGD`.

    Raises OptimizerError.
    """

    RANGES: ClassVar[dict[str, tuple[float, float]]] = {
        "lr": (0, math.inf),
        "momentum": (0, math.inf),
        "weight_decay": (0, math.inf),
        "trust_coefficient": (0, math.inf),
        "eps": (0, math.inf),
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
        trust_coefficient: float = 1e-3,
        eps: float = 1e-8,
        adaptive: bool = True,
        maximize: bool = False,
        foreach: bool | None = None,
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
            "trust_coefficient": trust_coefficient,
            "eps": eps,
            "adaptive": adaptive,
            "maximize": maximize,
            "foreach": foreach,
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
        trust, eps = float(group["trust_coefficient"]), float(group["eps"])
        nesterov, adaptive = int(group["nesterov"]), int(group["adaptive"])

        def update(library: ctypes.CDLL, tensors: object) -> int:
            return int(
                library.xk_lars(
                    *(tensors, lr, momentum, dampening, weight_decay, nesterov),
                    *(trust, eps, adaptive),
                )
            )

        return update
