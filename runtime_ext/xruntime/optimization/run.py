# SPDX-License-Identifier: Apache-2.0
"""One run of `optimize`: a model, the passes that change it, the sample they are checked on, and the report."""

from __future__ import annotations

import contextlib
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from xruntime.compilation.inductor import compiling, first_line
from xruntime.compilation.judge import Difference, difference, tolerance_for
from xruntime.errors import CompilationError, OptimizationError
from xruntime.kept.store import weight_bytes
from xruntime.kept.watched_state import RandomState, WatchedState
from xruntime.optimization.arguments import OptimizeRequest, sample_problem
from xruntime.optimization.edits import Edits
from xruntime.optimization.module_order import CallRecording, TracedOrder, record, trace
from xruntime.optimization.optimized_module import OptimizedModule, model_class, own_dtype
from xruntime.optimization.runner import CallRunner, Modes
from xruntime.optimization.steps import Explanation, PassOutcome, SkipPassError, Step, Timing
from xruntime.pytrees import with_tensors


class PassRun:
    """The model while it is optimized. `steps` has what became of each pass so far.

    A pass is a function of the run. It changes the model by `edits`, and `modes`; returns what it did, or
    raises SkipPassError.
    """

    keeps_parameters: ClassVar = False
    """Whether an optimizer holds the Parameter objects, so that a layout is changed in place."""

    def __init__(self, request: OptimizeRequest, model: nn.Module) -> None:
        self.request = request
        self.model = model
        self.runner = CallRunner(type(model))
        self.edits = Edits(model)
        self.steps: list[Step] = []
        self.check: OutputCheck | None = None
        self.recording: CallRecording | None = None
        self.own_dtype = own_dtype(model)
        self._counts = Counter(m for _, m in model.named_modules(remove_duplicate=False))
        self._bytes_before = weight_bytes(model)

    @property
    def modes(self) -> Modes:
        """The modes of calls."""
        return self.runner.modes

    @modes.setter
    def modes(self, modes: Modes) -> None:
        self.edits.add_undo(functools.partial(setattr, self.runner, "modes", self.modes))
        self.runner.modes = modes

    @contextlib.contextmanager
    def undoing(self) -> Iterator[None]:
        """Undo all changes of the model if the block raises anything."""
        try:
            yield
        except BaseException:
            self.edits.undo()
            raise

    def prepare(self, known_call: KnownCall | None = None) -> None:
        """Call and watch the model with the sample, if there is one, to compare with."""
        if self.request.call is not None:
            self.check = OutputCheck(self, self.request.call, known_call)

    def run_passes(self, passes: Mapping[str, Callable[..., str]]) -> None:
        """Run passes and check all of them at once; only if that fails, one after the other."""
        done, mark = len(self.steps), self.edits.mark()
        for name, change in passes.items():
            self.run_pass(name, change, checked=False)
        if self.check is not None and self.check.problem(self.call_returned) is not None:
            self.edits.undo(mark)
            del self.steps[done:]
            for name, change in passes.items():
                self.run_pass(name, change)

    def run_pass(self, name: str, change: Callable[..., str], *, checked: bool = True) -> bool:
        """Run one pass; undo it if the outputs differ then. Return whether it is applied."""
        obstacle = self.request.obstacle(name)
        if obstacle is not None:
            self.note(name, PassOutcome.SKIPPED, obstacle)
            return False
        mark = self.edits.mark()
        outcome, reason = PassOutcome.APPLIED, ""
        try:
            reason = change(self)
        except SkipPassError as skip:
            outcome, reason = PassOutcome.SKIPPED, str(skip)
        else:
            problem = self.check.problem(self.call_returned) if self.check and checked else None
            if problem is not None:
                outcome, reason = PassOutcome.UNDONE, f"{reason}, but {problem}"
        if outcome is not PassOutcome.APPLIED:
            self.edits.undo(mark)
        self.note(name, outcome, reason)
        return outcome is PassOutcome.APPLIED

    def note(self, name: str, outcome: PassOutcome, reason: str) -> None:
        """Add a step."""
        self.steps.append(Step(name, outcome, reason))

    def inner_modules(self) -> list[nn.Module]:
        """Return the modules that can be replaced: all but the model itself."""
        return [module for module in self.model.modules() if module is not self.model]

    def count(self, module: nn.Module) -> int:
        """How many names this module has in the model."""
        return self._counts[module]

    @functools.cached_property
    def traced(self) -> tuple[TracedOrder | None, str]:
        """What torch.fx found, or None and why it cannot trace the model."""
        try:
            # torch.fx changes nn.Module while it traces, and calls the forward.
            with compiling, undoing_calls(self.model):
                return trace(self.model), ""
        except Exception as error:  # noqa: BLE001 - any error of the model's own code
            return None, first_line(error)

    @functools.cached_property
    def _class(self) -> type[nn.Module]:
        def forward(model: OptimizedModule, *args: Any, **kwargs: Any) -> Any:
            return model._xruntime_optimized(model, args, kwargs)  # noqa: SLF001 - ours

        return model_class(OptimizedModule, self.runner.kind, forward, self.own_dtype)

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
        """Give the model that class permanently. Raises OptimizationError."""
        kind = self._class
        self.model.__dict__["_xruntime_optimized"] = self.runner
        self.model.__class__ = kind

    def call_returned(self) -> Any:
        """Return the outputs of what is returned, on a copy of the sample, without gradients."""
        assert self.request.call is not None
        call = self.request.call.copied()
        with undoing_calls(self.model), self.as_returned() as model, torch.no_grad():
            return model(*call.args, **call.kwargs)

    def explanation(self, bytes_kept: int = 0, timings: Iterable[Timing] = ()) -> Explanation:
        """Return what was done, for `explain`."""
        return Explanation(
            model=self.runner.kind.__name__,
            level=self.request.level,
            steps=tuple(self.steps),
            bytes_before=self._bytes_before,
            bytes_after=weight_bytes(self.model),
            bytes_kept=bytes_kept,
            difference=None if self.check is None else self.check.latest,
            timings=tuple(timings),
        )


