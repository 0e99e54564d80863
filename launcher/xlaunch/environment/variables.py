# SPDX-License-Identifier: Apache-2.0
"""Which variables an instance gets, each with its reason.

What ``--env`` sets comes first, then what an option of the command line asks for, then what is
inherited, then what this launcher would choose by itself. An empty variable counts as unset.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from xlaunch.environment.substitution import substitute, words_of
from xlaunch.machine.cpu_list import format_cpu_list
from xlaunch.planning.plans import Instance, Plan
from xlaunch.planning.request import Request

OPTION_PREFIX = "XLAUNCH_OPT_"
"""Options of this launcher come from such variables; its instances do not inherit them."""

OURS = "XLAUNCH_SET"
"""Lists what a launcher set, so that a launcher inside an instance can tell it from the user's.

**Ex.:** ``OMP_NUM_THREADS=4``; with what was there before where ours replaces it, an LD_PRELOAD of
``/a/mine.so`` and jemalloc: ``LD_PRELOAD=/a/mine.so:/b/libjemalloc.so|/a/mine.so``. Entries are
separated by ``;``; percent signs and the two separators are written as in a URL."""

MEMORY = "XLAUNCH_INSTANCE_MEMORY_BYTES"
"""An instance's equal share of the memory, which a launcher inside it divides further."""

_SEPARATOR = ";"
_BEFORE = "|"
_ESCAPES = (("%", "%25"), (_SEPARATOR, "%3B"), (_BEFORE, "%7C"))
_MOST_DIGITS = 20
"""Of a number of bytes; a longer one says nothing."""


class Setting(NamedTuple):
    """One environment variable of one instance."""

    name: str
    value: str
    reason: str
    users_own: bool = False
    """It was set already, and stays."""
    lost: str | None = None
    """The other value where there were two: ours when the user's stays, else the inherited one."""
    option: str | None = None
    """The option that asked for this value, in place of an inherited one."""


class Proposal(NamedTuple):
    """A variable that one concern wants set; an inherited value wins unless an option asks for it."""

    name: str
    value: str
    reason: str
    merged: bool = False
    """The value holds the user's own already, and replaces it."""
    option: str | None = None
    """The option of the command line that asks for this very value. **Ex.:** ``"--ncores 2"``."""


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
    replaced one of the user's, or was made of it as LD_PRELOAD is, the user's comes back.
    """
    users_own, chosen = dict(inherited), dict[str, str]()
    digits = users_own.get(MEMORY, "") if OURS in users_own else ""
    known = digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS
    for entry in users_own.pop(OURS, "").split(_SEPARATOR):
        name, equals, values = entry.partition("=")
        value, made_of_another, before = values.partition(_BEFORE)
        name, value, before = _unescaped(name), _unescaped(value), _unescaped(before)
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
    starts_ranks: bool = False,
) -> tuple[Setting, ...]:
    """The variables that running `instance` well takes, over what it inherits.

    `inherited` is the user's own (see `split_inherited`). `proposals` come from the concerns that
    treat all instances alike. `piped`: its output goes through a pipe or into a log file.
    `starts_ranks`: it divides its CPUs among processes of its own, so no thread count is set.
    """
    asked = dict(plan.request.env)
    settings: list[Setting] = []

    def choose(proposal: Proposal) -> None:
        name, value = proposal.name, proposal.value
        own = asked.get(name, inherited.get(name) or None)
        if proposal.merged:
            if name in asked:
                value = substitute(value, words_of(plan, instance))
            settings.append(Setting(name, value, proposal.reason))
        elif own is None:
            settings.append(Setting(name, value, proposal.reason))
        elif own == value:
            settings.append(Setting(name, own, "already set", users_own=True))
        elif proposal.option is not None and name not in asked:
            reason = f"{proposal.option} asks for it; {own} was inherited"
            settings.append(Setting(name, value, reason, lost=own, option=proposal.option))
        else:
            reason = f"already set; not changed to {value}"
            settings.append(Setting(name, own, reason, users_own=True, lost=value))

    if not starts_ranks:
        choose(
            Proposal(
                "OMP_NUM_THREADS",
                str(instance.threads),
                "one thread for each CPU that the instance may use",
                option=layout_option(plan.request),
            )
        )
    if piped:
        choose(Proposal("PYTHONUNBUFFERED", "1", "so that output shows as it is written"))
    for proposal in proposals:
        choose(proposal)
    return tuple(settings)


def layout_option(request: Request) -> str | None:
    """The option that says how many threads each instance has; None where none does.

    **Ex.:** ``"--ncores 2"``; ``"--instances max"``.
    """
    for name, value in (("ncores", request.ncores), ("instances", request.instances)):
        if value is not None:
            return f"--{name} {value if isinstance(value, int) else value.value}"
    if request.mode is not None:
        return f"--mode {request.mode.value}"
    return "--smt" if request.smt else None


def inherited_notes(settings: Sequence[Setting], plan: Plan) -> tuple[str, ...]:
    """A line on the inherited variables that options replaced, and one on those that were kept."""
    asked = dict(plan.request.env)
    replaced: dict[str, list[str]] = {}
    kept = []
    for setting in settings:
        if setting.lost is None or setting.name in asked:
            continue
        if setting.users_own:
            kept.append(f"{setting.name}={setting.value} (not {setting.lost})")
        elif setting.option is not None:
            was = f"{setting.name}={setting.lost} (now {setting.value})"
            replaced.setdefault(setting.option, []).append(was)
    notes = [f"{option} replaces the inherited {', '.join(r)}" for option, r in replaced.items()]
    return (*notes, *([f"inherited variables stay: {', '.join(kept)}"] if kept else []))


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
    variables[OURS] = _SEPARATOR.join(entries)
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


def without_names(listed: str, names: Collection[str]) -> str:
    """A value of `OURS` without the entries of these variables."""
    entries = listed.split(_SEPARATOR)
    kept = [entry for entry in entries if _unescaped(entry.partition("=")[0]) not in names]
    return _SEPARATOR.join(kept)


def _entry(setting: Setting, before: str | None) -> str:
    """`setting` as `OURS` lists it."""
    entry = f"{_escaped(setting.name)}={_escaped(setting.value)}"
    return entry if before is None else f"{entry}{_BEFORE}{_escaped(before)}"


def _escaped(text: str) -> str:
    for character, written in _ESCAPES:
        text = text.replace(character, written)
    return text


def _unescaped(text: str) -> str:
    for character, written in reversed(_ESCAPES):
        text = text.replace(written, character)
    return text
