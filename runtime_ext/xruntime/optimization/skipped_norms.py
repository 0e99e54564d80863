# SPDX-License-Identifier: Apache-2.0
"""Finds calls that skip a batch norm which is part of the weights before it.

Where torch.fx cannot trace a model, batch norms are folded because the sample's call used them. Another call
may take a branch without them, and would get the normalized output there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn

from xruntime.errors import OptimizationError

_waiting: ContextVar[set[str] | None] = ContextVar("waiting", default=None)
"""During a call: the names of norms whose place the output of the layer before has not reached."""


class FoldedNorm(nn.Identity):
    """Stands where a batch norm was that is now part of the weights before it.

    awaited
        Whether the layer before it has an `AwaitNorm` of the same name.
    dimensions
        The only number of dimensions for which the weights are right; None for any.
    """

    def __init__(self, name: str, *, awaited: bool, dimensions: int | None) -> None:
        super().__init__()
        self.name, self.awaited, self.dimensions = name, awaited, dimensions

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        if self.dimensions is not None and input.dim() != self.dimensions:
            raise OptimizationError(
                f"{self.name}: {self.dimensions} dimensions were expected, as in the sample's call, and this"
                f" is a tensor of {input.dim()}: optimize with passes={{'linear_bn': False}}"
            )
        if self.awaited and not torch.compiler.is_compiling():
            (_waiting.get() or set()).discard(self.name)
        return input


class AwaitNorm:
    """A forward hook of a layer whose batch norm, of this name, is part of its weights."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            waiting = _waiting.get()
            if waiting is not None:
                waiting.add(self.name)


@contextlib.contextmanager
def refusing_skipped_norms() -> Iterator[None]:
    """Raise OptimizationError if a call within the block skips a norm. The block is left in compiled code."""
    if torch.compiler.is_compiling():
        yield
        return
    waiting: set[str] = set()
    token = _waiting.set(waiting)
    try:
        yield
    finally:
        _waiting.reset(token)
    if waiting:
        raise OptimizationError(
            f"a call skips {min(waiting)}, which the sample's call did not: optimize with"
            " passes={'conv_bn': False, 'linear_bn': False}"
        )
