# SPDX-License-Identifier: Apache-2.0
"""Layers of transformers' DynamicCache with room for more positions.

generate() makes its cache before it calls the model, so the layers of that object change their class: keys and
values become views of larger tensors, to which the decode step appends. Whatever else transformers or a program
does with `keys` and `values` sets other tensors; the next step copies these into larger ones again. Positions
that were cached are never overwritten, so tensors that a program took earlier keep their values.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import torch

from xruntime.errors import OperatorError

MIN_POSITIONS: Final = 64
"""Least number of positions that there is room for."""


_OURS: Final = ("_room", "_set", "_busy")
"""Attributes that transformers' layers do not have."""


class StepState(NamedTuple):
    """What a decode step keeps for its next one, as long as a cache's layers have the same rooms."""

    shape: tuple[int, int, int]
    batch: int
    dtype: torch.dtype
    capacity: int
    plan_key: object
    """Whose `c_layers` these are."""

    c_layers: Any


@dataclasses.dataclass(slots=True, eq=False)
class Room:
    """Tensors (batch, heads, capacity, head_dim), of which the positions `begin` to `end` - 1 are cached."""

    keys: torch.Tensor
    values: torch.Tensor
    begin: int
    end: int
    step_state: StepState | None = None
    number: int = 0
    """Of the layer in `step_state`."""


_NO_SLOTS: tuple[str, ...] = ()


class GrowingLayer:
    """Its class is also a subclass of the layer's class in transformers, of the same name."""

    __slots__ = _NO_SLOTS  # so that a layer can change its class
    _original_class: type
    _room: Room | None
    _set: tuple[Any, Any]
    """Keys and values as somebody has set them, if there is no room."""

    @property
    def keys(self) -> Any:
        return self._set[0] if self._room is None else _view(self._room.keys, self._room)

    @keys.setter
    def keys(self, value: Any) -> None:
        self._set, self._room = (value, self.values), None

    @property
    def values(self) -> Any:
        return self._set[1] if self._room is None else _view(self._room.values, self._room)

    @values.setter
    def values(self, value: Any) -> None:
        self._set, self._room = (self.keys, value), None

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles are layers of transformers' own class."""
        state = {name: value for name, value in vars(self).items() if name not in _OURS}
        for name, value in (("keys", self.keys), ("values", self.values)):
            state[name] = value.clone() if isinstance(value, torch.Tensor) else value
        return _new, (self._original_class,), state

    def room(self) -> Room:
        """Return tensors with room for one more position."""
        room = self._room
        if room is None or room.end == room.keys.shape[2]:
            keys, values = self.keys, self.values
            batch, heads, length, width = keys.shape
            capacity = MIN_POSITIONS
            while capacity <= length + length // 4:  # a sliding layer would fill less at once
                capacity *= 2
            grown = [old.new_empty((batch, heads, capacity, width)) for old in (keys, values)]
            for new, old in zip(grown, (keys, values), strict=True):
                new[:, :, :length] = old
            room = self._room = Room(grown[0], grown[1], 0, length)
            self._set = (None, None)
        return room

    def extend(self) -> None:
        """Count the position that was written behind the last; a sliding layer drops its first one if it is full."""
        layer: Any = self  # of a class of transformers, too
        room = self._room
        assert room is not None
        room.end += 1
        if layer.is_sliding:
            layer.cumulative_length += 1
            room.begin = max(room.begin, room.end - (layer.sliding_window - 1))


def _view(tensor: torch.Tensor, room: Room) -> torch.Tensor:
    return tensor[:, :, room.begin : room.end]


def _new(kind: Any) -> Any:
    return kind.__new__(kind)


_classes: dict[type, type] = {}
_lock: Final = threading.Lock()


def _grow(layer: Any) -> None:
    """Give a layer of transformers' class room to grow."""
    kind = type(layer)
    if kind not in _classes:
        # transformers would register a class with a `_layer_type`.
        space = {"__module__": kind.__module__, "_original_class": kind, "_layer_type": None}
        # In this order: otherwise Python lays objects out in another way, and a layer cannot change its class.
        _classes[kind] = type(kind.__name__, (kind, GrowingLayer), space)
    keys, values = layer.__dict__.pop("keys"), layer.__dict__.pop("values")
    layer.__dict__.update(_room=None, _set=(keys, values))
    layer.__class__ = _classes[kind]


