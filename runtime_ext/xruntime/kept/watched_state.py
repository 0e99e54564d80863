# SPDX-License-Identifier: Apache-2.0
"""Detects changes of a module at any depth and of the shared random generators, and undoes them: an optimized form
is valid only for the state that it was made from.
"""

from __future__ import annotations

import contextlib
import ctypes
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
        self._objects: list[Any] = []
        """Those whose class can be changed, but for `module`, which is not to live as long as this."""
        self._ignored = set() if own_hooks else {id(vars(module)[name]) for name in HOOKS}
        self._tensors: list[_Tensor] = []
        for name, tensor in self._walk(module, max_values):
            copied = copies and not isinstance(tensor, torch.nn.Parameter)
            self._tensors.append(_Tensor.of(name, tensor, copied=copied))
        self._classes = list(map(type, self._objects))
        self._root = weakref.ref(module) if isinstance(module, torch.nn.Module) else None
        self._root_class = type(module)
        self._dicts = [it.container for it in self._holders if it.keys is not None]
        self._others: list[Holder | _Tensor] = [it for it in self._holders if it.keys is None]
        self._others += [it for it in self._tensors if isinstance(it.place, tuple)]
        """What no native call compares."""

        self._noted: _Noted | None = None
        """What everything was found to be when nothing had changed."""

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
            self._holders += [
                holder._replace(name=name or ROOT)
                for holder in held.holders
                if id(holder.container) not in self._ignored
            ]
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

    def change(self) -> str | None:
        """Return what has changed since, for a message; None if nothing has."""
        if self._agrees_with(self._noted):
            return None
        noted = None
        with contextlib.suppress(KernelsUnavailableError):
            noted = _Noted(self._objects, self._classes, self._dicts, self._tensors)
        change = self._first_change()
        if change is None and self._agrees_with(noted):  # no other thread changes it at the moment
            self._noted = noted
        return change

    def _agrees_with(self, noted: _Noted | None) -> bool:
        """Whether everything is as it was when it was noted; not without the native library."""
        if noted is None or not self._has_same_root() or not noted.holds():
            return False
        for other in self._others:  # noqa: SIM110 - faster than all()
            if other.changed() is not None:
                return False
        return True

    def _has_same_root(self) -> bool:
        return self._root is None or type(self._root()) is self._root_class

    def _first_change(self) -> str | None:
        if not self._has_same_root() or list(map(type, self._objects)) != self._classes:
            return "the class of an object was changed"
        watched: list[Holder | _Tensor] = [*self._holders, *self._tensors]
        for each in watched:
            changed = each.changed()
            if changed is not None:
                return f"{changed} was changed"
        return None

    def new_tensor(self, module: Any) -> str | None:
        """Return the name of a floating-point tensor that `module` holds now and did not hold then."""
        earlier = {id(watched.tensor) for watched in self._tensors}
        now = [it for it in WatchedState(module)._tensors if it.tensor.is_floating_point()]  # noqa: SLF001 - of this class
        return next((it.name for it in now if id(it.tensor) not in earlier), None)

    def restore(self) -> str | None:
        """Undo all changes since, made with `copies`; return the name of a parameter whose values cannot be
        restored, or None.
        """
        for holder in self._holders:
            if holder.changed() is not None:
                holder.restore(holder.values)
        changed = [watched.name for watched in self._tensors if not watched.restore()]
        return changed[0] if changed else None


