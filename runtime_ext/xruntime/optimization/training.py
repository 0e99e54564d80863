# SPDX-License-Identifier: Apache-2.0
"""Optimizes a model and its optimizer for training, with dropouts and GELUs computed by native kernels."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final

import torch
from torch import nn
from torch.nn import functional
from torch.optim import Optimizer

from xlaunch.text import counted
from xruntime import optim
from xruntime.compilation.inductor import first_line
from xruntime.errors import OptimizationError, OptimizerError
from xruntime.nn import dropout_operator, gelu_operator
from xruntime.optim.native_optimizer import NativeOptimizer
from xruntime.optimization.arguments import OptimizeRequest
from xruntime.optimization.edits import ReplacedModule
from xruntime.optimization.layers import require_kernels
from xruntime.optimization.optimized_module import make_trainable
from xruntime.optimization.passes import (
    convertible_parameters,
    lower_precision,
    take_float32,
    use_channels_last,
)
from xruntime.optimization.run import PassRun
from xruntime.optimization.steps import PassOutcome, SkipPassError, remember

KINDS: Final[Mapping[type[Optimizer], type[NativeOptimizer]]] = {
    torch.optim.SGD: optim.SGD,
    torch.optim.Adagrad: optim.Adagrad,
    torch.optim.Adam: optim.Adam,
    torch.optim.AdamW: optim.AdamW,
}
"""torch's optimizers that are replaced. Their subclasses are not: they may compute something else."""


def optimize_for_training(
    request: OptimizeRequest, optimizer: Optimizer
) -> tuple[nn.Module, Optimizer]:
    """Return the model and an optimizer of its parameters. If anything is raised, both are as before."""
    _check_optimizer(request, optimizer)
    model = request.model
    if not request.inplace:
        try:
            model, optimizer = copy.deepcopy((model, optimizer))
        except Exception as error:
            raise OptimizationError(
                f"{type(model).__name__} and its optimizer cannot be copied ({first_line(error)}): use"
                " inplace=True"
            ) from error
    run = _Training(request, model, optimizer)
    modes = [(module, module.training) for module in model.modules()]
    try:
        # The sample's calls must not change the statistics of batch norms, and dropouts are random.
        for module, _ in modes:
            module.training = False
        with run.undoing():
            run.prepare()
            for name, change in PASSES.items():
                before = run.optimizer, run.split, run.native_dropouts
                if not run.run_pass(name, change):
                    run.optimizer, run.split, run.native_dropouts = before
    finally:
        for module, training in modes:
            module.training = training
    return run.finished()


def _check_optimizer(request: OptimizeRequest, optimizer: Any) -> None:
    name = type(optimizer).__name__
    if not isinstance(optimizer, Optimizer):
        raise OptimizationError(f"optimizer: a torch.optim.Optimizer is expected, not a {name}")
    if "step" in optimizer.__dict__:
        raise OptimizationError(
            f"something holds this {name} and replaced its step(), as a learning-rate scheduler does: make"
            " the scheduler after optimize(), for the optimizer that it returns"
        )
    if request.inplace:
        return
    own = {id(parameter) for parameter in request.model.parameters()}
    for group in optimizer.param_groups:
        if any(id(parameter) not in own for parameter in group["params"]):
            raise OptimizationError(
                f"this {name} also updates parameters that are not in {type(request.model).__name__}: give"
                " the module that holds all of them, or use inplace=True"
            )


class NativeDropout(ReplacedModule):
    """Takes the place of nn.Dropout; also backward may call it, from a checkpoint."""

    p: float
    inplace: bool

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        return dropout_operator.dropout(input, self.p, self.training, self.inplace)


