# SPDX-License-Identifier: Apache-2.0
"""Intercepts the outermost calls of modules in a program, and routes them to optimized forms.

`torch.nn.Module.__call__` is replaced once, right after torch was imported, and stays replaced:
torch.compile then takes the replacement for the original. Nothing else of the program is changed: modules
keep their class and attributes, and what is known about them is kept beside them.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

import torch

from xruntime.compilation.judge import TOLERANCES, compared_speed, tolerance_for
from xruntime.devices import cpu_bf16_flags
from xruntime.generation.decode_step import DecodeStep
from xruntime.generation.language_models import called_by_generate, generates
from xruntime.generation.linear_layers import linear_kinds
from xruntime.generation.linear_rows import available, few_rows
from xruntime.kept.served_model import report_unfinished
from xruntime.optimization.arguments import OptimizeRequest, checked
from xruntime.optimization.inference import optimize_for_inference
from xruntime.optimization.run import KnownCall
from xruntime.optimization.steps import PassOutcome, explain
from xruntime.program_hook.refusals import (
    DifferentError,
    NotYetError,
    PipelineError,
    SlowerError,
    UnfitError,
    caller_refusal,
    mode_refusal,
    module_refusal,
)
from xruntime.program_hook.routed import RoutedModule
from xruntime.threads.torch_modes import transformed

MAX_MODULES: Final = 8
"""So many modules are optimized, each in the time of a compilation. A program that calls ``model.forward``
calls every block of a model as one."""

MAX_FIRST_CALLS: Final = 3
"""Maximum number of calls that may change a module; after that it is left alone."""

AMX: Final = "amx_bf16"
"""With these instructions bf16 is faster than fp32 on every CPU that has them."""

MAX_BF16_TIME: Final = 1.2
"""Where a product of matrices takes longer in bf16, relative to fp32, no model is tried in bf16."""

MAX_LINES: Final = 40
MAX_REFUSED_CALLS: Final = 100
"""Maximum number of refused calls; after that a module is left alone for good."""


STEP_ATTRIBUTE: Final = "_xruntime_decode_step"
"""Where a model's step is: it refers to the model, so that a table of steps would keep every model."""


class _Thread(threading.local):
    inside = False
    """Whether the thread is in the call of a module for which a decision was made."""

    linears: tuple[type, ...] = ()
    """Of a language model: the classes of its layers that `few_rows` may compute."""


@dataclass
class _ModuleState:
    """The state of one module."""

    routed: RoutedModule | None = None
    left: bool = False
    generating: bool = False
    """Whether it belongs to a language model."""

    parts: bool = False
    """Whether it is left alone and its parts are considered instead."""

    fp32: bool = False
    """Whether bf16 was tried and differed too much."""

    refused_calls: int = 0


