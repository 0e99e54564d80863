# SPDX-License-Identifier: Apache-2.0
"""Optimizes a model for inference: runs the passes, checks each on the sample, and compiles."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from xlaunch.errors import XLaunchError
from xruntime.compilation.inductor import first_line
from xruntime.errors import OptimizationError
from xruntime.kept.making import CAN_FORK
from xruntime.kept.watched_state import FrozenModel
from xruntime.optimization.aside import CompiledAside
from xruntime.optimization.folding import fold_convolutions, fold_linears, remove_dropouts
from xruntime.optimization.graph import GRAPHS, CompiledGraph, Package, graph_obstacle
from xruntime.optimization.measuring import median_times
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
from xruntime.optimization.run import Run
from xruntime.optimization.runner import Call, Modes, SlowCallWarning
from xruntime.optimization.steps import Outcome, Step, Timing, remember
from xruntime.optimization.work import Work

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

MIN_GAIN: Final = 1.05
"""A model that is not compiled is returned as it was if its calls take so many times as long otherwise."""


def optimize_for_inference(request: Request) -> nn.Module:
    """Return the optimized module. If anything is raised, the model is as before."""
    counterparts: dict[int, Any] = {}
    subject = request.model if request.inplace else copy_of(request.model, counterparts)
    run = _Run(request, subject, counterparts)
    gradients = torch.is_grad_enabled()
    try:
        # Weights that are made here must work outside of a caller's inference mode, too.
        with torch.inference_mode(False), torch.set_grad_enabled(gradients):
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


class _Run(Run):
    """One call of `optimize` for inference."""

    def __init__(self, request: Request, model: nn.Module, counterparts: dict[int, Any]) -> None:
        super().__init__(request, Work(model, request.call, request.dtype))
        self.work.runner.strict = request.graph != "auto"
        self.plain = PlainWeights(request.model, counterparts)
        self._not_kept = ""
        """Why code is compiled in this process, if that was not the first choice."""

    def optimized(self) -> nn.Module:
        request, work = self.request, self.work
        self.prepare()
        may_be_aside = self._may_be_aside()
        measures = self._may_measure() and (request.wait or not may_be_aside)
        original = self._untouched() if measures else None
        passes = {name: partial(change, work) for name, change in PASSES.items()}
        join = passes.pop("join_linears")
        self.run_passes(passes)
        mark = work.edits.mark()
        if may_be_aside:
            self.run_passes({"join_linears": join})
            if self._compiled_aside():
                return self._finish(())
            work.edits.undo(mark)
            self.steps = [step for step in self.steps if step.name != "join_linears"]
        compiled: dict[str, Call] = self._compiled()
        mark = work.edits.mark()
        if compiled and not request.measure:
            self._note_joining_in_graph()
        else:
            self.run_passes({"join_linears": join})
        timings: tuple[Timing, ...] = ()
        chosen = next(iter(compiled), "none")
        if original is not None and (request.measure or not compiled):
            chosen, timings = self._fastest(original, compiled)
        if chosen == "input":
            work.edits.undo()
            work.modes = Modes()
            self._undo_steps("the input is the fastest")
        elif chosen != "none" and work.edits.mark() > mark:
            work.edits.undo(mark)
            self.steps = [step for step in self.steps if step.name != "join_linears"]
            self._note_joining_in_graph()
        work.runner.compiled = compiled.get(chosen)
        self._final_check()
        return self._finish(timings)

    def _may_be_aside(self) -> bool:
        """Whether code may take over from the modules later."""
        return (
            CAN_FORK
            and self.request.graph == "auto"
            and self.request.level != "O0"
            and not self.request.measure
            and self.check is not None
            and not self.check.may_change_arguments
            and self._obstacle() is None
        )

    def _compiled_aside(self) -> bool:
        """Have the modules compiled aside; False if that is to be waited for and fails."""
        assert self.check is not None
        work, request = self.work, self.request
        aside = CompiledAside(
            work.model,
            work.runner,
            tolerance=self.check.tolerance,
            input_s=self.check.input_s,
            wait=request.wait,
        )
        if request.wait:
            aside.report = lambda _line: None  # there is another way to compile, if this fails
            self._call_compiled(aside)
            aside.report = None
            if not aside.compiled:
                self._not_kept = f"; it is not kept: {aside.describe()}"
                return False
        work.runner.compiled = aside
        return True

    def _may_measure(self) -> bool:
        """Whether the forms may have to be timed: if asked, or if the model turns out not to compile."""
        request = self.request
        return request.measure or (
            request.graph == "auto"
            and request.level != "O0"
            and self.check is not None
            and self.check.side_effect is None
            and not request.inplace  # it may be a model that cannot be copied
        )

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
                reason = self._obstacle()
        elif asked != "none":
            obstacle = self._obstacle()
            if obstacle is not None:
                raise OptimizationError(
                    f"graph={asked!r}: {obstacle}: remove that, or graph='none'"
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

    def _obstacle(self) -> str | None:
        """Why compiled code would compute something else; None if it need not."""
        assert self.check is not None
        changed = self.check.side_effect
        if changed is not None:
            return f"a call changes the module ({changed}), which compiled code would not"
        return graph_obstacle(self.work.model)

    def _compile(self, name: str, compiled: dict[str, Call]) -> None:
        assert self.check is not None
        try:
            call = self._graph(name)
            outputs = self._call_compiled(call)
        except Exception as error:
            reason = str(error) if isinstance(error, XLaunchError) else first_line(error)
            if self.request.graph != "auto":
                raise OptimizationError(
                    f"graph={name!r}: {reason}. graph='auto' does without, graph='none' does not try"
                ) from error
            self.steps.append(Step("graph", Outcome.SKIPPED, f"{name}: {reason}"))
            return
        problem = self.check.outputs_problem(outputs)
        if problem is not None:
            if self.request.graph != "auto":
                raise OptimizationError(f"graph={name!r}: {problem}; allow more by tolerance=...")
            self.steps.append(Step("graph", Outcome.UNDONE, f"{name}: {problem}"))
            return
        pieces = call.graphs if isinstance(call, CompiledGraph) else 1
        cut = "in one graph" if pieces == 1 else f"in {pieces} graphs, with Python between them"
        if pieces > 1 and self.request.graph == "auto" and self.check.may_change_arguments:
            reason = f"{name}: {cut}, and a call may change its arguments: it could not be repeated"
            self.steps.append(
                Step("graph", Outcome.SKIPPED, f"{reason} where one of the graphs fails")
            )
            return
        self.steps.append(
            Step("graph", Outcome.APPLIED, f"{name}: {GRAPHS[name]}, {cut}{self._not_kept}")
        )
        if not compiled:
            reason = "torch's compiler packs the frozen weights for the CPU's instructions"
            self.steps.append(Step("prepack", Outcome.APPLIED, reason))
        compiled[name] = call

    def _graph(self, name: str) -> Package | CompiledGraph:
        model, runner = self.work.model, self.work.runner
        if name == "package":
            assert self.work.call is not None
            return Package(model, runner, copied(self.work.call))
        return CompiledGraph(
            model,
            runner,
            cpp_wrapper=name == "compile_cpp",
            join_linears=self.request.obstacle("join_linears") is None,
        )

    def _call_compiled(self, call: Package | CompiledGraph | CompiledAside) -> Any:
        """Return the outputs on the sample. Raises where `call` cannot compute them."""
        runner = self.work.runner
        runner.compiled = call.compile_and_call if isinstance(call, CompiledGraph) else call
        try:
            return self.work.run()
        finally:
            runner.compiled = None

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
        twin = copy.deepcopy(self.work.model, shared)
        sample = copied(call)
        return lambda: twin(*sample.args, **sample.kwargs)

    def _fastest(
        self, original: Callable[[], Any], compiled: Mapping[str, Call]
    ) -> tuple[str, tuple[Timing, ...]]:
        """Time the input, the changed modules and the compiled forms; return the fastest's name.

        In the caller's grad mode, as the calls will probably be.
        """
        work = self.work
        assert work.call is not None
        sample = copied(work.call)

        def called(compiled: Call | None) -> Callable[[], Any]:
            def call() -> Any:
                work.runner.compiled = compiled
                return work.model(*sample.args, **sample.kwargs)

            return call

        candidates: dict[str, Callable[[], Any]] = {"input": original}
        if self.request.graph in ("auto", "none"):
            candidates["none"] = called(None)
        candidates |= {name: called(call) for name, call in compiled.items()}
        with work.as_returned():
            times = median_times(candidates)
        chosen = min(times, key=lambda name: times[name])
        if not self.request.measure and times[chosen] * MIN_GAIN > times["none"]:
            chosen = "none"
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

    def _finish(self, timings: tuple[Timing, ...]) -> nn.Module:
        work, request = self.work, self.request
        model = work.model
        self._warn()
        self.plain.settle(model, work.edits.same_values, keep=request.keep_weights)
        if any(step.outcome is Outcome.APPLIED for step in self.steps):
            model.__dict__["_xruntime_plain"] = self.plain
            work.become_optimized()
        if work.runner.compiled is not None:
            work.runner.frozen = FrozenModel(model)
        made = self.explanation(self.plain.kept_bytes(model), timings)
        aside = work.runner.compiled
        remember(model, made, aside if isinstance(aside, CompiledAside) else None)
        return model

    def _warn(self) -> None:
        """Say so if the model was to be compiled and is not."""
        step = next((step for step in self.steps if step.name == "graph"), None)
        request = self.request
        tried = request.graph == "auto" and request.level != "O0" and self.check is not None
        if tried and step is not None and step.outcome is not Outcome.APPLIED:
            warnings.warn(
                f"{self.work.runner.kind.__name__} is not compiled: {step.reason}",
                SlowCallWarning,
                stacklevel=6,
            )

    def _final_check(self) -> None:
        """Compare what is returned with the input: all passes together."""
        problem = None if self.check is None else self.check.problem(self.work.run)
        if problem is not None:
            raise OptimizationError(
                f"{type(self.work.model).__name__}: each pass alone agrees with the model, and all together"
                f" do not: {problem}; switch some off by passes={{...}}"
            )
