# SPDX-License-Identifier: Apache-2.0
"""Compiled code that a call waits for, and that the next process finds again.

code = StreamCode(model, threads=4)
outputs = code(args, kwargs)     # loads or makes a library for calls of this shape first
code.notes                       # where the code is from, and why some of it is not kept
"""

from __future__ import annotations

import logging
import os
from typing import Any

import torch

from xruntime.compilation.compiled_code import CompiledCode
from xruntime.errors import CompilationError
from xruntime.kept.calls import FlatCall, Form
from xruntime.kept.library import Library, NotCompiledError
from xruntime.kept.making import CAN_FORK
from xruntime.kept.model_libraries import Policy, settings
from xruntime.kept.served_model import ServedModel
from xruntime.kept.store import CodeStore, open_store
from xruntime.kept.watched_state import WatchedState
from xruntime.threads.torch_modes import Autocast, under_autocast

_log = logging.getLogger("xruntime")


class StreamCode(CompiledCode, ServedModel):
    """A `CompiledCode` of AOTInductor libraries, which hold the packed weights and are kept in the store.

    A child process compiles them, while the call that needs one waits. Each is compared with the eager
    module when it is loaded. What no library serves, torch compiles in this process, as in `CompiledCode`:
    calls that differ in numbers, arguments or outputs of classes of their own, models that torch.export does
    not take in one graph or that have side effects, and all of them where nothing can be kept.

    dynamic
        Let the first size of every tensor vary from the start.

    Other parameters are those of `CompiledCode`. `notes` has a line for each library, and for each reason why there
    is none.
    """

    advice = ": change it back, or call prepare(), which compiles for it"
    times_code = False
    not_made = dropped = "not kept"

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        threads: int,
        dynamic: bool = False,
        **others: Any,
    ) -> None:
        CompiledCode.__init__(self, model, threads=threads, **others)
        facts = f"{sorted(self.options.items())} {dynamic}"
        what = (self.model, _call, self.name, facts, Policy.STREAMS)
        ServedModel.__init__(self, *what, tolerance=self.tolerance)
        self.dynamic = dynamic

    def forget(self) -> None:
        super().forget()
        self._firsts: dict[Form, Form] = {}
        """Forms without numbers, and the first form with numbers of each."""

        self._frozen: WatchedState | None = None
        self._torch_settings = _settings()

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the outputs; load or compile first for a call of a new shape. Raises CompilationError."""
        served = self.libraries_for(args, kwargs)
        if served is None or (served[0].end_reason is not None and not served[0].libraries):
            return super().__call__(args, kwargs)
        libraries, call = served
        change = self.changed_variable()
        if self._torch_settings != _settings():
            change = "a setting of torch's was changed, such as torch.set_default_dtype"
        if change is not None:
            raise CompilationError(
                f"{self.name} would have to be compiled again: {change}, which compiled code does not"
                f" see{self.advice}"
            )
        # A library has its own precision; autocast would cast its operators again.
        with torch.inference_mode(), under_autocast(None):
            return libraries(call, 0.0)

    def without_code(self, call: FlatCall, reason: str | None) -> Any:
        """Have torch compile it in this process."""
        return super().__call__(call.args, call.kwargs)

    def discard(self) -> None:
        """Discard all code: the next call of each shape loads or compiles it for the model as it is then."""
        super().discard()
        self.forget()

    def has_code(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        served = self.libraries_for(args, kwargs)
        has_library = served is not None and served[0].serves(served[1].sizes)
        return has_library or super().has_code(args, kwargs)

    def call_autocast(self) -> Autocast | None:
        return self.autocast

    def form_of(self, call: FlatCall) -> Form:
        """Parameters and tensors that require gradients are served as others are: streams compute none."""
        leaves = [
            leaf[:3] if isinstance(leaf[0], torch.dtype) else leaf for leaf in call.form.leaves
        ]
        return call.form._replace(leaves=tuple(leaves))

    def runners(self, threads: int) -> int:
        """One for each stream that fits on the CPUs; they share the weights."""
        return max(1, (os.cpu_count() or 1) // threads)

    def obstacle(self, form: Form) -> str | None:
        if not self.options["freezing"]:
            return "its weights are not constants (freezing)"
        if self._firsts.setdefault(_without_numbers(form), form) != form:
            return "numbers in its arguments differ from call to call"
        if self._frozen is None:
            problem = _obstacle(self.model)
            if problem is not None:
                return problem
            self._frozen = WatchedState(self.model, own_hooks=False)
        return None

    def is_changed(self) -> bool:
        if self._frozen is None or self._frozen.change() is None:
            return False
        self.note("not kept: the model was changed")
        return True

    def store(self) -> CodeStore:
        store = super().store()
        if store.temporary is not None:
            raise NotCompiledError(store.temporary, final=False)
        return store

    def note_accepted(self, library: Library) -> None:
        self.graphs += 1
        origin = "found" if library.kept else "compiled"
        self.notes.append(
            f"{origin} graph {self.graphs}, a library for {library.sizes.pattern.described()},"
            f" compiled in {library.seconds:.1f} s"
        )
        _log.info("%s: %s", self.name, self.notes[-1])


def _settings() -> str:
    return f"{torch.get_default_dtype()} {settings()}"


def _without_numbers(form: Form) -> Form:
    """Return the form with numbers by their type alone."""
    leaves = [leaf[:1] if leaf[0] in (int, float, complex) else leaf for leaf in form.leaves]
    return form._replace(leaves=tuple(leaves))


def _call(model: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    return model(*args, **kwargs)


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
