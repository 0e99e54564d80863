# SPDX-License-Identifier: Apache-2.0
"""Optimizes a model for inference: runs the passes, checks each on the sample, and compiles."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import nn

from xlaunch.errors import XLaunchError
from xruntime.compilation.inductor import first_line
from xruntime.errors import OptimizationError
from xruntime.optimization.checking import Check
from xruntime.optimization.folding import fold_convolutions, fold_linears, remove_dropouts
from xruntime.optimization.graph import GRAPHS, CompiledGraph, Package, graph_obstacle
from xruntime.optimization.measuring import median_times
from xruntime.optimization.module import Call, Held, make_optimized
from xruntime.optimization.outputs import copied
from xruntime.optimization.passes import (
    join_linears,
    lower_precision,
    lower_weights,
    use_channels_last,
    without_gradients,
)
from xruntime.optimization.plain_weights import PlainWeights
from xruntime.optimization.request import Request
from xruntime.optimization.steps import (
    Explanation,
    Outcome,
    SkipPassError,
    Step,
    Timing,
    remember,
    weight_bytes,
)
from xruntime.optimization.work import Modes, Work

PASSES: Final[Mapping[str, Callable[[Work], str]]] = {
    "no_grad": without_gradients,
    "dropout": remove_dropouts,
    "conv_bn": fold_convolutions,
    "linear_bn": fold_linears,
    "channels_last": use_channels_last,
    "precision": lower_precision,
    "weights": lower_weights,
    "join_linears": join_linears,
}
"""Each changes the work's model and modes, and returns what it did, or raises SkipPassError."""


def optimize_for_inference(request: Request) -> nn.Module:
    """Return the optimized module. If anything is raised, the model is as before."""
    counterparts: dict[int, Any] = {}
    subject = request.model if request.inplace else copy_of(request.model, counterparts)
    run = _Run(request, subject, counterparts)
    try:
        # Weights that are made here must work outside of a caller's inference mode, too.
        with torch.inference_mode(False):
            return run.optimized()
    except BaseException:
        run.work.edits.undo()
        raise


def copy_of(model: nn.Module, counterparts: dict[int, Any]) -> nn.Module:
    """Return a deep copy; `counterparts` receives the copy of each object by the original's id."""
    try:
        with torch.inference_mode(False):
            return copy.deepcopy(model, counterparts)
    except Exception as error:
        raise OptimizationError(
            f"{type(model).__name__} cannot be copied ({first_line(error)}): use inplace=True"
        ) from error


