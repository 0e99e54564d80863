# SPDX-License-Identifier: Apache-2.0
"""What an object holds that may change: attributes, slots, items, closures, the bytes of small arrays."""

from __future__ import annotations

import abc
import ctypes
import datetime
import decimal
import enum
import fractions
import functools
import logging
import numbers
import os
import pickle
import random
import re
import sys
import threading
import types
import weakref
from collections import defaultdict, deque, namedtuple
from collections.abc import Callable, Iterable
from functools import partial
from operator import is_
from pathlib import PurePath
from typing import Any, Final, NamedTuple, cast

import torch

from xruntime.pytrees import CONSTANT_TYPES, constant_key

MAX_BUFFER_BYTES: Final = 1 << 16
"""Maximum size of an array outside of torch that is compared before each call."""

_RELATED: Final = {
    *("training", "_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks"),
}
_UNRELATED: Final = frozenset(vars(torch.nn.Module())) - _RELATED
"""Torch's own attributes of a module that no forward call depends on."""

TORCH_MARKS: Final = ("_dynamo", "_has_dynamo", "_specialize_on")
"""Beginnings of the names of tensors' attributes that torch gives to those whose sizes may vary."""

_MARKS: Final = ("_xruntime", *TORCH_MARKS)
_REGISTERED: Final = ("_parameters", "_buffers", "_modules")
ROOT: Final = "the module"
_NOTHING: Final = object()

VALUES: Final = (
    *CONSTANT_TYPES,
    *(enum.Enum, re.Pattern, range, slice, PurePath, numbers.Number),
    *(decimal.Decimal, fractions.Fraction),
    *(datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo),
)
"""Types whose values do not change, and are told by their text."""

_STATELESS: Final = (
    *(type, types.ModuleType, types.CodeType, types.GenericAlias, property),
    *(type(...), type(NotImplemented)),
    *(logging.Logger, type(threading.Lock()), type(threading.RLock())),
    *(torch.utils.hooks.RemovableHandle, types.WrapperDescriptorType),
    *(types.MethodDescriptorType, types.MethodWrapperType, types.GetSetDescriptorType),
    *(types.MemberDescriptorType, type(cast("Any", namedtuple("_", "field")).field)),
    type(vars(abc.ABC)["_abc_impl"]),
    *(torch._ops.OpOverload, torch._ops.OpOverloadPacket),  # noqa: SLF001
)
"""Objects that do not change, or that no output depends on, and functions without a state that Python sees."""

_KNOWN_STATE: Final = (
    *(*VALUES, BaseException, staticmethod, classmethod, type(functools.lru_cache(len))),
    torch.fx.Node,
)
"""Classes written in C whose objects keep nothing else that changes."""

_CDATA: Final = ctypes.c_int.__mro__[-2]

_INSTALLED: Final = frozenset(("site-packages", "dist-packages"))


def is_installed(module: str) -> bool:
    """Whether a Python module belongs to Python or to an installed package, whose code does not change."""
    top = module.partition(".")[0]
    if top == "__main__":
        return False
    if top == "xruntime" or top in sys.builtin_module_names or top in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and bool(_INSTALLED.intersection(file.split(os.sep)))


class Holder(NamedTuple):
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

    def changed(self) -> str | None:
        """Return the name of what has changed; None if nothing has, or if only equal values were set."""
        same_size = self.size < 0 or len(self.container) == self.size
        if same_size and all(map(is_, self.read(), self.values)):
            return None
        if self.keys is None:
            now = tuple(self.read())
            same = len(now) == len(self.values) and all(map(is_same, now, self.values))
            return None if same else self.name
        before = dict(zip(self.keys, self.values, strict=True))
        for key in [*self.container, *self.keys]:
            now, old = self.container.get(key, _NOTHING), before.get(key, _NOTHING)
            if is_related(key) and not is_same(now, old):
                return str(key) if self.name == ROOT else f"{self.name}.{key}"
        return None


def is_related(key: Any) -> bool:
    """Whether a forward call may depend on an attribute of that name."""
    return key not in _UNRELATED and not (isinstance(key, str) and key.startswith(_MARKS))


def is_same(now: Any, old: Any) -> bool:
    """Whether it is the same object, an equal constant, or a tuple of such."""
    if now is old:
        return True
    if type(now) is type(old) is tuple:
        return len(now) == len(old) and all(map(is_same, now, old))
    key = constant_key(now)
    return key is not None and key == constant_key(old)


class Parts(NamedTuple):
    """What of an object may change, and the named values that it holds."""

    holders: list[Holder]
    values: list[tuple[str, Any]]


_NO_PARTS: Final = Parts([], [])


def parts_of(value: Any) -> Parts | None:
    """Return the parts of an object; None for one whose changes cannot be followed."""
    if isinstance(value, _STATELESS):
        return _NO_PARTS
    if isinstance(value, types.MethodType):
        return Parts([], [("__self__", value.__self__), ("__func__", value.__func__)])
    if isinstance(value, types.BuiltinFunctionType):
        own = value.__self__
        of_torch = own is None or type(own).__module__.partition(".")[0] == "torch"
        return Parts([], [] if of_torch else [("__self__", own)])
    if isinstance(value, partial):
        inner: list[tuple[str, Any]] = [("func", value.func), ("args", value.args)]
        return Parts([], [*inner, ("keywords", value.keywords)])
    if isinstance(value, weakref.ref):
        return Parts([], [("", value())])
    if isinstance(value, types.FunctionType):
        return _function_parts(value)
    if isinstance(value, (threading.local, _CDATA)):  # each thread has its own, or C changes it
        return None
    if isinstance(value, types.MappingProxyType):
        return Parts([_proxy_holder(value)], [(str(key), it) for key, it in value.items()])
    return _object_parts(value)