@contextlib.contextmanager
def undoing_calls(model: nn.Module) -> Iterator[WatchedState]:
    """Undo what calls of the model within the block change in it, and restore the random state.

    Raises OptimizationError if they write into a parameter, which is not copied.
    """
    state, drawn = WatchedState(model, copies=True), RandomState()
    try:
        yield state
    finally:
        drawn.restore()
        written = state.restore()
    if written is not None:
        raise OptimizationError(
            f"a call of {type(model).__name__} writes into the parameter {written}, so that it cannot be tried:"
            " make that a buffer"
        )


class KnownCall(NamedTuple):
    """A call of the input with the sample, made before."""

    outputs: Any


class OutputCheck:
    """The input's outputs on the sample, and the comparison with others.

    Calls the input twice, or once if the first call is `known_call`, and watches the last call. Each begins with the
    same state of the model and the same random numbers. Raises OptimizationError if the model cannot be called
    with the sample, or computes something else each time.
    """

    def __init__(self, run: PassRun, sample: Any, known_call: KnownCall | None) -> None:
        model, request = run.model, run.request
        autocast = run.modes._replace(dtype=request.dtype).autocast()
        self.tolerance = request.tolerance or 0.0
        if request.tolerance is None:
            self.tolerance = tolerance_for((*model.parameters(), *model.buffers()), autocast)
        self.latest: Difference | None = None
        """Of the latest comparison."""

        # Imported here, as models of generate() have no sample, and their start is short.
        from xruntime.kept.fingerprint import changed_variable, stored_tensor, variables_of

        # The caller's autocast does not count with a dtype, and the input has its own precision.
        own = Modes(dtype=None if request.dtype is None else torch.float32)
        name = type(model).__name__
        call, variables = sample.copied(), variables_of(model, type(model).forward)
        try:
            if known_call is None:
                with undoing_calls(model), torch.no_grad(), own.precision():
                    outputs = model(*call.args, **call.kwargs)
                    # What is in a buffer would be undone.
                    known_call = KnownCall(with_tensors(torch.clone, outputs))
            self.expected = known_call.outputs
        except OptimizationError:
            raise
        except Exception as error:
            if "grad" in str(error) and self._works_with_gradients(model, sample, own):
                raise OptimizationError(
                    f"{name} needs gradients in its forward ({first_line(error)}), and calls here run"
                    " without: wrap what needs them in torch.enable_grad()"
                ) from error
            raise OptimizationError(
                f"{name} cannot be called with the sample"
                f" ({first_line(error)}){sample_problem(model, sample)}"
            ) from error

        call, drawn = sample.copied(), RandomState()
        with undoing_calls(model) as state:
            with torch.no_grad(), own.precision():
                run.recording, outputs = record(model, call)
            self.side_effect = state.change()
            """What a call changes, in the model or beside it."""
            self.stored = None if self.side_effect is None else state.new_tensor(model)
            """Where a call stores a tensor, in the model or beside it."""
            if self.side_effect is not None:
                self.side_effect = f"the module ({self.side_effect})"
            elif (variable := changed_variable(variables)) is not None:
                self.side_effect = f"the global variable {variable}"
                self.stored = stored_tensor(variables)
            else:
                self.side_effect = drawn.change()
            problem = self.outputs_problem(outputs)
        self.may_change_arguments = not call.is_unchanged(sample)
        """Whether a call writes into its arguments, or may do so."""

        if problem is not None and math.isfinite(self.tolerance):
            raise OptimizationError(
                f"{name} computes something else in each call from the same state, so that nothing can be"
                f" checked: {problem}. Remove what is random, or allow any difference by"
                " tolerance=float('inf')"
            )

    @staticmethod
    def _works_with_gradients(model: nn.Module, sample: Any, modes: Modes) -> bool:
        call = sample.copied()
        with (
            undoing_calls(model),
            torch.enable_grad(),
            modes.precision(),
            contextlib.suppress(Exception),
        ):
            model(*call.args, **call.kwargs)
            return True
        return False

    def problem(self, call: Callable[[], Any]) -> str | None:
        """Why the outputs of `call` cannot be used; None if they agree with the input's."""
        try:
            outputs = call()
        except CompilationError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - any error of the model's own code
            return f"the model fails: {first_line(error)}"
        return self.outputs_problem(outputs)

    def outputs_problem(self, outputs: Any) -> str | None:
        """The same for outputs that were computed before."""
        try:
            self.latest = difference(self.expected, outputs, self.tolerance)
        except CompilationError as error:
            return str(error)
        return None if self.latest.allowed else f"the outputs differ: {self.latest}"