class CacheView(NamedTuple):
    """A cache that the decode step can use."""

    layers: list[Any]
    """`GrowingLayer` objects, one for each layer of the model."""

    positions: int
    """How many positions each sequence has had."""

    batch: int
    dtype: torch.dtype
    step_state: StepState | None = None
    """None unless all is as the last step left it."""


def other_kind(cache: Any) -> str | None:
    """The name of a cache that is not transformers' plain DynamicCache; None for one that is."""
    from transformers import cache_utils  # a program that has such a cache has imported it

    if type(cache) is not cache_utils.DynamicCache:
        return type(cache).__name__
    return "offloaded DynamicCache" if getattr(cache, "offloading", False) else None


def growing(cache: Any, shape: tuple[int, int, int]) -> CacheView | None:
    """Return a DynamicCache's layers, each able to grow; None for a state that the decode step cannot use.

    shape
        Numbers of layers, of heads of keys, and of features of a head.

    Raises OperatorError if another call uses the cache.
    """
    with _lock:
        if cache.layers and cache.layers[0].__dict__.get("_busy"):
            raise _used_twice()
        return _as_before(cache.layers, shape) or _growing(cache, shape)


def _as_before(layers: list[Any], shape: tuple[int, int, int]) -> CacheView | None:
    """Return the view of layers that have the rooms of the last step; None if one has another, or none is left."""
    first: Room | None = getattr(layers[0], "_room", None) if layers else None
    step_state = None if first is None else first.step_state
    if first is None or step_state is None or first.end == step_state.capacity:
        return None
    if step_state.shape != shape or len(layers) != shape[0]:
        return None
    for number, layer in enumerate(layers):
        room: Room | None = getattr(layer, "_room", None)
        if room is None or room.step_state is not step_state or room.number != number:
            return None
        if not layer.is_initialized or getattr(layer, "record_past", False):
            return None
    return CacheView(layers, first.end, step_state.batch, step_state.dtype, step_state)


def _growing(cache: Any, shape: tuple[int, int, int]) -> CacheView | None:
    from transformers import cache_utils

    count, heads, width = shape
    kinds = (cache_utils.DynamicLayer, cache_utils.DynamicSlidingWindowLayer)
    layers: list[Any] = cache.layers
    states = set()
    for layer in layers:
        if getattr(type(layer), "_original_class", type(layer)) not in kinds:
            return None
        if not layer.is_initialized or getattr(layer, "record_past", False):
            return None
        room = getattr(layer, "_room", None)
        keys, values = (layer.keys, layer.values) if room is None else (room.keys, room.values)
        if not all(map(_is_unsubclassed, (keys, values))) or keys.shape != values.shape:
            return None
        if keys.dtype is not values.dtype or keys.shape[1::2] != (heads, width):
            return None
        positions = length = keys.shape[2] if room is None else room.end - room.begin
        if layer.is_sliding:
            positions = layer.cumulative_length
            if length != min(positions, layer.sliding_window - 1):
                return None
        states.add((positions, keys.shape[0], keys.dtype))
    if len(layers) != count or len(states) != 1:
        return None
    positions, batch, dtype = states.pop()
    if positions < 1:
        return None
    for layer in layers:
        if not isinstance(layer, GrowingLayer):
            _grow(layer)
    return CacheView(layers, positions, batch, dtype)


def _is_unsubclassed(tensor: Any) -> bool:
    """Whether it is a tensor of four dimensions in memory, without a gradient."""
    return (
        type(tensor) is torch.Tensor
        and tensor.dim() == 4
        and tensor.is_cpu
        and not tensor.requires_grad
    )


@contextlib.contextmanager
def in_use(layer: Any, positions: int) -> Iterator[None]:
    """Mark a cache as used by one call. Raises OperatorError if another call uses it.

    layer
        The first layer of the cache.
    positions
        How many positions it had when the call began.
    """
    state = layer.__dict__
    with _lock:
        if state.get("_busy") or layer.get_seq_length() != positions:
            raise _used_twice()
        state["_busy"] = True
    try:
        yield
    finally:
        state.pop("_busy", None)


def _used_twice() -> OperatorError:
    return OperatorError(
        "two calls use one cache at once: give each conversation a DynamicCache of its own"
    )
