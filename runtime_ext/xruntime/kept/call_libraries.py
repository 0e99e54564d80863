# SPDX-License-Identifier: Apache-2.0
"""The libraries for one kind of calls of a model: found in the store or made, compared with the modules, and timed
next to them.

A call is served so:

1. `ServedModel` looks up the libraries for its form, threads, autocast and default dtype; at the first such call
   those in the store are loaded.
2. Without a library for its sizes the modules compute it. Code is made before that if calls wait for it, and
   otherwise in the background, after calls that took `START_AFTER_S`.
3. The first calls that a library could serve are computed by the modules, and compared with it.
4. Where code is timed, the next calls alternate between the modules and the library. The slower one is left.
5. All others are computed by the library.
"""

from __future__ import annotations

import functools
import threading
import time
from typing import Any, Final, NamedTuple

import torch
from torch.utils import _pytree as pytree

from xruntime.compilation.inductor import first_line
from xruntime.compilation.judge import Trial, difference
from xruntime.errors import CompilationError, PackageError, PackageInputError
from xruntime.kept.calls import FlatCall, Nest, Pattern, Sizes
from xruntime.kept.making import NotCompiledError, Order, compile_in_child
from xruntime.kept.model_libraries import (
    CalledModel,
    CallKey,
    LoadedLibrary,
    ModelCall,
    own_memory_problem,
    own_tensor_problem,
)
from xruntime.kept.store import Code, CodeStore, Refused, open_store, write_refusal
from xruntime.kept.turn import turn
from xruntime.kept.watched_state import WatchedState
from xruntime.pytrees import are_equal

START_AFTER_S: Final = 0.5
"""Compiling begins when calls without code have taken this time in all, so nothing is compiled for
short runs."""

MIN_CALLS: Final = 2

MAX_CODES: Final = 4
"""Maximum number of libraries for calls of one key; calls of other sizes run without one."""

MAX_COMPARED_SIZES: Final = 4
"""Maximum number of sizes for which a call is compared with the modules."""

MAX_SIZES: Final = 4096
"""Maximum number of remembered sizes."""

WRITES: Final = "a call changes its arguments"
CHANGED: Final = "the model was changed"


class _Called(NamedTuple):
    """A call that the modules computed."""

    outputs: Any
    tensors: list[torch.Tensor]
    """The arguments' tensors as they were before."""

    problem: str | None
    """Why no code can replace the call."""


