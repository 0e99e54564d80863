# SPDX-License-Identifier: Apache-2.0
"""The modules that `optimize` returns, of subclasses of the input's class: for inference, with calls that a
`CallRunner` computes; for training in bf16, with fp32 weights in and out.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import nn

from xruntime.compilation.inductor import first_line
from xruntime.errors import OptimizationError, refusing
from xruntime.optimization.edits import ReplacedModule, subclass
from xruntime.optimization.original_weights import OriginalWeights
from xruntime.optimization.runner import CallRunner, Modes

if TYPE_CHECKING:  # torch's optimizers take a second to import
    from xruntime.optim.native_optimizer import NativeOptimizer


def _refusing(instead: str) -> Any:
    text = f"an optimized module is frozen: {instead}, then optimize it again"
    return refusing(OptimizationError, text)


class OptimizedModule(nn.Module):
    """A module optimized for inference. Its class is also a subclass of the input's class.

    `state_dict` returns the input's weights under the input's names. Everything that would change
    weights or modes raises OptimizationError: it is done to the original, which is then optimized again.
    """

    _xruntime_optimized: CallRunner
    _xruntime_originals: OriginalWeights

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the weights of the module that was optimized, for any torch.

        Raises OptimizationError if they were dropped, or changed in the original since.
        """
        own = self._xruntime_optimized.kind.state_dict(self, keep_vars=True)
        return self._xruntime_originals.state_dict(own, *args, **kwargs)

    def train(self, mode: bool = True) -> Self:
        """Stay in eval mode. Raises OptimizationError for training mode."""
        if mode:
            _refusing("train the original module")()
        return super().train(False)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """Accept conversions that change nothing, such as .to("cpu")."""
        for dtype, device in {(p.dtype, p.device) for p in self.parameters()}:
            probe = torch.empty(0, dtype=dtype, device=device)
            converted = fn(probe)
            if (converted.dtype, converted.device) != (dtype, device):
                _refusing("convert or move the original module")()
        return self

    load_state_dict = _load_from_state_dict = _refusing("load them into the original module")
    share_memory = _refusing("share the original module's memory")
    compile = refusing(
        OptimizationError,
        "an optimized module is frozen: torch.compile(model) compiles its calls and leaves it as it is",
    )
    __prepare_scriptable__ = _refusing("script the original module")
    __deepcopy__ = _refusing("copy the original module")
    __reduce_ex__ = _refusing("save state_dict(), or pickle the original module")


def own_dtype(model: nn.Module) -> torch.dtype | None:
    """Return the value of the property `dtype`, as transformers' models have it; None without one.

    It is the dtype of the first weight, which may be stored in a lower precision later.
    """
    if isinstance(getattr(type(model), "dtype", None), property):
        with contextlib.suppress(Exception):
            dtype = model.dtype
            return dtype if isinstance(dtype, torch.dtype) else None
    return None


def model_class(
    base: type[nn.Module],
    kind: type[nn.Module],
    forward: Callable[..., Any],
    dtype: torch.dtype | None,
) -> type[nn.Module]:
    """Return a subclass of both, with that `forward`, and that property `dtype` if given.

    Raises OptimizationError if the model's class allows no subclass.
    """

    def make(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        """Make a plain module, such as a slice of a Sequential, which its class makes."""
        self.__class__ = kind
        kind.__init__(self, *args, **kwargs)

    space: dict[str, Any] = {
        "__init__": functools.wraps(kind.__init__)(make),
        "forward": functools.wraps(kind.forward)(forward),
    }
    if dtype is not None:
        space["dtype"] = property(lambda _self: dtype)
    try:
        return subclass(base, kind, **space)
    except Exception as error:
        raise OptimizationError(
            f"{kind.__name__} allows no subclass to be made of it ({first_line(error)}), which optimize()"
            " needs"
        ) from error


class HeldForTraining(NamedTuple):
    """What a module optimized for training has in addition to the input's attributes."""

    kind: type[nn.Module]
    """The input's class."""
    modes: Modes
    split: dict[nn.Module, _SplitWeights]
    """Of each module; empty if no weights are split."""
    native_dropouts: bool
    """Whether calls of dropouts in the forward are computed natively."""


_refuse_copy = refusing(
    OptimizationError,
    "a module optimized for training belongs to its optimizer: it is not pickled, and its parts are not"
    " copied: copy all of it by copy.deepcopy, or load its state_dict() into a plain module",
)


class TrainableModule(nn.Module):
    """A module optimized for training. Its class is also a subclass of the input's class.

    A copy of it is a module of the input's class with weights in fp32, for averages of weights and for
    another `optimize`.
    """

    _xruntime_optimized: HeldForTraining

    __prepare_scriptable__ = refusing(
        OptimizationError,
        "a module optimized for training cannot be scripted: load its state_dict() into a plain"
        " module, and script that",
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
        plain_copy: nn.Module = held.kind.__new__(held.kind)
        memo[id(self)] = plain_copy
        own = {name: value for name, value in vars(self).items() if value is not held}
        vars(plain_copy).update(copy.deepcopy(own, memo))
        for module in plain_copy.modules():
            if isinstance(module, ReplacedModule):
                plain: Any = module
                plain.__class__ = module._layer  # noqa: SLF001 - torch's class
            _drop_hooks(module)
        return plain_copy

    __reduce_ex__ = _refuse_copy


def _drop_hooks(module: nn.Module) -> None:
    """Drop the hooks of `_SplitWeights` from a copied module."""
    for name in ("_state_dict_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"):
        hooks = vars(module)[name]
        for number, hook in list(hooks.items()):
            # torch wraps some, and one is a partial.
            function = getattr(hook, "hook", getattr(hook, "func", hook))
            if isinstance(getattr(function, "__self__", None), _SplitWeights):
                del hooks[number]


def make_trainable(
    model: nn.Module,
    modes: Modes,
    optimizer: NativeOptimizer | None,
    dtype: torch.dtype | None,
    native_dropouts: bool,
) -> None:
    """Turn `model` into a TrainableModule, without changing its class for other objects.

    optimizer
        Has the remainders of split weights in its state; None: no weights are split.
    native_dropouts
        Whether calls of dropouts in the forward are computed natively.
    """
    # For training alone: xruntime.nn brings torch's compiler.
    from xruntime.nn.dropout_operator import reaching_dropouts

    kind = type(model)

    def forward(self: TrainableModule, *args: Any, **kwargs: Any) -> Any:
        held = self._xruntime_optimized
        with held.modes.precision():
            if held.native_dropouts:
                outputs = reaching_dropouts(held.kind.forward, self, *args, **kwargs)
            else:
                outputs = held.kind.forward(self, *args, **kwargs)
        return held.modes.result(outputs)

    hooks = {module: _SplitWeights(optimizer) for module in model.modules()} if optimizer else {}
    model._xruntime_optimized = HeldForTraining(kind, modes, hooks, native_dropouts)  # type: ignore[assignment] # noqa: SLF001 - it becomes our class
    model.__class__ = model_class(TrainableModule, kind, forward, dtype)
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
            stored = state.get(prefix + name)
            if stored is None:
                continue
            if parameter not in joined:
                # Weights of inner modules were joined before.
                inner = stored.dtype == torch.float32
                master = stored if inner else self._optimizer.master_weight(parameter)
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

    __deepcopy__ = __reduce_ex__ = _refuse_copy
