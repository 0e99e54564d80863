# SPDX-License-Identifier: Apache-2.0
"""The libraries of one model: found in the store, or compiled by a child process and added to it."""

from __future__ import annotations

import functools
import hashlib
import shutil
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from xruntime import operator_library
from xruntime.compilation.inductor import first_line
from xruntime.errors import PackageError
from xruntime.kept.calls import FlatCall, Form, Nest, Pattern, Sizes
from xruntime.kept.fingerprint import Fingerprint
from xruntime.kept.making import (
    NoLibraryError,
    NotCompiledError,
    Order,
    compile_in_child,
)
from xruntime.kept.store import Code, CodeStore, Refused, open_store, write_refusal
from xruntime.kept.turn import turn
from xruntime.threads.torch_modes import Autocast, under_autocast

_FORMAT: Final = "3"

SYMBOLIC: Final = (torch.SymInt, torch.SymFloat, torch.SymBool)
"""What a number is while a model is exported, if it depends on values of tensors or on sizes that vary."""

MAX_CODES: Final = 4
"""Maximum number of libraries for calls of one key; calls of other sizes run without one."""

ROOM_BYTES: Final = 64 << 20
"""Free disk space that keeping code needs, in addition to twice the size of the weights."""


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
        if any(isinstance(it, SYMBOLIC) for it in pytree.tree_flatten(outputs)[0]):
            raise NoLibraryError("it returns a number that depends on its arguments")
        return tuple(tensors_of(outputs))


class LoadedLibrary:
    """Loaded code, the name of its entry, and the nest of its outputs once they were compared."""

    def __init__(self, code: Code, name: str, *, kept: bool) -> None:
        self.code = code
        self.name = name
        self.kept = kept
        """Whether an earlier process compiled it."""

        self.outputs: Nest | None = None
        self.compared: set[Sizes] = set()
        """Sizes of calls on which it was compared with the model."""


class Lane:
    """The libraries of one model for calls of one key: found in the store, or made.

    `fingerprint` returns the model's. `note` is called with one line for each entry that is removed, and why.
    """

    def __init__(
        self,
        key: CallKey,
        fingerprint: Callable[[], Fingerprint],
        runners: int,
        note: Callable[[str], None],
    ) -> None:
        self.key = key
        self.libraries: list[LoadedLibrary] = []
        self.samples: dict[Pattern, Sizes] = {}
        """The sizes of the sample by pattern, for each library that exists or is being made."""

        self.over: str | None = None
        """Why no more libraries are made; None while they may be."""

        self._fingerprint = fingerprint
        self._runners = runners
        self._note = note

    @functools.cached_property
    def prefix(self) -> str:
        """What the names of this lane's entries begin with."""
        return self.key.prefix(self._fingerprint().digits)

    def fitting(self, sizes: Sizes) -> LoadedLibrary | None:
        """Return the library for calls of these sizes; None without one."""
        return next((it for it in self.libraries if it.code.served.fits(sizes)), None)

    def add(self, library: LoadedLibrary) -> None:
        """Add a library. Those in which fewer sizes may vary come first, because they are faster."""
        found = [*self.libraries, library]
        self.libraries = sorted(found, key=lambda it: len(it.code.served.ranges))

    def order(
        self,
        name: str,
        model: nn.Module,
        forward: Callable[..., Any],
        call: FlatCall,
        *,
        seen: Iterable[Sizes] = (),
        dynamic: bool = False,
        **others: Any,
    ) -> Order:
        """Return the order for a library that serves this call and others, and record that it is
        being made.

        Sizes may vary that differ from those of other libraries' samples, or of the calls in `seen`; with
        `dynamic` the first size of each tensor. `others` are further fields of the order. Raises
        NotCompiledError if no more libraries are made.
        """
        pattern = Pattern.of([*self.samples.values(), *seen, call.sizes])
        if dynamic:
            pattern = Pattern(tuple([(None, *it[1:]) if it else it for it in pattern.dims]))
        if not pattern.suits(call.sizes):
            pattern = Pattern.of([call.sizes])
        if pattern in self.samples or len(self.samples) == MAX_CODES:
            made = f"there is code for {len(self.samples)} kinds of sizes already"
            raise NotCompiledError(made, final=False)
        self.samples[pattern] = call.sizes
        tensors = [tensor.detach().clone() for tensor in call.tensors]
        model_call = ModelCall(forward, model, self.key, call.leaves)
        return Order(name, model_call, tensors, pattern, self.key.threads, **others)

    def find_kept(self) -> None:
        """Add what earlier processes have kept, the latest first."""
        store = open_store()
        for name in store.names(self.prefix):
            found = self._loaded(store, name)
            if isinstance(found, LoadedLibrary):
                if (sizes := found.code.served.fixed) is not None:
                    self.samples[found.code.served.pattern] = sizes
                self.add(found)

    def find_or_make(self, store: CodeStore, order: Order, nice: int) -> LoadedLibrary:
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
            self._note(f"kept code is removed: {reason}")
            store.remove(name)
            return None
        return LoadedLibrary(found, name, kept=True) if isinstance(found, Code) else found


def store_for(model: nn.Module) -> CodeStore:
    """Return the store that has room for this model."""
    store = open_store()
    if store.temporary is None:
        free = shutil.disk_usage(store.path).free
        if free < 2 * weight_bytes(model) + ROOM_BYTES:
            return open_store(temporary=f"{store.path} has only {free >> 20} MiB left")
    return store


def tensors_of(outputs: Any) -> list[torch.Tensor]:
    """Return the tensors of a nest, in the order in which `Nest` takes them."""
    found = pytree.tree_flatten(outputs)[0]
    return [leaf for leaf in found if isinstance(leaf, torch.Tensor)]


def settings() -> str:
    """Describe torch's settings that decide what is computed."""
    return f"{torch.get_float32_matmul_precision()} {torch.are_deterministic_algorithms_enabled()}"


def weight_bytes(model: nn.Module) -> int:
    """Return the memory of parameters and buffers; memory that several share counts once."""
    storages = {}
    tensors: list[Any] = [*model.parameters(), *model.buffers()]
    while tensors:
        tensor = tensors.pop()
        if is_traceable_wrapper_subclass(tensor):  # quantized weights: several tensors hold them
            tensors += [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
        elif tensor.device.type == "cpu" and tensor.layout.__str__() == "torch.strided":
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def own_tensor_problem(model: nn.Module, outputs: Any) -> str | None:
    """Why code cannot return what a call of the model returned, if that is a parameter or a buffer."""
    own = {it.data_ptr() for it in (*model.parameters(), *model.buffers())}
    returned = any(it.data_ptr() in own for it in tensors_of(outputs) if it.numel())
    return "it returns a tensor of its own" if returned else None


def own_memory_problem(one: Any, other: Any) -> str | None:
    """Why the outputs must not be returned to the program: the outputs of two calls share the
    code's own memory.
    """
    addresses = {tensor.data_ptr() for tensor in one if tensor.numel()}
    if any(tensor.data_ptr() in addresses for tensor in other if tensor.numel()):
        return "it returns a tensor that it keeps, which the program could change"
    return None
