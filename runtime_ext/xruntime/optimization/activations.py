# SPDX-License-Identifier: Apache-2.0
"""The pass that has a model's GELUs, which are modules, computed by native kernels while it trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import nn
from torch.nn import functional

from xlaunch.text import counted
from xruntime.nn import gelu_operator
from xruntime.optimization.layers import Replaced, replaced_class, require_kernels
from xruntime.optimization.run import Run
from xruntime.optimization.steps import SkipPassError

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
        return gelu_operator.gelu(input, _approximation(self, self._layer))


def use_native_gelus(run: Run) -> str:
    """Have modules that compute GELU do so natively. Raises SkipPassError."""
    gelus = [one for one in run.inner_modules() if _computes_gelu(one)]
    if not gelus:
        raise SkipPassError("there is no module that computes GELU")
    require_kernels()
    classes = {kind: replaced_class(NativeGelu, kind) for kind in {type(one) for one in gelus}}
    for module in gelus:
        run.edits.set_class(module, classes[type(module)])
    return f"{counted(len(gelus), 'GELU')}: one native pass in forward, and one in backward"


def _computes_gelu(module: nn.Module) -> bool:
    kind = type(module)
    if _name(kind) == "transformers.activations.GELUActivation":
        return vars(module).get("act") is functional.gelu
    return kind is nn.GELU or _name(kind) in APPROXIMATIONS


def _approximation(module: nn.Module, kind: type[nn.Module]) -> str:
    if kind is nn.GELU:
        return str(module.approximate)
    return APPROXIMATIONS[_name(kind)]


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
