# SPDX-License-Identifier: Apache-2.0
"""Modules that stay in their place while a pass gives them another class."""

from __future__ import annotations

import types

import torch
from torch import nn

from xruntime.errors import OptimizationError


class Replaced(nn.Module):
    """A module whose class a pass replaced by a subclass of both, of the same name."""

    _layer: type[nn.Module]
    """The class that it had."""


def replaced_class(base: type[Replaced], kind: type[nn.Module]) -> type[Replaced]:
    """Return a class that is `base` for modules of class `kind`. Raises what `kind` raises for subclasses."""
    space = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "_layer": kind,
    }
    return types.new_class(kind.__name__, (base, kind), {}, lambda made: made.update(space))


class Needless(Replaced):
    """A layer that returns its input in eval mode, because a pass made it needless."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        if self.training:
            raise OptimizationError(
                f"a {self._layer.__name__} was put into training mode after optimize(), which made it needless: train"
                " the original module"
            )
        return input
