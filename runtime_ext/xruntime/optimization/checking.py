# SPDX-License-Identifier: Apache-2.0
"""Compares outputs on the sample with those of the input model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from xruntime.compilation.accuracy import Difference, difference, tolerance_for
from xruntime.compilation.call_shapes import CallShape
from xruntime.compilation.inductor import first_line
from xruntime.errors import CompilationError, OptimizationError
from xruntime.kept.watched_state import WatchedState
from xruntime.optimization.outputs import comparable, copied
from xruntime.optimization.request import sample_problem
from xruntime.optimization.work import Work


class Check:
    """The input's outputs on the sample, and the comparison with others.

    Raises OptimizationError if the model cannot be called with the sample, or computes something else
    each time.
    """

    def __init__(self, work: Work, tolerance: float | None) -> None:
        model = work.model
        autocast = work.modes._replace(dtype=work.dtype).autocast()
        if tolerance is None:
            tolerance = tolerance_for((*model.parameters(), *model.buffers()), autocast)
        self.tolerance = tolerance
        self.latest: Difference | None = None
        """Of the latest comparison."""
        self.side_effect: str | None = None
        """What a call changes in the model, after a first call that may have filled caches."""

        name = type(model).__name__
        assert work.call is not None
        sample, shape = work.call, CallShape()
        call = copied(sample)
        for value in (*call.args, *call.kwargs.values()):
            shape.plain(value)
        versions = shape.versions()
        began = time.perf_counter()
        try:
            self._expected = comparable(work.run_input(call))
        except Exception as error:
            raise OptimizationError(
                f"{name} cannot be called with the sample"
                f" ({first_line(error)}){sample_problem(model, sample)}"
            ) from error
        self.input_s = time.perf_counter() - began
        """Time of the input's first call, in seconds."""
        self.may_change_arguments = shape.opaque or versions != shape.versions()
        """Whether a call writes into a tensor of the sample, or may do so."""

        state = WatchedState(model)
        again = self.problem(work.watch)
        self.side_effect = state.change()
        if again is not None and math.isfinite(tolerance):
            raise OptimizationError(
                f"{name} computes something else in each call, so that nothing can be checked: {again}."
                " Remove what is random, or allow any difference by tolerance=float('inf')"
            )

    def problem(self, run: Callable[[], Any]) -> str | None:
        """Why the outputs of `run` cannot be used; None if they agree with the input's."""
        try:
            outputs = run()
        except CompilationError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - any error of the model's own code
            return f"the model fails: {first_line(error)}"
        return self.outputs_problem(outputs)

    def outputs_problem(self, outputs: Any) -> str | None:
        """As `problem`, of outputs that were computed before."""
        try:
            self.latest = difference(self._expected, comparable(outputs), self.tolerance)
        except CompilationError as error:
            return str(error)
        return None if self.latest.allowed else f"the outputs differ: {self.latest}"
