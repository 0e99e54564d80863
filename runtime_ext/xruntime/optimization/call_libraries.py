# SPDX-License-Identifier: Apache-2.0
"""The libraries for one kind of calls of a model that `optimize` returned: made when enough calls were counted,
compared with the modules, and timed next to them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import torch
from torch import nn

from xruntime.compilation.inductor import first_line
from xruntime.compilation.judge import Trial, difference
from xruntime.errors import CompilationError, PackageError, PackageInputError
from xruntime.kept.calls import FlatCall, Nest, Sizes
from xruntime.kept.fingerprint import Fingerprint
from xruntime.kept.making import NotCompiledError, Order
from xruntime.kept.model_libraries import CallKey, Lane, LoadedLibrary, own_memory_problem
from xruntime.kept.store import CodeStore, open_store
from xruntime.kept.turn import turn
from xruntime.optimization.runner import CallRunner, Modes
from xruntime.pytrees import are_equal

START_AFTER_S: Final = 0.5
"""Compiling begins when calls without code have taken this time in all, so nothing is compiled for
short runs."""

MIN_CALLS: Final = 2

MAX_RUNNERS: Final = 16
"""Maximum number of calls of one model that run code at the same time."""

MAX_COMPARED_SIZES: Final = 4
"""Maximum number of sizes for which a call is compared with the modules."""

WRITES: Final = "a call changes its arguments"

MAX_SIZES: Final = 4096
"""Maximum number of remembered sizes."""


class CalledModel(Protocol):
    """What the libraries of one kind of calls need of their model, see `xruntime.optimization.aside`."""

    model: nn.Module
    runner: CallRunner
    modes: Modes
    tolerance: float
    wait: bool
    times_code: bool
    report: Callable[[str], None] | None
    began: float

    @property
    def fingerprint(self) -> Fingerprint: ...
    def plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...
    def is_changed(self, *, thorough: bool = False) -> bool: ...
    def beside(self, threads: int) -> contextlib.AbstractContextManager[int]: ...
    def store(self) -> CodeStore: ...
    def note(self, line: str) -> None: ...


class CallLibraries(Lane):
    """Calls of one form, made by threads with one number of threads, one autocast and default dtype."""

    def __init__(self, aside: CalledModel, key: CallKey) -> None:
        runners = max(1, min(MAX_RUNNERS, len(os.sched_getaffinity(0)) // key.threads))
        super().__init__(key, lambda: aside.fingerprint, runners, aside.note)
        self.aside = aside
        self._chosen: dict[Sizes, LoadedLibrary | None] = {}
        self.trials: dict[LoadedLibrary, tuple[Sizes, Trial]] = {}
        """Code that is timed by calls of these sizes."""
        self._seen: dict[Sizes, None] = {}
        """Sizes of calls without code, the latest last."""
        self._spent_s = 0.0
        self._calls = 0
        self.renew_locks()
        try:
            if not open_store().is_empty:
                self.find_kept()
        except Exception as error:  # noqa: BLE001 - the modules are called
            self._end(first_line(error))

    def renew_locks(self) -> None:
        self._changing = threading.RLock()
        self._waiting = threading.Lock()
        """Held by the thread that waits for code."""
        self.making = False

    def _end(self, reason: str) -> None:
        self.over = reason
        self.aside.note(f"not compiled: {reason}")

    def __call__(self, call: FlatCall, began: float) -> Any:
        sizes = call.sizes
        served = self._code_for(sizes)
        if served is None and self.aside.wait and self.over is None:
            with self._waiting:
                self._seen[sizes] = None
                self._start(call)
            served = self._code_for(sizes)
        if served is None:
            return self._modules(call)
        if sizes not in served.compared and len(served.compared) < MAX_COMPARED_SIZES:
            return self._compared(served, call)
        if served in self.trials and self.trials[served][0] == sizes:
            return self._tried(served, call, began)
        return self._computed(served, call)

    def _computed(self, served: LoadedLibrary, call: FlatCall) -> Any:
        """Call the code; the modules where it does not fit."""
        assert served.outputs is not None
        try:
            tensors = served.code(call.tensors, call.sizes)
        except PackageInputError:  # gaps of a kind that the form does not tell
            self._chosen[call.sizes] = None
        except PackageError as error:
            outputs = self.aside.plain(call.args, call.kwargs)  # raises if the arguments are wrong
            self._drop(served, str(error))
            return outputs
        else:
            return self.aside.modes.result(served.outputs.rebuilt(tensors))
        return self.aside.plain(call.args, call.kwargs)

    def _code_for(self, sizes: Sizes) -> LoadedLibrary | None:
        try:
            return self._chosen[sizes]
        except KeyError:
            pass
        with self._changing:
            served = self.fitting(sizes)
            if len(self._chosen) < MAX_SIZES:
                self._chosen[sizes] = served
        return served

    def _modules(self, call: FlatCall) -> Any:
        """Call the modules; start compiling if such calls take long."""
        aside, sizes = self.aside, call.sizes
        before = _copies(call.leaves) if not self._calls and self.over is None else None
        began = time.perf_counter()
        outputs = aside.plain(call.args, call.kwargs)
        spent_s = time.perf_counter() - began
        if before is not None and not are_equal(before, call.leaves):
            self._end(WRITES)
            return outputs
        if self.over is not None:
            if aside.report is None:
                aside.runner.warn("some calls", self.over)
            return outputs
        with self._changing:
            self._seen.pop(sizes, None)
            self._seen[sizes] = None
            if len(self._seen) > MAX_SIZES:
                del self._seen[next(iter(self._seen))]
            self._calls += 1
            self._spent_s += spent_s
            due = self._calls >= MIN_CALLS and self._spent_s >= START_AFTER_S
            if due and not self.making and self.over is None:
                refusal = Nest.like(outputs).refusal
                if refusal is not None:
                    self._end(refusal)
                else:
                    self._start(call)
        return outputs

    def _start(self, call: FlatCall) -> None:
        """Compile in a thread, for calls of all sizes that were seen."""
        if self.fitting(call.sizes) is not None:
            return  # it came meanwhile
        kind = self.aside.runner.kind
        try:
            what = (kind.__name__, self.aside.model, kind.forward, call)
            order = self.order(*what, seen=self._seen)
        except NotCompiledError as error:
            self.over = str(error)
            self.aside.note(f"calls of further sizes are not compiled: {self.over}")
            return
        self.making = True
        make = functools.partial(self._make, order)
        if self.aside.wait:
            turn.run(make, kind.__name__)
        else:
            turn.start(make)

    def _make(self, order: Order) -> None:
        """Find code in the store or compile it; runs in a thread."""
        aside = self.aside
        try:
            if aside.is_changed(thorough=True):
                self.over = "the model was changed"
                return
            with aside.beside(self.key.threads) as nice:
                made = self.find_or_make(aside.store(), order, nice)
            if not made.kept:
                how = "compiled" if aside.wait else "compiled aside"
                aside.note(f"{how} in {made.code.seconds:.1f} s for {order.pattern.described()}")
            with self._changing:
                self.add(made)
                self._seen.clear()
                self._chosen.clear()
        except NotCompiledError as error:
            self._end(str(error))
        except Exception as error:  # noqa: BLE001 - the modules go on
            self._end(first_line(error))
        finally:
            with self._changing:
                self.making = False
                self._spent_s = 0.0

    def _drop(self, served: LoadedLibrary, reason: str, *, remove: bool = True) -> None:
        """Stop using code; code with different outputs is removed from the store, too."""
        with self._changing:
            if served not in self.libraries:
                return
            self.libraries.remove(served)
            self.trials.pop(served, None)
            self._chosen.clear()
            self.over = reason
        if remove:
            open_store().remove(served.name)
        self.aside.note(f"the modules are called again: {reason}")

    def _compared(self, served: LoadedLibrary, call: FlatCall) -> Any:
        """Return the modules' outputs; compare the code's outputs and time with them.

        The modules are called once, as the program calls them; the code is called on copies of the arguments.
        """
        aside, sizes = self.aside, call.sizes
        with self._changing:
            first = served.outputs is None
            before = _copies(call.leaves)
            given = _code_tensors(call, before)
            expected = aside.plain(call.args, call.kwargs)
            if sizes in served.compared or served not in self.libraries:
                return expected  # another thread has compared it, or left it
            if not are_equal(before, call.leaves):
                self._drop(served, WRITES)
                return expected
            if first and aside.is_changed(thorough=True):
                return expected
            outputs = Nest.like(expected)
            try:
                tensors = served.code(given)
                problem = outputs.refusal or self._problem(outputs, expected, tensors)
                if problem is None and first:
                    problem = own_memory_problem(tensors, served.code(given))
            except PackageInputError:
                self._chosen[sizes] = None
                return expected
            except Exception as error:  # noqa: BLE001 - the modules go on
                problem = first_line(error)
            if problem is not None:
                self._drop(served, problem)
                return expected
            served.outputs = outputs
            served.compared.add(sizes)
            if first and aside.times_code:
                self.trials[served] = sizes, (trial := Trial("modules", "code"))
                self._decide(served, trial)
        return expected

    def _tried(self, served: LoadedLibrary, call: FlatCall, began: float) -> Any:
        """Compute a call by the form whose turn it is, and decide which is faster once that is known.

        The time of the code is from `began` on, with all that finds and checks it.
        """
        entered = time.perf_counter()
        with self._changing:
            found = self.trials.get(served)
            if found is None:  # another thread has decided
                return self._computed(served, call)
            _, trial = found
            of_code = trial.turn == "code"
            finding_s = (
                entered - began if of_code else 0.0
            )  # and none of the time in which this thread waited
            entered = time.perf_counter()
            if of_code:
                outputs = self._computed(served, call)
            else:
                outputs = self.aside.plain(call.args, call.kwargs)
            trial.note(finding_s + time.perf_counter() - entered)
            self._decide(served, trial)
        return outputs

    def _decide(self, served: LoadedLibrary, trial: Trial) -> None:
        """Let the code take over if it is faster, leave it if it is not, and go on with the trial otherwise."""
        faster = trial.is_faster
        if faster is None or self.trials.pop(served, None) is None:
            return
        if not faster:
            reason = f"the code is {trial.ratio:.2f} times as fast as they are"
            self._drop(served, reason, remove=False)
            return
        aside = self.aside
        after = "" if served.kept else f" after {time.perf_counter() - aside.began:.1f} s"
        whose = "code that was kept" if served.kept else "the code"
        aside.note(
            f"{whose} for {served.code.served.pattern.described()} takes over{after},"
            f" {trial.ratio:.2f} times as fast as the modules"
        )

    def _problem(self, outputs: Nest, expected: Any, tensors: Any) -> str | None:
        if len(tensors) != outputs.tensors:
            return f"the code returns {len(tensors)} tensors, and the modules {outputs.tensors}"
        made = self.aside.modes.result(outputs.rebuilt(tensors))
        try:
            found = difference(expected, made, self.aside.tolerance)
        except CompilationError as error:
            return str(error)
        return None if found.allowed else f"the code computes something else: {found}"


def _copies(leaves: list[Any]) -> list[Any]:
    """The leaves of a call with copies of its tensors."""
    return [it.detach().clone() if isinstance(it, torch.Tensor) else it for it in leaves]


def _code_tensors(call: FlatCall, copies: list[Any]) -> list[torch.Tensor]:
    """The tensors that code takes for a call, on memory that the call does not write to."""
    given = [it for it in call.leaves if isinstance(it, torch.Tensor)]
    copied = [it for it in copies if isinstance(it, torch.Tensor)]
    pairs = zip(call.tensors, given, copied, strict=True)
    return [copy if tensor is leaf else tensor for tensor, leaf, copy in pairs]
