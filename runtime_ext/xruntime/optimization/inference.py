# SPDX-License-Identifier: Apache-2.0
"""Optimizes a model for inference: runs the passes, checks them on the sample, and compiles."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import math
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from xruntime.compilation.inductor import first_line
from xruntime.compilation.judge import Trial, compared_speed
from xruntime.errors import OptimizationError
from xruntime.generation.language_models import generates
from xruntime.kept.watched_state import WatchedState
from xruntime.optimization.arguments import OptimizeRequest
from xruntime.optimization.few_bits import pack_weights
from xruntime.optimization.folding import fold_norms, remove_dropouts
from xruntime.optimization.module_order import CONVOLUTIONS, part_with_hooks
from xruntime.optimization.optimized_module import TrainableModule
from xruntime.optimization.original_weights import OriginalWeights
from xruntime.optimization.passes import (
    join_linears,
    lower_precision,
    lower_weights,
    use_channels_last,
    use_decode_step,
    use_linear_rows,
    without_gradients,
)
from xruntime.optimization.run import KnownCall, PassRun, undoing_calls
from xruntime.optimization.runner import Modes, SlowCallWarning
from xruntime.optimization.skipped_norms import folded_weights
from xruntime.optimization.steps import PassOutcome, Timing, remember

if TYPE_CHECKING:  # what compiles is imported where it is used: generate() starts without it
    from xruntime.optimization.optimized_code import OptimizedCode

PASSES: Final[Mapping[str, Callable[[PassRun], str]]] = {
    "no_grad": without_gradients,
    "dropout": remove_dropouts,
    "conv_bn": partial(fold_norms, kinds=CONVOLUTIONS, what="convolution"),
    "linear_bn": partial(fold_norms, kinds=(nn.Linear,), what="linear"),
    "channels_last": use_channels_last,
    "weight_bits": pack_weights,
    "precision": lower_precision,
    "weights": lower_weights,
    "join_linears": join_linears,
    "linear_rows": use_linear_rows,
    "decode_step": use_decode_step,
}

FOR_GENERATION: Final = ("weight_bits", "linear_rows", "decode_step")
"""Passes for models with transformers' generate(). They join no linears: a joined one would read as many weights."""

NOT_FOR_GENERATION: Final = ("join_linears",)

_NamedCall = tuple[str, Callable[[], Any]]

MAX_PAIR_S: Final = 0.5
"""The input and the modules are called once more, and no further time, if that takes longer."""

MAX_SHORT_PAIR_S: Final = 2e-3
MAX_COUNTING: Final = 1.25
"""Calls that take longer than this, relative to the input's, while they are counted and checked, are not compiled in
the background. They are of some ten microseconds."""


def optimize_for_inference(
    request: OptimizeRequest, known_call: KnownCall | None = None
) -> nn.Module:
    """Return the optimized module. If anything is raised, the model is as before.

    `known_call`, of the model with the sample, is given by a caller that times the module's calls next to the model's,
    and does not use the module once the model was changed. So the two share the weights that no pass changes.
    """
    counterparts: dict[int, Any] = {}
    gradients = torch.is_grad_enabled()
    # Weights that are made here must work outside of a caller's inference mode, too.
    with torch.inference_mode(False), torch.set_grad_enabled(gradients):
        subject = request.model if request.inplace else _copy_of(request.model, counterparts)
        originals = OriginalWeights(request.model, counterparts)
        run = _Inference(request, subject, originals, is_watched=known_call is not None)
        with run.undoing():
            run.prepare(known_call)
            optimized = run.optimized()
    del run
    with contextlib.suppress(AttributeError):  # glibc keeps what was freed between the weights
        ctypes.CDLL(None).malloc_trim(0)
    return optimized


def _copy_of(model: nn.Module, counterparts: dict[int, Any]) -> nn.Module:
    """Return a deep copy; `counterparts` receives the copy of each object by the original's id.

    Its parameters are other objects on the same memory until `OriginalWeights.separate`.
    """
    for parameter in model.parameters():
        if type(parameter) is nn.Parameter and not parameter.is_inference():
            # .data has a count of changes of its own.
            counterpart = nn.Parameter(parameter.data, parameter.requires_grad)
            vars(counterpart).update(vars(parameter))
            counterparts[id(parameter)] = counterpart
    from xruntime.kept.fingerprint import lost_in_copy

    try:
        copied = copy.deepcopy(model, counterparts)
    except Exception as error:
        raise OptimizationError(
            f"{type(model).__name__} cannot be copied ({first_line(error)}): use inplace=True"
        ) from error
    # A part optimized for training is copied with weights in fp32.
    is_trained = any(isinstance(part, TrainableModule) for part in model.modules())
    lost = None if is_trained or generates(model) else lost_in_copy(model, copied)
    if lost is not None:
        raise OptimizationError(
            f"a copy of {type(model).__name__} is another model, without {lost}: use inplace=True"
        )
    return copied


