# SPDX-License-Identifier: Apache-2.0
"""Detects changes of a module at any depth and of the shared random generators, and undoes them: an optimized form
is valid only for the state that it was made from.
"""

from __future__ import annotations

import ctypes
import operator
import pickle
import random
import sys
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import torch

from xruntime import native
from xruntime.errors import KernelsUnavailableError
from xruntime.kept.held_values import ROOT, Holder, is_related, parts_of
from xruntime.pytrees import CONSTANT_TYPES

SAMPLED: Final = 2
"""Words of each tensor's memory that are compared. Only changes that torch does not count need it: those
through ``.data``, and of tensors made in inference mode."""

MAX_VALUES: Final = 100_000
"""Maximum number of values of a model that are compared before each call."""

_OF_HEAP: Final = 1 << 9
"""CPython's flag of classes that were made at run time, whose objects may get another one."""

HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks")

_ADDRESS: Final = torch.Tensor.data_ptr
_STRIDE: Final = torch.Tensor.stride
_SIZE: Final = operator.attrgetter("nbytes")  # no operation, so torch.jit.trace does not record it
_VERSION: Final = operator.attrgetter("_version")
_VALUE: Final = operator.attrgetter("value")


def _is_filled(container: Any) -> bool:
    """Whether it has something that a call may depend on. torch marks the tensors of what it compiles."""
    return any(map(is_related, container)) if isinstance(container, dict) else bool(container)


