# SPDX-License-Identifier: Apache-2.0
"""The libraries of one model: found in the store, or compiled by a child process and added to it.

Shared by what compiles beside the program (`xruntime.optimization.aside`) and by what the program waits for
(`kept_code`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from xruntime.compilation.inductor import first_line
from xruntime.errors import PackageError
from xruntime.kept.calls import Form, Nest
from xruntime.kept.making import (
    CAN_FORK,
    NotCompiledError,
    Order,
    compile_in_child,
)
from xruntime.kept.store import Code, Refused, Store, open_store, write_refusal
from xruntime.threads.torch_modes import Autocast

FORMAT: Final = "1"
"""Of what is kept; entries of another one are not found."""

MAX_CODES: Final = 4
"""So many libraries are made for calls of one key; calls of further sizes are computed in another way."""

ROOM_BYTES: Final = 64 << 20
"""Must be free on a disk, beside twice the weights, for code to be kept there."""


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

    `forward` is called with the model first. `leaves` are those of the call's nest.
    """

    def __init__(
        self, forward: Callable[..., Any], model: nn.Module, key: CallKey, leaves: list[Any]
    ) -> None:
        self.model = model
        self._forward = forward
        self._autocast = key.autocast
        self._arguments = Nest(leaves, key.form.nest)

    def __call__(self, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        args, kwargs = self._arguments.rebuilt(tensors)
        wanted = self._autocast
        # In a thread of its own, where nothing has switched autocast on.
        precision: contextlib.AbstractContextManager[Any] = (
            contextlib.nullcontext()
            if wanted is None
            else torch.autocast("cpu", dtype=wanted.dtype)
        )
        with precision:
            outputs = self._forward(self.model, *args, **kwargs)
        return tuple(tensors_of(outputs))


class Library:
    """Loaded code, the name of its entry, and the nest of its outputs once they were compared."""

    def __init__(self, code: Code, name: str, *, kept: bool) -> None:
        self.code = code
        self.name = name
        self.kept = kept
        """By an earlier process."""

        self.outputs: Nest | None = None

    @property
    def varying(self) -> int:
        """The number of sizes that may vary. The fewer, the faster is the code."""
        return len(self.code.served.ranges)


class Libraries:
    """The libraries of one model. `note` is told in one line what is removed, and why."""

    def __init__(self, model: nn.Module, note: Callable[[str], None]) -> None:
        self._model = model
        self._note = note

    def store(self) -> Store:
        """Return the store that has room for this model."""
        store = open_store()
        if store.temporary is None:
            free = shutil.disk_usage(store.path).free
            if free < 2 * weight_bytes(self._model) + ROOM_BYTES:
                return open_store(temporary=f"{store.path} has only {free >> 20} MiB left")
        return store

    def find(self, prefix: str, runners: int) -> Iterator[tuple[str, Code]]:
        """Yield the name and the code of what earlier processes have kept, the latest first."""
        store = open_store()
        for name in store.names(prefix):
            found = self._loaded(store, name, runners)
            if isinstance(found, Code):
                yield name, found

    def find_or_make(
        self, store: Store, prefix: str, order: Order, *, runners: int, nice: int
    ) -> tuple[str, Code, bool]:
        """Return the name, the code, and whether it was there; have a child process compile it otherwise.

        Called in a thread that has run nothing parallel, see `making`. Raises NotCompiledError and OSError.
        """
        name = store.name_of(prefix, order.pattern)
        with store.locked(name):
            found = self._loaded(store, name, runners)
            if isinstance(found, Refused):
                raise NotCompiledError(found.reason, final=True)
            if found is not None:
                return name, found, True
            with store.partial() as partial:
                try:
                    compile_in_child(order, partial, nice)
                except NotCompiledError as error:
                    if error.final:
                        write_refusal(partial, str(error))
                        store.add(partial, name)
                    raise
                store.add(partial, name)
            found = store.load(name, runners=runners)
        assert isinstance(found, Code)
        return name, found, False

    def _loaded(self, store: Store, name: str, runners: int) -> Code | Refused | None:
        """Load an entry; remove one that cannot be used, and say why."""
        try:
            return store.load(name, runners=runners)
        except FileNotFoundError:
            return None
        except (PackageError, OSError, ValueError, KeyError, TypeError) as error:
            reason = str(error) if isinstance(error, PackageError) else first_line(error)
            self._note(f"kept code is removed: {reason}")
            store.remove(name)
            return None


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
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "cpu" and tensor.layout.__str__() == "torch.strided":
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def own_memory_problem(one: Any, other: Any) -> str | None:
    """Why outputs of two calls must not be given away: they are the code's own memory."""
    addresses = {tensor.data_ptr() for tensor in one if tensor.numel()}
    if any(tensor.data_ptr() in addresses for tensor in other if tensor.numel()):
        return "it returns a tensor that it keeps, which the program could change"
    return None


class _Turn:
    """Lets one thread at a time have code made."""

    def __init__(self) -> None:
        self.renew()
        if CAN_FORK:  # a thread that is not in the child may hold the lock
            os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        with self._lock:
            yield


making: Final = _Turn()
"""One child process at a time compiles for this process."""
