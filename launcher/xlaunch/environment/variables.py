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
"""Lists what a launcher set, so that a launcher inside an instance can tell it from the user's."""

_SEPARATOR = "\x1f"


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


def choose_settings(
    plan: Plan,
    instance: Instance,
    inherited: Mapping[str, str],
    proposals: Sequence[Proposal],
    *,
    piped: bool,
) -> tuple[Setting, ...]:
    """The variables that running `instance` well takes, over what it inherits.

    `proposals` come from the concerns that treat all instances alike. `piped`: its output goes
    through a pipe or into a log file.
    """
    ours = _set_by_outer_launcher(inherited)
    asked = dict(plan.request.env)
    settings: list[Setting] = []

    def choose(name: str, value: str, reason: str, *, merged: bool = False) -> None:
        own = asked.get(name, inherited.get(name))
        if not merged and own is not None and (name in asked or ours.get(name) != own):
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
    """The whole environment of an instance."""
    variables = {
        name: value for name, value in inherited.items() if not name.startswith(OPTION_PREFIX)
    }
    chosen = [setting for setting in settings if not setting.users_own]
    variables.update((setting.name, setting.value) for setting in chosen)
    variables[OURS] = _SEPARATOR.join(f"{setting.name}={setting.value}" for setting in chosen)
    variables["XLAUNCH_INSTANCE_INDEX"] = str(instance.index)
    variables["XLAUNCH_INSTANCE_COUNT"] = str(plan.count)
    variables["XLAUNCH_INSTANCE_CPUS"] = format_cpu_list(instance.cpus)
    variables["XLAUNCH_INSTANCE_NODES"] = format_cpu_list(instance.nodes)
    # What was made of a value of the user's (LD_PRELOAD) holds that value.
    names = {setting.name for setting in chosen}
    variables.update((name, value) for name, value in plan.request.env if name not in names)
    return variables


def _set_by_outer_launcher(inherited: Mapping[str, str]) -> dict[str, str]:
    entries = inherited.get(OURS, "").split(_SEPARATOR)
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)
