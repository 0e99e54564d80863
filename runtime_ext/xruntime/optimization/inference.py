# SPDX-License-Identifier: Apache-2.0
"""Optimizes a model for inference: runs the passes, checks them on the sample, and compiles."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import nn

from xruntime.compilation.inductor import first_line
from xruntime.compilation.judge import MIN_GAIN
from xruntime.errors import OptimizationError
from xruntime.generation.language_models import generates
from xruntime.kept.making import CAN_FORK
from xruntime.kept.watched_state import FrozenModel, WatchedState
from xruntime.optimization.arguments import OptimizeRequest
from xruntime.optimization.aside import CompiledAside
from xruntime.optimization.folding import fold_convolutions, fold_linears, remove_dropouts
from xruntime.optimization.module_order import part_with_hooks
from xruntime.optimization.outputs import copied
from xruntime.optimization.passes import (
    join_linears,
    lower_precision,
    lower_weights,
    use_channels_last,
    use_decode_step,
    use_linear_rows,
    without_gradients,
)
from xruntime.optimization.plain_weights import PlainWeights
from xruntime.optimization.run import Known, Run, undoing_calls
from xruntime.optimization.runner import Modes, SlowCallWarning
from xruntime.optimization.steps import PassOutcome, Timing, remember

PASSES: Final[Mapping[str, Callable[[Run], str]]] = {
    "no_grad": without_gradients,
    "dropout": remove_dropouts,
    "conv_bn": fold_convolutions,
    "linear_bn": fold_linears,
    "channels_last": use_channels_last,
    "precision": lower_precision,
    "weights": lower_weights,
    "join_linears": join_linears,
}

GENERATION_PASSES: Final[Mapping[str, Callable[[Run], str]]] = {
    **{name: change for name, change in PASSES.items() if name != "join_linears"},
    "linear_rows": use_linear_rows,
    "decode_step": use_decode_step,
}
"""Those of models with transformers' generate(): a joined linear would read as many weights."""

ROUNDS: Final = 7
MIN_ROUND_S: Final = 0.02
"""Minimum time of a candidate's calls in one round."""

MAX_CALLS: Final = 100
"""Maximum calls of a candidate in one round."""

MAX_REPEATED_S: Final = 0.5
"""Longer calls of the input are not repeated to time them once more."""

MAX_TIMED_CALLS: Final = 5
MAX_TIMING_S: Final = 0.1
"""No further call is timed after this time."""


def optimize_for_inference(
    request: OptimizeRequest, *, known: Known | None = None, shares_weights: bool = False
) -> nn.Module:
    """Return the optimized module. If anything is raised, the model is as before.

    known
        A call of the model with the sample.
    shares_weights
        The module shares the weights that no pass changes: the caller guarantees that the model is not
        changed while the module is used.
    """
    counterparts: dict[int, Any] = {}
    gradients = torch.is_grad_enabled()
    # Weights that are made here must work outside of a caller's inference mode, too.
    with torch.inference_mode(False), torch.set_grad_enabled(gradients):
        subject = request.model if request.inplace else _copy_of(request.model, counterparts)
        run = _Inference(request, subject, PlainWeights(request.model, counterparts))
        # Weights of language models may be most of the memory.
        run.shares_weights = shares_weights or request.inplace or run.generates
        run.caller_measures = known is not None
        with run.undoing():
            run.prepare(known)
            made = run.optimized()
    del run
    with contextlib.suppress(AttributeError):  # glibc keeps what was freed between the weights
        ctypes.CDLL(None).malloc_trim(0)
    return made


def _copy_of(model: nn.Module, counterparts: dict[int, Any]) -> nn.Module:
    """Return a deep copy; `counterparts` receives the copy of each object by the original's id.

    Its parameters are other objects on the same memory until `PlainWeights.separate`.
    """
    for parameter in model.parameters():
        if type(parameter) is nn.Parameter and not parameter.is_inference():
            # .data has a count of changes of its own.
            counterparts[id(parameter)] = nn.Parameter(parameter.data, parameter.requires_grad)
    try:
        return copy.deepcopy(model, counterparts)
    except Exception as error:
        raise OptimizationError(
            f"{type(model).__name__} cannot be copied ({first_line(error)}): use inplace=True"
        ) from error


