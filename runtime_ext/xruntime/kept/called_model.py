# SPDX-License-Identifier: Apache-2.0
"""A model whose calls libraries serve: how its modules are called, and when code is made for them."""

from __future__ import annotations

import contextlib
import enum
import functools
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from xruntime.kept.calls import FlatCall, Form
from xruntime.kept.fingerprint import Fingerprint, fingerprint
from xruntime.kept.model_libraries import LoadedLibrary, settings, store_for, stored_format
from xruntime.kept.store import CodeStore
from xruntime.kept.turn import turn
from xruntime.threads.torch_modes import Autocast

_log = logging.getLogger("xruntime")


class Policy(enum.Enum):
    """When code is made, and what it is compared with."""

    BACKGROUND = enum.auto()
    """The modules are called until code is ready."""

    WAIT = enum.auto()
    """Calls wait for code."""

    STREAMS = enum.auto()
    """Calls wait for code of the model in one graph, which is compared once, with a call on copies of the arguments:
    without code they are computed by other code than the modules."""

    @property
    def waits(self) -> bool:
        """Whether a call waits for code."""
        return self is not Policy.BACKGROUND


class CalledModel:
    """What has to be known of a model to serve its calls by libraries.

    model, forward, name
        What is compiled: `forward` is called with the model first.
    facts
        What decides about the code, besides the model and torch's settings.
    tolerance
        The largest difference from the modules' outputs, see `xruntime.compilation.judge`.
    """

    dynamic = False
    """Whether the first size of every tensor may vary from the start."""

    times_code = True
    """Whether code is timed next to the modules, by calls."""

    report: Callable[[str], None] | None = None
    """Receives a line that says what runs from now on, and why; None: it goes to the log and to
    warnings, as in torch."""

    not_made, dropped = "not compiled", "the modules are called again"

    def __init__(
        self,
        model: nn.Module,
        forward: Callable[..., Any],
        name: str,
        facts: str,
        policy: Policy,
        *,
        tolerance: float,
    ) -> None:
        self.model = model
        self.forward = forward
        self.name = name
        self.policy = policy
        self.tolerance = tolerance
        self.order: dict[str, Any] = {}
        """Further fields of each `Order`."""

        self.notes: list[str] = []
        """The lines so far."""

        self.began = time.perf_counter()
        self._facts = facts

    def plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the modules."""
        raise NotImplementedError

    def without_code(self, call: FlatCall, reason: str | None) -> Any:
        """Compute a call that no library serves, for a `reason` if there will be none."""
        raise NotImplementedError

    def call_autocast(self) -> Autocast | None:
        """Return the autocast that calls run under."""
        raise NotImplementedError

    def is_changed(self, *, thorough: bool = False) -> bool:
        """Whether compiled code must not be used, because it does not see a change."""
        raise NotImplementedError

    def obstacle(self, _form: Form) -> str | None:
        """Return why calls of this form get no code; None if they may."""
        return None

    def result(self, outputs: Any) -> Any:
        """Return the code's outputs as the modules' are."""
        return outputs

    @contextlib.contextmanager
    def beside(self, _threads: int) -> Iterator[int]:
        """Within the block code is compiled for calls of so many threads, with the niceness that it gets."""
        yield 0

    @property
    def is_for_streams(self) -> bool:
        return self.policy is Policy.STREAMS

    def runners(self, threads: int) -> int:
        """Return how many calls of so many threads may run code at the same time."""
        raise NotImplementedError

    def note_accepted(self, library: LoadedLibrary) -> None:
        """Receives each library whose outputs agree with the modules'."""

    @functools.cached_property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the model and of the settings that it is compiled with."""
        facts = (stored_format(), self._facts, settings())
        return fingerprint(self.model, self.forward, *facts)

    def store(self) -> CodeStore:
        """Return the store that has room for this model."""
        return store_for(self.model)

    def note(self, line: str) -> None:
        """Report a line, and remember it."""
        self.notes.append(line)
        turn.clear_line()
        (self.report or _log.info)(line)