class CallLibraries:
    """Calls of one form, made by threads with one number of threads, one autocast and default dtype."""

    def __init__(self, owner: CalledModel, key: CallKey) -> None:
        self.owner = owner
        self.key = key
        self.libraries: list[LoadedLibrary] = []
        self.samples: dict[Pattern, Sizes] = {}
        """The sizes of the sample by pattern, for each library that exists or is being made."""

        self.over: str | None = None
        """Why no more libraries are made; None while they may be."""

        self.trials: dict[LoadedLibrary, tuple[Sizes, Trial]] = {}
        """Code that is timed by calls of these sizes."""

        self._chosen: dict[Sizes, LoadedLibrary | None] = {}
        self._seen: dict[Sizes, None] = {}
        """Sizes of calls without code, the latest last."""

        self._spent_s = 0.0
        self._calls = 0
        self._runners = owner.runners(key.threads)
        self.renew_locks()
        try:
            problem = owner.obstacle(key.form)
            if problem is not None:
                self._end(problem)
            elif not open_store().is_empty:
                self._find_kept()
        except Exception as error:  # noqa: BLE001 - the modules are called
            self._end(first_line(error))

    def renew_locks(self) -> None:
        self._changing = threading.RLock()
        self._checking = threading.RLock()
        """Held by the thread that compares code, or waits for it."""

        self.making = False

    def __call__(self, call: FlatCall, began: float) -> Any:
        """Return the outputs. `began`: when the call was, for the time that finding code takes."""
        sizes, owner = call.sizes, self.owner
        served = self._code_for(sizes)
        if served is None:
            waits = owner.policy.waits and self.over is None and self.fitting(sizes) is None
            return self._checked(call, began) if waits else self._counted(call)
        limit = 1 if owner.is_for_streams else MAX_COMPARED_SIZES
        if sizes not in served.compared and len(served.compared) < limit:
            return self._checked(call, began)
        if served in self.trials and self.trials[served][0] == sizes:
            return self._tried(served, call, began)
        return self._computed(served, call)

    def serves(self, sizes: Sizes) -> bool:
        """Whether there is code for calls of these sizes that was compared."""
        served = self._chosen.get(sizes)
        return served is not None and served.outputs is not None

    def fitting(self, sizes: Sizes) -> LoadedLibrary | None:
        """Return the library for calls of these sizes; None without one."""
        return next((it for it in self.libraries if it.code.served.fits(sizes)), None)

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

    def _counted(self, call: FlatCall) -> Any:
        """Compute a call without code; start compiling if such calls take long."""
        owner, sizes = self.owner, call.sizes
        if self.over is not None or owner.policy.waits:
            return owner.without_code(call, self.over)
        before = _copies(call.leaves) if not self._calls else None
        began = time.perf_counter()
        outputs = owner.plain(call.args, call.kwargs)
        spent_s = time.perf_counter() - began
        if before is not None and not are_equal(before, call.leaves):
            self._end(WRITES)
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

    def _checked(self, call: FlatCall, began: float) -> Any:
        """Compute a call by the modules, and compare code with them, which is made first if there is none.

        Where the modules were called on copies, other code computes the call.
        """
        owner, sizes = self.owner, call.sizes
        with self._checking:  # other threads wait, and then find it
            served = self._code_for(sizes)
            if self.over is not None if served is None else sizes in served.compared:
                return self(call, began)
            called = self._called(call, first=served is None or served.outputs is None)
            if served is None and called.problem is None:
                self._seen[sizes] = None
                self._start(call)
                served = self._code_for(sizes)
            if served is not None:
                self._judge(served, sizes, called)
            elif called.problem is not None:
                self._end(called.problem)
        if not owner.is_for_streams:
            return called.outputs
        if served is None or served.outputs is None:
            return owner.without_code(call, self.over)
        return self._computed(served, call)

    def _start(self, call: FlatCall) -> None:
        """Compile in a thread, for calls of all sizes that were seen."""
        if self.fitting(call.sizes) is not None:
            return  # it came meanwhile
        owner = self.owner
        try:
            order = self._order(call)
        except NotCompiledError as error:
            self.over = str(error)
            owner.note(f"calls of further sizes are not compiled: {self.over}")
            return
        self.making = True
        make = functools.partial(self._make, order)
        if owner.policy.waits:
            turn.run(make, owner.name)
        else:
            turn.start(make)

    def _order(self, call: FlatCall) -> Order:
        """Return the order for a library that serves this call and others, and record that it is
        being made.

        Sizes may vary that differ from those of other libraries' samples, or of other calls without code. Raises
        NotCompiledError if no more libraries are made.
        """
        owner = self.owner
        pattern = Pattern.of([*self.samples.values(), *self._seen, call.sizes])
        if owner.dynamic:
            pattern = Pattern(tuple([(None, *it[1:]) if it else it for it in pattern.dims]))
        if not pattern.suits(call.sizes):
            pattern = Pattern.of([call.sizes])
        if pattern in self.samples or len(self.samples) == MAX_CODES:
            made = f"there is code for {len(self.samples)} kinds of sizes already"
            raise NotCompiledError(made, final=False)
        self.samples[pattern] = call.sizes
        tensors = [tensor.detach().clone() for tensor in call.tensors]
        model_call = ModelCall(owner.forward, owner.model, self.key, call.leaves)
        return Order(owner.name, model_call, tensors, pattern, self.key.threads, **owner.order)

    def _make(self, order: Order) -> None:
        """Find code in the store or compile it; runs in a thread."""
        owner = self.owner
        try:
            if owner.is_changed(thorough=True):
                self.over = CHANGED
                return
            with owner.beside(self.key.threads) as nice:
                made = self._find_or_make(owner.store(), order, nice)
            if not made.kept and not owner.is_for_streams:
                how = "compiled" if owner.policy.waits else "compiled aside"
                owner.note(f"{how} in {made.code.seconds:.1f} s for {order.pattern.described()}")
            with self._changing:
                self._add(made)
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

    def _end(self, reason: str) -> None:
        self.over = reason
        self.owner.note(f"{self.owner.not_made}: {reason}")

    @functools.cached_property
    def prefix(self) -> str:
        """What the names of these libraries' entries begin with."""
        return self.key.prefix(self.owner.fingerprint.digits)

    def _add(self, library: LoadedLibrary) -> None:
        """Add a library. Those in which fewer sizes may vary come first, because they are faster."""
        found = [*self.libraries, library]
        self.libraries = sorted(found, key=lambda it: len(it.code.served.ranges))

    def _find_kept(self) -> None:
        """Add what earlier processes have kept, the latest first."""
        store = open_store()
        for name in store.names(self.prefix):
            found = self._loaded(store, name)
            if isinstance(found, LoadedLibrary):
                if (sizes := found.code.served.fixed) is not None:
                    self.samples[found.code.served.pattern] = sizes
                self._add(found)

    def _find_or_make(self, store: CodeStore, order: Order, nice: int) -> LoadedLibrary:
        """Return a kept library; have a child process of that niceness compile it otherwise.

        Called in a thread that has run nothing parallel, see `making`. Raises NotCompiledError and OSError.
        """
        name = store.name_of(self.prefix, order.pattern)
        with store.locked(name, turn.wait_for_lock):
            found = self._loaded(store, name)
            if isinstance(found, Refused):
                raise NotCompiledError(found.reason, final=True)
            if found is not None:
                return found
            with store.partial() as partial:
                try:
                    compile_in_child(order, partial, nice)
                except NotCompiledError as error:
                    if error.final:
                        write_refusal(partial, str(error))
                        store.add(partial, name)
                    raise
                store.add(partial, name)
            code = store.load(name, runners=self._runners)
        assert isinstance(code, Code)
        return LoadedLibrary(code, name, kept=False)

    def _loaded(self, store: CodeStore, name: str) -> LoadedLibrary | Refused | None:
        """Load an entry; remove one that cannot be used, and say why."""
        try:
            found = store.load(name, runners=self._runners)
        except FileNotFoundError:
            return None
        except (PackageError, OSError, ValueError, KeyError, TypeError) as error:
            reason = str(error) if isinstance(error, PackageError) else first_line(error)
            self.owner.note(f"kept code is removed: {reason}")
            store.remove(name)
            return None
        return LoadedLibrary(found, name, kept=True) if isinstance(found, Code) else found

    def _computed(self, served: LoadedLibrary, call: FlatCall) -> Any:
        """Call the code; do without where it does not fit."""
        assert served.outputs is not None
        try:
            tensors = served.code(call.tensors, call.sizes)
        except PackageInputError:  # gaps of a kind that the form does not tell
            self._chosen[call.sizes] = None
        except PackageError as error:
            if self.owner.is_for_streams:
                raise  # most likely an argument is wrong, and torch would compile the same code
            outputs = self.owner.without_code(call, None)  # raises if the arguments are wrong
            self._drop(served, str(error))
            return outputs
        else:
            return self.owner.result(served.outputs.rebuilt(tensors))
        return self.owner.without_code(call, None)

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
        self.owner.note(f"{self.owner.dropped}: {reason}")

    def _called(self, call: FlatCall, *, first: bool = True) -> _Called:
        """Call the modules once. `first`: look for what no code could do in place of them, too."""
        owner = self.owner
        with torch.inference_mode(False):  # so that writes to the copies are counted
            copies = _copies(call.leaves)
        if owner.is_for_streams:
            args, kwargs = pytree.tree_unflatten(copies, call.form.nest.spec)
            written_to, given = copies, call.tensors
            state = WatchedState(owner.model)
        else:
            args, kwargs = call.args, call.kwargs
            written_to, given, state = call.leaves, _code_tensors(call, copies), None
        versions = _versions(written_to)
        outputs = owner.plain(args, kwargs)
        change = None if state is None else state.change()
        if versions != _versions(written_to) or not are_equal(copies, call.leaves):
            problem: str | None = WRITES
        elif change is not None:
            problem = f"in a call {change}"
        else:
            nest = Nest.like(outputs)
            problem = own_tensor_problem(owner.model, outputs) if first else None
            problem = problem or nest.refusal
            if problem is None and owner.is_for_streams and nest.has_numbers:
                # A strict export does not tell which of them are constants.
                problem = "it returns numbers, which may differ from call to call"
        return _Called(outputs, given, problem)

    def _judge(self, served: LoadedLibrary, sizes: Sizes, called: _Called) -> None:
        """Let code serve calls of these sizes if it computes the same, and drop it otherwise."""
        first, problem, outputs = served.outputs is None, called.problem, Nest.like(called.outputs)
        if problem is None and first and self.owner.is_changed(thorough=True):
            if self.owner.is_for_streams:  # others are called without code from now on
                self._drop(served, CHANGED, remove=False)
            return
        try:
            if problem is None:
                tensors = served.code(called.tensors)
                problem = self._problem(outputs, called.outputs, tensors)
            if problem is None and first:
                problem = own_memory_problem(tensors, served.code(called.tensors))
        except PackageInputError:
            self._chosen[sizes] = None
            return
        except Exception as error:  # noqa: BLE001 - the modules go on
            problem = first_line(error)
        if problem is not None:
            self._drop(served, problem)
            return
        served.outputs = outputs
        served.compared.add(sizes)
        if first:
            self.owner.note_accepted(served)
            if self.owner.times_code:
                self.trials[served] = sizes, (trial := Trial("modules", "code"))
                self._decide(served, trial)

    def _problem(self, outputs: Nest, expected: Any, tensors: Any) -> str | None:
        if len(tensors) != outputs.tensors:
            return f"the code returns {len(tensors)} tensors, and the modules {outputs.tensors}"
        made = self.owner.result(outputs.rebuilt(tensors))
        try:
            found = difference(expected, made, self.owner.tolerance)
        except CompilationError as error:
            return str(error)
        return None if found.allowed else f"the code computes something else: {found}"

    def _tried(self, served: LoadedLibrary, call: FlatCall, began: float) -> Any:
        """Compute a call by the form whose turn it is, and decide which is faster once that is known.

        The time of the code is from `began` on, with all that finds and checks it.
        """
        found = self.trials.get(served)
        if found is None:  # another thread has decided
            return self._computed(served, call)
        return found[1].computed(
            began,
            lambda: self.owner.plain(call.args, call.kwargs),
            lambda: self._computed(served, call),
            lambda: self._decide(served, found[1]),
        )

    def _decide(self, served: LoadedLibrary, trial: Trial) -> None:
        """Let the code take over if it is faster, leave it if it is not, and go on with the trial otherwise."""
        faster, owner = trial.is_faster, self.owner
        if faster is None or self.trials.pop(served, None) is None:
            return
        if not faster:
            reason = f"the code is {trial.ratio:.2f} times as fast as they are"
            self._drop(served, reason, remove=False)
            return
        after = "" if served.kept else f" after {time.perf_counter() - owner.began:.1f} s"
        whose = "code that was kept" if served.kept else "the code"
        owner.note(
            f"{whose} for {served.code.served.pattern.described()} takes over{after},"
            f" {trial.ratio:.2f} times as fast as the modules"
        )


def _copies(leaves: list[Any]) -> list[Any]:
    """The leaves of a call with copies of its tensors."""
    return [it.detach().clone() if isinstance(it, torch.Tensor) else it for it in leaves]


def _versions(leaves: list[Any]) -> list[int]:
    """Torch's counts of writes to tensors, where it counts."""
    tensors = [it for it in leaves if isinstance(it, torch.Tensor)]
    return [0 if it.is_inference() else it._version for it in tensors]  # noqa: SLF001 - nothing public tells


def _code_tensors(call: FlatCall, copies: list[Any]) -> list[torch.Tensor]:
    """The tensors that code takes for a call, on memory that the call does not write to."""
    given = [it for it in call.leaves if isinstance(it, torch.Tensor)]
    copied = [it for it in copies if isinstance(it, torch.Tensor)]
    pairs = zip(call.tensors, given, copied, strict=True)
    return [copy if tensor is leaf else tensor for tensor, leaf, copy in pairs]
