# SPDX-License-Identifier: Apache-2.0
"""The model that the passes work on, with what is known of it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from xruntime.compilation.inductor import compiling, first_line
from xruntime.compilation.samples import Sample
from xruntime.optimization.edits import Edits
from xruntime.optimization.module import optimized_class, own_dtype
from xruntime.optimization.module_order import Recording, Traced, record, trace
from xruntime.optimization.outputs import copied
from xruntime.optimization.runner import Modes, Runner


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

        self.own_dtype = own_dtype(model)
        self.runner = Runner(type(model))
        self._class: type[nn.Module] | None = None
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

    @property
    def modes(self) -> Modes:
        """The modes of calls."""
        return self.runner.modes

    @modes.setter
    def modes(self, modes: Modes) -> None:
        self.runner.modes = modes

    @contextlib.contextmanager
    def as_returned(self) -> Iterator[nn.Module]:
        """Give the model the class of the module that is returned. Raises OptimizationError."""
        model, kind = self.model, self.runner.kind
        self.become_optimized()
        try:
            yield model
        finally:
            model.__class__ = kind
            del model.__dict__["_xruntime_optimized"]

    def become_optimized(self) -> None:
        """Give the model that class for good. Raises OptimizationError."""
        if self._class is None:
            self._class = optimized_class(self.runner.kind, self.own_dtype)
        self.model.__dict__["_xruntime_optimized"] = self.runner
        self.model.__class__ = self._class

    def run_input(self, call: Sample) -> Any:
        """Return the outputs of the model as it was given, without gradients."""
        with torch.no_grad(), self._own_precision():
            return self.model(*call.args, **call.kwargs)

    def _own_precision(self) -> contextlib.AbstractContextManager[Any]:
        # The caller's autocast does not count with a dtype, and the input has its own precision.
        return Modes(dtype=None if self.dtype is None else torch.float32).precision()

    def run(self) -> Any:
        """Return the outputs of what is returned, on a copy of the sample, without gradients."""
        assert self.call is not None
        call = copied(self.call)
        with self.as_returned() as model, torch.no_grad():
            return model(*call.args, **call.kwargs)

    def watch(self) -> Any:
        """Return the outputs of the model as it was given on the sample, and watch this call."""
        assert self.call is not None
        with torch.no_grad(), self._own_precision():
            self.recording, outputs = record(self.model, copied(self.call))
        return outputs

    def traced(self) -> tuple[Traced | None, str]:
        """Return what torch.fx found, or None and why it cannot trace the model."""
        if self._traced is None:
            try:
                with compiling:  # torch.fx changes nn.Module while it traces
                    self._traced = trace(self.model), ""
            except Exception as error:  # noqa: BLE001 - any error of the model's own code
                self._traced = None, first_line(error)
        return self._traced
