# SPDX-License-Identifier: Apache-2.0
"""Finds calls that skip a batch norm which is part of the weights before it.

Where torch.fx cannot trace a model, batch norms are folded because the sample's call used them. Another call
may take a branch without them, and would get the normalized output there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import nn

from xruntime.errors import OptimizationError
from xruntime.kept.watched_state import WatchedState
from xruntime.optimization.edits import NeedlessLayer

_waiting: ContextVar[set[str] | None] = ContextVar("waiting", default=None)
"""During a call: the names of norms whose place the output of the layer before has not reached."""


class NormFolding(NamedTuple):
    """How a batch norm was folded."""

    name: str
    layer: str
    """The name of the layer whose weights it is part of."""

    awaited: bool
    """Whether the layer before it has an `AwaitNorm` of the same name."""

    dimensions: int | None
    """The only number of dimensions for which the weights are right; None for any."""

    eps: float
    """The norm's, which the weights are for."""


class FoldedNorm(NeedlessLayer):
    """A batch norm that is part of the weights before it."""

    _xruntime_folded: NormFolding

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        name, _, awaited, dimensions, eps = self._xruntime_folded
        if vars(self).get("eps") != eps:
            raise OptimizationError(
                f"{name}.eps was changed after optimize(), which folded this batch norm into the weights before it: change"
                " the original module and optimize it again"
            )
        if dimensions is not None and input.dim() != dimensions:
            raise OptimizationError(
                f"{name}: {dimensions} dimensions were expected, as in the sample's call, and this"
                f" is a tensor of {input.dim()}: optimize with passes={{'linear_bn': False}}"
            )
        if awaited and not torch.compiler.is_compiling():
            (_waiting.get() or set()).discard(name)
        return super().forward(input)


def folded_weights(model: nn.Module) -> WatchedState | None:
    """Return the weights of the batch norms that were folded, and of the layers before them; None without any."""
    modules = dict(model.named_modules())
    weights: dict[str, Any] = {}
    for norm in modules.values():
        if isinstance(norm, FoldedNorm):
            name, layer, *_ = norm._xruntime_folded  # noqa: SLF001 - ours
            weights |= {part: vars(modules[part])["_parameters"] for part in (name, layer)}
            weights[f"{name}'s buffers"] = vars(norm)["_buffers"]
    return WatchedState(weights) if weights else None


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
