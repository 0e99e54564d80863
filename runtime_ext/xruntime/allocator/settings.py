# SPDX-License-Identifier: Apache-2.0
"""Settings of an allocator: their values, checks of new ones, and the variables of the start."""

from __future__ import annotations

import os
from typing import NamedTuple

from xruntime.errors import SettingTypeError, SettingValueError

Value = bool | int | str


class Setting(NamedTuple):
    """One setting of the allocator and its current value.

    **Ex.:** ``Setting("arenas.dirty_decay_ms", 10000, "ms", True)``
    """

    name: str
    value: Value
    unit: str | None = None
    """bytes, MiB or ms; None for a plain number, a switch, or a word."""
    writable: bool = False
    """Whether `write` can change it in the running process."""
    note: str | None = None


def checked_integer(name: str, value: object, low: int, high: int) -> int:
    """`value`, if it is an integer from `low` to `high`. Raises SettingTypeError, SettingValueError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise SettingTypeError(f"{name}: {value!r} is not an integer; allowed are {low} to {high}")
    if not low <= value <= high:
        raise SettingValueError(f"{name}: {value} is out of range; allowed are {low} to {high}")
    return value


def start_environment() -> dict[str, str]:
    """Return the variables that the process was started with, which the allocator has read.

    The allocator does not see later changes through `os.environ`, and neither does this function.
    """
    try:
        with open("/proc/self/environ", "rb") as stream:
            entries = stream.read().split(b"\0")
    except OSError:
        return dict(os.environ)
    variables: dict[str, str] = {}
    name = ""
    for entry in map(os.fsdecode, entries):
        if name == "GLIBC_TUNABLES" and entry.startswith("glibc."):
            # glibc 2.36 ends each tunable with a null character, in the variable itself.
            variables[name] += f":{entry}"
        elif "=" in entry:
            name, _, value = entry.partition("=")
            variables[name] = value
    return variables
