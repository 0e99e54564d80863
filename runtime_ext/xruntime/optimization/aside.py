# SPDX-License-Identifier: Apache-2.0
"""Compiled code that replaces the modules when it is ready: from the cache, or compiled in the background.

    aside = CompiledAside(model, runner, tolerance=0.01, wait=False)
    outputs = aside(args, kwargs)      # of the modules, until there is code for calls like this one

Calls differ by their form and the caller's number of threads, autocast and default dtype. For each
such *lane* code is compiled after some calls, when it is known which sizes vary. It is compared with the
modules on the first calls that it serves, and left if it computes something else or is not faster.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import nn

from xruntime.kept.calls import FlatCall, flat_call
from xruntime.kept.fingerprint import Fingerprint, fingerprint
from xruntime.kept.making import (
    CAN_FORK,
    MAX_SHARING_THREADS,
    background,
)
from xruntime.kept.model_libraries import (
    CallKey,
    settings,
    store_for,
    stored_format,
)
from xruntime.kept.store import CodeStore, open_store
from xruntime.kept.turn import turn
from xruntime.kept.watched_state import FrozenModel
from xruntime.optimization.call_libraries import CallLibraries
from xruntime.optimization.runner import CallRunner, Modes
from xruntime.threads.team import can_resize_team, team_of

MAX_LANES: Final = 64
"""Maximum number of lanes: a value that differs from call to call, such as a time step, would make
one for each."""

_log = logging.getLogger("xruntime")


class CompiledAside:
    """The calls of one model.

    modes
        How compiled code is called, which may be in another precision than the modules.
    tolerance
        The largest difference from the modules' outputs, see `xruntime.compilation.judge`.
    wait
        Compile at the first call of each kind, and wait.
    """

    def __init__(
        self,
        model: nn.Module,
        runner: CallRunner,
        modes: Modes,
        *,
        tolerance: float,
        wait: bool,
    ) -> None:
        self.model = model
        self.runner = runner
        self.modes = modes
        self.tolerance = tolerance
        self.wait = wait
        self.frozen: FrozenModel | None = None
        """The model that code is compiled of, once it is finished; None if the caller sees its changes."""

        self.speedup = 1.0
        """How many times as fast as the input model the modules are, if that was measured. The child process may
        take from the program what the passes save."""

        self.times_code = True
        """Whether code is timed next to the modules, by calls; not while the caller times it next to the input."""

        self.report: Callable[[str], None] | None = None
        """Receives a line that says what runs from now on, and why; None: it goes to the log and to
        warnings, as in torch."""

        self.notes: list[str] = []
        """The lines so far."""

        self.began = time.perf_counter()
        self._lanes: dict[CallKey, CallLibraries] = {}
        self._kept_away: str | None = None
        self._leaves_core = False
        self._full = False
        _all.add(self)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the outputs."""
        began = time.perf_counter()
        call = None if self.is_changed() else flat_call(args, kwargs)
        if call is None:
            return self.plain(args, kwargs)
        lane = self._lane(call)
        return self._further(args, kwargs) if lane is None else lane(call, began)

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

    def _lane(self, call: FlatCall) -> CallLibraries | None:
        """Return the lane of a call like this one; None if there would be too many."""
        threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
        key = CallKey(call.form, threads, self.modes.autocast(), dtype)
        lane = self._lanes.get(key)
        if lane is None and len(self._lanes) < MAX_LANES:
            lane = self._lanes.setdefault(key, CallLibraries(self, key))
        return lane

    def has_kept_ranges(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether an earlier process kept code for this call that serves calls of other sizes, too."""
        call = flat_call(args, kwargs)
        lane = None if call is None else self._lane(call)
        if call is None or lane is None:
            return False
        found = [it.code.served for it in lane.libraries]
        return any(it.fixed is None and it.fits(call.sizes) for it in found)

    def _further(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._full:
            self._full = True
            self.note(f"calls of further forms are not compiled: there are {MAX_LANES} already")
        return self.plain(args, kwargs)

    @contextlib.contextmanager
    def beside(self, threads: int) -> Iterator[int]:
        """Let calls of so many threads leave a core within the block if they can; return the compiler's niceness.

        The compiler may take the CPU time that the passes save.
        """
        if self.wait:
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
    def compiled(self) -> bool:
        """Whether there is code for some calls."""
        return any(lane.libraries for lane in self._lanes.values())

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

    @property
    def waits(self) -> bool:
        """Whether the first code is being compiled."""
        return not self.compiled and any(lane.making for lane in self._lanes.values())

    def describe(self) -> str:
        """Say what computes the calls."""
        return "; ".join(self.notes) or "compiled aside; until then the modules are called"

    def renew_locks(self) -> None:
        for lane in self._lanes.values():
            lane.renew_locks()

    def note(self, line: str) -> None:
        """Report a line, and remember it for `describe`."""
        self.notes.append(line)
        turn.clear_line()
        (self.report or _log.info)(line)

    def plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the modules; with one thread less while the compiler is to have a core."""
        threads = torch.get_num_threads()
        fewer = self._leaves_core and threads > MAX_SHARING_THREADS
        with torch.no_grad(), team_of(threads - 1) if fewer else contextlib.nullcontext():
            return self.runner.plain(self.model, args, kwargs)

    @functools.cached_property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the model and of the settings that it is compiled with."""
        facts = (stored_format(), f"{self.modes}", settings())
        return fingerprint(self.model, self.runner.kind.forward, *facts)

    def store(self) -> CodeStore:
        """Return the store that has room for this model; say once if nothing is kept."""
        store = store_for(self.model)
        if store.temporary is not None and self._kept_away != store.temporary:
            self._kept_away = store.temporary
            self.note(f"compiled code is not kept: {store.temporary}")
        return store


_all: weakref.WeakSet[CompiledAside] = weakref.WeakSet()


def report_unfinished(line: str) -> None:
    """Report a line for each model whose first code is being compiled, if it would be kept."""
    if open_store().temporary is None:
        for aside in list(_all):
            if aside.waits and aside.report is not None:
                aside.report(line)


def _renew_locks() -> None:
    """Make new locks in a forked child, which has none of the parent's threads."""
    for aside in _all:
        aside.renew_locks()


if CAN_FORK:
    os.register_at_fork(after_in_child=_renew_locks)


def compiled_aside(model: nn.Module) -> CompiledAside | None:
    """Return the background compilation of a model that `optimize` returned; None without one."""
    runner = model.__dict__.get("_xruntime_optimized")
    compiled = None if runner is None else runner.compiled
    return compiled if isinstance(compiled, CompiledAside) else None
