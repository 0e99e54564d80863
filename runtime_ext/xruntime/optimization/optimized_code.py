# SPDX-License-Identifier: Apache-2.0
"""Compiled code that replaces the modules when it is ready: from the cache, or compiled in the background.

    code = OptimizedCode(model, runner, modes, tolerance=0.01, wait=False)
    outputs = code(args, kwargs)      # of the modules, until there is code for calls like this one

Calls differ by their form and the caller's number of threads, autocast and default dtype. `xruntime.kept.call_libraries` says
how the calls of one kind are served.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import nn

from xruntime.kept.calls import FlatCall
from xruntime.kept.making import MAX_SHARING_THREADS, compile_priority
from xruntime.kept.model_libraries import Policy
from xruntime.kept.served_model import ServedModel
from xruntime.kept.store import CodeStore
from xruntime.kept.watched_state import WatchedState
from xruntime.optimization.runner import CallRunner, Modes
from xruntime.threads.team import can_resize_team, team_of
from xruntime.threads.torch_modes import Autocast

MAX_RUNNERS: Final = 16
"""Maximum number of calls of one model that run code at the same time."""


class OptimizedCode(ServedModel):
    """The calls of one model that `optimize` returned.

    modes
        How compiled code is called, which may be in another precision than the modules.

    Other parameters are those of `ServedModel`.
    """

    def __init__(
        self, model: nn.Module, runner: CallRunner, modes: Modes, *, tolerance: float, wait: bool
    ) -> None:
        kind = runner.kind
        policy = Policy.WAIT if wait else Policy.BACKGROUND
        what = (model, kind.forward, kind.__name__, f"{modes}", policy)
        super().__init__(*what, tolerance=tolerance)
        self.runner = runner
        self.modes = modes
        self.frozen: WatchedState | None = None
        """What the model that code is compiled of holds, once it is finished, but for its own hooks, which run around code;
        None if the caller sees its changes and those of variables that it reads, before each call."""

        self.speedup = 1.0
        """How many times as fast as the input model the modules are, if that was measured. The child process may
        take from the program what the passes save."""

        self._leaves_core = False

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the outputs."""
        began = time.perf_counter()
        changed = self.frozen is not None and self.is_changed()
        served = None if changed else self.libraries_for(args, kwargs)
        if served is None:
            return self.eager(args, kwargs)
        libraries, call = served
        return libraries(call, began)

    def eager(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the modules; with one thread less while the compiler is to have a core."""
        threads = torch.get_num_threads()
        fewer = self._leaves_core and threads > MAX_SHARING_THREADS
        with torch.no_grad(), team_of(threads - 1) if fewer else contextlib.nullcontext():
            return self.runner.eager(self.model, args, kwargs)

    def without_code(self, call: FlatCall, reason: str | None) -> Any:
        if reason is not None and self.report is None:
            self.runner.warn("some calls", reason)
        return self.eager(call.args, call.kwargs)

    def call_autocast(self) -> Autocast | None:
        return self.modes.autocast()

    def runners(self, threads: int) -> int:
        return max(1, min(MAX_RUNNERS, len(os.sched_getaffinity(0)) // threads))

    def result(self, outputs: Any) -> Any:
        return self.modes.result(outputs)

    def is_changed(self) -> bool:
        """Whether the model, or a variable that it reads, was changed: compiled code is not used again then.

        Compiled code sees neither.
        """
        reason = None if self.frozen is None else self.frozen.change()
        if reason is not None:
            reason += (
                " after optimize(), which compiled code does not see; change the original module and"
                " optimize it again"
            )
        else:
            reason = self.changed_variable()
        if reason is None:
            return False
        if self.runner.compiled is self:
            self.runner.compiled = None
            self.note(f"the modules are called again: {reason}")
            if self.report is None:
                self.runner.warn("calls", reason)
        return True

    def has_kept_ranges(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether an earlier process kept code for this call that serves calls of other sizes, too."""
        served = self.libraries_for(args, kwargs)
        if served is None:
            return False
        libraries, call = served
        kept = [library.sizes for library in libraries.libraries]
        return any(sizes.fixed is None and sizes.fits(call.sizes) for sizes in kept)

    @contextlib.contextmanager
    def beside(self, threads: int) -> Iterator[int]:
        """Let calls of so many threads leave a core within the block if they can; return the compiler's niceness.

        The compiler may take the CPU time that the passes save.
        """
        if self.policy.waits:
            yield 0
            return
        cpus = len(os.sched_getaffinity(0))
        priority = compile_priority(self.speedup, threads, cpus)
        self._leaves_core = priority.leaves_core and can_resize_team()
        try:
            yield priority.nice
        finally:
            self._leaves_core = False

    @property
    def is_timing(self) -> bool:
        """Whether the modules and code take turns."""
        return any(kind.trials for kind in self.kinds)

    @property
    def is_settled(self) -> bool:
        """Whether it is decided what computes the calls: code, or the modules for good."""
        kinds = self.kinds
        decided = any(kind.libraries or kind.end_reason is not None for kind in kinds)
        return decided and not any(kind.compiling or kind.trials for kind in kinds)

    @property
    def refusal(self) -> str | None:
        """Why there is no code, once that is known."""
        if self.compiled:
            return None
        return next((kind.end_reason for kind in self.kinds if kind.end_reason), None)

    def describe(self) -> str:
        """Say what computes the calls."""
        return (
            "; ".join(self.notes) or "compiled in the background; until then the modules are called"
        )

    def store(self) -> CodeStore:
        """Return the store that has room for this model; say if nothing is kept."""
        store = super().store()
        if store.temporary is not None:
            self.note(f"compiled code is not kept: {store.temporary}")
        return store


def optimized_code(model: nn.Module) -> OptimizedCode | None:
    """Return the background compilation of a model that `optimize` returned; None without one."""
    runner = model.__dict__.get("_xruntime_optimized")
    compiled = None if runner is None else runner.compiled
    return compiled if isinstance(compiled, OptimizedCode) else None
