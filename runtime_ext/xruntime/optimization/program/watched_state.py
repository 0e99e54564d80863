# SPDX-License-Identifier: Apache-2.0
"""Whether a module is as it was: the optimized form of a module holds for that state alone."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import is_, itemgetter
from types import ModuleType
from typing import Any, Final

import torch

SAMPLED: Final = 2
"""Words of each tensor's memory that are compared. Only changes that torch does not count need it: those
through ``.data``, and of tensors made in inference mode."""

_RELATED: Final = {
    *("training", "_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks"),
}
_UNRELATED: Final = frozenset(vars(torch.nn.Module())) - _RELATED
"""Torch's own attributes of a module that no forward call depends on."""


class WatchedState:
    """Attributes, parameters, buffers and forward hooks of a module and its parts, at one time.

    A change inside a tensor is found if torch counts it (``_version``) or if it reaches one of the
    `SAMPLED` words; attributes are compared by identity, and so are the items of lists, dicts and plain objects
    (a configuration) that they hold.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._holders: list[tuple[str, Any, int, Callable[[], Iterable[Any]], tuple[Any, ...]]] = []
        """Name, container, its size, a function that reads its values, and the values."""

        self._empty: list[Any] = []
        """Containers in which nothing was, such as the forward hooks of most layers."""

        tensors: dict[int, tuple[str, torch.Tensor]] = {}
        for name, holder in _holders(module):
            read = _reader(holder)
            values = tuple(read()) if holder else ()
            if values:
                self._holders.append((name, holder, len(holder), read, values))
            else:
                self._empty.append(holder)
            for value in values:
                if isinstance(value, torch.Tensor) and _is_plain(value):
                    tensors.setdefault(id(value), (name, value))
        self._tensors = [(name, it, it.data_ptr(), _version(it)) for name, it in tensors.values()]
        # Storages stay in memory while their words are read.
        self._storages = [it.untyped_storage() for _, it in tensors.values()]
        self._words = [word for _, it in tensors.values() for word in _words(it)]
        self._sampled = [word.value for word in self._words]

    def change(self) -> str | None:
        """Return what has changed since, for a message; None if nothing has."""
        if any(self._empty):
            return "a forward hook or an attribute was added"
        for name, holder, size, read, values in self._holders:
            if len(holder) != size or not all(map(is_, read(), values)):
                return f"{name} was changed"
        for name, tensor, address, version in self._tensors:
            if tensor.data_ptr() != address or _version(tensor) != version:
                return f"a tensor of {name} was changed"
        if [word.value for word in self._words] != self._sampled:
            return "its weights were changed"
        return None


def _holders(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield each container of what a forward call may depend on, once, with its name."""
    met: set[int] = set()
    for name, part in module.named_modules():
        own = vars(part)
        yield name or "the module", own
        for key, value in own.items():
            holder = None if key in _UNRELATED else _contents(value)
            if holder is not None and id(holder) not in met:
                met.add(id(holder))
                yield f"{name}.{key}".lstrip("."), holder


def _reader(holder: Any) -> Callable[[], Iterable[Any]]:
    """A function that returns the values in a container that a forward call may depend on."""
    if not isinstance(holder, Mapping):
        read: Callable[[], Iterable[Any]] = holder.__iter__
        return read
    keys = [key for key in holder if key not in _UNRELATED]
    return partial(itemgetter(*keys), holder) if len(keys) > 1 else holder.values


def _contents(value: Any) -> Any:
    """The container of what `value` holds; None for what is opaque, or is looked at elsewhere."""
    if isinstance(value, (dict, list, set)):
        return value
    if isinstance(value, (torch.nn.Module, torch.Tensor, type, ModuleType)) or callable(value):
        return None
    return getattr(value, "__dict__", None)


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001 - nothing public tells


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.device.type == "cpu" and tensor.numel() > 0


def _words(tensor: torch.Tensor) -> list[Any]:
    """Words of 8 bytes at even distances in the memory of a tensor; its bytes if it is smaller."""
    storage = tensor.untyped_storage()
    start = tensor.data_ptr()
    size = min(
        tensor.numel() * tensor.element_size(), storage.data_ptr() + storage.nbytes() - start
    )
    if size < 8:
        return [ctypes.c_uint8.from_address(start + offset) for offset in range(size)]
    step = (size - 8) // SAMPLED
    return [ctypes.c_uint64.from_address(start + step * (n + 1)) for n in range(SAMPLED)]