class WithDropouts(ReplacedModule):
    """A module whose code calls dropouts itself: in attention, or as functions."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return dropout_operator.reaching_dropouts(self._layer.forward, self, *args, **kwargs)


def reach_dropouts(run: PassRun) -> str:
    """Have dropouts computed natively: modules, and calls in the code of modules.

    The model itself has to be called through `reaching_dropouts`. Raises SkipPassError.
    """
    layers = [part for part in run.model.modules() if type(part) is nn.Dropout and 0 < part.p < 1]
    reachable = dropout_operator.is_reachable()
    callers = [part for part in run.model.modules() if reachable and _calls_dropouts(part)]
    if not layers and not callers:
        raise SkipPassError("there is no dropout")
    require_kernels()
    for layer in layers:
        if layer is not run.model:
            run.edits.replace_class(layer, NativeDropout)
    for module in callers:
        # A class that allows no subclass is reached through the modules around it.
        with contextlib.suppress(Exception):
            if module is not run.model:
                run.edits.replace_class(module, WithDropouts)
    where = [counted(len(layers), "dropout")] if layers else []
    where += [f"those in the code of {counted(len(callers), 'module')}"] if callers else []
    return (
        f"{' and '.join(where)} run natively: masks follow from torch's generator, with other values"
        " than torch's own"
    )


def _calls_dropouts(module: nn.Module) -> bool:
    """Whether the code of a module's class may call a dropout that is not a module."""
    kind = type(module)
    if kind.__module__.startswith("torch."):
        chance = getattr(module, "dropout", None)  # of attention and recurrent layers
        return isinstance(chance, float) and chance > 0
    if issubclass(kind, ReplacedModule) or kind.forward is nn.Module.forward:
        return False
    return any("dropout" in name.lower() for name in _names(kind))


def _names(kind: type) -> Iterator[str]:
    """The names and texts in the code of a class, and of those that it derives from."""
    for base in kind.__mro__:
        if base.__module__.startswith("torch.") or base is object:
            continue
        for name, value in vars(base).items():
            if name != "__init__" and callable(value):
                function: Callable[..., Any] = inspect.unwrap(value)
                code = getattr(function, "__code__", None)
                if code is not None:
                    yield from (str(word) for word in (*code.co_names, *code.co_consts))


APPROXIMATIONS: Final[Mapping[str, str]] = {
    "transformers.activations.GELUActivation": "none",
    "transformers.activations.NewGELUActivation": "tanh",
    "transformers.activations.FastGELUActivation": "tanh",
    "transformers.activations.GELUTanh": "tanh",
    "transformers.activations.PytorchGELUTanh": "tanh",
    "timm.layers.activations.GELU": "none",
    "timm.layers.activations.GELUTanh": "tanh",
}
"""Modules of other libraries that compute what nn.GELU does. Some take eight operators for it."""


