# SPDX-License-Identifier: Apache-2.0
"""The libraries of one model: found in the store, or compiled by a child process and added to it."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from xruntime import operator_library
from xruntime.kept.calls import Form, Nest, Sizes
from xruntime.kept.making import (
    NoLibraryError,
)
from xruntime.kept.store import Code, CodeStore, open_store
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
