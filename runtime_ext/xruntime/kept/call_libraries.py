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

import contextlib
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
from xruntime.kept.compile_queue import compile_queue
from xruntime.kept.library import Library, NotCompiledError, load_library, write_refusal
from xruntime.kept.making import CompileJob, compile_in_child
from xruntime.kept.model_libraries import (
    CalledModel,
    CallKey,
    ModelCall,
    own_memory_problem,
    own_tensor_problem,
)
from xruntime.kept.store import CodeStore, open_store
from xruntime.kept.watched_state import RandomState, WatchedState, version_of
from xruntime.pytrees import are_equal

START_AFTER_S: Final = 0.5
"""Compiling begins when calls without code have taken this time in all, so nothing is compiled for
short runs."""

MIN_CALLS: Final = 2

MAX_LIBRARIES: Final = 4
"""Maximum number of libraries for calls of one key; calls of other sizes run without one."""

MAX_COMPARED_SIZES: Final = 4
"""Maximum number of sizes for which a call is compared with the modules."""

MAX_SIZES: Final = 4096
"""Maximum number of remembered sizes."""

WRITES: Final = "a call changes its arguments"
CHANGED: Final = "the model was changed"


class _EagerCall(NamedTuple):
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
        self.libraries: list[Library] = []
        self.samples: dict[Pattern, Sizes] = {}
        """The sizes of the sample by pattern, for each library that exists or is being made."""

        self.end_reason: str | None = None
        """Why no more libraries are made; None while they may be."""

        self.trials: dict[Library, tuple[Sizes, Trial]] = {}
        """Libraries that are timed by calls of these sizes."""

        self._chosen: dict[Sizes, Library | None] = {}
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
                self._load_kept()
        except Exception as error:  # noqa: BLE001 - the modules are called
            self._end(first_line(error))

    def renew_locks(self) -> None:
        self._state_lock = threading.RLock()
        self._compare_lock = threading.RLock()
        """Held by the thread that compares code, or waits for it."""

        self.compiling = False

    def __call__(self, call: FlatCall, began: float) -> Any:
        """Return the outputs. `began`: when the call was, for the time that finding code takes."""
        sizes, owner = call.sizes, self.owner
        library = self._library_for(sizes)
        if library is None:
            waits = owner.policy.waits and self.end_reason is None and self.fitting(sizes) is None
            return self._compared_call(call, began) if waits else self._call_without_code(call)
        if not self._is_compared(library, call):
            return self._compared_call(call, began)
        trial_sizes, trial = self.trials.get(library, (None, None))
        if trial is None or trial_sizes != sizes:
            return self._computed(library, call)
        return trial.computed(
            began,  # the time of the code has all that finds and checks it
            lambda: owner.eager(call.args, call.kwargs),
            lambda: self._computed(library, call),
            lambda: self._decide(library, trial),
        )

    def _is_compared(self, library: Library, call: FlatCall) -> bool:
        """Whether a library may compute a call because it was compared with the modules on others like it."""
        if self.owner.is_for_streams:
            return bool(library.compared)
        if call.context not in library.compared_contexts:
            return False
        return call.sizes in library.compared or len(library.compared) >= MAX_COMPARED_SIZES

    def serves(self, sizes: Sizes) -> bool:
        """Whether there is code for calls of these sizes that was compared."""
        library = self._chosen.get(sizes)
        return library is not None and library.outputs is not None

    def fitting(self, sizes: Sizes) -> Library | None:
        """Return the library for calls of these sizes; None without one."""
        return next((library for library in self.libraries if library.sizes.fits(sizes)), None)

    def _library_for(self, sizes: Sizes) -> Library | None:
        """As `fitting`, of remembered sizes. Where a library was found not to take the tensors, None."""
        try:
            return self._chosen[sizes]
        except KeyError:
            pass
        with self._state_lock:
            library = self.fitting(sizes)
            if len(self._chosen) < MAX_SIZES:
                self._chosen[sizes] = library
        return library

    def _call_without_code(self, call: FlatCall) -> Any:
        """Compute a call without code; start compiling if such calls take long."""
        owner, sizes = self.owner, call.sizes
        if self.end_reason is not None or owner.policy.waits:
            return owner.without_code(call, self.end_reason)
        before = _copies(call.leaves) if not self._calls else None
        began = time.perf_counter()
        outputs = owner.eager(call.args, call.kwargs)
        spent_s = time.perf_counter() - began
        if before is not None and not are_equal(before, call.leaves):
            self._end(WRITES)
            return outputs
        with self._state_lock:
            self._seen.pop(sizes, None)
            self._seen[sizes] = None
            if len(self._seen) > MAX_SIZES:
                del self._seen[next(iter(self._seen))]
            self._calls += 1
            self._spent_s += spent_s
            due = self._calls >= MIN_CALLS and self._spent_s >= START_AFTER_S
            if due and not self.compiling and self.end_reason is None:
                refusal = Nest.like(outputs).refusal
                if refusal is not None:
                    self._end(refusal)
                else:
                    self._start(call)
        return outputs

    def _compared_call(self, call: FlatCall, began: float) -> Any:
        """Compute a call by the modules, and compare code with them, which is made first if there is none.

        Where the modules were called on copies, other code computes the call.
        """
        owner, sizes = self.owner, call.sizes
        with self._compare_lock:  # other threads wait, and then find the code
            library = self._library_for(sizes)
            ended = library is None and self.end_reason is not None
            if ended or (library is not None and self._is_compared(library, call)):
                return self(call, began)
            first = library is None or library.outputs is None
            eager_call = self._eager_call(call, first=first)
            if library is None and eager_call.problem is None:
                self._seen[sizes] = None
                self._start(call)
                library = self._library_for(sizes)
            if library is not None:
                self._judge(library, call, eager_call)
            elif eager_call.problem is not None:
                self._end(eager_call.problem)
        if not owner.is_for_streams:
            return eager_call.outputs
        if library is None or library.outputs is None:
            return owner.without_code(call, self.end_reason)
        return self._computed(library, call)

    def _start(self, call: FlatCall) -> None:
        """Compile in a thread, for calls of all sizes that were seen."""
        if self.fitting(call.sizes) is not None:
            return  # it came meanwhile
        owner = self.owner
        try:
            job = self._new_job(call)
        except NotCompiledError as error:
            self.end_reason = str(error)
            owner.note(f"calls of further sizes are not compiled: {self.end_reason}")
            return
        self.compiling = True
        make = functools.partial(self._make, job)
        if owner.policy.waits:
            compile_queue.run(make, owner.name)
        else:
            compile_queue.start(make)

    def _new_job(self, call: FlatCall) -> CompileJob:
        """Return the job for a library that serves this call and others, and record that it is being made.

        Sizes may vary that differ from those of other libraries' samples, or of other calls without code. Raises
        NotCompiledError if no more libraries are made.
        """
        owner = self.owner
        pattern = Pattern.of([*self.samples.values(), *self._seen, call.sizes])
        if owner.dynamic:
            pattern = Pattern(tuple([(None, *dims[1:]) if dims else () for dims in pattern.dims]))
        if not pattern.suits(call.sizes):
            pattern = Pattern.of([call.sizes])
        if pattern in self.samples or len(self.samples) == MAX_LIBRARIES:
            reason = f"there is code for {len(self.samples)} kinds of sizes already"
            raise NotCompiledError(reason, final=False)
        self.samples[pattern] = call.sizes
        tensors = [tensor.detach().clone() for tensor in call.tensors]
        model_call = ModelCall(owner.forward, owner.model, self.key, call.leaves)
        facts = (owner.name, model_call, tensors, pattern, self.key.threads)
        return CompileJob(*facts, options=owner.options, strict=owner.is_for_streams)

    def _make(self, job: CompileJob) -> None:
        """Find code in the store or compile it; runs in a thread."""
        owner = self.owner
        try:
            if owner.is_changed():
                self.end_reason = CHANGED
                return
            with owner.beside(self.key.threads) as nice:
                library = self._load_or_compile(owner.store(), job, nice)
            if not library.kept and not owner.is_for_streams:
                how = "compiled" if owner.policy.waits else "compiled in the background"
                owner.note(f"{how} in {library.seconds:.1f} s for {job.pattern.described()}")
            with self._state_lock:
                self._add(library)
                self._seen.clear()
                self._chosen.clear()
        except NotCompiledError as error:
            self._end(str(error))
        except Exception as error:  # noqa: BLE001 - the modules go on
            self._end(first_line(error))
        finally:
            with self._state_lock:
                self.compiling = False
                self._spent_s = 0.0

    def _end(self, reason: str) -> None:
        self.end_reason = reason
        self.owner.note(f"{self.owner.not_made}: {reason}")

    @functools.cached_property
    def prefix(self) -> str:
        """What the names of these libraries' entries begin with. Raises NotCompiledError if there can be none."""
        fingerprint = self.owner.fingerprint
        if fingerprint.unfollowed is not None:
            raise NotCompiledError(fingerprint.unfollowed, final=True)
        return self.key.prefix(fingerprint.digits)

    def _add(self, library: Library) -> None:
        """Add a library. Those in which fewer sizes may vary come first, because they are faster."""
        libraries = [*self.libraries, library]
        self.libraries = sorted(libraries, key=lambda library: len(library.sizes.ranges))

    def _load_kept(self) -> None:
        """Add what earlier processes have kept, the latest first."""
        store = open_store()
        for name in store.names(self.prefix):
            with contextlib.suppress(NotCompiledError):
                library = self._loaded(store, name)
                if library is None:
                    continue
                if library.sizes.fixed is not None:
                    self.samples[library.sizes.pattern] = library.sizes.fixed
                self._add(library)

    def _load_or_compile(self, store: CodeStore, job: CompileJob, nice: int) -> Library:
        """Return a kept library; have a child process of that niceness compile it otherwise.

        Called in a thread that has run nothing parallel, see `making`. Raises NotCompiledError and OSError.
        """
        name = store.name_of(self.prefix, job.pattern)
        with store.locked(name, compile_queue.wait_for_lock):
            entry = self._loaded(store, name)
            if entry is not None:
                return entry
            with store.partial() as partial:
                try:
                    compile_in_child(job, partial, nice)
                except NotCompiledError as error:
                    if error.final:
                        write_refusal(partial, str(error))
                        store.add(partial, name)
                    raise
                store.add(partial, name)
            library = load_library(store.path, name, runners=self._runners)
        library.kept = False
        return library

    def _loaded(self, store: CodeStore, name: str) -> Library | None:
        """Load an entry; remove one that cannot be used, and say why. Raises NotCompiledError."""
        try:
            return load_library(store.path, name, runners=self._runners)
        except FileNotFoundError:
            return None
        except (PackageError, OSError, ValueError, KeyError, TypeError) as error:
            reason = str(error) if isinstance(error, PackageError) else first_line(error)
            self.owner.note(f"kept code is removed: {reason}")
            store.remove(name)
            return None

    def _computed(self, library: Library, call: FlatCall) -> Any:
        """Call the code; do without where it does not fit."""
        assert library.outputs is not None
        try:
            tensors = library(call.tensors, call.sizes)
        except PackageInputError:  # gaps of a kind that the form does not tell
            self._chosen[call.sizes] = None
            return self.owner.without_code(call, None)
        except PackageError as error:
            if self.owner.is_for_streams:
                raise  # most likely an argument is wrong, and torch would compile the same code
            outputs = self.owner.without_code(call, None)  # raises if the arguments are wrong
            self._drop(library, str(error))
            return outputs
        return self.owner.result(library.outputs.rebuilt(tensors))

    def _drop(self, library: Library, reason: str, *, remove: bool = True) -> None:
        """Stop using code; code with different outputs is removed from the store, too."""
        with self._state_lock:
            if library not in self.libraries:
                return
            self.libraries.remove(library)
            self.trials.pop(library, None)
            self._chosen.clear()
            self.end_reason = reason
        if remove:
            open_store().remove(library.name)
        self.owner.note(f"{self.owner.dropped}: {reason}")

    def _eager_call(self, call: FlatCall, *, first: bool) -> _EagerCall:
        """Call the modules once. `first`: look for what no code could do in place of them, too."""
        owner = self.owner
        with torch.inference_mode(False):  # so that writes to the copies are counted
            copies = _copies(call.leaves)
        if owner.is_for_streams:
            args, kwargs = pytree.tree_unflatten(copies, call.form.nest.spec)
            written_to, tensors = copies, call.tensors
            state = WatchedState(owner.model)
        else:
            args, kwargs = call.args, call.kwargs
            written_to, tensors, state = call.leaves, _code_tensors(call, copies), None
        versions, drawn = _versions(written_to), RandomState()
        outputs = owner.eager(args, kwargs)
        change = None if state is None else state.change()
        if versions != _versions(written_to) or not are_equal(copies, call.leaves):
            problem: str | None = WRITES
        elif change is not None:
            problem = f"in a call {change}"
        elif drawn.change() is not None:
            problem = f"a call draws {drawn.change()}"
        else:
            nest = Nest.like(outputs)
            problem = own_tensor_problem(owner.model, outputs) if first else None
            problem = problem or nest.refusal
            if problem is None and owner.is_for_streams and nest.has_numbers:
                # A strict export does not tell which of them are constants.
                problem = "it returns numbers, which may differ from call to call"
        return _EagerCall(outputs, tensors, problem)

    def _judge(self, library: Library, call: FlatCall, eager_call: _EagerCall) -> None:
        """Let code serve calls of these sizes if it computes the same, and drop it otherwise."""
        first, problem, sizes = library.outputs is None, eager_call.problem, call.sizes
        if problem is None and first and self.owner.is_changed():
            if self.owner.is_for_streams:  # others are called without code from now on
                self._drop(library, CHANGED, remove=False)
            return
        nest = Nest.like(eager_call.outputs)
        if problem is None and nest.has_texts and library.sizes.fixed is None:
            problem = "it returns a text or sizes, which may differ between calls of other sizes"
        try:
            if problem is None:
                tensors = library(eager_call.tensors)
                problem = self._problem(nest, eager_call.outputs, tensors)
            if problem is None and first:
                problem = own_memory_problem(tensors, library(eager_call.tensors))
        except PackageInputError:
            self._chosen[sizes] = None
            return
        except Exception as error:  # noqa: BLE001 - the modules go on
            problem = first_line(error)
        if problem is not None:
            self._drop(library, problem)
            return
        library.outputs = nest
        library.compared.add(sizes)
        library.compared_contexts.add(call.context)
        if first:
            self.owner.note_accepted(library)
            if self.owner.times_code:
                self.trials[library] = sizes, (trial := Trial("modules", "code"))
                self._decide(library, trial)

    def _problem(self, nest: Nest, expected: Any, tensors: Any) -> str | None:
        """Why these tensors of the code's outputs are not the expected outputs of the modules; None if they are."""
        if len(tensors) != nest.tensors:
            return f"the code returns {len(tensors)} tensors, and the modules {nest.tensors}"
        outputs = self.owner.result(nest.rebuilt(tensors))
        try:
            largest = difference(expected, outputs, self.owner.tolerance)
        except CompilationError as error:
            return str(error)
        return None if largest.allowed else f"the code computes something else: {largest}"

    def _decide(self, library: Library, trial: Trial) -> None:
        """Let the code take over if it is faster, leave it if it is not, and go on with the trial otherwise."""
        faster, owner = trial.is_faster, self.owner
        if faster is None or self.trials.pop(library, None) is None:
            return
        if not faster:
            reason = f"the code is {trial.ratio:.2f} times as fast as they are"
            self._drop(library, reason, remove=False)
            return
        after = "" if library.kept else f" after {time.perf_counter() - owner.began:.1f} s"
        whose = "code that was kept" if library.kept else "the code"
        owner.note(
            f"{whose} for {library.sizes.pattern.described()} takes over{after},"
            f" {trial.ratio:.2f} times as fast as the modules"
        )


def _copies(leaves: list[Any]) -> list[Any]:
    """The leaves of a call with copies of its tensors."""
    return [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


def _versions(leaves: list[Any]) -> list[int]:
    return [version_of(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _code_tensors(call: FlatCall, copies: list[Any]) -> list[torch.Tensor]:
    """The tensors that code takes for a call, on memory that the call does not write to."""
    given = [leaf for leaf in call.leaves if isinstance(leaf, torch.Tensor)]
    copied = [leaf for leaf in copies if isinstance(leaf, torch.Tensor)]
    pairs = zip(call.tensors, given, copied, strict=True)
    return [copy if tensor is leaf else tensor for tensor, leaf, copy in pairs]
