# SPDX-License-Identifier: Apache-2.0
"""Which variables an instance gets, each with its reason. What the user has set stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from xlaunch.environment.substitution import substitute, words_of
from xlaunch.machine.cpu_list import format_cpu_list
from xlaunch.planning.plan import Instance, Plan

OPTION_PREFIX = "XLAUNCH_OPT_"
"""Options of this launcher come from such variables; its instances do not inherit them."""

OURS = "XLAUNCH_SET"
"""Lists what a launcher set, so that a launcher inside an instance can tell it from the user's.

**Ex.:** ``OMP_NUM_THREADS=4``; with what was there before where ours is made of it, an LD_PRELOAD of
``/a/mine.so`` and jemalloc: ``LD_PRELOAD=/a/mine.so:/b/libjemalloc.so`` `_BEFORE` ``/a/mine.so``."""

MEMORY = "XLAUNCH_INSTANCE_MEMORY_BYTES"
"""An instance's equal share of the memory, which a launcher inside it divides further."""

_SEPARATOR = "\x1f"
_BEFORE = "\x1e"
_MOST_DIGITS = 20
"""Of a number of bytes; a longer one says nothing."""


class Setting(NamedTuple):
    """One environment variable of one instance."""

    name: str
    value: str
    reason: str
    users_own: bool = False
    """It was set already, and stays."""


class Proposal(NamedTuple):
    """A variable that one concern wants set; a value of the user's own wins over it."""

    name: str
    value: str
    reason: str
    merged: bool = False
    """The value holds the user's own already, and replaces it."""


class Outside(NamedTuple):
    """The environment that a launcher starts from, and what one outside of it has left there."""

    users_own: dict[str, str]
    """Without what the launcher outside set, unless it was changed since."""
    chosen: dict[str, str]
    """What it set and nobody changed."""
    memory_share_bytes: int | None
    """What the instance that this launcher runs in has of the memory; None: not known, or in none."""


def split_inherited(inherited: Mapping[str, str]) -> Outside:
    """Tell the user's own variables from those that a launcher outside set.

    A variable counts as set by it while it has the very value that `OURS` lists. Where that value
    was made of one of the user's, as LD_PRELOAD and GLIBC_TUNABLES are, the user's comes back.
    """
    users_own, chosen = dict(inherited), dict[str, str]()
    digits = users_own.get(MEMORY, "") if OURS in users_own else ""
    known = digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS
    for entry in users_own.pop(OURS, "").split(_SEPARATOR):
        name, equals, values = entry.partition("=")
        value, made_of_another, before = values.partition(_BEFORE)
        if not equals or users_own.get(name) != value:
            continue
        chosen[name] = value
        if made_of_another:
            users_own[name] = before
        else:
            del users_own[name]
    return Outside(users_own, chosen, int(digits) if known else None)


def choose_settings(
    plan: Plan,
    instance: Instance,
    inherited: Mapping[str, str],
    proposals: Sequence[Proposal],
    *,
    piped: bool,
) -> tuple[Setting, ...]:
    """The variables that running `instance` well takes, over what it inherits.

    `inherited` is the user's own (see `split_inherited`). `proposals` come from the concerns that
    treat all instances alike. `piped`: its output goes through a pipe or into a log file.
    """
    asked = dict(plan.request.env)
    settings: list[Setting] = []

    def choose(name: str, value: str, reason: str, *, merged: bool = False) -> None:
        own = asked.get(name, inherited.get(name))
        if not merged and own is not None:
            reason = "already set" if own == value else f"already set; not changed to {value}"
            settings.append(Setting(name, own, reason, users_own=True))
        else:
            settings.append(Setting(name, value, reason))

    threads = instance.threads
    choose("OMP_NUM_THREADS", str(threads), "one thread for each CPU that the instance may use")
    if piped:
        choose("PYTHONUNBUFFERED", "1", "so that output shows as it is written")
    for proposal in proposals:
        value = proposal.value
        if proposal.merged and proposal.name in asked:
            value = substitute(value, words_of(plan, instance))
        choose(proposal.name, value, proposal.reason, merged=proposal.merged)
    return tuple(settings)


def instance_variables(
    plan: Plan, instance: Instance, settings: tuple[Setting, ...], inherited: Mapping[str, str]
) -> dict[str, str]:
    """The whole environment of an instance. `inherited` is the user's own."""
    variables = {
        name: value for name, value in inherited.items() if not name.startswith(OPTION_PREFIX)
    }
    asked = dict(plan.request.env)
    chosen = [setting for setting in settings if not setting.users_own]
    variables.update((setting.name, setting.value) for setting in chosen)
    before = {**inherited, **asked}
    entries = [_entry(setting, before.get(setting.name)) for setting in chosen]
    variables[OURS] = _SEPARATOR.join([entry for entry in entries if entry is not None])
    variables["XLAUNCH_INSTANCE_INDEX"] = str(instance.index)
    variables["XLAUNCH_INSTANCE_COUNT"] = str(plan.count)
    variables["XLAUNCH_INSTANCE_CPUS"] = format_cpu_list(instance.cpus)
    variables["XLAUNCH_INSTANCE_NODES"] = format_cpu_list(instance.nodes)
    if plan.memory_share_bytes is not None:
        variables[MEMORY] = str(plan.memory_share_bytes)
    # What was made of a value of the user's (LD_PRELOAD) holds that value.
    names = {setting.name for setting in chosen}
    variables.update((name, value) for name, value in asked.items() if name not in names)
    return variables


def _entry(setting: Setting, before: str | None) -> str | None:
    """`setting` as `OURS` lists it; None where its separators stand in the values themselves."""
    parts = [f"{setting.name}={setting.value}", *([] if before is None else [before])]
    if any(mark in part for part in parts for mark in (_SEPARATOR, _BEFORE)):
        return None
    return _BEFORE.join(parts)