class _Run:
    """One call of `optimize` for inference."""

    def __init__(self, request: Request, model: nn.Module, counterparts: dict[int, Any]) -> None:
        self.request = request
        self.work = Work(model, request.call, request.dtype)
        self.plain = PlainWeights(request.model, counterparts)
        self.before = weight_bytes(model)
        self.steps: list[Step] = []
        self.check: Check | None = None

    def optimized(self) -> nn.Module:
        request, work = self.request, self.work
        kind = type(work.model)
        if work.call is not None:
            self.check = Check(work, request.tolerance)
            work.watch()
        original = self._untouched() if request.measure else None
        for name in PASSES:
            if name != "join_linears":
                self._run_pass(name)
        compiled: dict[str, Call] = self._compiled()
        mark = work.edits.mark()
        if compiled and not request.measure:
            self._note_joining_in_graph()
        else:
            self._run_pass("join_linears")
        timings: tuple[Timing, ...] = ()
        chosen = next(iter(compiled), "none")
        if original is not None:
            chosen, timings = self._fastest(original, compiled)
        if chosen == "input":
            work.edits.undo()
            work.modes = Modes()
            self._undo_steps("the input is the fastest")
        elif chosen != "none" and work.edits.mark() > mark:
            work.edits.undo(mark)
            self.steps = [step for step in self.steps if step.name != "join_linears"]
            self._note_joining_in_graph()
        return self._finish(kind, compiled.get(chosen), timings)

    def _run_pass(self, name: str) -> None:
        """Run one pass; undo it if the outputs differ then."""
        work = self.work
        obstacle = self.request.obstacle(name)
        if obstacle is not None:
            self.steps.append(Step(name, Outcome.SKIPPED, obstacle))
            return
        mark, modes = work.edits.mark(), work.modes
        outcome, reason = Outcome.APPLIED, ""
        try:
            reason = PASSES[name](work)
        except SkipPassError as skip:
            outcome, reason = Outcome.SKIPPED, str(skip)
        else:
            problem = None if self.check is None else self.check.problem(work.run)
            if problem is not None:
                outcome, reason = Outcome.UNDONE, f"{reason}, but {problem}"
        if outcome is not Outcome.APPLIED:
            work.edits.undo(mark)
            work.modes = modes
        self.steps.append(Step(name, outcome, reason))

    def _compiled(self) -> dict[str, Call]:
        """Return compiled forms of the model by their names in `GRAPHS`, each checked."""
        asked = self.request.graph
        reason = "the caller chose none" if asked == "none" else None
        if asked == "auto":
            if self.request.level == "O0":
                reason = "level O0"
            elif self.check is None:
                reason = "without sample_input compiled code cannot be checked"
            else:
                reason = graph_obstacle(self.work.model)
        elif asked != "none":
            obstacle = graph_obstacle(self.work.model)
            if obstacle is not None:
                raise OptimizationError(
                    f"graph={asked!r}: {obstacle}: remove them, or graph='none'"
                )
        if reason is not None:
            self._skip_graph(reason)
            return {}
        if asked != "auto":
            names = [asked]
        else:
            names = ["compile_cpp", "compile"] if self.request.measure else ["compile_cpp"]
        compiled: dict[str, Call] = {}
        for name in names:
            self._compile(name, compiled)
        if not compiled:
            self._no_prepacking()
        return compiled

    def _compile(self, name: str, compiled: dict[str, Call]) -> None:
        assert self.check is not None
        try:
            call = self._graph(name)
            outputs = self._call_compiled(call)
        except XLaunchError as error:
            if self.request.graph != "auto":
                raise OptimizationError(
                    f"graph={name!r}: {error}. graph='auto' does without, graph='none' does not try"
                ) from error
            self.steps.append(Step("graph", Outcome.SKIPPED, f"{name}: {error}"))
            return
        problem = self.check.outputs_problem(outputs)
        if problem is not None:
            if self.request.graph != "auto":
                raise OptimizationError(f"graph={name!r}: {problem}; allow more by tolerance=...")
            self.steps.append(Step("graph", Outcome.UNDONE, f"{name}: {problem}"))
            return
        pieces = call.graphs if isinstance(call, CompiledGraph) else 1
        cut = "in one graph" if pieces == 1 else f"in {pieces} graphs, with Python between them"
        self.steps.append(Step("graph", Outcome.APPLIED, f"{name}: {GRAPHS[name]}, {cut}"))
        if not compiled:
            reason = "torch's compiler packs the frozen weights for the CPU's instructions"
            self.steps.append(Step("prepack", Outcome.APPLIED, reason))
        compiled[name] = call

    def _graph(self, name: str) -> Call:
        model, modes = self.work.bare, self.work.modes
        if name == "package":
            assert self.work.call is not None
            return Package(model, modes, copied(self.work.call))
        return CompiledGraph(
            model,
            modes,
            cpp_wrapper=name == "compile_cpp",
            join_linears=self.request.obstacle("join_linears") is None,
            fallback=self.request.graph == "auto",
        )

    def _call_compiled(self, call: Call) -> Any:
        assert self.work.call is not None
        sample = copied(self.work.call)
        if isinstance(call, CompiledGraph):
            return call.compile_and_call(sample.args, sample.kwargs)
        return call(sample.args, sample.kwargs)

    def _skip_graph(self, reason: str) -> None:
        self.steps.append(Step("graph", Outcome.SKIPPED, reason))
        self._no_prepacking()

    def _no_prepacking(self) -> None:
        reason = "only torch's compiler packs weights, and the model is not compiled"
        self.steps.append(Step("prepack", Outcome.SKIPPED, reason))

    def _note_joining_in_graph(self) -> None:
        obstacle = self.request.obstacle("join_linears")
        reason = obstacle or "left to torch's compiler, which joins those of equal size"
        self.steps.append(Step("join_linears", Outcome.SKIPPED, reason))

    def _untouched(self) -> Callable[[], Any]:
        """Return a call of the input, which no pass changes."""
        call = self.work.call
        assert call is not None
        tensors = (*self.work.model.parameters(), *self.work.model.buffers())
        shared: dict[int, Any] = {id(tensor): tensor for tensor in tensors}
        twin = copy.deepcopy(self.work.bare, shared)
        sample = copied(call)

        def run() -> Any:
            with torch.no_grad():
                return twin(*sample.args, **sample.kwargs)

        return run

    def _fastest(
        self, original: Callable[[], Any], compiled: Mapping[str, Call]
    ) -> tuple[str, tuple[Timing, ...]]:
        """Time the input, the changed modules and the compiled forms; return the fastest's name."""
        work = self.work
        assert work.call is not None
        sample = copied(work.call)

        def modules() -> Any:
            with torch.no_grad():
                return work.call_model(sample)

        candidates: dict[str, Callable[[], Any]] = {"input": original}
        if self.request.graph in ("auto", "none"):
            candidates["none"] = modules
        for name, call in compiled.items():
            candidates[name] = lambda call=call: call(sample.args, sample.kwargs)  # type: ignore[misc]
        times = median_times(candidates)
        chosen = min(times, key=lambda name: times[name])
        timings = tuple(Timing(name, times[name], name == chosen) for name in times)
        self.steps = [
            step._replace(outcome=Outcome.UNDONE, reason=f"{step.reason}; slower than {chosen!r}")
            if step.name == "graph"
            and step.outcome is Outcome.APPLIED
            and not step.reason.startswith(f"{chosen}:")
            else step
            for step in self.steps
        ]
        if compiled and chosen not in compiled:
            self.steps = [step for step in self.steps if step.name != "prepack"]
            self._no_prepacking()
        return chosen, timings

    def _undo_steps(self, why: str) -> None:
        self.steps = [
            step._replace(outcome=Outcome.UNDONE, reason=f"{step.reason}; {why}")
            if step.outcome is Outcome.APPLIED
            else step
            for step in self.steps
        ]

    def _finish(
        self, kind: type[nn.Module], compiled: Call | None, timings: tuple[Timing, ...]
    ) -> nn.Module:
        work, request = self.work, self.request
        model = work.model
        self._final_check(compiled)
        self.plain.settle(model, work.edits.same_values, keep=request.keep_weights)
        applied = any(step.outcome is Outcome.APPLIED for step in self.steps)
        if applied:
            try:
                make_optimized(model, Held(kind, work.modes, compiled, self.plain))
            except Exception as error:
                raise OptimizationError(
                    f"{kind.__name__} allows no subclass to be made of it ({first_line(error)}), which"
                    " optimize() needs"
                ) from error
        explanation = Explanation(
            kind.__name__,
            request.level,
            tuple(self.steps),
            self.before,
            weight_bytes(model),
            self.plain.kept_bytes(model),
            None if self.check is None else self.check.latest,
            timings,
        )
        remember(model, explanation)
        return model

    def _final_check(self, compiled: Call | None) -> None:
        """Compare what is returned with the input: all passes together."""
        if self.check is None:
            return
        if compiled is None:
            problem = self.check.problem(self.work.run)
        else:
            problem = self.check.problem(lambda: self._call_compiled(compiled))
        if problem is not None:
            raise OptimizationError(
                f"{type(self.work.model).__name__}: each pass alone agrees with the model, and all together"
                f" do not: {problem}; switch some off by passes={{...}}"
            )
