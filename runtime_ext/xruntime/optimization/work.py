# SPDX-License-Identifier: Apache-2.0
"""The model that the passes work on, with what is known of it, and the modes that it is called in."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any, NamedTuple

import torch
from torch import nn

from xruntime.compilation.inductor import compiling, first_line
from xruntime.compilation.samples import Sample
from xruntime.optimization.edits import Edits
from xruntime.optimization.outputs import copied, restored
from xruntime.optimization.sequences import Recording, Traced, record, trace
from xruntime.threads.modes import Autocast, current_autocast


class Modes(NamedTuple):
    """How the model is called.

    **Ex.:** ``Modes(no_grad=True, dtype=torch.bfloat16, outputs=torch.float32)``
    """

    no_grad: bool = False
    dtype: torch.dtype | None = None
    """Precision of autocast; torch.float32: without autocast; None: the caller's."""

    outputs: torch.dtype | None = None
    """Precision that outputs in `dtype` are converted to; None: they stay."""

    def autocast(self) -> Autocast | None:
        """Return the autocast to call under; None without any."""
        if self.dtype is None:
            return current_autocast() if torch.is_autocast_enabled("cpu") else None
        return None if self.dtype is torch.float32 else Autocast(self.dtype, cache=True)

    @contextlib.contextmanager
    def entered(self) -> Any:
        with contextlib.ExitStack() as stack:
            if self.no_grad and torch.is_grad_enabled():
                stack.enter_context(torch.no_grad())
            if self.dtype is torch.float32:
                if torch.is_autocast_enabled("cpu"):
                    stack.enter_context(torch.autocast("cpu", enabled=False))
            elif self.dtype is not None:
                stack.enter_context(torch.autocast("cpu", dtype=self.dtype))
            yield

    def result(self, outputs: Any) -> Any:
        """Return outputs in the dtype that the caller expects."""
        if self.outputs is None or self.dtype is None:
            return outputs
        return restored(outputs, self.dtype, self.outputs)


def without_hooks(model: nn.Module) -> nn.Module:
    """Return another module object with the same parts and without the model's own hooks.

    Calls of it are compared and compiled: hooks of the optimized module run around them.
    """
    twin = object.__new__(type(model))
    twin.__dict__.update(model.__dict__)
    for name, value in model.__dict__.items():
        if name.endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called")):
            twin.__dict__[name] = type(value)()
    return twin


class Work:
    """A model while it is optimized."""

    def __init__(
        self,
        model: nn.Module,
        call: Sample | None,
        dtype: torch.dtype | None,
        *,
        keeps_parameters: bool = False,
    ) -> None:
        self.model = model
        self.keeps_parameters = keeps_parameters
        """Whether an optimizer holds the Parameter objects, so that a layout is changed in place."""

        self.call = call
        self.dtype = dtype
        """The dtype that the user asked for."""

        self.bare = without_hooks(model)
        """What is called and compiled."""

        self.modes = Modes()
        self.edits = Edits(model)
        self.recording: Recording | None = None
        self._traced: tuple[Traced | None, str] | None = None
        self._counts = Counter(m for _, m in model.named_modules(remove_duplicate=False))

    def inner_modules(self) -> list[nn.Module]:
        """Return the modules that can be replaced: all but the model itself."""
        return [module for module in self.model.modules() if module is not self.model]

    def count(self, module: nn.Module) -> int:
        """How many names this module has in the model."""
        return self._counts[module]

    def run(self) -> Any:
        """Return the outputs on a copy of the sample, in the present modes, without gradients."""
        assert self.call is not None
        with torch.no_grad():
            return self.call_model(copied(self.call))

    def call_model(self, call: Sample) -> Any:
        with self.modes.entered():
            outputs = self.bare(*call.args, **call.kwargs)
        return self.modes.result(outputs)

    def watch(self) -> None:
        """Watch the sample's call, if there is a sample."""
        if self.call is not None:
            with torch.no_grad():
                self.recording = record(self.model, copied(self.call), self.call_model)

    def traced(self) -> tuple[Traced | None, str]:
        """Return what torch.fx found, or None and why it cannot trace the model."""
        if self._traced is None:
            try:
                with compiling:  # torch.fx changes nn.Module while it traces
                    self._traced = trace(self.model), ""
            except Exception as error:  # noqa: BLE001 - any error of the model's own code
                self._traced = None, first_line(error)
        return self._traced