class WatchedState:
    """Everything that a module holds and refers to at one time: attributes, containers, slots, objects of
    functions and bound methods, closures, parameters, buffers and forward hooks.

    A change inside a tensor is found if torch counts it (``_version``) or if it reaches one of the
    `SAMPLED` words; other values are compared by identity. An equal number or text is no change.

    own_hooks
        False: hooks of the module itself do not matter, those of its parts do.
    copies
        Copy the buffers and other tensors besides parameters, for `restore`.
    max_values
        Maximum number of values that are looked at. If it is given, more of them are not `unfollowed`.

    `module` may be another object, too.
    """

    def __init__(
        self,
        module: Any,
        *,
        own_hooks: bool = True,
        copies: bool = False,
        max_values: int = MAX_VALUES,
    ) -> None:
        self.unfollowed: str | None = None
        """What can change without being noticed, for a message; None if everything is followed."""

        self._holders: list[Holder] = []
        self._empty: list[Any] = []
        """Containers that were empty, such as the forward hooks of most layers."""

        self._objects: list[Any] = []
        """Those whose class can be changed, but for `module`, which is not to live as long as this."""
        self._ignored = set() if own_hooks else {id(vars(module)[name]) for name in HOOKS}
        self._tensors: list[_Tensor] = []
        for name, tensor in self._walk(module, max_values):
            copied = copies and not isinstance(tensor, torch.nn.Parameter)
            self._tensors.append(_Tensor.of(name, tensor, copied=copied))
        self._contents = _Contents(self._holders)
        self._classes = list(map(type, self._objects))
        self._root = weakref.ref(module) if isinstance(module, torch.nn.Module) else None
        self._root_class = type(module)
        tensors = [watched.tensor for watched in self._tensors]
        self._plain = list(filter(_is_plain, tensors))
        self._addresses = list(map(_ADDRESS, self._plain))
        self._sizes = list(map(_SIZE, self._plain))
        self._strides = list(map(_STRIDE, self._plain))
        self._counted = [tensor for tensor in tensors if not tensor.is_inference()]
        self._versions = list(map(_VERSION, self._counted))
        # Storages stay in memory while their words are read.
        self._storages = [tensor.untyped_storage() for tensor in self._plain]
        self._words = [word for tensor in self._plain for word in sampled_words(tensor)]
        self._sampled = list(map(_VALUE, self._words))

    def _walk(self, module: Any, max_values: int) -> Iterator[tuple[str, torch.Tensor]]:
        """Note all that is held; yield the tensors with their names."""
        met: dict[int, Any] = {id(module): module}
        waiting: deque[tuple[str, Any]] = deque([("", module)])
        count = 0
        while waiting:
            name, value = waiting.popleft()
            if isinstance(value, torch.Tensor):
                yield name or ROOT, value
                value = vars(value)
            elif value is not module and type(value).__flags__ & _OF_HEAP:
                self._objects.append(value)
            held = parts_of(value)
            if held is None:
                text = f"{name} is a {type(value).__name__}, whose changes are not followed"
                self.unfollowed = self.unfollowed or text
                continue
            for holder in held.holders:
                if id(holder.container) not in self._ignored:
                    self._note(holder._replace(name=name or ROOT))
            for key, inner in held.values:
                count += 1
                if type(inner) in CONSTANT_TYPES or id(inner) in met:
                    continue
                met[id(inner)] = inner
                waiting.append((f"{name}.{key}".strip(".") if key else name, inner))
            if count > max_values:
                if max_values == MAX_VALUES:
                    text = f"it holds more than {max_values:,} values"
                    self.unfollowed = self.unfollowed or text
                return

    def _note(self, holder: Holder) -> None:
        if holder.values or not isinstance(holder.container, (dict, list, set, deque)):
            self._holders.append(holder)
        else:
            self._empty.append(holder.container)

    def change(self) -> str | None:
        """Return what has changed since, for a message; None if nothing has."""
        if any(self._empty) and any(map(_is_filled, self._empty)):
            return "a forward hook or an attribute was added"
        other_root = self._root is not None and type(self._root()) is not self._root_class
        if other_root or list(map(type, self._objects)) != self._classes:
            return "the class of an object was changed"
        if not self._contents.are_same():
            self._contents.note()
            for holder in self._holders:
                changed = None if holder.is_same() else holder.changed()
                if changed is not None:
                    self._contents.forget()
                    return f"{changed} was changed"
            if not self._contents.are_same():  # another thread changes it at the moment
                self._contents.forget()
        if (
            list(map(_ADDRESS, self._plain)) != self._addresses
            or list(map(_SIZE, self._plain)) != self._sizes
            or list(map(_STRIDE, self._plain)) != self._strides
            or list(map(_VERSION, self._counted)) != self._versions
        ):
            for watched in self._tensors:
                if not watched.is_same():
                    return f"{watched.name} was changed"
        if list(map(_VALUE, self._words)) != self._sampled:
            return "its weights were changed"
        return None

    def new_tensor(self, module: Any) -> str | None:
        """Return the name of a floating-point tensor that `module` holds now and did not hold then."""
        earlier = {id(watched.tensor) for watched in self._tensors}
        for watched in WatchedState(module)._tensors:  # noqa: SLF001 - of this class
            if id(watched.tensor) not in earlier and watched.tensor.is_floating_point():
                return watched.name
        return None

    def restore(self) -> str | None:
        """Undo all changes since, made with `copies`; return the name of a parameter whose values cannot be
        restored, or None.
        """
        for container in self._empty:
            container.clear()
        for holder in self._holders:
            if not holder.is_same():
                holder.restore(holder.values)
        changed = [watched.name for watched in self._tensors if not watched.restore()]
        return changed[0] if changed else None


class _Contents:
    """What many containers hold, compared at once: all of it is looked at before each call.

    Until `note`, and without the native library, nothing is said to be the same.
    """

    def __init__(self, holders: list[Holder]) -> None:
        self._dicts = [holder.container for holder in holders if holder.keys is not None]
        self._others = [holder for holder in holders if holder.keys is None]
        self._addresses = _pointers([id(held) for held in self._dicts])
        self._noted: tuple[Any, list[Any]] | None = None
        """The entries as addresses; and their objects, because an address is that of an object while the object exists."""

    def note(self) -> None:
        """Take what the dicts hold now for what they are to hold."""
        entries: list[int | None] = []
        objects: list[Any] = []
        for held in self._dicts:
            for key, value in list(held.items()):
                related = is_related(key)
                entries += (id(key), id(value) if related else None)
                objects += (key, value if related else None)
            entries.append(None)
        self._noted = _pointers(entries), objects

    def forget(self) -> None:
        """Say of nothing that it is the same."""
        self._noted = None

    def are_same(self) -> bool:
        """Whether the same objects are in the containers under the same keys."""
        noted = self._noted
        if noted is None or not _dicts_hold(self._addresses, len(self._dicts), noted[0]):
            return False
        return all(holder.is_same() for holder in self._others)


