# SPDX-License-Identifier: Apache-2.0
"""Checks of stored launches: a damaged one raises one of `DAMAGE`, and nothing is computed from it."""

from __future__ import annotations

import functools
import math
import textwrap
import zlib
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from xtune.launches.launch import Launch
from xtune.search.encoding import decode_final_plan
from xtune.search.records import NextLaunch, Record, Stage
from xtune.space.parameters import BARE
from xtune.space.spaces import Space

DAMAGE = (LookupError, TypeError, ValueError, AttributeError, zlib.error)
"""What reading damaged attributes raises."""

_FINAL = {"attempt": int, "block": int, "candidate": int, "plans": Sequence[str]}
"""The details of a launch of a final, beside its plan."""


def damage_text(error: BaseException) -> str:
    """The damage in one line. **Ex.:** ``'outcome' is missing``."""
    text = f"{error} is missing" if isinstance(error, KeyError) else str(error)
    return textwrap.shorten(text, 200, placeholder=" ...")


def check_record(record: Record, space: Space) -> None:
    """Raise one of `DAMAGE` unless a decoded record is complete and belongs to `space`."""
    check_fields(record)
    configurations = [record.step.configuration, *_check_final(record.step)]
    numbers = [record.step.cut_at]
    if record.launch is not None:
        configurations.append(record.launch.configuration)
        numbers += [record.launch.began_s, *record.launch.secondary]
        _check_series(record.launch)
    for number in numbers:
        if number is not None and not math.isfinite(number):
            raise ValueError(f"a time, size or limit is {number}")
    for one in configurations:
        if one != BARE and one not in space:
            raise ValueError(f"{one!r} is outside the space of the study")


def check_fields(made: Any) -> None:
    """Raise TypeError unless all fields of a named tuple have their annotated types."""
    for name, kind in _kinds(made.__class__).items():
        value = getattr(made, name)
        if not _is_a(value, kind):
            raise TypeError(f"{name} is {textwrap.shorten(repr(value), 60, placeholder=' ...')}")


def _check_final(step: NextLaunch) -> Sequence[Any]:
    """Check the details of a launch of a final; return the configurations of its plan."""
    if step.stage is not Stage.FINAL:
        return ()
    for name, kind in _FINAL.items():
        if not _is_a(step.details[name], kind):
            raise TypeError(f"{name} is {step.details[name]!r}")
    plan = decode_final_plan(step.details["plan"])
    check_fields(plan)
    if step.details["candidate"] not in range(len(plan.configurations)):
        raise ValueError(f"candidate is {step.details['candidate']}")
    return plan.configurations


def _check_series(launch: Launch) -> None:
    for one in launch.series:
        if len(one.times_s) != len(one.values):
            raise ValueError(
                f"{len(one.values)} values of {one.metric} at {len(one.times_s)} times"
            )


@functools.cache
def _kinds(made: type) -> Mapping[str, Any]:
    return get_type_hints(made)


def _is_a(value: Any, kind: Any) -> bool:
    """Whether a value is of an annotated type; the fields of named tuples are checked, too."""
    if kind is float:
        return type(value) in (float, int)
    inner, origin = get_args(kind), get_origin(kind)
    if kind is Any:
        return True
    if origin in (Union, UnionType):
        return any(_is_a(value, one) for one in inner)
    if not isinstance(value, origin or kind):
        return False
    if hasattr(value, "_fields"):
        check_fields(value)
    if origin is Mapping:
        return all(_is_a(one, inner[0]) and _is_a(value[one], inner[1]) for one in value)
    if origin is Sequence or inner[1:] == (...,):
        return all(_is_a(one, inner[0]) for one in value)
    if origin is tuple:
        return len(value) == len(inner) and all(map(_is_a, value, inner))
    return True
