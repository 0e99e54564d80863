# SPDX-License-Identifier: Apache-2.0
"""Lamb: Adam with a trust ratio for each parameter, for large batches."""

from __future__ import annotations

import ctypes
import math
from typing import ClassVar

import torch
from torch.optim.optimizer import ParamsT

from xruntime.optim.dense import StateNames
from xruntime.optim.native_optimizer import Group, NativeOptimizer, Rounding
from xruntime.optim.step_call import Update


class Lamb(NativeOptimizer):
    """Lamb (https://arxiv.org/abs/1904.00962) for bf16 and fp32 parameters.

    params, lr, betas, eps, weight_decay, maximize
        As in torch.optim.AdamW. The step is lr * |w| / |u| * u for each parameter, where u is Adam's
        step with corrected moments, plus weight_decay * w.
    adaptive
        False for a ratio of 1; set it in the group of biases and norms.
    rounding, generator, foreach, fused
        As in `SGD`.
    state_dtype
        Dtype of the moments; see `Adam`.

    Raises OptimizerError.
    """

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
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0,
        *,
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
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "adaptive": adaptive,
            "maximize": maximize,
            "foreach": foreach,
            "fused": fused,
            "rounding": rounding,
            "state_dtype": state_dtype,
        }
        super().__init__(params, defaults, generator)

    def _names(self, group: Group) -> StateNames:
        return StateNames("exp_avg", "exp_avg_sq", True, False)

    def _update(self, group: Group) -> Update:
        beta1, beta2 = map(float, group["betas"])
        lr, eps, weight_decay = (float(group[name]) for name in ("lr", "eps", "weight_decay"))
        adaptive = int(group["adaptive"])

        def update(library: ctypes.CDLL, tensors: object) -> int:
            return int(library.xk_lamb(tensors, lr, beta1, beta2, eps, weight_decay, adaptive))

        return update
