# SPDX-License-Identifier: Apache-2.0
"""Compiled code that a call waits for, and that the next process finds again.

code = KeptCode(model, threads=4)
outputs = code(args, kwargs)     # loads or makes a library for calls of this shape first
code.notes                       # where the code is from, and why some of it is not kept
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Mapping
from typing import Any, Final

import torch

from xruntime.compilation.compiled_code import CompiledCode
from xruntime.compilation.inductor import first_line
from xruntime.errors import CompilationError, PackageInputError
from xruntime.kept.calls import FlatCall, Form, Nest, Sizes, flat_call
from xruntime.kept.fingerprint import Fingerprint, fingerprint
from xruntime.kept.making import CAN_FORK, NotCompiledError
from xruntime.kept.model_libraries import (
    CallKey,
    Lane,
    LoadedLibrary,
    own_memory_problem,
    settings,
    store_for,
    stored_format,
    tensors_of,
)
from xruntime.kept.store import Code, open_store
from xruntime.kept.turn import turn
from xruntime.kept.watched_state import WatchedState
from xruntime.threads.torch_modes import under_autocast

MAX_FORMS: Final = 64
"""Maximum number of forms with libraries; torch compiles calls of further ones."""

MAX_SIZES: Final = 4096
"""Maximum number of shapes whose library is remembered; at this number all are forgotten."""

_log = logging.getLogger("xruntime")


class KeptCode(CompiledCode):
    """A `CompiledCode` of AOTInductor libraries, which hold the packed weights and are kept in the store.

    A child process compiles them, while the call that needs one waits. Each is compared with the eager
    module when it is loaded. What no library serves, torch compiles in this process, as in `CompiledCode`:
    calls that differ in numbers, arguments or outputs of classes of their own, models that torch.export does
    not take in one graph or that have side effects, and all of them where nothing can be kept.

    dynamic
        Let the first size of every tensor vary from the start.

    Other parameters are those of `CompiledCode`.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        threads: int,
        dynamic: bool = False,
        options: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> None:
        super().__init__(model, threads=threads, options=options, **others)
        self.notes: list[str] = []
        """A line for each library, and for each reason why there is none."""

        self._threads = threads
        self._dynamic = dynamic
        self._asked = dict(options or {})
        # One for each stream that fits on the CPUs; they share the weights.
        self._runners = max(1, (os.cpu_count() or 1) // threads)
        self._choosing = threading.RLock()
        self._found = _Found()

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the outputs; load or compile first for a call of a new shape. Raises CompilationError."""
        found = self._found
        call = flat_call(args, kwargs)
        served = None if call is None else self._served(found, call)
        if call is not None and served is not None:
            assert served.outputs is not None
            # There may be gaps of a kind that the form does not tell.
            with contextlib.suppress(PackageInputError):
                return served.outputs.rebuilt(_run(served.code, call.tensors, call.sizes))
        return super().__call__(args, kwargs)

    def discard(self) -> None:
        """Discard all code: the next call of each shape loads or compiles it for the model as it is then."""
        super().discard()
        self._found = _Found()

    def has_code(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        call = flat_call(args, kwargs)
        known = call is not None and self._found.chosen.get((call.form, call.sizes)) is not None
        return known or super().has_code(args, kwargs)

    def _served(self, found: _Found, call: FlatCall) -> LoadedLibrary | None:
        """Return what serves a call; None if torch compiles it in this process."""
        key = (call.form, call.sizes)
        try:
            served = found.chosen[key]
        except KeyError:
            with self._choosing:  # other streams wait, and then find it
                if key not in found.chosen:
                    served = self._chosen(found, call)
                    if len(found.chosen) == MAX_SIZES:
                        found.chosen.clear()
                    found.chosen[key] = served
                served = found.chosen[key]
        if served is not None:
            self._refuse_changes(found)
        return served

    def _refuse_changes(self, found: _Found) -> None:
        change = found.change()
        if change is not None:
            raise CompilationError(
                f"{self.name} would have to be compiled again: {change}, which compiled code does not"
                f" see{self._advice}"
            )

    def _chosen(self, found: _Found, call: FlatCall) -> LoadedLibrary | None:
        if call.form not in found.lanes and len(found.lanes) < MAX_FORMS:
            found.lanes[call.form] = self._new_lane(found, call.form)
        lane = found.lanes.get(call.form)
        if lane is None:
            return None
        served = lane.fitting(call.sizes)
        if lane.over is not None or (served is not None and served.outputs is not None):
            return served
        self._refuse_changes(found)
        problem, expected = self._expected(call)
        if problem is None:
            try:
                if served is None:
                    served = self._made(lane, call)
                self._take_over(served, call, expected)
            except (CompilationError, NotCompiledError) as error:
                problem = str(error)
            except Exception as error:  # noqa: BLE001 - torch compiles it in this process
                problem = first_line(error)
            else:
                return served
        lane.over = problem
        if served is not None:  # it computes something else, in any process
            lane.libraries.remove(served)
            open_store().remove(served.name)
        self._note(f"not kept: {problem}")
        return None

    def _new_lane(self, found: _Found, form: Form) -> Lane | None:
        """Return a lane with its kept libraries; None if torch compiles such calls."""
        try:
            problem = self._obstacle(found, form)
            if problem is None:
                return self._lane_with_kept(found, form)
        except Exception as error:  # noqa: BLE001 - torch compiles it in this process
            problem = first_line(error)
        line = f"not kept: {problem}"
        if line not in self.notes:
            self._note(line)
        return None

    def _obstacle(self, found: _Found, form: Form) -> str | None:
        if not self.options["freezing"]:
            return "its weights are not constants (freezing)"
        if found.firsts.setdefault(_without_numbers(form), form) != form:
            return "numbers in its arguments differ from call to call"
        return _obstacle(self.model) if found.fingerprint is None else None

    def _lane_with_kept(self, found: _Found, form: Form) -> Lane:
        if found.fingerprint is None:
            facts = (stored_format(), settings(), f"{sorted(self.options.items())} {self._dynamic}")
            found.settings = _settings()
            found.fingerprint = fingerprint(self.model, type(self.model).forward, *facts)
        made, key = found.fingerprint, (self._threads, self.autocast, torch.get_default_dtype())
        lane = Lane(CallKey(form, *key), lambda: made, self._runners, self._note)
        lane.find_kept()
        return lane

    def _expected(self, call: FlatCall) -> tuple[str | None, Any]:
        """Call the eager module. Return why no library can replace the call, or None; and the
        outputs.
        """
        with torch.inference_mode(False):
            copies = [tensor.detach().clone() for tensor in call.tensors]
        args, kwargs = Nest(call.leaves, call.form.nest.spec).rebuilt(copies)
        state = WatchedState(self.model)
        versions = [it._version for it in copies]  # noqa: SLF001 - nothing public tells
        expected = self.eager(args, kwargs)
        if versions != [it._version for it in copies]:  # noqa: SLF001
            return "a call changes its arguments", expected
        change = state.change()
        if change is not None:
            return f"in a call {change}", expected
        own = {it.data_ptr() for it in (*self.model.parameters(), *self.model.buffers())}
        if any(it.data_ptr() in own for it in tensors_of(expected) if it.numel()):
            return "it returns a tensor of its own", expected
        return Nest.like(expected).refusal, expected

    def _made(self, lane: Lane, call: FlatCall) -> LoadedLibrary:
        """Find or make a library for the sizes of this call and of earlier ones. Raises
        NotCompiledError.
        """
        store = store_for(self.model)
        if store.temporary is not None:
            raise NotCompiledError(store.temporary, final=False)
        what = (self.name, self.model, _call, call)
        order = lane.order(*what, dynamic=self._dynamic, options=self._asked, strict=True)
        made: list[LoadedLibrary | Exception] = []

        def make() -> None:
            try:
                made.append(lane.find_or_make(store, order, 0))
            except Exception as error:  # noqa: BLE001 - it is raised in the thread that waits
                made.append(error)

        turn.run(make, self.name)
        if isinstance(made[0], Exception):
            raise made[0]
        lane.add(made[0])
        return made[0]

    def _take_over(self, library: LoadedLibrary, call: FlatCall, expected: Any) -> None:
        """Compare a library with the module. Raises CompilationError, PackageError."""
        outputs = Nest.like(expected)
        tensors = _run(library.code, call.tensors)
        if len(tensors) != outputs.tensors:
            raise CompilationError(
                f"the code returns {len(tensors)} tensors, and the module {outputs.tensors}"
            )
        if outputs.has_numbers:  # a strict export does not tell which of them are constants
            raise CompilationError("it returns numbers, which may differ from call to call")
        self.compare_outputs(expected, outputs.rebuilt(tensors))
        problem = own_memory_problem(tensors, _run(library.code, call.tensors))
        if problem is not None:
            raise CompilationError(problem)
        library.outputs = outputs
        self.graphs += 1
        origin = "found" if library.kept else "compiled"
        what = (
            f"graph {self.graphs}, a library for {library.code.served.pattern.described()},"
            f" compiled in {library.code.seconds:.1f} s"
        )
        self.notes.append(f"{origin} {what}")
        _log.info("%s %s: %s", origin, self.name, what)

    def _note(self, line: str) -> None:
        self.notes.append(line)
        _log.info("%s: %s", self.name, line)


class _Found:
    """The libraries that were found and made for the model as it is at the first call."""

    def __init__(self) -> None:
        self.chosen: dict[tuple[Form, Sizes], LoadedLibrary | None] = {}
        self.lanes: dict[Form, Lane | None] = {}
        self.firsts: dict[Form, Form] = {}
        """Forms without numbers, and the first form with numbers of each."""

        self.fingerprint: Fingerprint | None = None
        self.settings = ""

    def change(self) -> str | None:
        """Return what has changed outside of the model since; None if nothing has."""
        assert self.fingerprint is not None
        if self.settings != _settings():
            return "a setting of torch's was changed, such as torch.set_default_dtype"
        name = self.fingerprint.changed()
        return None if name is None else f"the global variable {name} was changed"


def _settings() -> str:
    return f"{torch.get_default_dtype()} {settings()}"


def _without_numbers(form: Form) -> Form:
    """Return the form with numbers by their type alone."""
    leaves = [it[:1] if it[0] in (int, float, complex) else it for it in form.leaves]
    return form._replace(leaves=tuple(leaves))


def _call(model: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    return model(*args, **kwargs)


def _run(code: Code, tensors: list[torch.Tensor], sizes: Sizes | None = None) -> Any:
    """Run a library in its own precision, without autocast, which would cast its operators
    again.
    """
    with torch.inference_mode(), under_autocast(None):
        return code(tensors, sizes)


def _obstacle(model: torch.nn.Module) -> str | None:
    """Why there can be no library of a model, or none that is found again; None if there can be one."""
    if not CAN_FORK:
        return "only on Linux"
    for name, part in model.named_modules():
        if part._forward_hooks or part._forward_pre_hooks:  # noqa: SLF001 - nothing public tells
            return f"{name or 'the module itself'} has hooks"
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return f"{name} is a {type(tensor).__name__}"
    return WatchedState(model).unfollowed or open_store().temporary
