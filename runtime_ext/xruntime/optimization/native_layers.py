# SPDX-License-Identifier: Apache-2.0
"""The passes that have a model's dropouts and GELUs computed by native kernels while it trains."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

from xlaunch.text import counted
from xruntime.nn import dropout_operator, gelu_operator
from xruntime.optimization.layers import require_kernels
from xruntime.optimization.replaced import Replaced, replaced_class
from xruntime.optimization.run import Run
from xruntime.optimization.steps import SkipPassError


class NativeDropout(Replaced):
    """Takes the place of nn.Dropout; also backward may call it, from a checkpoint."""

    p: float
    inplace: bool

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        return dropout_operator.dropout(input, self.p, self.training, self.inplace)


class WithDropouts(Replaced):
    """A module whose code calls dropouts itself: in attention, or as functions."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return dropout_operator.reaching_dropouts(self._layer.forward, self, *args, **kwargs)


def reach_dropouts(run: Run) -> str:
    """Have dropouts computed natively: modules, and calls in the code of modules.

    The model itself has to be called through `reaching_dropouts`. Raises SkipPassError.
    """
    layers = [part for part in run.model.modules() if type(part) is nn.Dropout and 0 < part.p < 1]
    reachable = dropout_operator.is_reachable()
    callers = [part for part in run.model.modules() if reachable and _calls_dropouts(part)]
    if not layers and not callers:
        raise SkipPassError("there is no dropout")
    require_kernels()
    classes: dict[type, type[nn.Module]] = {nn.Dropout: replaced_class(NativeDropout, nn.Dropout)}
    for layer in layers:
        if layer is not run.model:
            run.edits.set_class(layer, classes[nn.Dropout])
    for module in callers:
        kind = type(module)
        # A class that allows no subclass is reached through the modules around it.
        with contextlib.suppress(Exception):
            classes[kind] = classes.get(kind) or replaced_class(WithDropouts, kind)
            if module is not run.model:
                run.edits.set_class(module, classes[kind])
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
    if issubclass(kind, Replaced) or kind.forward is nn.Module.forward:
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


class NativeGelu(Replaced):
    """Takes the place of nn.GELU, and of a module of `APPROXIMATIONS`."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        layer: Any = self
        name = _full_name(self._layer)
        return gelu_operator.gelu(input, APPROXIMATIONS.get(name) or str(layer.approximate))


def use_native_gelus(run: Run) -> str:
    """Have modules that compute GELU do so natively. Raises SkipPassError."""
    gelus = [gelu for gelu in run.inner_modules() if _computes_gelu(gelu)]
    if not gelus:
        raise SkipPassError("there is no module that computes GELU")
    require_kernels()
    classes = {kind: replaced_class(NativeGelu, kind) for kind in {type(gelu) for gelu in gelus}}
    for module in gelus:
        run.edits.set_class(module, classes[type(module)])
    return f"{counted(len(gelus), 'GELU')}: one native pass in forward, and one in backward"


def _computes_gelu(module: nn.Module) -> bool:
    kind = type(module)
    if _full_name(kind) == "transformers.activations.GELUActivation":
        return vars(module).get("act") is functional.gelu
    return kind is nn.GELU or _full_name(kind) in APPROXIMATIONS


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
