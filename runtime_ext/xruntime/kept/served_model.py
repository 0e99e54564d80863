# SPDX-License-Identifier: Apache-2.0
"""The calls of one model, served by compiled libraries where there are some, and by the modules otherwise.

`call_libraries` says how a call is served.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, Final

import torch

from xruntime.kept.call_libraries import CallLibraries
from xruntime.kept.calls import FlatCall, Form, flat_call
from xruntime.kept.fingerprint import changed_variable
from xruntime.kept.making import CAN_FORK
from xruntime.kept.model_libraries import CalledModel, CallKey
from xruntime.kept.store import open_store

MAX_FORMS: Final = 64
"""Maximum number of kinds of calls: a value that differs from call to call, such as a time step, would make
one for each."""


class ServedModel(CalledModel):
    """The libraries of one model, by kind of call."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.forget()
        _all.add(self)

    def forget(self) -> None:
        """Forget all libraries, and what they were compiled of. Calls that run go on with theirs."""
        self.__dict__.pop("fingerprint", None)
        self._kinds: dict[CallKey, CallLibraries] = {}
        self._adding = threading.Lock()

    def form_of(self, call: FlatCall) -> Form:
        """Return what calls with one's libraries have in common."""
        return call.form

    def libraries_for(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[CallLibraries, FlatCall] | None:
        """Return the libraries for calls like this one, and its parts.

        None for a call that no library can serve, and if there would be too many kinds.
        """
        call = flat_call(args, kwargs)
        if call is None:
            return None
        threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
        key = CallKey(self.form_of(call), threads, self.call_autocast(), dtype)
        libraries = self._kinds.get(key)
        if libraries is None and len(self._kinds) < MAX_FORMS:
            with self._adding:
                libraries = self._kinds.get(key)
                if libraries is None:
                    libraries = self._kinds[key] = CallLibraries(self, key)
        elif libraries is None:
            self.note(f"calls of further forms are not compiled: there are {MAX_FORMS} already")
        return None if libraries is None else (libraries, call)

    def changed_variable(self) -> str | None:
        """Say that a variable which compiled code does not see was changed; None if none was."""
        # Without a fingerprint there is no code yet.
        read = self.fingerprint.read if "fingerprint" in self.__dict__ else ()
        name = changed_variable(read)
        return None if name is None else f"the global variable {name} was changed"

    @property
    def kinds(self) -> list[CallLibraries]:
        """The libraries of each kind of calls so far. Other threads may add some meanwhile."""
        return list(self._kinds.values())

    @property
    def compiled(self) -> bool:
        """Whether there is code for some calls."""
        return any(kind.libraries for kind in self.kinds)

    def after_fork(self) -> None:
        """Make new locks in a forked child, which has none of the parent's threads.

        Code that one of these was running is forgotten: it would wait for that call to end.
        """
        self._adding = threading.Lock()
        if any(library.is_running for kind in self.kinds for library in kind.libraries):
            self.forget()
        for kind in self.kinds:
            kind.renew_locks()


_all: weakref.WeakSet[ServedModel] = weakref.WeakSet()


def report_unfinished(line: str) -> None:
    """Report a line for each model whose first code is being compiled, if it would be kept."""
    if open_store().temporary is None:
        for served in list(_all):
            waits = not served.compiled and any(kind.compiling for kind in served.kinds)
            if waits and served.report is not None:
                served.report(line)


def _after_fork() -> None:
    for served in _all:
        served.after_fork()


if CAN_FORK:
    os.register_at_fork(after_in_child=_after_fork)
