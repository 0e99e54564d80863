# SPDX-License-Identifier: Apache-2.0
"""Detects changes of a module at any depth, and undoes them: its optimized form is valid only for the state that
it was made from.
"""

from __future__ import annotations

import array
import ctypes
import datetime
import decimal
import enum
import fractions
import logging
import numbers
import os
import re
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import is_
from pathlib import PurePath
from typing import Any, Final, NamedTuple

import torch
from torch.utils.hooks import RemovableHandle

from xruntime.pytrees import CONSTANT_TYPES, constant_key

SAMPLED: Final = 2
"""Words of each tensor's memory that are compared. Only changes that torch does not count need it: those
through ``.data``, and of tensors made in inference mode."""

MAX_VALUES: Final = 100_000
"""Maximum number of values of a model that are compared before each call."""

MAX_BUFFER_BYTES: Final = 1 << 16
"""Maximum size of an array outside of torch that is compared before each call."""

_RELATED: Final = {
    *("training", "_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks"),
}
_UNRELATED: Final = frozenset(vars(torch.nn.Module())) - _RELATED
"""Torch's own attributes of a module that no forward call depends on."""

_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks")
_REGISTERED: Final = ("_parameters", "_buffers", "_modules")
_ROOT: Final = "the module"
_NOTHING: Final = object()

_IMMUTABLE: Final = (
    *CONSTANT_TYPES,
    *(enum.Enum, re.Pattern, range, slice, PurePath, numbers.Number),
    *(
        decimal.Decimal,
        fractions.Fraction,
        datetime.date,
        datetime.time,
        datetime.timedelta,
        datetime.tzinfo,
    ),
    *(
        types.ModuleType,
        types.CodeType,
        types.GenericAlias,
        property,
        type(...),
        type(NotImplemented),
    ),
)
_INNER_WORKINGS: Final = (
    *(logging.Logger, threading.local, type(threading.Lock()), type(threading.RLock())),
    *(torch.utils.hooks.RemovableHandle, types.BuiltinFunctionType, types.WrapperDescriptorType),
    *(types.MethodDescriptorType, types.MethodWrapperType, types.GetSetDescriptorType),
)
"""Objects that no output depends on, and functions without a state that Python sees."""

_INSTALLED: Final = frozenset(("site-packages", "dist-packages"))


def is_installed(module: str) -> bool:
    """Whether a Python module belongs to Python or to an installed package, whose code does not change."""
    top = module.partition(".")[0]
    if top == "__main__":
        return False
    if top in sys.builtin_module_names or top in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and bool(_INSTALLED.intersection(file.split(os.sep)))