def _dicts_hold(dicts: Any, count: int, entries: Any) -> bool:
    """Whether dicts at these addresses have these entries, as xk_dicts_hold describes them."""
    try:
        return bool(native.quick_library().xk_dicts_hold(_DICT_NEXT, dicts, count, entries))
    except KernelsUnavailableError:
        return False


_DICT_NEXT: Final = ctypes.cast(ctypes.pythonapi.PyDict_Next, ctypes.c_void_p)


def _pointers(addresses: list[int | None]) -> Any:
    """Return a C array of them."""
    return (ctypes.c_void_p * len(addresses))(*addresses)


class _Tensor(NamedTuple):
    """A tensor, and what it was."""

    name: str
    tensor: torch.Tensor
    place: tuple[Any, ...]
    version: int
    alias: torch.Tensor | None
    """The same memory; None if it is not restored."""

    content: torch.Tensor | None

    def is_same(self) -> bool:
        """Whether nothing replaced its memory, and torch counted no write to it."""
        return _place(self.tensor) == self.place and _version(self.tensor) == self.version

    @staticmethod
    def of(name: str, tensor: torch.Tensor, *, copied: bool) -> _Tensor:
        with torch.inference_mode(tensor.is_inference()):
            alias = tensor.data if copied and _is_plain(tensor) else None
            content = None if alias is None else alias.clone()
        return _Tensor(name, tensor, _place(tensor), _version(tensor), alias, content)

    def restore(self) -> bool:
        """Restore the values; return whether they are as they were."""
        if self.alias is None or self.content is None:
            return self.is_same()
        with torch.inference_mode(self.tensor.is_inference()), torch.no_grad():
            if _place(self.tensor) != self.place:
                self.tensor.data = self.alias
            if not torch.equal(self.alias, self.content):
                self.alias.copy_(self.content)
        return True


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001 - nothing public tells


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether it has memory of its own, and no parts as sparse and nested tensors have."""
    return tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_nested


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Where its values are, in which order."""
    memory = (tensor.data_ptr(), tensor.stride()) if _is_plain(tensor) else ()
    return tensor.shape, *memory


def sampled_words(tensor: torch.Tensor) -> list[Any]:
    """Words of 8 bytes at even distances in the memory of a tensor; its bytes if it is smaller.

    None of a tensor without such memory.
    """
    if not _is_plain(tensor) or not tensor.numel():
        return []
    storage = tensor.untyped_storage()
    start = tensor.data_ptr()
    size = min(
        tensor.numel() * tensor.element_size(), storage.data_ptr() + storage.nbytes() - start
    )
    if size < 8:
        return [ctypes.c_uint8.from_address(start + offset) for offset in range(size)]
    step = (size - 8) // SAMPLED
    return [ctypes.c_uint64.from_address(start + step * (n + 1)) for n in range(SAMPLED)]


class RandomState:
    """The state of the random generators that all of a program shares, when it was made."""

    def __init__(self) -> None:
        self._torch, self._python = torch.get_rng_state(), random.getstate()
        self._numpy = _numpy_state()

    def change(self) -> str | None:
        """Return whose numbers were drawn since, for a message; None if there were none."""
        if not torch.equal(self._torch, torch.get_rng_state()):
            return "torch's random numbers"
        if self._python != random.getstate():
            return "Python's random numbers"
        if pickle.dumps(self._numpy) != pickle.dumps(_numpy_state()):  # it has an array
            return "numpy's random numbers"
        return None

    def restore(self) -> None:
        """Let the generators go on from here."""
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)


def _numpy_state() -> Any:
    """Return the state of numpy; None while the program has not imported numpy."""
    numpy = sys.modules.get("numpy")
    return None if numpy is None else numpy.random.get_state()
