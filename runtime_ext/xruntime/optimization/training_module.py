# SPDX-License-Identifier: Apache-2.0
"""The module that `optimize` returns for training in bf16: fp32 weights in, fp32 weights out."""

from __future__ import annotations

import copy
import functools
from typing import Any, NamedTuple, NoReturn

import torch
from torch import nn

from xruntime.errors import OptimizationError
from xruntime.optim.native_optimizer import NativeOptimizer
from xruntime.optimization.layers import Lowered
from xruntime.optimization.module import subclass
from xruntime.optimization.runner import Modes


class HeldForTraining(NamedTuple):
    """What a module optimized for training has in addition to the input's attributes."""

    kind: type[nn.Module]
    """The input's class."""
    modes: Modes
    split: dict[nn.Module, _SplitWeights]
    """Of each module; empty if no weights are split."""


class TrainableModule(nn.Module):
    """A module optimized for training. Its class is also a subclass of the input's class.

    A copy of it is a module of the input's class with weights in fp32, for averages of weights and for
    another `optimize`.
    """

    _xruntime_optimized: HeldForTraining

    def __prepare_scriptable__(self) -> NoReturn:
        raise OptimizationError(
            "a module optimized for training cannot be scripted: load its state_dict() into a plain"
            " module, and script that"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        held = self._xruntime_optimized
        state = self.state_dict()
        for name, parameter in self.named_parameters():
            if parameter.dtype != state[name].dtype:
                value = nn.Parameter(state[name], parameter.requires_grad)
                memo[id(parameter)] = value
        # The hooks of the copy are dropped below.
        memo.update({id(hooks): hooks for hooks in held.split.values()})
        made: nn.Module = held.kind.__new__(held.kind)
        memo[id(self)] = made
        own = {name: value for name, value in vars(self).items() if value is not held}
        vars(made).update(copy.deepcopy(own, memo))
        for module in made.modules():
            if isinstance(module, Lowered):
                plain: Any = module
                plain.__class__ = module._layer  # noqa: SLF001 - torch's class
            _drop_hooks(module)
        return made

    def __reduce_ex__(self, _: Any) -> NoReturn:
        _refuse_copy()


def _drop_hooks(module: nn.Module) -> None:
    """Drop the hooks of `_SplitWeights` from a copied module."""
    for name in ("_state_dict_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"):
        hooks = vars(module)[name]
        for number, hook in list(hooks.items()):
            # torch wraps some, and one is a partial.
            function = getattr(hook, "hook", getattr(hook, "func", hook))
            if isinstance(getattr(function, "__self__", None), _SplitWeights):
                del hooks[number]


def _refuse_copy() -> NoReturn:
    raise OptimizationError(
        "a module optimized for training belongs to its optimizer: it is not pickled, and its parts are not"
        " copied: copy all of it by copy.deepcopy, or load its state_dict() into a plain module"
    )


def make_trainable(
    model: nn.Module, modes: Modes, optimizer: NativeOptimizer | None, dtype: torch.dtype | None
) -> None:
    """Turn `model` into a TrainableModule, without changing its class for other objects.

    optimizer
        Has the remainders of split weights in its state; None: no weights are split.
    """
    kind = type(model)

    def forward(self: TrainableModule, *args: Any, **kwargs: Any) -> Any:
        held = self._xruntime_optimized
        with held.modes.precision():
            outputs = held.kind.forward(self, *args, **kwargs)
        return held.modes.result(outputs)

    hooks = {module: _SplitWeights(optimizer) for module in model.modules()} if optimizer else {}
    model._xruntime_optimized = HeldForTraining(kind, modes, hooks)  # type: ignore[assignment] # noqa: SLF001 - it becomes our class
    model.__class__ = subclass(TrainableModule, kind, forward, dtype)
    for module, split in hooks.items():
        split.attach(module)


class _SplitWeights:
    """Lets the state_dict of one module hold fp32 weights: joined when saved, split when loaded.

    Each module of a model has one, so that parts of it, and modules that it is a part of, do the same.
    """

    def __init__(self, optimizer: NativeOptimizer) -> None:
        self._optimizer = optimizer
        self._loaded: dict[nn.Parameter, torch.Tensor] = {}

    def attach(self, module: nn.Module) -> None:
        untyped: Any = module
        # torch sets an attribute of this hook, which a bound method does not allow.
        untyped.register_state_dict_post_hook(functools.partial(self._after_saving))
        untyped.register_load_state_dict_pre_hook(self._before_loading)
        untyped.register_load_state_dict_post_hook(self._after_loading)

    def _after_saving(
        self, module: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any
    ) -> None:
        """Put fp32 weights into `state`, of tied ones the same tensor, as a plain module does."""
        joined: dict[nn.Parameter, torch.Tensor] = {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            found = state.get(prefix + name)
            if found is None:
                continue
            if parameter not in joined:
                # Weights of inner modules were joined before.
                inner = found.dtype == torch.float32
                master = found if inner else self._optimizer.master_weight(parameter)
                if master is None:
                    continue
                joined[parameter] = master
            state[prefix + name] = joined[parameter]

    def _before_loading(
        self, module: nn.Module, state: dict[str, Any], prefix: str, *_: Any
    ) -> None:
        self._loaded.clear()
        split = self._optimizer.split_parameters()
        for name, parameter in module.named_parameters(recurse=False):
            value = state.get(prefix + name)
            if not isinstance(value, torch.Tensor) or value.shape != parameter.shape:
                continue
            if parameter in split:
                self._loaded[parameter] = value

    def _after_loading(self, _module: nn.Module, _keys: Any) -> None:
        # Loading has copied rounded values.
        for parameter, value in self._loaded.items():
            self._optimizer.set_master_weight(parameter, value)
        self._loaded.clear()

    def __deepcopy__(self, _: Any) -> NoReturn:
        _refuse_copy()

    def __reduce_ex__(self, _: Any) -> NoReturn:
        _refuse_copy()