class _Inference(PassRun):
    """One call of `optimize` for inference."""

    def __init__(
        self,
        request: OptimizeRequest,
        model: nn.Module,
        originals: OriginalWeights,
        *,
        is_watched: bool,
    ) -> None:
        super().__init__(request, model)
        self.originals = originals
        self.is_watched = is_watched
        """Whether the caller times calls, and sees changes of the model."""

        self.generates = generates(model)

    def optimized(self) -> nn.Module:
        """Return the finished module."""
        reason, waits = self._why_not_compiled(), self.request.wait or self.request.measure
        original = self._untouched() if self._is_timed() else None
        others = NOT_FOR_GENERATION if self.generates else FOR_GENERATION
        self.run_passes({name: PASSES[name] for name in PASSES if name not in others})
        timings: list[Timing] = []
        compiled = None
        if reason is not None:
            self.note("graph", PassOutcome.SKIPPED, reason)
        elif waits:
            compiled = self._compiled_now(is_timed=original is not None)
        else:
            compiled = self._compiled_later(original)
        if original is not None and (compiled is None or waits):
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

    def _why_not_wanted(self) -> str | None:
        """Why no code is wanted, or none could be checked; None if it is to be compiled where that is possible."""
        if self.request.graph == "none":
            return "the caller chose none"
        if self.request.level == "O0":
            return "level O0"
        if self.generates:
            return "generate() calls it with a longer sequence for each token"
        return None if self.check else "without sample_input compiled code cannot be checked"

    def _why_not_compiled(self) -> str | None:
        """Why nothing is to be compiled; None if it may be."""
        check, unwanted = self.check, self._why_not_wanted()
        if check is None or unwanted is not None:
            return unwanted
        from xruntime.kept.making import CAN_FORK

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

    def _is_timed(self) -> bool:
        """Whether the input and its forms are timed: if asked, or if the input may turn out to be the fastest."""
        request = self.request
        if request.measure or self.check is None:
            return request.measure
        # The model that is changed in place may be one that cannot be copied.
        others = request.inplace or self.is_watched or self.check.side_effect is not None
        return self._why_not_wanted() is None and not others

    def _new_code(self, modes: Modes, *, wait: bool = False) -> OptimizedCode:
        from xruntime.optimization.optimized_code import OptimizedCode

        assert self.check is not None
        tolerance = self.check.tolerance
        return OptimizedCode(self.model, self.runner, modes, tolerance=tolerance, wait=wait)

    def _compiled_now(self, *, is_timed: bool) -> OptimizedCode | None:
        """Return the model's compiled form; None if it cannot be compiled."""
        from xruntime.kept.model_libraries import Policy

        code = self._new_code(self.modes, wait=True)
        code.report = lambda _line: None  # the step has these lines
        code.times_code = not is_timed
        self.runner.compiled = code
        try:
            self.call_returned()
        finally:
            self.runner.compiled = None
        code.report = None
        if not self.request.wait:
            code.policy = Policy.BACKGROUND
        if not code.compiled:
            self.note("graph", PassOutcome.SKIPPED, code.describe())
            return None
        return code

    def _compiled_later(self, original: Callable[[], Any] | None) -> OptimizedCode | None:
        """Return a form that is compiled in the background; None for calls that are too short for that.

        Where the modules are slower than the input, those of the input are called until there is code.
        """
        code, call = self._new_code(self.modes), self.request.call
        assert call is not None
        with self.as_returned():
            # Then there is hardly anything left to compile.
            serves = code.has_kept_ranges(call.args, call.kwargs)
        if serves or original is None:
            return code
        trial = self._timed(("input", original), ("none", self._call_of(None)), MAX_PAIR_S)
        if not trial.is_slower:
            code.speedup = trial.ratio
            return code
        modes = self.modes
        self._undo_passes("the input is faster, and called until there is code", keeps_no_grad=True)
        code = self._new_code(modes)
        trial = self._timed(("input", original), ("none", self._call_of(code)), MAX_SHORT_PAIR_S)
        if trial.is_slower and trial.ratio * MAX_COUNTING < 1:
            reason = (
                "calls are too short to look for code in each; wait=True compiles now, and times it"
            )
            self.note("graph", PassOutcome.UNDONE, reason)
            return None
        return self._new_code(modes)

    def _untouched(self) -> Callable[[], Any]:
        """Return a call of the input, which no pass changes."""
        assert self.request.call is not None
        tensors = (*self.model.parameters(), *self.model.buffers())
        twin = copy.deepcopy(self.model, {id(tensor): tensor for tensor in tensors})
        sample = self.request.call.copied()
        return lambda: twin(*sample.args, **sample.kwargs)

    def _call_of(self, compiled: OptimizedCode | None) -> Callable[[], Any]:
        """Return a call of what is returned, with that compiled form, in the caller's grad mode."""
        assert self.request.call is not None
        sample = self.request.call.copied()

        def call() -> Any:
            self.runner.compiled = compiled
            try:
                return self.model(*sample.args, **sample.kwargs)
            finally:
                self.runner.compiled = None

        return call

    def _timed(self, first: _NamedCall, second: _NamedCall, max_pair_s: float = math.inf) -> Trial:
        """Time two of these calls in turns, see `compared_speed`."""
        with undoing_calls(self.model), self.as_returned():
            return compared_speed(first, second, max_pair_s=max_pair_s)

    def _fastest(
        self, original: Callable[[], Any], compiled: OptimizedCode | None
    ) -> tuple[OptimizedCode | None, list[Timing]]:
        """Time the input, the changed modules and the compiled form; return the latter if it is the fastest."""
        calls = {"input": original, "none": self._call_of(None)}
        trial = self._timed(("input", original), ("none", calls["none"]))
        changed = any(
            step.outcome is PassOutcome.APPLIED and step.name != "no_grad" for step in self.steps
        )
        must_be_faster = self.request.measure or not changed
        stays = trial.is_slower or (must_be_faster and not trial.is_faster)
        chosen = "input" if stays else "none"
        times = trial.medians_s
        if compiled is not None:
            trial = self._timed((chosen, calls[chosen]), ("library", self._call_of(compiled)))
            times |= trial.medians_s
        if compiled is not None and trial.is_faster:
            compiled.times_code = True
            whose = "the input" if chosen == "input" else "the modules"
            compiled.note(f"the code takes over, {trial.ratio:.2f} times as fast as {whose}")
            chosen = "library"
        elif compiled is not None:
            low, high = trial.interval
            reason = (
                f"compiled code; {trial.ratio:.2f} [{low:.2f}, {high:.2f}] times as fast as"
                f" {chosen!r}, with 1.03 as the lower end it would take over"
            )
            self.note("graph", PassOutcome.UNDONE, reason)
            compiled = None
        if chosen == "input":
            self._undo_passes("the input is the fastest")
        return compiled, [Timing(name, times[name], name == chosen) for name in times]

    def _undo_passes(self, reason: str, *, keeps_no_grad: bool = False) -> None:
        """Make the model what it was, but for gradients if they stay off."""
        kept = ("no_grad",) if keeps_no_grad else ()
        modes = Modes(no_grad=keeps_no_grad and self.modes.no_grad)
        self.edits.undo()
        self.modes = modes
        self.steps = [
            step._replace(outcome=PassOutcome.UNDONE, reason=f"{step.reason}; {reason}")
            if step.outcome is PassOutcome.APPLIED and step.name not in kept
            else step
            for step in self.steps
        ]

    def _finished(self, timings: list[Timing], code: OptimizedCode | None) -> nn.Module:
        model, request = self.model, self.request
        step = next((step for step in self.steps if step.name == "graph"), None)
        skipped = step is not None and step.outcome is PassOutcome.SKIPPED
        if step is not None and skipped and self._why_not_wanted() is None:
            warnings.warn(
                f"{self.runner.kind.__name__} is not compiled: {step.reason}",
                SlowCallWarning,
                stacklevel=5,
            )
        # Few bits are asked for to save memory.
        frees = request.inplace and request.weight_bits is not None
        keep = request.keep_weights and not frees
        self.originals.settle(model, self.edits.same_values, keep=keep)
        # Weights of language models may be most of the memory.
        if not (self.is_watched or request.inplace or self.generates):
            self.originals.separate(model)
        if code is not None or any(step.outcome is PassOutcome.APPLIED for step in self.steps):
            model.__dict__["_xruntime_originals"] = self.originals
            self.become_optimized()
        if not self.is_watched:
            self.runner.folded = folded_weights(model)
        if code is not None and not self.is_watched:
            code.frozen = WatchedState(model, own_hooks=False)
        remember(model, self.explanation(self.originals.kept_bytes(model), timings), code)
        return model
