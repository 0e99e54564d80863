# SPDX-License-Identifier: Apache-2.0
"""Detects changes of a module: its optimized form is valid only for the state that it was made
from.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import is_
from types import ModuleType
from typing import Any, Final, NamedTuple

import torch
from torch.utils.hooks import RemovableHandle

from xruntime.pytrees import constant_key

SAMPLED: Final = 2
"""Words of each tensor's memory that are compared. Only changes that torch does not count need it: those
through ``.data``, and of tensors made in inference mode."""

_RELATED: Final = {
    *("training", "_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks"),
}
_UNRELATED: Final = frozenset(vars(torch.nn.Module())) - _RELATED
"""Torch's own attributes of a module that no forward call depends on."""


_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks")
_ROOT: Final = "the module"
_NOTHING: Final = object()


class WatchedState:
    """Attributes, parameters, buffers and forward hooks of a module and its parts, at one time.

    A change inside a tensor is found if torch counts it (``_version``) or if it reaches one of the
    `SAMPLED` words; attributes are compared by identity, and so are the items of lists, dicts and plain objects
    (a configuration) that they hold. An equal number or text is no change.

    parts
        False: look at the module's own attributes only.
    own_hooks
        False: hooks of the module itself do not matter, those of its parts do.
    """

    def __init__(
        self, module: torch.nn.Module, *, parts: bool = True, own_hooks: bool = True
    ) -> None:
        self._holders: list[_Holder] = []
        self._empty: list[Any] = []
        """Containers that were empty, such as the forward hooks of most layers."""

        tensors: dict[int, tuple[str, torch.Tensor]] = {}
        ignored = [] if own_hooks else [vars(module)[name] for name in _HOOKS]
        for name, holder in _holders(module.named_modules() if parts else [("", module)]):
            if any(holder is one for one in ignored):
                continue
            keys, read = _reader(holder)
            values = tuple(read()) if holder else ()
            if values:
                self._holders.append(_Holder(name, holder, len(holder), keys, read, values))
            else:
                self._empty.append(holder)
            for value in values:
                if isinstance(value, torch.Tensor) and _is_plain(value):
                    tensors.setdefault(id(value), (name, value))
        self._tensors = [(name, it, it.data_ptr(), _version(it)) for name, it in tensors.values()]
        # Storages stay in memory while their words are read.
        self._storages = [it.untyped_storage() for _, it in tensors.values()]
        self._words = [word for _, it in tensors.values() for word in sampled_words(it)]
        self._sampled = [word.value for word in self._words]

    def change(self) -> str | None:
        """Return what has changed since, for a message; None if nothing has."""
        if any(self._empty):
            return "a forward hook or an attribute was added"
        for holder in self._holders:
            if len(holder.container) == holder.size and all(map(is_, holder.read(), holder.values)):
                continue
            changed = holder.changed()
            if changed is not None:
                return f"{changed} was changed"
        for name, tensor, address, version in self._tensors:
            if tensor.data_ptr() != address or _version(tensor) != version:
                return f"a tensor of {name} was changed"
        if [word.value for word in self._words] != self._sampled:
            return "its weights were changed"
        return None


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

        Looks at the attributes of the model itself, which takes microseconds; at all modules if it is
        `thorough`, or if any hook was registered since.
        """
        if self._hooks != RemovableHandle.next_id:
            self._hooks = RemovableHandle.next_id
            thorough = True
        return (self._all if thorough else self._own).change()


class _Holder(NamedTuple):
    """A container, and the values that were in it."""

    name: str
    container: Any
    size: int
    keys: list[Any] | None
    """The relevant keys of a mapping; None for another container."""
    read: Callable[[], Iterable[Any]]
    """Returns the values that matter, as they are now."""
    values: tuple[Any, ...]

    def changed(self) -> str | None:
        """Return the name of what has changed; None if only equal values were set."""
        if self.keys is None:
            now = tuple(self.read())
            same = len(now) == len(self.values) and all(map(_is_same, now, self.values))
            return None if same else self.name
        before = dict(zip(self.keys, self.values, strict=True))
        for key in [*self.container, *self.keys]:
            now, old = self.container.get(key, _NOTHING), before.get(key, _NOTHING)
            if key not in _UNRELATED and not _is_same(now, old):
                return str(key) if self.name == _ROOT else f"{self.name}.{key}"
        return None


def _is_same(now: Any, old: Any) -> bool:
    if now is old:
        return True
    key = constant_key(now)
    return key is not None and key == constant_key(old)


def _holders(modules: Iterable[tuple[str, torch.nn.Module]]) -> Iterator[tuple[str, Any]]:
    """Yield, once and with its name, each container with values on which a forward call may
    depend.
    """
    met: set[int] = set()
    for name, part in modules:
        own = vars(part)
        yield name or _ROOT, own
        for key, value in own.items():
            holder = None if key in _UNRELATED else contents(value)
            if holder is not None and id(holder) not in met:
                met.add(id(holder))
                yield f"{name}.{key}".lstrip("."), holder


def _reader(holder: Any) -> tuple[list[Any] | None, Callable[[], Iterable[Any]]]:
    """Return the relevant keys of a container, and a function that returns their present values."""
    if not isinstance(holder, Mapping):
        return None, holder.__iter__
    keys = [key for key in holder if key not in _UNRELATED]
    return keys, partial(map, holder.get, keys)


def contents(value: Any) -> Any:
    """The container that `value` is or has; None for an opaque value, or one that is watched
    elsewhere.
    """
    if isinstance(value, (dict, list, set)):
        return value
    if isinstance(value, (torch.nn.Module, torch.Tensor, type, ModuleType)) or callable(value):
        return None
    return getattr(value, "__dict__", None)


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