class _Noted:
    """What objects, dicts and tensors are and hold, compared by one native call."""

    def __init__(
        self,
        objects: list[Any],
        classes: list[type],
        dicts: list[dict[Any, Any]],
        tensors: list[_Tensor],
    ) -> None:
        self._compare = native.quick_library().xk_objects_hold
        self._entries: list[Any] = []
        """Kept, because an address is that of an object while the object exists."""

        for held in dicts:
            for key, value in list(dict.items(held)):
                self._entries += (key, value if is_related(key) else native.NULL)
            self._entries.append(native.NULL)
        read = [it for it in tensors if isinstance(it.place, list)]
        counted = [it for it in tensors if not it.tensor.is_inference()]
        forms = [number for it in read for number in it.place]
        words = [word for it in read for word in it.words]
        arrays: list[list[Any]] = [objects, classes, dicts, self._entries]
        arrays.append([it.tensor for it in read])
        self._held = native.CObjects(
            *(len(objects), len(dicts), len(read), len(counted), len(words)),
            *map(native.pointers, arrays),
            (ctypes.c_int64 * len(forms))(*forms),
            native.pointers([it.tensor for it in counted]),
            "_version",
            native.pointers([it.version for it in counted]),
            (native.CWord * len(words))(*words),
        )
        self._arguments = native.object_functions(torch.Tensor), ctypes.byref(self._held)

    def holds(self) -> bool:
        """Whether the same objects are in the dicts under the same keys, and the tensors are where and what they were."""
        try:
            return bool(self._compare(*self._arguments))
        except Exception:  # noqa: BLE001 - a tensor has become one that cannot be read
            return False


class _Tensor(NamedTuple):
    """A tensor, and what it was."""

    name: str
    tensor: torch.Tensor
    place: list[int] | tuple[Any, ...]
    version: int
    words: list[native.CWord]
    storage: Any
    """Stays in memory while its words are read."""

    alias: torch.Tensor | None
    """The same memory; None if it is not restored."""

    content: torch.Tensor | None

    def changed(self) -> str | None:
        """Return its name if its memory was replaced, torch counted a write to it, or a word differs; else None."""
        same = (
            _place(self.tensor) == self.place
            and version_of(self.tensor) == self.version
            and all(word.value == _value(word.address, word.size) for word in self.words)
        )
        return None if same else self.name

    @staticmethod
    def of(name: str, tensor: torch.Tensor, *, copied: bool) -> _Tensor:
        with torch.inference_mode(tensor.is_inference()):
            alias = tensor.data if copied and _is_plain(tensor) else None
            content = None if alias is None else alias.clone()
        storage = tensor.untyped_storage() if _is_plain(tensor) else None
        what = (_place(tensor), version_of(tensor), _sampled_words(tensor), storage)
        return _Tensor(name, tensor, *what, alias, content)

    def restore(self) -> bool:
        """Restore the values; return whether they are as they were."""
        if self.alias is None or self.content is None:
            return self.changed() is None
        with torch.inference_mode(self.tensor.is_inference()), torch.no_grad():
            if _place(self.tensor) != self.place:
                self.tensor.data = self.alias
            if not torch.equal(self.alias, self.content):
                self.alias.copy_(self.content)
        return True


def version_of(tensor: torch.Tensor) -> int:
    """Return torch's count of writes to a tensor, where it counts."""
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001 - nothing public tells


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether it has memory of its own, and no parts as sparse and nested tensors have."""
    return tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_nested


def _place(tensor: torch.Tensor) -> list[int] | tuple[Any, ...]:
    """Where its values are, of which type, in which order: a list as native.CObjects has it, a tuple if it cannot be read natively.

    Without an operation, because torch.jit.trace would record it.
    """
    if not _is_plain(tensor):
        return (tensor.shape,)
    read = native.read_tensor(tensor)
    if read is not None:
        return read
    return tensor.data_ptr(), tensor.stride(), tensor.nbytes, tensor.dtype


def _sampled_words(tensor: torch.Tensor) -> list[native.CWord]:
    """Words of 8 bytes at even distances in the memory of a tensor, or all of it if it is smaller; none without such memory."""
    if not _is_plain(tensor) or not tensor.numel():
        return []
    storage = tensor.untyped_storage()
    start = tensor.data_ptr()
    size = min(
        tensor.numel() * tensor.element_size(), storage.data_ptr() + storage.nbytes() - start
    )
    if size <= 0:
        return []
    count, length = (SAMPLED, 8) if size > 8 else (1, size)
    addresses = [start + (size - length) // SAMPLED * n for n in range(1, count + 1)]
    return [native.CWord(at, length, _value(at, length)) for at in addresses]


def _value(address: int, size: int) -> int:
    """Return the number in so many bytes of memory."""
    return int.from_bytes(ctypes.string_at(address, size), "little")


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
