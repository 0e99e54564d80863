# SPDX-License-Identifier: Apache-2.0
"""How a returned module computes its calls: the modes it enters, and compiled code where that fits."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from xruntime.aoti.inputs import is_channels_last
from xruntime.errors import OptimizationError
from xruntime.kept.watched_state import WatchedState
from xruntime.optimization.skipped_norms import refusing_skipped_norms
from xruntime.pytrees import tensors_in, with_tensors
from xruntime.threads.torch_modes import (
    Autocast,
    current_autocast,
    transformed,
    under_autocast,
)

Call = Callable[[tuple[Any, ...], dict[str, Any]], Any]


class Modes(NamedTuple):
    """How the model is called.

    **Ex.:** ``Modes(no_grad=True, dtype=torch.bfloat16, outputs=torch.float32)``
    """

    no_grad: bool = False
    """Without gradients, unless an argument requires one."""

    dtype: torch.dtype | None = None
    """Precision of autocast; torch.float32: without autocast; None: the caller's."""

    outputs: torch.dtype | None = None
    """Precision that outputs in `dtype` are converted to; None: they stay."""

    autocast_outputs: bool = False
    """Whether outputs stay in `dtype` for a caller under autocast to it, all the same."""

    contiguous: bool = False
    """Whether channels-last outputs are returned contiguous, as the model's are."""

    def autocast(self) -> Autocast | None:
        """Return the autocast to call under; None without any."""
        if self.dtype is None:
            return current_autocast()
        return None if self.dtype is torch.float32 else Autocast(self.dtype, cache=True)

    def precision(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context for calls, which torch.compile can trace."""
        return contextlib.nullcontext() if self.dtype is None else under_autocast(self.autocast())

    def result(self, outputs: Any) -> Any:
        """Return outputs in the dtype and the layout that the caller expects."""
        caller = current_autocast() if self.autocast_outputs else None
        wanted = None if caller is not None and caller.dtype == self.dtype else self.outputs
        if wanted is None and not self.contiguous:
            return outputs

        done: dict[int, torch.Tensor] = {}

        def usual(tensor: torch.Tensor) -> torch.Tensor:
            if torch.compiler.is_compiling():
                return converted(tensor)
            if id(tensor) not in done:
                done[id(tensor)] = converted(tensor)
            return done[id(tensor)]

        def converted(tensor: torch.Tensor) -> torch.Tensor:
            if wanted is not None and tensor.dtype == self.dtype:
                tensor = tensor.to(wanted)
            if self.contiguous and is_channels_last(tensor):
                tensor = tensor.contiguous()
            return tensor

        return with_tensors(usual, outputs)


def is_differentiated(args: Any, kwargs: Any) -> bool:
    """Whether the caller wants gradients of this call: an argument requires one, or torch records it."""
    if torch.is_grad_enabled():
        for value in (*args, *kwargs.values()):
            tensors = (value,) if isinstance(value, torch.Tensor) else tensors_in(value)
            if any(tensor.requires_grad for tensor in tensors):
                return True
    # torch.compile cannot trace the questions, and none of it can be the case where it traces.
    return not torch.compiler.is_compiling() and transformed()


class SlowCallWarning(UserWarning):
    """An optimized module, or one of its calls, is computed without compiled code."""


class CallRunner:
    """Computes the calls of one module, whose class `kind` was before it was optimized.

    Compiled code may take over between any two calls.
    """

    def __init__(self, kind: type[nn.Module]) -> None:
        self.kind = kind
        self.modes = Modes()
        self.step: Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any] | None = (
            None
        )
        """Computes calls in place of the modules, or calls these, its first argument."""

        self.compiled: Call | None = None
        """Compiled code, called with args and kwargs; None: the modules are called."""

        self.norms_may_be_skipped = False
        """Whether batch norms were folded that only the sample's call is known to use."""

        self.folded: WatchedState | None = None
        """The weights of layers with folded batch norms, which cannot be changed; None without any."""

        self._warned = False

    def __call__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        compiled = self.compiled
        if compiled is None and not self.modes.no_grad:
            return self.eager(model, args, kwargs)
        if is_differentiated(args, kwargs):
            return self.eager(model, args, kwargs, gradients=True)
        if compiled is not None:
            return compiled(args, kwargs)
        return self.eager(model, args, kwargs)

    def eager(
        self,
        model: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        gradients: bool = False,
    ) -> Any:
        """Call the modules one by one."""
        if self.folded is not None and not torch.compiler.is_compiling():
            change = self.folded.change()
            if change is not None:
                raise OptimizationError(
                    f"{change} after optimize(), which folded a batch norm into these weights: change the original"
                    " module and optimize it again, or optimize with passes={'conv_bn': False, 'linear_bn': False}"
                )
        no_context = contextlib.nullcontext
        grad_off = self.modes.no_grad and not gradients and torch.is_grad_enabled()
        grad_mode = torch.no_grad if grad_off else no_context
        watch = refusing_skipped_norms if self.norms_may_be_skipped else no_context
        with grad_mode(), self.modes.precision(), watch():
            if self.step is None or torch.compiler.is_compiling():
                outputs = self.kind.forward(model, *args, **kwargs)
            else:
                outputs = self.step(functools.partial(self.kind.forward, model), args, kwargs)
        return self.modes.result(outputs)

    def warn(self, which: str, reason: str) -> None:
        """Warn once that some calls are slow, and why: ``"calls"``, ``"n was changed"``."""
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.kind.__name__}: from now on {which} run without compiled code, because {reason}",
                SlowCallWarning,
                stacklevel=8,  # of a call of the module without hooks
            )
