# SPDX-License-Identifier: Apache-2.0
"""Named tuples as plain values for JSON, and back: every value is checked against the annotation of its field.

Also the digest of plain values.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import json
import textwrap
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from xtune.space.parameters import Configuration, Value

T = TypeVar("T")

_SCALARS: dict[Any, set[type]] = {float: {float, int}, int: {int}, str: {str}, bool: {bool}}
"""The scalar types, and those of the values that each takes."""


def digest(plain: Any) -> str:
    """The SHA-256 of a plain value's JSON, in hexadecimal digits, whatever the order of a dict's names."""
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def to_plain(value: Any) -> Any:
    """Named tuples and mappings as dicts, enums as their values, tuples as lists."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping) or hasattr(value, "_asdict"):
        fields = value if isinstance(value, Mapping) else value._asdict()
        return {name: to_plain(one) for name, one in fields.items()}
    if isinstance(value, list | tuple):
        is_flat = {*map(type, value)} <= {float, int, str, bool, NoneType}  # many samples
        return list(value) if is_flat else [to_plain(item) for item in value]
    return str(value) if isinstance(value, str) else value  # xlaunch's warnings are a kind of text


def from_plain(kind: type[T], plain: Any) -> T:
    """The named tuple that `to_plain` took apart, all fields checked.

    A missing field is empty or None if its default is empty, or if it may be None.

    Raises KeyError for another missing field, TypeError for a value of another type, and ValueError for a
    value that an enum does not have.
    """
    if not isinstance(plain, Mapping | list):
        raise TypeError(f"{kind.__name__} is {plain!r}")
    hints = _hints(kind)  # type: ignore[arg-type]
    defaults = getattr(kind, "_field_defaults", {})
    fields = plain if isinstance(plain, Mapping) else dict(zip(hints, plain, strict=True))
    arguments = {}
    for name, hint in hints.items():
        if name in fields:
            try:
                arguments[name] = _checked(hint, fields[name])
            except _MisfitError:
                seen = textwrap.shorten(repr(fields[name]), 60, placeholder=" ...")
                raise TypeError(f"{name} is {seen}") from None
        elif defaults.get(name, True) and NoneType not in get_args(hint):
            raise KeyError(name)
    return kind(**{name: None for name in hints if name not in defaults} | arguments)


class _MisfitError(Exception):
    """A value has another type than its field."""


def _checked(kind: Any, value: Any) -> Any:
    """A value of an annotated type. Raises _MisfitError if it is of another."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        for member in inner:
            try:
                return _checked(member, value)
            except _MisfitError:
                continue
    elif kind is Any or type(value) in _SCALARS.get(kind, {kind}):
        return value
    elif hasattr(kind, "_fields") and (
        isinstance(value, Mapping) or (isinstance(value, list) and len(value) == len(kind._fields))
    ):
        return from_plain(kind, value)
    elif kind is Configuration:
        return Configuration(_checked(Mapping[str, Value], value))
    elif isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(value)
    elif origin is Mapping and isinstance(value, Mapping):
        return {_checked(inner[0], name): _checked(inner[1], one) for name, one in value.items()}
    elif origin in (tuple, Sequence) and isinstance(value, Mapping | list | tuple):
        return _sequence(inner, list(value.items()) if isinstance(value, Mapping) else value)
    raise _MisfitError


def _sequence(inner: tuple[Any, ...], value: Sequence[Any]) -> tuple[Any, ...]:
    if len(inner) == 1 or inner[1] is Ellipsis:
        inner = (inner[0],) * len(value)
        if inner and inner[0] in _SCALARS and {*map(type, value)} <= _SCALARS[inner[0]]:
            return tuple(value)  # many samples
    if len(inner) != len(value):
        raise _MisfitError
    return tuple([_checked(kind, one) for kind, one in zip(inner, value, strict=True)])


_hints = functools.cache(get_type_hints)