class WatchedState:
    """Everything that a module holds and refers to at one time: attributes, containers, slots, objects of
    functions and bound methods, closures, parameters, buffers and forward hooks.

    A change inside a tensor is found if torch counts it (``_version``) or if it reaches one of the
    `SAMPLED` words; other values are compared by identity. An equal number or text is no change.

    parts
        False: leave out other modules that the module holds.
    own_hooks
        False: hooks of the module itself do not matter, those of its parts do.
    copies
        Copy the buffers and other tensors besides parameters, for `restore`.
    max_values
        Maximum number of values that are looked at.

    `module` may be another object, too.
    """

    def __init__(
        self,
        module: Any,
        *,
        parts: bool = True,
        own_hooks: bool = True,
        copies: bool = False,
        max_values: int = MAX_VALUES,
    ) -> None:
        self.unfollowed: str | None = None
        """What can change without being noticed, for a message; None if everything is followed."""

        self._holders: list[_Holder] = []
        self._empty: list[Any] = []
        """Containers that were empty, such as the forward hooks of most layers."""

        self._ignored = set() if own_hooks else {id(vars(module)[name]) for name in _HOOKS}
        self._tensors: list[_Tensor] = []
        for name, tensor in self._walk(module, parts, max_values):
            copied = copies and not isinstance(tensor, torch.nn.Parameter)
            self._tensors.append(_Tensor.of(name, tensor, copied=copied))
        plain = [it.tensor for it in self._tensors]
        # Storages stay in memory while their words are read.
        self._storages = [it.untyped_storage() for it in plain]
        self._words = [word for it in plain for word in sampled_words(it)]
        self._sampled = [word.value for word in self._words]

    def _walk(
        self, module: Any, parts: bool, max_values: int
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Note all that is held; yield the tensors with their names."""
        met: dict[int, Any] = {id(module): module}
        waiting: deque[tuple[str, Any]] = deque([("", module)])
        count = 0
        while waiting:
            name, value = waiting.popleft()
            if isinstance(value, torch.Tensor):
                if _is_plain(value):
                    yield name or _ROOT, value
                continue
            found = _parts(value)
            if found is None:
                text = f"{name} is a {type(value).__name__}, whose changes are not followed"
                self.unfollowed = self.unfollowed or text
                continue
            for holder in found.holders:
                if id(holder.container) not in self._ignored:
                    self._note(holder._replace(name=name or _ROOT))
            for key, inner in found.values:
                count += 1
                if type(inner) in CONSTANT_TYPES or id(inner) in met:
                    continue
                if isinstance(inner, torch.nn.Module) and not parts:
                    continue
                met[id(inner)] = inner
                waiting.append((f"{name}.{key}".strip(".") if key else name, inner))
            if count > max_values:
                self.unfollowed = self.unfollowed or f"it holds more than {max_values:,} values"
                return

    def _note(self, holder: _Holder) -> None:
        if holder.values or not isinstance(holder.container, (dict, list, set, deque)):
            self._holders.append(holder)
        else:
            self._empty.append(holder.container)

    def change(self) -> str | None:
        """Return what has changed since, for a message; None if nothing has."""
        if any(self._empty):
            return "a forward hook or an attribute was added"
        for holder in self._holders:
            if holder.is_same():
                continue
            changed = holder.changed()
            if changed is not None:
                return f"{changed} was changed"
        for one in self._tensors:
            if one.tensor.data_ptr() != one.address or _version(one.tensor) != one.version:
                return f"{one.name} was changed"
        if [word.value for word in self._words] != self._sampled:
            return "its weights were changed"
        return None

    def new_tensor(self, module: torch.nn.Module) -> str | None:
        """Return the name of a floating-point tensor that the module holds now and did not hold then."""
        known = {id(it.tensor) for it in self._tensors}
        for one in WatchedState(module)._tensors:  # noqa: SLF001 - of this class
            if id(one.tensor) not in known and one.tensor.is_floating_point():
                return one.name
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
        changed = [one.name for one in self._tensors if not one.restore()]
        return changed[0] if changed else None


class FrozenModel:
    """Detects changes of a model since it was compiled; compiled code does not see them.

    Its own hooks run around compiled code, and may change.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._own = WatchedState(model, parts=False, own_hooks=False)
        self._all = WatchedState(model, own_hooks=False)
        self._hooks = RemovableHandle.next_id

    def change(self, *, thorough: bool) -> str | None:
        """Return what has changed; None if nothing has.

        Looks at what the model itself holds, which takes microseconds; at all modules if it is
        `thorough`, or if any hook was registered since.
        """
        if self._hooks != RemovableHandle.next_id:
            self._hooks = RemovableHandle.next_id
            thorough = True
        return (self._all if thorough else self._own).change()


class _Tensor(NamedTuple):
    """A tensor, and what it was."""

    name: str
    tensor: torch.Tensor
    address: int
    version: int
    alias: torch.Tensor | None
    """The same memory; None if it is not restored."""

    content: torch.Tensor | None

    @staticmethod
    def of(name: str, tensor: torch.Tensor, *, copied: bool) -> _Tensor:
        with torch.inference_mode(tensor.is_inference()):
            alias = tensor.data if copied else None
            content = None if alias is None else alias.clone()
        return _Tensor(name, tensor, tensor.data_ptr(), _version(tensor), alias, content)

    def restore(self) -> bool:
        """Restore the values; return whether they are as they were."""
        same_memory = self.tensor.data_ptr() == self.address
        if self.alias is None or self.content is None:
            return same_memory and _version(self.tensor) == self.version
        with torch.inference_mode(self.tensor.is_inference()), torch.no_grad():
            if not same_memory or self.tensor.shape != self.alias.shape:
                self.tensor.data = self.alias
            if not torch.equal(self.alias, self.content):
                self.alias.copy_(self.content)
        return True


class _Holder(NamedTuple):
    """A container, and the values that were in it."""

    name: str
    container: Any
    size: int
    """Its length; -1 where it has none."""

    keys: list[Any] | None
    """The relevant keys of a dict; None for another container."""

    read: Callable[[], Iterable[Any]]
    """Returns the values that matter, as they are now."""

    values: tuple[Any, ...]
    restore: Callable[[tuple[Any, ...]], object]
    """Puts these values back."""

    def is_same(self) -> bool:
        """Whether the same objects are in it."""
        if self.size >= 0 and len(self.container) != self.size:
            return False
        return all(map(is_, self.read(), self.values))

    def changed(self) -> str | None:
        """Return the name of what has changed; None if only equal values were set."""
        if self.keys is None:
            now = tuple(self.read())
            same = len(now) == len(self.values) and all(map(_is_same, now, self.values))
            return None if same else self.name
        before = dict(zip(self.keys, self.values, strict=True))
        for key in [*self.container, *self.keys]:
            now, old = self.container.get(key, _NOTHING), before.get(key, _NOTHING)
            if _is_related(key) and not _is_same(now, old):
                return str(key) if self.name == _ROOT else f"{self.name}.{key}"
        return None


def _is_related(key: Any) -> bool:
    """Whether a forward call may depend on an attribute of that name."""
    return key not in _UNRELATED and not (isinstance(key, str) and key.startswith("_xruntime"))


def _is_same(now: Any, old: Any) -> bool:
    if now is old:
        return True
    key = constant_key(now)
    return key is not None and key == constant_key(old)


class _Parts(NamedTuple):
    """What of an object may change, and the named values that it holds."""

    holders: list[_Holder]
    values: list[tuple[str, Any]]


_NO_PARTS: Final = _Parts([], [])


def inner_values(value: Any) -> list[tuple[str, Any]] | None:
    """The named values in a container or an object; None if it may hold what cannot be read."""
    found = _parts(value)
    return None if found is None else found.values


def _parts(value: Any) -> _Parts | None:
    """Return the parts of an object; None for one whose changes cannot be followed."""
    if isinstance(value, (type, *_IMMUTABLE)):
        return _NO_PARTS
    if isinstance(value, (tuple, frozenset)):
        return _Parts([], [(str(at), it) for at, it in enumerate(value)])
    if isinstance(value, types.MethodType):
        return _Parts([], [("__self__", value.__self__), ("__func__", value.__func__)])
    if isinstance(value, types.BuiltinFunctionType):
        own = value.__self__
        of_torch = own is None or type(own).__module__.partition(".")[0] == "torch"
        return _Parts([], [] if of_torch else [("__self__", own)])
    if isinstance(value, partial):
        inner: list[tuple[str, Any]] = [("func", value.func), ("args", value.args)]
        return _Parts([], [*inner, ("keywords", value.keywords)])
    if isinstance(value, weakref.ref):
        return _Parts([], [("", value())])
    if isinstance(value, types.FunctionType):
        return _function_parts(value)
    if isinstance(value, _INNER_WORKINGS):
        return _NO_PARTS
    return _object_parts(value)


def _function_parts(function: types.FunctionType) -> _Parts:
    """What a function keeps between its calls. What it reads of its Python module is part of the fingerprint."""
    if is_installed(function.__module__ or ""):
        return _NO_PARTS
    values: list[tuple[str, Any]] = [
        ("", function.__defaults__ or ()),
        ("", function.__kwdefaults__ or ()),
        ("", function.__dict__ or ()),
    ]
    cells = function.__closure__ or ()
    if not cells:
        return _Parts([], values)

    def read() -> tuple[Any, ...]:
        return tuple([_content(cell) for cell in cells])

    def restore(contents: tuple[Any, ...]) -> None:
        for cell, content in zip(cells, contents, strict=True):
            if content is not _NOTHING:
                cell.cell_contents = content

    now = read()
    values += zip(function.__code__.co_freevars, now, strict=True)
    return _Parts([_Holder("", cells, -1, None, read, now, restore)], values)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return _NOTHING


def _object_parts(value: Any) -> _Parts | None:
    holders: list[_Holder] = []
    inner: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        holders.append(_dict_holder(value))
        inner += [(str(key), it) for key, it in value.items() if _is_related(key)]
    elif isinstance(value, (list, set, deque)):
        holders.append(_items_holder(value))
        inner += [(str(at), it) for at, it in enumerate(value)]
    own = getattr(value, "__dict__", None)
    if isinstance(own, dict):
        holders.append(_dict_holder(own))
        for key, it in own.items():
            if key in _REGISTERED and isinstance(value, torch.nn.Module):
                inner.append(("", it))
            elif _is_related(key):
                inner.append((str(key), it))
    slots = slots_of(type(value))
    if slots:
        holders.append(_slots_holder(value, slots))
        inner += [(name, getattr(value, name, None)) for name in slots]
    if holders:
        return _Parts(holders, inner)
    if type(value) is object or value is _NOTHING:
        return _NO_PARTS
    return _buffer_parts(value)


def slots_of(kind: type) -> list[str]:
    """Return the names of the attributes that a class keeps in slots."""
    found: dict[str, None] = {}
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__"):
                private = name.startswith("__") and not name.endswith("__")
                found[f"_{base.__name__.lstrip('_')}{name}" if private else name] = None
    return list(found)


def _dict_holder(holder: dict[Any, Any]) -> _Holder:
    keys = [key for key in holder if _is_related(key)]
    read = partial(map, partial(dict.get, holder), keys)

    def restore(values: tuple[Any, ...]) -> None:
        for key in [key for key in holder if _is_related(key)]:
            dict.__delitem__(holder, key)
        dict.update(holder, zip(keys, values, strict=True))

    return _Holder("", holder, len(holder), keys, read, tuple(read()), restore)


def _items_holder(holder: Any) -> _Holder:
    def restore(values: tuple[Any, ...]) -> None:
        holder.clear()
        (holder.update if isinstance(holder, set) else holder.extend)(values)

    return _Holder("", holder, len(holder), None, holder.__iter__, tuple(holder), restore)


def _slots_holder(holder: Any, slots: list[str]) -> _Holder:
    def read() -> tuple[Any, ...]:
        return tuple([getattr(holder, name, _NOTHING) for name in slots])

    def restore(values: tuple[Any, ...]) -> None:
        for name, value in zip(slots, values, strict=True):
            if value is not _NOTHING:
                object.__setattr__(holder, name, value)
            elif hasattr(holder, name):
                object.__delattr__(holder, name)

    return _Holder("", holder, -1, None, read, read(), restore)


def _buffer_parts(value: Any) -> _Parts | None:
    """The content of a small array; None for an object that cannot be looked into."""
    if (
        type(value).__module__.partition(".")[0] == "numpy"
        and "random" not in type(value).__module__
    ):
        if type(value).__hash__ is not None:  # a dtype
            return _NO_PARTS
    elif not isinstance(value, (bytearray, array.array)):
        return None
    try:
        if memoryview(value).nbytes > MAX_BUFFER_BYTES:
            return None
        content = memoryview(value).tobytes()
    except (TypeError, ValueError, BufferError):  # an array of objects
        return None

    def read() -> tuple[bytes]:
        return (memoryview(value).tobytes(),)

    def restore(values: tuple[Any, ...]) -> None:
        memoryview(value).cast("B")[:] = values[0]

    return _Parts([_Holder("", value, -1, None, read, (content,), restore)], [])


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001 - nothing public tells


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.device.type == "cpu" and tensor.numel() > 0


def sampled_words(tensor: torch.Tensor) -> list[Any]:
    """Words of 8 bytes at even distances in the memory of a tensor; its bytes if it is smaller.

    None of a tensor without such memory.
    """
    if not _is_plain(tensor):
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