class NativeGelu(ReplacedModule):
    """Takes the place of nn.GELU, and of a module of `APPROXIMATIONS`."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        layer: Any = self
        name = _full_name(self._layer)
        return gelu_operator.gelu(input, APPROXIMATIONS.get(name) or str(layer.approximate))


def use_native_gelus(run: PassRun) -> str:
    """Have modules that compute GELU do so natively. Raises SkipPassError."""
    gelus = [gelu for gelu in run.inner_modules() if _computes_gelu(gelu)]
    if not gelus:
        raise SkipPassError("there is no module that computes GELU")
    require_kernels()
    for module in gelus:
        run.edits.replace_class(module, NativeGelu)
    return f"{counted(len(gelus), 'GELU')}: one native pass in forward, and one in backward"


def _computes_gelu(module: nn.Module) -> bool:
    kind = type(module)
    if _full_name(kind) == "transformers.activations.GELUActivation":
        return vars(module).get("act") is functional.gelu
    return kind is nn.GELU or _full_name(kind) in APPROXIMATIONS


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


class _Training(PassRun):
    """One call of `optimize` for training."""

    keeps_parameters: ClassVar = True

    def __init__(self, request: OptimizeRequest, model: nn.Module, optimizer: Optimizer) -> None:
        super().__init__(request, model)
        self.given = optimizer
        self.optimizer = optimizer
        self.split = False
        """Whether the optimizer has the rest of the weights' bits."""
        self.native_dropouts = False
        """Whether the forward's own calls of dropouts are computed natively."""

    def compute_dropouts(self) -> str:
        """Have dropouts computed by native kernels."""
        reason = reach_dropouts(self)
        self.native_dropouts = dropout_operator.is_reachable()
        return reason

    def fuse(self) -> str:
        """Replace torch's optimizer by ours, with its state."""
        if isinstance(self.given, NativeOptimizer):
            raise SkipPassError(f"{_name(self.given)} is one of xruntime.optim already")
        self.optimizer = _converted(self.given, {})
        return f"torch.optim.{_name(self.given)} became xruntime.optim.{_name(self.given)}"

    def split_weights(self) -> str:
        """Store weights in bf16, and the remaining bits in the optimizer."""
        if self.modes.dtype is not torch.bfloat16:
            raise SkipPassError("calls do not run in bfloat16")
        if not isinstance(self.optimizer, NativeOptimizer):
            raise SkipPassError(
                f"{_name(self.optimizer)} cannot keep the rest of the weights' bits"
            )
        require_kernels()
        updated = {id(p) for group in self.given.param_groups for p in group["params"]}
        parameters = [
            parameter
            for parameter in convertible_parameters(self.model)
            if id(parameter) in updated and parameter.requires_grad
        ]
        if not parameters:
            raise SkipPassError(
                "the optimizer updates no convolution, linear or embedding with weights in float32"
            )
        split: dict[int, nn.Parameter] = {}
        for parameter in parameters:
            new = self.edits.replace_parameter(parameter, parameter.detach().bfloat16())
            if parameter.grad is not None:
                new.grad = parameter.grad.to(torch.bfloat16)
            split[id(parameter)] = new
        take_float32(self, torch.bfloat16)
        optimizer = _converted(self.given, split)
        for parameter in parameters:
            optimizer.set_master_weight(split[id(parameter)], parameter.detach())
        self.optimizer, self.split = optimizer, True
        return f"stored {len(parameters)} in bfloat16, and 16 bits of each value in the optimizer's state"

    def finished(self) -> tuple[nn.Module, Optimizer]:
        model = self.model
        reason = "compiled code here is for inference: call torch.compile on the result"
        self.note("graph", PassOutcome.SKIPPED, reason)
        replaced = any(isinstance(module, ReplacedModule) for module in model.modules())
        if self.modes.dtype is not None or self.native_dropouts or replaced:
            splitting = self.optimizer if self.split else None
            assert splitting is None or isinstance(splitting, NativeOptimizer)
            make_trainable(model, self.modes, splitting, self.own_dtype, self.native_dropouts)
        remember(model, self.explanation())
        return model, self.optimizer


PASSES: Final[Mapping[str, Callable[[_Training], str]]] = {
    "channels_last": use_channels_last,
    "precision": lower_precision,
    "dropout_training": _Training.compute_dropouts,
    "gelu_training": use_native_gelus,
    "fused_optimizer": _Training.fuse,
    "split_bf16": _Training.split_weights,
}


def _converted(optimizer: Optimizer, replaced: Mapping[int, nn.Parameter]) -> NativeOptimizer:
    """Return our optimizer with the same options and state; `replaced` maps ids to new parameters.

    Raises SkipPassError if our optimizer cannot compute the same.
    """
    kind: Any = type(optimizer) if isinstance(optimizer, NativeOptimizer) else None
    kind = kind or KINDS.get(type(optimizer))
    if kind is None:
        names = ", ".join(torch_kind.__name__ for torch_kind in KINDS)
        raise SkipPassError(
            f"{_name(optimizer)} is not one of torch's {names}; it is left as it is"
        )
    hooks = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    if any(optimizer.__dict__.get(name) for name in hooks):
        raise SkipPassError(f"{_name(optimizer)} has hooks, which belong to this object")
    accepted = set(inspect.signature(kind.__init__).parameters)
    groups = [
        {name: value for name, value in group.items() if name in accepted}
        | {"params": [replaced.get(id(p), p) for p in group["params"]]}
        for group in optimizer.param_groups
    ]
    defaults = {name: value for name, value in optimizer.defaults.items() if name in accepted}
    try:
        converted: NativeOptimizer = kind(groups, **defaults)
        converted.load_state_dict(optimizer.state_dict())
    except OptimizerError as error:
        raise SkipPassError(str(error)) from error
    return converted


def _name(value: object) -> str:
    return type(value).__name__