def _shortest_s(call: Callable[[], object]) -> float:
    """The time of the shortest of some calls, in seconds; of one call if it is long."""
    first, shortest = time.perf_counter(), float("inf")
    for _ in range(MAX_TIMED_CALLS):
        began = time.perf_counter()
        call()
        now = time.perf_counter()
        shortest = min(shortest, now - began)
        if now - first > MAX_TIMING_S:
            break
    return shortest


class _Inference(Run):
    """One call of `optimize` for inference."""

    def __init__(self, request: OptimizeRequest, model: nn.Module, plain: PlainWeights) -> None:
        super().__init__(request, model)
        self.plain = plain
        self.shares_weights = False
        self.caller_measures = False
        """Whether the gain of the passes is measured by the program's calls."""
        self.generates = generates(model)

    def optimized(self) -> nn.Module:
        """Return the finished module."""
        timings: list[Timing] = []
        reason = self._why_not_compiled()
        original = self._untouched() if self._may_be_timed(reason) else None
        self.run_passes(GENERATION_PASSES if self.generates else PASSES)
        compiled = None if reason is not None else self._compiled()
        if reason is not None:
            self.note("graph", PassOutcome.SKIPPED, reason)
        if original is not None:
            compiled, timings = self._fastest(original, compiled)
        self.runner.compiled = compiled
        if compiled is None:  # it compares by itself
            problem = None if self.check is None else self.check.problem(self.call_returned)
            if problem is not None:
                raise OptimizationError(
                    f"{type(self.model).__name__}: each pass alone agrees with the model, and all together"
                    f" do not: {problem}; switch some off by passes={{...}}"
                )
        return self._finished(timings, compiled)

    def _why_not_compiled(self) -> str | None:
        """Why nothing is to be compiled; None if it may be."""
        request, check = self.request, self.check
        if request.graph == "none":
            return "the caller chose none"
        if request.level == "O0":
            return "level O0"
        if self.generates:
            return "generate() calls it with a longer sequence for each token"
        if check is None:
            return "without sample_input compiled code cannot be checked"
        if not CAN_FORK:
            return "code is compiled by a child process, on Linux only"
        hooked = part_with_hooks(self.model)
        if hooked is not None:
            return f"{hooked} has hooks, which compiled code would not run as they are"
        if check.may_change_arguments:
            return "a call may change its arguments, which compiled code would not do"
        if check.side_effect is not None:
            return f"a call changes {check.side_effect}, which compiled code would not do"
        return WatchedState(self.model).unfollowed

    def _may_be_timed(self, not_compiled: str | None) -> bool:
        """Whether the forms may have to be timed: if asked, or if the model turns out not to compile."""
        request = self.request
        if request.measure or self.check is None:
            return request.measure
        return (
            request.graph == "auto"
            and request.level != "O0"
            and not self.generates
            and self.check.side_effect is None
            and not request.inplace  # it may be a model that cannot be copied
            and not self.caller_measures
            and (not_compiled is not None or request.wait)
        )

    def _speedup(self, input_s: float) -> float:
        """How many times as fast as the input the modules are, in calls with the sample.

        `input_s`: the time of an earlier call of the input. It may have been the first with these sizes, which
        takes longer, so the input is called again unless calls are long.
        """
        request = self.request
        call = request.call
        assert call is not None
        own = Modes(dtype=None if request.dtype is None else torch.float32)

        def call_input() -> None:
            given = copied(call)
            with torch.no_grad(), own.precision():
                request.model(*given.args, **given.kwargs)

        if input_s < MAX_REPEATED_S and not request.inplace:
            with undoing_calls(request.model):
                input_s = min(input_s, _shortest_s(call_input))
        return input_s / _shortest_s(self.call_returned)

    def _compiled(self) -> CompiledAside | None:
        """Return the model's compiled form, which is compared at its first call; None if it cannot be compiled."""
        request = self.request
        assert self.check is not None
        aside = CompiledAside(
            self.model,
            self.runner,
            tolerance=self.check.tolerance,
            wait=request.wait or request.measure,
        )
        if not aside.wait:
            assert request.call is not None
            with self.as_returned():
                serves = aside.has_kept_ranges(request.call.args, request.call.kwargs)
            # Otherwise there is hardly anything left to compile, or the caller times calls of its own.
            if not serves and not self.caller_measures:
                aside.speedup = self._speedup(self.check.input_s)
            return aside
        aside.report = lambda _line: None  # the step has these lines
        self.runner.compiled = aside
        try:
            self.call_returned()
        finally:
            self.runner.compiled = None
        aside.report, aside.wait = None, request.wait
        if not aside.compiled:
            self.note("graph", PassOutcome.SKIPPED, aside.describe())
            return None
        return aside

    def _separate_weights(self) -> None:
        if not self.shares_weights:
            self.plain.separate(self.model)

    def _untouched(self) -> Callable[[], Any]:
        """Return a call of the input, which no pass changes."""
        assert self.request.call is not None
        tensors = (*self.model.parameters(), *self.model.buffers())
        twin = copy.deepcopy(self.model, {id(tensor): tensor for tensor in tensors})
        sample = copied(self.request.call)
        return lambda: twin(*sample.args, **sample.kwargs)

    def _fastest(
        self, original: Callable[[], Any], compiled: CompiledAside | None
    ) -> tuple[CompiledAside | None, list[Timing]]:
        """Time the input, the changed modules and the compiled form; return the latter if it is the fastest.

        In the caller's grad mode, as the calls will probably be.
        """
        assert self.request.call is not None
        sample = copied(self.request.call)

        def called(compiled: CompiledAside | None) -> Callable[[], Any]:
            def call() -> Any:
                self.runner.compiled = compiled
                return self.model(*sample.args, **sample.kwargs)

            return call

        candidates = {"input": original, "none": called(None)}
        if compiled is not None:
            candidates["library"] = called(compiled)
        with undoing_calls(self.model), self.as_returned():
            for _ in range(MAX_CALLS):
                if compiled is None or not compiled.is_timing:
                    break
                candidates["library"]()  # the modules compute some of these
            times = median_times(candidates)
        chosen = min(times, key=lambda name: times[name])
        if not self.request.measure:
            rest = [name for name in ("none", "input") if times[name] < MIN_GAIN * times[chosen]]
            if rest and (chosen == "library" or "none" in rest):
                chosen = rest[0]
        if chosen != "library" and compiled is not None:
            reason = f"compiled code; slower than {chosen!r}, or not at least 3 % faster"
            self.note("graph", PassOutcome.UNDONE, reason)
            compiled = None
        if chosen == "input":
            self.edits.undo()
            self.modes = Modes()
            self.steps = [
                step._replace(
                    outcome=PassOutcome.UNDONE, reason=f"{step.reason}; the input is the fastest"
                )
                if step.outcome is PassOutcome.APPLIED
                else step
                for step in self.steps
            ]
        return compiled, [Timing(name, times[name], name == chosen) for name in times]

    def _finished(self, timings: list[Timing], aside: CompiledAside | None) -> nn.Module:
        model, request = self.model, self.request
        step = next((step for step in self.steps if step.name == "graph"), None)
        tried = request.graph == "auto" and request.level != "O0" and self.check is not None
        tried = tried and not self.generates
        if tried and step is not None and step.outcome is not PassOutcome.APPLIED:
            warnings.warn(
                f"{self.runner.kind.__name__} is not compiled: {step.reason}",
                SlowCallWarning,
                stacklevel=5,
            )
        self.plain.settle(model, self.edits.same_values, keep=request.keep_weights)
        self._separate_weights()
        if any(step.outcome is PassOutcome.APPLIED for step in self.steps):
            model.__dict__["_xruntime_plain"] = self.plain
            self.become_optimized()
        if aside is not None:
            self.runner.frozen = FrozenModel(model)
        made = self.explanation(self.plain.kept_bytes(model), timings)
        remember(model, made, aside)
        return model


def median_times(candidates: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the median time of a call of each candidate, in seconds; all see the same machine."""
    calls = {}
    for name, call in candidates.items():
        call()  # the first calls of compiled code and of oneDNN prepare things
        once_s = _time(call, 1)
        calls[name] = max(1, min(MAX_CALLS, round(MIN_ROUND_S / max(once_s, 1e-9))))
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(ROUNDS):
        names = list(candidates)
        # Neither always comes first.
        for name in names if number % 2 else reversed(names):
            times[name].append(_time(candidates[name], calls[name]))
    return {name: statistics.median(found) for name, found in times.items()}


def _time(call: Callable[[], Any], count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - began) / count