def _function_parts(function: types.FunctionType) -> Parts:
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
        return Parts([], values)

    def read() -> tuple[Any, ...]:
        return tuple([_content(cell) for cell in cells])

    def restore(contents: tuple[Any, ...]) -> None:
        for cell, content in zip(cells, contents, strict=True):
            if content is not _NOTHING:
                cell.cell_contents = content

    now = read()
    values += zip(function.__code__.co_freevars, now, strict=True)
    return Parts([Holder("", cells, -1, None, read, now, restore)], values)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return _NOTHING


def _object_parts(value: Any) -> Parts | None:
    holders: list[Holder] = []
    inner: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        holders.append(_dict_holder(value))
        inner += [(str(key), it) for key, it in value.items() if is_related(key)]
        inner += [("key", key) for key in value if type(key) not in CONSTANT_TYPES]
        if isinstance(value, defaultdict):
            inner.append(("default_factory", value.default_factory))
    elif isinstance(value, (list, set, deque)):
        holders.append(_items_holder(value))
        inner += [(str(at), it) for at, it in enumerate(value)]
    elif isinstance(value, (tuple, frozenset)):
        inner += [(str(at), it) for at, it in enumerate(value)]
    elif not isinstance(value, _KNOWN_STATE) and _has_inner_state(type(value)):
        content = _content_holder(value)
        if content is None:
            return _NO_PARTS if _is_numpy(value) and type(value).__hash__ is not None else None
        holders.append(content)
    own = getattr(value, "__dict__", None)
    if isinstance(own, dict):
        holders.append(_dict_holder(own))
        for key, it in own.items():
            if key in _REGISTERED and isinstance(value, torch.nn.Module):
                inner.append(("", it))
            elif is_related(key):
                inner.append((str(key), it))
    slots = () if isinstance(value, VALUES) else slots_of(type(value))
    if slots:
        holders.append(_slots_holder(value, slots))
        inner += [(name, getattr(value, name, None)) for name in slots]
    return Parts(holders, inner)


def _has_inner_state(kind: type) -> bool:
    """Whether objects of a class have more than attributes and slots: what a class written in C keeps."""
    pointers = len(slots_of(kind)) + (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0)
    known = object.__basicsize__ + pointers * ctypes.sizeof(ctypes.c_void_p)
    return kind.__itemsize__ > 0 or kind.__basicsize__ > known


def slots_of(kind: type) -> list[str]:
    """Return the names of the attributes that a class keeps in slots."""
    names: dict[str, None] = {}
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__"):
                private = name.startswith("__") and not name.endswith("__")
                names[f"_{base.__name__.lstrip('_')}{name}" if private else name] = None
    return list(names)


def _dict_holder(holder: dict[Any, Any]) -> Holder:
    keys = [key for key in holder if is_related(key)]
    read = partial(map, partial(dict.get, holder), keys)

    def restore(values: tuple[Any, ...]) -> None:
        for key in [key for key in holder if is_related(key)]:
            dict.__delitem__(holder, key)
        dict.update(holder, zip(keys, values, strict=True))

    return Holder("", holder, len(holder), keys, read, tuple(read()), restore)


def _items_holder(holder: Any) -> Holder:
    def restore(values: tuple[Any, ...]) -> None:
        holder.clear()
        (holder.update if isinstance(holder, set) else holder.extend)(values)

    return Holder("", holder, len(holder), None, holder.__iter__, tuple(holder), restore)


def _proxy_holder(holder: Any) -> Holder:
    """A view of a dict that only others change."""

    def read() -> tuple[Any, ...]:
        return (*holder.keys(), *holder.values())

    return Holder("", holder, len(holder), None, read, read(), lambda _: None)


def _slots_holder(holder: Any, slots: list[str]) -> Holder:
    def read() -> tuple[Any, ...]:
        return tuple([getattr(holder, name, _NOTHING) for name in slots])

    def restore(values: tuple[Any, ...]) -> None:
        for name, value in zip(slots, values, strict=True):
            if value is not _NOTHING:
                object.__setattr__(holder, name, value)
            elif hasattr(holder, name):
                object.__delattr__(holder, name)

    return Holder("", holder, -1, None, read, read(), restore)


def _content_holder(value: Any) -> Holder | None:
    """The state of a random generator, or the content of a small array; None of another object."""
    get: Callable[[], Any]
    put: Callable[[Any], object]
    if isinstance(value, torch.Generator):
        get, put = value.get_state, value.set_state
    elif isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        get, put = value.getstate, value.setstate
    elif _is_numpy(value) and "random" in type(value).__module__:
        bits = getattr(value, "bit_generator", getattr(value, "_bit_generator", value))
        get, put = lambda: bits.state, partial(setattr, bits, "state")
    elif buffer_content(value) is not None:
        get, put = lambda: memoryview(value).tobytes(), partial(_fill, value)
    else:
        return None
    content: Any = get()

    def read() -> tuple[bytes]:
        state = get()
        if isinstance(state, torch.Tensor):
            return (ctypes.string_at(state.data_ptr(), state.nbytes),)
        return (pickle.dumps(state),)

    return Holder("", value, -1, None, read, read(), lambda _: put(content))


def _fill(value: Any, content: bytes) -> None:
    view = memoryview(value)
    if not view.readonly:
        view.cast("B")[:] = content


def _is_numpy(value: Any) -> bool:
    return any(base.__module__.partition(".")[0] == "numpy" for base in type(value).__mro__)


def buffer_content(value: Any) -> bytes | None:
    """Return the bytes of a small array outside of torch; None for another object."""
    try:
        view = memoryview(value)
        return view.tobytes() if view.nbytes <= MAX_BUFFER_BYTES else None
    except (TypeError, ValueError, BufferError):  # no array, or one of objects
        return None
