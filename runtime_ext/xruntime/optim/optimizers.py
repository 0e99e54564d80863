# SPDX-License-Identifier: Apache-2.0
"""SGD, Adagrad, Adam, AdamW, Lamb and Lars: their signatures, and what the kernels call them.

A class consists of its signature, which gives the defaults of its groups, and of an
`OptimizerRule`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from xruntime.errors import OptimizerError
from xruntime.optim.memory_layout import empty_like, is_dense
from xruntime.optim.native_optimizer import NativeOptimizer, Rounding
from xruntime.optim.step_call import Group, OptimizerRule
from xruntime.optim.steps import as_count


class _Momentum(NativeOptimizer):
    """SGD and Lars."""

    def _check_group(self, group: Group) -> None:
        super()._check_group(group)
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise OptimizerError(
                f"{self._name}: nesterov=True with momentum={group['momentum']} and"
                f" dampening={group['dampening']}: it needs a momentum above 0 and a dampening of 0"
            )


class SGD(_Momentum):
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

    RULE = OptimizerRule(
        function="xk_sgd",
        arguments=("lr", "momentum", "dampening", "weight_decay", "nesterov"),
        first="momentum_buffer",
        without_sparse=("momentum", "weight_decay"),
        delegate=torch.optim.SGD,
    )

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
        self._begin(locals())


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

    RULE = OptimizerRule(
        function="xk_adagrad",
        arguments=("lr", "lr_decay", "weight_decay", "eps"),
        first="sum",
        initial="initial_accumulator_value",
        without_sparse=("weight_decay",),
        delegate=torch.optim.Adagrad,
    )

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
        self._begin(locals())

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

    RULE = OptimizerRule(
        function="xk_adam",
        arguments=("lr", "betas", "eps", "weight_decay", "decoupled_weight_decay"),
        first="exp_avg",
        second="exp_avg_sq",
        delegate=torch.optim.Adam,
    )

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
        self._begin(locals())


class AdamW(Adam):
    """torch.optim.AdamW for bf16 and fp32 parameters: Adam with decoupled weight decay.

    The arguments are those of `Adam`, with a weight decay of 0.01 unless another is given.
    """

    RULE = Adam.RULE._replace(delegate=torch.optim.AdamW)

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
        self._begin({**locals(), "decoupled_weight_decay": True})

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # State_dicts of torch before 2.7 do not have it.
        for group in self.param_groups:
            group["decoupled_weight_decay"] = True


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

    RULE = OptimizerRule(
        function="xk_lamb",
        arguments=("lr", "betas", "eps", "weight_decay", "adaptive"),
        first="exp_avg",
        second="exp_avg_sq",
    )

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
        self._begin(locals())


class Lars(_Momentum):
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

    RULE = OptimizerRule(
        function="xk_lars",
        arguments=(
            *("lr", "momentum", "dampening", "weight_decay", "nesterov"),
            *("trust_coefficient", "eps", "adaptive"),
        ),
        first="momentum_buffer",
    )

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
        self._begin(locals())
