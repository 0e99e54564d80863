# SPDX-License-Identifier: Apache-2.0
"""Compiled code that replaces the modules when it is ready: from the cache, or compiled in the background.

    aside = CompiledAside(model, runner, modes, tolerance=0.01, wait=False)
    outputs = aside(args, kwargs)      # of the modules, until there is code for calls like this one

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

from xruntime.kept.calls import FlatCall, flat_call
from xruntime.kept.making import MAX_SHARING_THREADS, background
from xruntime.kept.model_libraries import Policy
from xruntime.kept.served_model import ServedModel
from xruntime.kept.store import CodeStore
from xruntime.kept.watched_state import FrozenModel
from xruntime.optimization.runner import CallRunner, Modes
from xruntime.threads.team import can_resize_team, team_of
from xruntime.threads.torch_modes import Autocast

MAX_RUNNERS: Final = 16
"""Maximum number of calls of one model that run code at the same time."""


class CompiledAside(ServedModel):
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
        self.frozen: FrozenModel | None = None
        """The model that code is compiled of, once it is finished; None if the caller sees its changes."""

        self.speedup = 1.0
        """How many times as fast as the input model the modules are, if that was measured. The child process may
        take from the program what the passes save."""

        self._kept_away: str | None = None
        self._leaves_core = False

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the outputs."""
        began = time.perf_counter()
        call = None if self.is_changed() else flat_call(args, kwargs)
        if call is None:
            return self.plain(args, kwargs)
        lane = self.libraries_for(call)
        return self.plain(args, kwargs) if lane is None else lane(call, began)

    def plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the modules; with one thread less while the compiler is to have a core."""
        threads = torch.get_num_threads()
        fewer = self._leaves_core and threads > MAX_SHARING_THREADS
        with torch.no_grad(), team_of(threads - 1) if fewer else contextlib.nullcontext():
            return self.runner.plain(self.model, args, kwargs)

    def without_code(self, call: FlatCall, reason: str | None) -> Any:
        if reason is not None and self.report is None:
            self.runner.warn("some calls", reason)
        return self.plain(call.args, call.kwargs)

    def call_autocast(self) -> Autocast | None:
        return self.modes.autocast()

    def runners(self, threads: int) -> int:
        return max(1, min(MAX_RUNNERS, len(os.sched_getaffinity(0)) // threads))

    def result(self, outputs: Any) -> Any:
        return self.modes.result(outputs)

    def is_changed(self, *, thorough: bool = False) -> bool:
        """Whether the model, or a variable that it reads, was changed: compiled code is not used again then.

        Compiled code sees neither. A `thorough` look is at all modules, see `FrozenModel`.
        """
        reason = None if self.frozen is None else self.frozen.change(thorough=thorough)
        if reason is not None:
            reason += (
                " after optimize(), which compiled code does not see; change the original module and"
                " optimize it again"
            )
        elif "fingerprint" in self.__dict__:  # otherwise there is no code
            name = self.fingerprint.changed()
            reason = None if name is None else f"the global variable {name} was changed"
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
        call = flat_call(args, kwargs)
        lane = None if call is None else self.libraries_for(call)
        if call is None or lane is None:
            return False
        found = [it.code.served for it in lane.libraries]
        return any(it.fixed is None and it.fits(call.sizes) for it in found)

    @contextlib.contextmanager
    def beside(self, threads: int) -> Iterator[int]:
        """Let calls of so many threads leave a core within the block if they can; return the compiler's niceness.

        The compiler may take the CPU time that the passes save.
        """
        if self.policy.waits:
            yield 0
            return
        cpus = len(os.sched_getaffinity(0))
        chosen = background(self.speedup, threads, cpus)
        self._leaves_core = chosen.leaves_core and can_resize_team()
        try:
            yield chosen.nice
        finally:
            self._leaves_core = False

    @property
    def is_timing(self) -> bool:
        """Whether the modules and code take turns."""
        return any(lane.trials for lane in self._lanes.values())

    @property
    def is_settled(self) -> bool:
        """Whether it is decided what computes the calls: code, or the modules for good."""
        lanes = list(self._lanes.values())
        decided = any(lane.libraries or lane.over is not None for lane in lanes)
        return decided and not any(lane.making or lane.trials for lane in lanes)

    @property
    def refusal(self) -> str | None:
        """Why there is no code, once that is known."""
        reasons = [lane.over for lane in self._lanes.values() if lane.over is not None]
        return reasons[0] if reasons and not self.compiled else None

    def describe(self) -> str:
        """Say what computes the calls."""
        return "; ".join(self.notes) or "compiled aside; until then the modules are called"

    def store(self) -> CodeStore:
        """Return the store that has room for this model; say once if nothing is kept."""
        store = super().store()
        if store.temporary is not None and self._kept_away != store.temporary:
            self._kept_away = store.temporary
            self.note(f"compiled code is not kept: {store.temporary}")
        return store


def compiled_aside(model: nn.Module) -> CompiledAside | None:
    """Return the background compilation of a model that `optimize` returned; None without one."""
    runner = model.__dict__.get("_xruntime_optimized")
    compiled = None if runner is None else runner.compiled
    return compiled if isinstance(compiled, CompiledAside) else None
