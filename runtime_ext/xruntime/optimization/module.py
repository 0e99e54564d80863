# SPDX-License-Identifier: Apache-2.0
"""The module that `optimize` returns: of the input's class, with calls that a `Runner` computes."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable
from typing import Any, NoReturn, Self

import torch
from torch import nn

from xruntime.compilation.inductor import first_line
from xruntime.errors import OptimizationError
from xruntime.optimization.plain_weights import PlainWeights
from xruntime.optimization.runner import Runner


class OptimizedModule(nn.Module):
    """A module optimized for inference. Its class is also a subclass of the input's class.

    `state_dict` returns the input's weights under the input's names. Everything that would change
    weights or modes raises OptimizationError: it is done to the original, which is then optimized again.
    """

    _xruntime_optimized: Runner
    _xruntime_plain: PlainWeights

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the weights of the module that was optimized, for any torch.

        Raises OptimizationError if they were dropped, or changed in the original since.
        """
        names = ("destination", "prefix", "keep_vars")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        own = self._xruntime_optimized.kind.state_dict(self, keep_vars=True)
        return self._xruntime_plain.state_dict(
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

    def __prepare_scriptable__(self) -> NoReturn:
        _refuse("script the original module")

    def compile(self, *_: Any, **__: Any) -> NoReturn:
        """Raises OptimizationError."""
        _refuse("compile the original module, or choose `graph`")

    def __deepcopy__(self, _: Any) -> NoReturn:
        _refuse("copy the original module")

    def __reduce_ex__(self, _: Any) -> NoReturn:
        _refuse("save state_dict(), or pickle the original module")


def _refuse(instead: str) -> NoReturn:
    raise OptimizationError(f"an optimized module is frozen: {instead}, then optimize it again")


def own_dtype(model: nn.Module) -> torch.dtype | None:
    """Return the value of the property `dtype`, as transformers' models have it; None without one.

    It is the dtype of the first weight, which may be stored in a lower precision later.
    """
    if isinstance(getattr(type(model), "dtype", None), property):
        with contextlib.suppress(Exception):
            dtype = model.dtype
            return dtype if isinstance(dtype, torch.dtype) else None
    return None


def optimized_class(kind: type[nn.Module], dtype: torch.dtype | None) -> type[nn.Module]:
    """Return a class for one model of class `kind`, whose calls `_xruntime_optimized` computes.

    Raises OptimizationError if the model's class allows no subclass.
    """

    def forward(self: OptimizedModule, *args: Any, **kwargs: Any) -> Any:
        return self._xruntime_optimized(self, args, kwargs)

    return subclass(OptimizedModule, kind, forward, dtype)


def subclass(
    base: type[nn.Module],
    kind: type[nn.Module],
    forward: Callable[..., Any],
    dtype: torch.dtype | None,
) -> type[nn.Module]:
    """Return a subclass of both, with that `forward`, the name of `kind`, and that property `dtype` if given.

    Other code saves the name, or looks it up: a configuration's `architectures`, tables by class name.
    Raises OptimizationError if the model's class allows no subclass.
    """
    space: dict[str, Any] = {
        "forward": functools.wraps(kind.forward)(forward),
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
    }
    if dtype is not None:
        space["dtype"] = property(lambda _self: dtype)
    try:
        return types.new_class(kind.__name__, (base, kind), {}, lambda made: made.update(space))
    except Exception as error:
        raise OptimizationError(
            f"{kind.__name__} allows no subclass to be made of it ({first_line(error)}), which optimize()"
            " needs"
        ) from error
