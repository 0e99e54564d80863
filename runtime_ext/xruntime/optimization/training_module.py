# SPDX-License-Identifier: Apache-2.0
"""The module that `optimize` returns for training in bf16: fp32 weights in, fp32 weights out."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import torch
from torch import nn
from torch.optim import Optimizer

from xruntime.errors import OptimizationError
from xruntime.optim.split import join, split
from xruntime.optimization.module import subclass
from xruntime.optimization.runner import Modes


class HeldForTraining(NamedTuple):
    """What a module optimized for training has in addition to the input's attributes."""

    kind: type[nn.Module]
    """The input's class."""
    modes: Modes
    optimizer: Optimizer | None
    """Has the remainders of split weights in its state; None: no weights are split."""


class TrainableModule(nn.Module):
    """A module optimized for training. Its class is also a subclass of the input's class.

    `state_dict` returns fp32 weights, joined with the optimizer's remainders, and `load_state_dict` splits
    them.
    """

    _xruntime_optimized: HeldForTraining

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the weights in fp32, for any torch."""
        names = ("destination", "prefix", "keep_vars")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        keep_vars = given.pop("keep_vars", False)
        held = self._xruntime_optimized
        own = held.kind.state_dict(self, keep_vars=True)
        found = held.kind.state_dict(self, **given, keep_vars=keep_vars)
        prefix = given.get("prefix", "")
        for name, value in own.items():
            remainder = _remainder(held.optimizer, value)
            if remainder is not None:
                found[prefix + name] = join(value, remainder)
        return found

    def __deepcopy__(self, _: Any) -> NoReturn:
        _refuse_copy()

    def __reduce_ex__(self, _: Any) -> NoReturn:
        _refuse_copy()


def _refuse_copy() -> NoReturn:
    raise OptimizationError(
        "a module optimized for training belongs to its optimizer and is not copied or pickled: load its"
        " state_dict() into a plain module"
    )


def _remainder(optimizer: Optimizer | None, value: Any) -> torch.Tensor | None:
    if optimizer is None or not isinstance(value, nn.Parameter) or value not in optimizer.state:
        return None
    remainder: torch.Tensor | None = optimizer.state[value].get("remainder")
    return remainder


def make_trainable(
    model: nn.Module, modes: Modes, optimizer: Optimizer | None, dtype: torch.dtype | None
) -> None:
    """Turn `model` into a TrainableModule, without changing its class for other objects."""
    kind = type(model)

    def forward(self: TrainableModule, *args: Any, **kwargs: Any) -> Any:
        held = self._xruntime_optimized
        with held.modes.precision():
            outputs = held.kind.forward(self, *args, **kwargs)
        return held.modes.result(outputs)

    model._xruntime_optimized = HeldForTraining(kind, modes, optimizer)  # type: ignore[assignment] # noqa: SLF001 - it becomes our class
    model.__class__ = subclass(TrainableModule, kind, forward, dtype)
    if optimizer is not None:
        _split_when_loading(model, optimizer)


def _split_when_loading(model: nn.Module, optimizer: Optimizer) -> None:
    """Split weights that are loaded into the model, also as a part of another module.

    Loading copies rounded values; the hook after it sets both halves of each from the loaded tensor.
    """
    loaded: dict[nn.Parameter, torch.Tensor] = {}

    def before(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        loaded.clear()
        for name, parameter in module.named_parameters(remove_duplicate=False):
            value = state.get(prefix + name)
            if not isinstance(value, torch.Tensor) or value.shape != parameter.shape:
                continue
            if _remainder(optimizer, parameter) is not None:
                loaded[parameter] = value

    def after(_module: nn.Module, _keys: Any) -> None:
        for parameter, value in loaded.items():
            half, remainder = split(value.to(torch.float32))
            with torch.no_grad():
                parameter.copy_(half)
            optimizer.state[parameter]["remainder"].copy_(remainder)
        loaded.clear()

    untyped: Any = model
    untyped.register_load_state_dict_pre_hook(before)
    untyped.register_load_state_dict_post_hook(after)
