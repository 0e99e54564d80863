# SPDX-License-Identifier: Apache-2.0
"""The module that `optimize` returns: of the input's class, called in other modes or compiled."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, Self

import torch
from torch import nn

from xruntime.errors import OptimizationError
from xruntime.optimization.plain_weights import PlainWeights
from xruntime.optimization.work import Modes

Call = Callable[[tuple[Any, ...], dict[str, Any]], Any]


class Held(NamedTuple):
    """What an optimized module has in addition to the input's attributes."""

    kind: type[nn.Module]
    """The input's class."""
    modes: Modes
    compiled: Call | None
    """Compiled code, called with args and kwargs; None: the modules are called."""
    plain: PlainWeights


class OptimizedModule(nn.Module):
    """A module optimized for inference. Its class is also a subclass of the input's class.

    `state_dict` returns the input's weights under the input's names. Everything that would change
    weights or modes raises OptimizationError: it is done to the original, which is then optimized again.
    """

    _xruntime_optimized: Held

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the weights of the module that was optimized, for any torch.

        Raises OptimizationError if they were dropped, or changed in the original since.
        """
        names = ("destination", "prefix", "keep_vars")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        held = self._xruntime_optimized
        own = held.kind.state_dict(self, keep_vars=True)
        return held.plain.state_dict(
            given.get("destination"),
            given.get("prefix", ""),
            own,
            keep_vars=given.get("keep_vars", False),
        )

    def load_state_dict(self, *_: Any, **__: Any) -> NoReturn:
        """Raises OptimizationError."""
        _refuse("load them into the original module")

    def _load_from_state_dict(self, *_: Any, **__: Any) -> NoReturn:
        _refuse("load them into the original module")

    def train(self, mode: bool = True) -> Self:
        """Stay in eval mode. Raises OptimizationError for training mode."""
        if mode:
            _refuse("train the original module")
        return super().train(False)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """Accept conversions that change nothing, such as .to("cpu")."""
        for dtype, device in {(p.dtype, p.device) for p in self.parameters()}:
            probe = torch.empty(0, dtype=dtype, device=device)
            converted = fn(probe)
            if (converted.dtype, converted.device) != (dtype, device):
                _refuse("convert or move the original module")
        return self

    def share_memory(self) -> NoReturn:
        """Raises OptimizationError."""
        _refuse("share the original module's memory")

    def compile(self, *_: Any, **__: Any) -> NoReturn:
        """Raises OptimizationError."""
        _refuse("compile the original module, or choose `graph`")

    def __deepcopy__(self, _: Any) -> NoReturn:
        _refuse("copy the original module")

    def __reduce_ex__(self, _: Any) -> NoReturn:
        _refuse("save state_dict(), or pickle the original module")


def _refuse(instead: str) -> NoReturn:
    raise OptimizationError(f"an optimized module is frozen: {instead}, then optimize it again")


def make_optimized(model: nn.Module, held: Held) -> None:
    """Turn `model` into an OptimizedModule, without changing its class for other objects."""
    kind = held.kind

    @functools.wraps(kind.forward)
    def forward(self: OptimizedModule, *args: Any, **kwargs: Any) -> Any:
        held = self._xruntime_optimized
        if held.compiled is not None:
            return held.compiled(args, kwargs)
        with held.modes.entered():
            outputs = kind.forward(self, *args, **kwargs)
        return held.modes.result(outputs)

    space = {"forward": forward, "__module__": kind.__module__, "__doc__": kind.__doc__}
    made = types.new_class(
        f"Optimized{kind.__name__}", (OptimizedModule, kind), {}, lambda found: found.update(space)
    )
    model._xruntime_optimized = held  # type: ignore[assignment] # noqa: SLF001 - it becomes our class
    model.__class__ = made
