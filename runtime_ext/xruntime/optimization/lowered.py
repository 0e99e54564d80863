# SPDX-License-Identifier: Apache-2.0
"""Layers with weights in a lower precision that take and return float32 wherever they are called.

In calls of the model autocast converts their inputs. But a model's other methods, such as generate() and
encode(), and callers of a part of it, run without autocast.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def with_low_weights(
    function: Callable[[torch.Tensor], torch.Tensor], value: torch.Tensor, low: torch.dtype
) -> torch.Tensor:
    """Return `function(value)`, computed in `low` and returned in float32 where autocast is off.

    Under autocast, and of a value in `low`, it is what `function` returns.
    """
    if value.dtype == low or torch.is_autocast_enabled("cpu"):
        return function(value)
    if value.dtype == torch.float32:
        value = value.to(low)
    output = function(value)
    return output.to(torch.float32) if output.dtype == low else output


class Lowered(nn.Module):
    """Its class is also a subclass of the layer's class, of the same name."""

    weight: torch.Tensor
    _layer: type[nn.Module]

    def forward(self, input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:  # noqa: A002 - torch's name
        return with_low_weights(
            lambda value: self._layer.forward(self, value, *args, **kwargs),
            input,
            self.weight.dtype,
        )


def lowered_class(kind: type[nn.Module]) -> type[Lowered]:
    """Return the class for layers of torch's class `kind`, which has its weights in `weight`."""
    space = {"__module__": kind.__module__, "__doc__": kind.__doc__, "_layer": kind}
    return types.new_class(kind.__name__, (Lowered, kind), {}, lambda made: made.update(space))