class Interception:
    """The decisions of one process, with the precision of ``xlaunch --optimize``: auto, fp32 or bf16.

    `wait`: compile before a model's first call (``--optimize-wait``).
    """

    def __init__(self, precision: str, *, wait: bool) -> None:
        self._wait = wait
        self.thread = _Thread()
        self.active = True
        self._asked = precision
        self._auto = precision == "auto"
        self._states: weakref.WeakKeyDictionary[torch.nn.Module, _ModuleState] = (
            weakref.WeakKeyDictionary()
        )
        self._parts: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        """Parts of modules for which a decision was made: their calls run unchanged."""

        self._deciding = threading.Lock()
        self._optimized = 0
        self._lines = 0
        self._refusals: set[tuple[type, str]] = set()
        """Those that were reported."""

        self._pid = os.getpid()
        self.run = torch.nn.Module.__call__

    def install(self) -> None:
        """Replace `torch.nn.Module.__call__`."""
        thread, original, outermost = self.thread, self.run, self.outermost
        compiling = torch.compiler.is_compiling
        callback = torch._C._dynamo.eval_frame.get_eval_frame_callback  # noqa: SLF001

        def call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            # torch.compile evaluates the first condition when it traces this.
            if compiling() or callback() is not None:
                return original(self, *args, **kwargs)
            if thread.inside:
                if (
                    type(self) in thread.linears
                    and len(args) == 1
                    and not kwargs
                    and _has_no_hooks(self)
                ):
                    output = few_rows(self, args[0])
                    if output is not None:
                        return output
                return original(self, *args, **kwargs)
            return outermost(self, args, kwargs)

        # torch.compile starts at the first frame that is not in this file of torch's, and stores code
        # by code object: here all modules of a program would share one.
        place = original.__code__
        call.__code__ = call.__code__.replace(
            co_filename=place.co_filename,
            co_firstlineno=place.co_firstlineno,
            co_name=place.co_name,
        )
        call.__name__, call.__qualname__ = original.__name__, original.__qualname__
        torch.nn.Module.__call__ = call  # type: ignore[method-assign]
        atexit.register(self._report_end)
        if hasattr(os, "register_at_fork"):
            # A forked child lacks the threads of the parent's torch.
            os.register_at_fork(after_in_child=partial(setattr, self, "active", False))

    def outermost(self, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """Call `module` or its optimized form. Nested calls are not intercepted."""
        self.thread.inside = True
        try:
            try:
                state = self._states.get(module)
            except TypeError:  # it cannot be hashed
                return self.run(module, *args, **kwargs)
            if type(module).__eq__ is not object.__eq__:  # the state may be that of another module
                return self.run(module, *args, **kwargs)
            if state is not None and state.generating and self.active:
                return self._generating(module, args, kwargs)
            if not self.active or (state is not None and state.left):
                self.thread.inside = state is None or not state.parts
                return self.run(module, *args, **kwargs)
            routed = None if state is None else state.routed
            if state is not None and routed is not None:
                try:
                    return routed(module, args, kwargs)
                finally:
                    if routed.failure is not None and state.routed is routed:
                        self._give_up(state, module, routed.failure)
            # Another thread that comes meanwhile, also one that optimizing starts, does not wait.
            if not self._deciding.acquire(blocking=False):
                return self.run(module, *args, **kwargs)
            try:
                return self._decide(module, args, kwargs)
            finally:
                self._deciding.release()
        finally:
            self.thread.inside = False

    def _decide(self, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """Call a module that has no optimized form, and make one if it can be made."""
        state = self._states.setdefault(module, _ModuleState())
        if state.left or state.routed is not None:
            return self.run(module, *args, **kwargs)
        # A language model, or a part that generate() calls, which nothing is compiled for.
        caches = generates(module) and kwargs.get("use_cache") is not False
        if caches or called_by_generate():
            self._serve_generation(state, module)
            if state.generating:
                return self._generating(module, args, kwargs)
            return self.run(module, *args, **kwargs)
        refusal = UnfitError()
        routed: RoutedModule | None = None
        try:
            self._check(module, args, kwargs)
            dtype = self._dtype_for(state, module)
            tolerance = TOLERANCES[dtype] if dtype else tolerance_for(module.parameters(), None)
            routed = RoutedModule(module, self.run, args, kwargs, tolerance)
        except UnfitError as error:
            refusal = error.with_traceback(None)  # which has this frame with its arguments
        except Exception as error:  # noqa: BLE001 - the program goes on
            refusal = NotYetError(_text(error))
        if routed is None:
            self._refuse(state, module, refusal)
            return self.run(module, *args, **kwargs)
        began = time.perf_counter()
        outputs, failure = routed.prepare(
            *(module, args, kwargs, partial(_optimized_form, dtype=dtype, wait=self._wait)),
            must_be_faster=self._auto and dtype is torch.bfloat16,
        )
        if failure is None:
            self._keep(state, module, routed, time.perf_counter() - began)
        elif isinstance(failure, NotYetError) and state.refused_calls < MAX_FIRST_CALLS:
            self._refuse(state, module, failure if state.refused_calls else NotYetError())
        else:
            self._give_up(state, module, failure)
        return outputs

    def _serve_generation(self, state: _ModuleState, module: torch.nn.Module) -> None:
        refusal = module_refusal(module)
        if refusal is None and not available():
            refusal = UnfitError("there is no native library: see python -m xruntime kernels")
        if refusal is not None:
            self._refuse(state, module, refusal)
            return
        state.generating = True
        self._parts.update(part for part in module.modules() if part is not module)
        kind, step = type(module), ""
        report = partial(self._report, kind.__name__)
        # An UndescribedError, or what the program's model raises.
        with contextlib.suppress(Exception):
            vars(module)[STEP_ATTRIBUTE] = DecodeStep(module, kind, report, report)
            step = "each token is one native call; "
        line = (
            f"{'generates' if generates(module) else 'called by generate()'}: {step}linears of 1 to 3 rows run by native code, in"
            f" {_dtypes_of(module)} as the program loads it; nothing is compiled"
        )
        if (kind, line) not in self._refusals:
            self._refusals.add((kind, line))
            self._say(f"{kind.__name__}: {line}")

    def _generating(self, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """Call a module's decode step, or the module with its linears of few rows computed by native code."""
        self.thread.linears = linear_kinds()
        try:
            step = vars(module).get(STEP_ATTRIBUTE)
            if step is not None and _has_no_hooks(module):
                return step(partial(self.run, module), args, kwargs)
            return self.run(module, *args, **kwargs)
        finally:
            self.thread.linears = ()

    def _give_up(self, state: _ModuleState, module: torch.nn.Module, failure: Exception) -> None:
        """Abandon the optimized form; try fp32 if bf16 was chosen automatically."""
        unfit = isinstance(failure, DifferentError | SlowerError)
        routed, state.routed = state.routed, None
        code = None if routed is None else routed.code
        if code is not None:
            code.report = None  # no call gets the code that it may be compiling
        if unfit and self._auto and self._dtype_for(state, module) is torch.bfloat16:
            state.fp32 = True
            self._say(f"{type(module).__name__}: fp32 is tried, because in bf16 {failure}")
        else:
            reason = f"{_text(failure)}{'; it ran optimized until now' if routed else ''}"
            kind = PipelineError if isinstance(failure, PipelineError) else UnfitError
            self._refuse(state, module, kind(reason))

    def _check(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """Raise UnfitError for a module that is left alone, and NotYetError for a call that is."""
        if module in self._parts:
            raise UnfitError
        if transformed():
            raise UnfitError("torch traces, transforms or hooks its calls")
        refusal = module_refusal(module) or caller_refusal() or mode_refusal(module, args, kwargs)
        if refusal is not None:
            raise refusal
        if self._optimized == MAX_MODULES:
            raise UnfitError(f"{MAX_MODULES} modules are optimized already")

    def _keep(
        self, state: _ModuleState, module: torch.nn.Module, routed: RoutedModule, elapsed_s: float
    ) -> None:
        assert routed.optimized is not None
        state.routed = routed
        self._optimized += 1
        self._parts.update(part for part in module.modules() if part is not module)
        self._parts.update(routed.optimized.modules())
        steps = explain(routed.optimized).steps
        code = routed.code
        if code is not None:
            code.report = partial(self._report, type(module).__name__)
            steps = tuple([step for step in steps if step.name != "graph"])
        applied = [step.name for step in steps if step.outcome is PassOutcome.APPLIED]
        others = [f"{step.name} ({step.reason})" for step in steps if step.name not in applied]
        ours = "precision" in applied and not state.fp32
        chosen = self._precision[1] if ours else _dtypes_of(module)
        graph = "" if code is None else f" graph: {code.describe()};"
        self._say(
            f"{type(module).__name__}: optimized in {elapsed_s:.1f} s: {chosen}; {', '.join(applied)};"
            f"{graph} {routed.difference}; not applied: {'; '.join(others) or 'nothing'}"
        )

    def _report(self, name: str, line: str) -> None:
        self._say(f"{name}: {line}")

    @functools.cached_property
    def _precision(self) -> tuple[bool, str]:
        return chosen_precision(self._asked)

    def _dtype_for(self, state: _ModuleState, module: torch.nn.Module) -> torch.dtype | None:
        """The precision to compute in; None: the module keeps its own."""
        if {parameter.dtype for parameter in module.parameters()} != {torch.float32}:
            return None
        bf16, _ = self._precision
        return torch.bfloat16 if bf16 and not state.fp32 else torch.float32

    def _refuse(self, state: _ModuleState, module: torch.nn.Module, refusal: UnfitError) -> None:
        state.refused_calls += 1
        final = not isinstance(refusal, NotYetError)
        state.left = final or state.refused_calls >= MAX_REFUSED_CALLS
        state.parts = isinstance(refusal, PipelineError)
        reason = str(refusal)
        if state.left and not state.parts:
            with contextlib.suppress(TypeError):  # a part cannot be hashed
                self._parts.update(part for part in module.modules() if part is not module)
        if reason and (type(module), reason) not in self._refusals:
            self._refusals.add((type(module), reason))
            self._say(f"{type(module).__name__}: left as it is: {reason}")

    def _say(self, text: str) -> None:
        self._lines += 1
        if self._lines == MAX_LINES:
            text = "further modules are not reported"
        if self._lines <= MAX_LINES and sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):  # it is closed
                line = f"xruntime: optimize: {' '.join(text.split())}"
                print(line, file=sys.stderr, flush=True)

    def _report_end(self) -> None:
        if os.getpid() != self._pid:
            return
        if not self._lines:
            self._say("nothing is optimized: the program called no module that has parameters")
        report_unfinished(
            "the program ended before its code was compiled; xlaunch cache warm --optimize"
            f" {self._asked} -- PROGRAM, with the layout of this launch, compiles it for later starts"
        )
        self._lines = MAX_LINES  # the compiler ends now, which is no further report


def _dtypes_of(module: torch.nn.Module) -> str:
    """The dtypes of its weights, in words."""
    dtypes = {str(parameter.dtype) for parameter in module.parameters()}
    return ", ".join(sorted(dtypes)).replace("torch.", "")


def _has_no_hooks(module: torch.nn.Module) -> bool:
    """Whether a call of this module calls its class's `forward`, and nothing else."""
    own, global_hooks = module.__dict__, cast("Any", torch.nn.modules.module)._has_any_global_hook  # noqa: SLF001
    return (
        "forward" not in own
        and not (own["_forward_hooks"] or own["_forward_pre_hooks"])
        and not (own["_backward_hooks"] or own["_backward_pre_hooks"])
        and not global_hooks()
    )


def _optimized_form(
    module: torch.nn.Module,
    sample: tuple[Any, Any],
    known_call: KnownCall,
    *,
    dtype: torch.dtype | None,
    wait: bool,
) -> torch.nn.Module:
    request = OptimizeRequest(module, sample, dtype=dtype, wait=wait, keep_weights=False)
    # `RoutedModule` sees changes of the program's module, whose weights the form uses.
    return optimize_for_inference(checked(request), known_call)


def chosen_precision(asked: str) -> tuple[bool, str]:
    """Whether to compute in bf16, and the reason for the report."""
    if asked != "auto":
        return asked == "bf16", asked
    flags = cpu_bf16_flags()
    if not flags:
        return False, "fp32 (auto: this CPU has no instructions for bf16)"
    if AMX not in flags and (ratio := _bf16_time()) > MAX_BF16_TIME:
        return False, (
            f"fp32 (auto: this CPU has {flags[0]}, and takes {ratio:.1f} times as long to multiply"
            " matrices in bf16)"
        )
    return True, f"bf16 (auto: this CPU has {flags[0]})"


def _bf16_time() -> float:
    """How long a product of matrices takes in bf16, relative to fp32: some milliseconds decide."""
    with torch.inference_mode():
        rows, weights = torch.ones(256, 768), torch.ones(768, 768)
        low = rows.bfloat16(), weights.bfloat16()
        trial = compared_speed(
            ("fp32", lambda: torch.nn.functional.linear(rows, weights)),
            ("bf16", lambda: torch.nn.functional.linear(*low)),
        )
    return 1 / trial.ratio


def _text(error: Exception) -> str:
    text = str(error).strip()
    return text if isinstance(error, UnfitError) else f"{type(error).__name__}: {text}"[:400]
