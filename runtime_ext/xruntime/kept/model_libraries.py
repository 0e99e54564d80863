# SPDX-License-Identifier: Apache-2.0
"""A model whose calls libraries serve: how it is called, when code is made, and what names that code."""

from __future__ import annotations

import contextlib
import enum
import functools
import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from xruntime import operator_library
from xruntime.kept.calls import FlatCall, Form, Nest
from xruntime.kept.compile_queue import compile_queue
from xruntime.kept.fingerprint import Fingerprint, fingerprint
from xruntime.kept.library import Library
from xruntime.kept.making import NoLibraryError
from xruntime.kept.store import CodeStore, store_for
from xruntime.threads.torch_modes import Autocast, under_autocast

_log = logging.getLogger("xruntime")

_FORMAT: Final = "3"

SYMBOLIC: Final = (torch.SymInt, torch.SymFloat, torch.SymBool)
"""What a number is while a model is exported, if it depends on values of tensors or on sizes that vary."""


def stored_format() -> str:
    """Return the version of the stored format; entries of other versions are ignored.

    Code that calls operators of libxoperators.so needs the library that it was compiled with, and without one
    such code is refused.
    """
    library = operator_library.loaded().path
    return _FORMAT if library is None else f"{_FORMAT} {library.name}"


class CallKey(NamedTuple):
    """What decides which code serves a call, besides its sizes."""

    form: Form
    threads: int
    autocast: Autocast | None
    default_dtype: torch.dtype

    def prefix(self, fingerprint: str) -> str:
        """Return what the names of a model's entries for such calls begin with."""
        facts = (fingerprint, self.form.described(), *self[1:])
        return hashlib.sha256(repr(facts).encode(errors="surrogatepass")).hexdigest()[:32]


class ModelCall:
    """Computes a model's call from its tensors; returns the tensors of the outputs.

    `forward` is called with the model first. `leaves` are those of the call's nest. Raises NoLibraryError
    while it is exported, unless strictly, if it returns a number that differs between calls.
    """

    def __init__(
        self, forward: Callable[..., Any], model: nn.Module, key: CallKey, leaves: list[Any]
    ) -> None:
        self.model = model
        self._forward = forward
        self._autocast = key.autocast
        self._arguments = Nest(leaves, key.form.nest.spec)

    def __call__(self, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        args, kwargs = self._arguments.rebuilt(tensors)
        with under_autocast(self._autocast):
            outputs = self._forward(self.model, *args, **kwargs)
        if any(isinstance(leaf, SYMBOLIC) for leaf in pytree.tree_flatten(outputs)[0]):
            raise NoLibraryError("it returns a number that depends on its arguments")
        return tuple(tensors_of(outputs))


def tensors_of(outputs: Any) -> list[torch.Tensor]:
    """Return the tensors of a nest, in the order in which `Nest` takes them."""
    leaves = pytree.tree_flatten(outputs)[0]
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def settings() -> str:
    """Describe torch's settings that decide what is computed."""
    return f"{torch.get_float32_matmul_precision()} {torch.are_deterministic_algorithms_enabled()}"


def own_tensor_problem(model: nn.Module, outputs: Any) -> str | None:
    """Why code cannot return what a call of the model returned, if that is a parameter or a buffer."""
    own = _addresses([*model.parameters(), *model.buffers()])
    shared = own & _addresses(tensors_of(outputs))
    return "it returns a tensor of its own" if shared else None


def own_memory_problem(first: Any, second: Any) -> str | None:
    """Why the outputs must not be returned to the program: those of two calls share the code's own memory."""
    shared = _addresses(first) & _addresses(second)
    return "it returns a tensor that it keeps, which the program could change" if shared else None


def _addresses(tensors: Iterable[torch.Tensor]) -> set[int]:
    """The memory of plain tensors; others, such as sparse and quantized ones, have none of their own."""
    plain = [tensor for tensor in tensors if type(tensor) in (torch.Tensor, nn.Parameter)]
    dense = [tensor for tensor in plain if tensor.layout is torch.strided]
    return {tensor.data_ptr() for tensor in dense if tensor.numel()}


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

    options: Mapping[str, Any] = MappingProxyType({})
    """More settings of Inductor."""

    times_code = True
    """Whether code is timed next to the modules, by calls."""

    report: Callable[[str], None] | None = None
    """Receives a line that says what runs from now on, and why; None: it goes to the log and to warnings."""

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
        self.is_for_streams = policy is Policy.STREAMS
        self.tolerance = tolerance
        self.notes: list[str] = []
        """The lines so far."""

        self.began = time.perf_counter()
        self._facts = facts

    def eager(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the modules."""
        raise NotImplementedError

    def without_code(self, call: FlatCall, reason: str | None) -> Any:
        """Compute a call that no library serves, for a `reason` if there will be none."""
        raise NotImplementedError

    def call_autocast(self) -> Autocast | None:
        """Return the autocast that calls run under."""
        raise NotImplementedError

    def is_changed(self) -> bool:
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

    def runners(self, threads: int) -> int:
        """Return how many calls of so many threads may run code at the same time."""
        raise NotImplementedError

    def note_accepted(self, library: Library) -> None:
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
        """Report a line that was not reported before, and remember it."""
        if line in self.notes:
            return
        self.notes.append(line)
        compile_queue.clear_line()
        (self.report or _log.info)(line)
