# SPDX-License-Identifier: Apache-2.0
"""The environment variables of an instance, each with its reason.

The order of precedence: ``--env``, values that an option asks for, inherited values, the launcher's
own choice. An empty variable counts as unset.

Braces in arguments and in the variables of ``--env`` stand for an instance's own numbers: ``{index}``, ``{count}``,
``{cpus}``, ``{ncores}``, ``{node}``, and sums and products of whole numbers with them: ``{8000+2*index}``.
Anything else in braces stays as it is, JSON and ``${HOME}`` too.
"""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from xlaunch.cache.table import VARIABLES as CACHE_VARIABLES
from xlaunch.environment.program import Program
from xlaunch.errors import UsageError
from xlaunch.machine import gpus
from xlaunch.planning.plans import Instance, Plan
from xlaunch.planning.request import LayoutRequest, ProgramRequest
from xlaunch.text import INSTANCE_PREFIX, format_cpu_list, passable

MAX_DIGITS = 18
"""Longer numbers in braces are left alone."""

MAX_TERMS = 10

_TERM = rf"(?:[0-9]{{1,{MAX_DIGITS}}}|[a-z]+)"
# Doubled braces are an escape: {{index}} stands for the text {index}.
_BRACES = rf"\{{(\{{?)({_TERM}(?:[-+*]{_TERM}){{0,{MAX_TERMS - 1}}})\}}(\}}?)"


def words_of(plan: Plan, instance: Instance) -> dict[str, str]:
    """The names that may be in braces, and the text of each for `instance`.

    **Ex.:** ``{"index": "1", "count": "4", "cpus": "4-7", "ncores": "4", "node": "0"}``
    """
    return {
        "index": str(instance.index),
        "count": str(plan.count),
        "cpus": format_cpu_list(instance.cpus),
        "ncores": str(instance.ncores),
        "node": format_cpu_list(instance.nodes),
    }


def own_variables(request: ProgramRequest, plan: Plan, instance: Instance) -> dict[str, str]:
    """The variables of `--env`, substituted for `instance`. Raises what `substitute` raises."""
    words = words_of(plan, instance)
    return {name: _named(f"--env {name}", value, words) for name, value in request.env}


def own_program(
    program: Program, request: ProgramRequest, plan: Plan, instance: Instance
) -> Program:
    """Substitute in the program's arguments for `instance`. Raises what `substitute` raises."""
    written = len(request.words) - 1
    if not request.substitute or not written:
        return program
    words = words_of(plan, instance)
    arguments = [_named("--substitute", text, words) for text in program.argv[-written:]]
    return program._replace(argv=(*program.argv[:-written], *arguments))


def substitute(text: str, words: Mapping[str, str]) -> str:
    """Replace the braces in `text` whose names are in `words`.

    Braces that name nothing known, or no name at all (``{3}``), are left alone; ``{{index}}`` gives
    ``{index}``. Raises `UsageError` for a sum with a list: ``{cpus+1}``.
    """
    if "{" not in text:
        return text

    def replace(braces: re.Match[str]) -> str:
        opening, expression, closing = braces.groups()
        names = re.findall("[a-z]+", expression)
        if not names or any(name not in words for name in names):
            return braces[0]
        if opening and closing:
            return braces[0][1:-1]
        return f"{opening}{_value(expression, words)}{closing}"

    return re.sub(_BRACES, replace, text)


def _named(option: str, text: str, words: Mapping[str, str]) -> str:
    try:
        return substitute(text, words)
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None


def _value(expression: str, words: Mapping[str, str]) -> str:
    if expression in words:
        return words[expression]
    total = 0
    for sign, product in re.findall("([-+]?)([^-+]+)", expression):
        value = 1
        for factor in product.split("*"):
            value *= _number(factor, expression, words)
        total += -value if sign == "-" else value
    return str(total)


def _number(factor: str, expression: str, words: Mapping[str, str]) -> int:
    text = words.get(factor, factor)
    if not text.isdigit():
        raise UsageError(
            f"{{{expression}}}: {factor} is {text or 'empty'!r} here, which is no number to "
            f"calculate with; write {{{factor}}} alone"
        )
    return int(text)


PRELOAD = "LD_PRELOAD"
OPTION_PREFIX = "XLAUNCH_OPT_"
"""Variables that set options of the launcher. Instances do not inherit them."""

_CHOOSE_CODE = frozenset(
    (
        *("PATH", "HOME", "XDG_CACHE_HOME", "VIRTUAL_ENV", "CONDA_PREFIX", "CC", "CXX"),
        *("BASH_ENV", "ENV"),
        *("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE", "PYTHONEXECUTABLE"),
        *("PYTHONPLATLIBDIR", "PYTHONPYCACHEPREFIX", "PYTHONBREAKPOINT", "GCONV_PATH"),
        *("OMP_TOOL_LIBRARIES", "OPENSSL_CONF", "NCCL_NET_PLUGIN", "NODE_OPTIONS", "PERL5OPT"),
        *("PERL5LIB", "RUBYOPT", "JAVA_TOOL_OPTIONS", "XLAUNCH_CACHE_SEED", *CACHE_VARIABLES),
    )
)


def chooses_code(name: str) -> bool:
    """Whether a variable names code that processes then run: ``LD_PRELOAD``, ``PYTHONPATH``."""
    return name in _CHOOSE_CODE or name.startswith(("LD_", "DYLD_", OPTION_PREFIX))


SET_VARIABLES = "XLAUNCH_SET"
"""The variables that a launcher set, so that a nested launcher can tell them from the user's.

**Ex.:** ``OMP_NUM_THREADS=4``. A replaced value follows a ``|``: an LD_PRELOAD of ``/a/mine.so`` and
jemalloc is ``LD_PRELOAD=/a/mine.so:/b/libjemalloc.so|/a/mine.so``. Entries are separated by ``;``;
percent signs and the two separators are encoded as in a URL. Linux limits a variable to 128 KiB, so
instead of a long value there is its digest (``%#``), and instead of a long replaced value its place in
the new one (``%@START+LENGTH``). A user's variable that the instance or its child processes do not have
is listed without a value: ``OMP_NUM_THREADS|8``."""

OF_THE_PLACE = frozenset((*gpus.VARIABLES, *gpus.COUNTING))
"""Variables that `SET_VARIABLES` does not list: a nested launcher keeps them, and divides the GPUs they name."""

MEMORY = f"{INSTANCE_PREFIX}MEMORY_BYTES"
"""An instance's equal share of the memory in bytes. A nested launcher divides it further."""

_SEPARATOR = ";"
_BEFORE = "|"
_ESCAPES = (("%", "%25"), (_SEPARATOR, "%3B"), (_BEFORE, "%7C"))
MAX_LISTED = 1024
"""Maximum length of a value that `SET_VARIABLES` contains."""
_DIGEST, _PLACE = "%#", "%@"
MAX_BYTE_DIGITS = 20
"""Longer values of `MEMORY` are ignored."""


class Reach(enum.Enum):
    """Which processes get a variable."""

    CHILDREN = "children"
    """The program and all that it starts."""
    PROGRAM = "program"
    """The program's own process: the start-up hook keeps it from what the program starts."""
    NO_PROCESS = "no process"
    """None: what it would say is known already. An inherited value is removed if an option replaces it."""


class VariableSetting(NamedTuple):
    """One environment variable of one instance."""

    name: str
    value: str | None
    """None: the instance does not have it."""
    reason: str
    users_own: bool = False
    """The user has set it, and the value is kept."""
    lost: str | None = None
    """The value that was not used: ours if the user's is kept, else the inherited one."""
    option: str | None = None
    """The option that replaced an inherited value."""
    inherited: bool = True
    """Processes that the program starts get it."""


class Proposal(NamedTuple):
    """A variable that the launcher would set. An inherited value wins unless `option` is given."""

    name: str
    value: str
    reason: str
    merged: bool = False
    """The value is the inherited one with ours added, so it takes its place."""
    option: str | None = None
    """The option that asks for this value. **Ex.:** ``"--ncores 2"``."""
    reach: Reach = Reach.CHILDREN


class InheritedVariables(NamedTuple):
    """The environment that a launcher starts in, split by who set each variable."""

    users_own: dict[str, str]
    """Without those of the instance's place, and those of an outer launcher that nobody changed."""
    chosen: dict[str, str]
    """The variables that an outer launcher set and nobody changed since."""
    memory_share_bytes: int | None
    """The memory share of the instance that this launcher runs in; None if unknown or in no instance."""


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """What a program can be given of an environment.

    A variable without a name, as of ``env =x``, is left out, as every shell does. Raises `UsageError`
    for a name or value that no program can be given, which only a caller within Python can make.
    """
    if environment is not os.environ:  # which can hold no others
        for name, value in environment.items():
            check_variable(name, value)
    return {name: value for name, value in environment.items() if name}


def check_variable(name: str, value: str) -> None:
    """Raise `UsageError` unless a program can be given the variable."""
    passable(name)
    passable(value)
    if "=" in name:
        raise UsageError(f"{name!r} cannot be the name of a variable: it holds an equals sign")


def split_inherited(inherited: Mapping[str, str]) -> InheritedVariables:
    """Separate the user's own variables from those that an outer launcher set.

    A variable counts as set by the launcher while it has the value that `SET_VARIABLES` lists. If the
    launcher replaced or extended the user's value (LD_PRELOAD), that value is restored.
    """
    users_own = {n: value for n, value in inherited.items() if not n.startswith(INSTANCE_PREFIX)}
    chosen = dict[str, str]()
    digits = inherited.get(MEMORY, "") if SET_VARIABLES in inherited else ""
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= MAX_BYTE_DIGITS
    for entry in users_own.pop(SET_VARIABLES, "").split(_SEPARATOR):
        name, equals, values = entry.partition("=")
        if _BEFORE in name:
            name, _, before = entry.partition(_BEFORE)
            users_own.setdefault(_unescaped(name), _unescaped(before))
            continue
        value, made_of_another, before = values.partition(_BEFORE)
        name = _unescaped(name)
        current = users_own.get(name)
        if not equals or current is None or value not in (_listed(current), _escaped(current)):
            continue
        chosen[name] = current
        if made_of_another:
            users_own[name] = _replaced(before, current)
        else:
            del users_own[name]
    return InheritedVariables(users_own, chosen, int(digits) if is_number else None)


def choose_settings(
    plan: Plan,
    instance: Instance,
    asked: Mapping[str, str],
    inherited: Mapping[str, str],
    proposals: Sequence[Proposal],
) -> tuple[VariableSetting, ...]:
    """Choose the variables that `instance` gets in addition to what it inherits.

    `asked`: the variables of --env. `inherited`: the user's own variables (see `split_inherited`).
    """
    settings: list[VariableSetting] = []
    for proposal in proposals:
        value = proposal.value
        if proposal.merged and proposal.name in asked:
            value = substitute(value, words_of(plan, instance))
        settings.append(_chosen(proposal, value, asked, inherited))
    return tuple(settings)


def _chosen(
    proposal: Proposal, value: str, asked: Mapping[str, str], inherited: Mapping[str, str]
) -> VariableSetting:
    """`value`, or the user's own."""
    name, option = proposal.name, proposal.option
    own = asked.get(name, inherited.get(name) or None)
    own_value = None if proposal.reach is Reach.NO_PROCESS else value
    reaches = proposal.reach is Reach.CHILDREN
    if proposal.merged or own is None:
        return VariableSetting(name, own_value, proposal.reason, inherited=reaches)
    if own == value:
        return VariableSetting(name, own, "already set", users_own=True)
    if option is not None and name not in asked:
        reason = f"{option} asks for it; {own} was inherited"
        if own_value is None:
            reason = f"{option} asks for {value}; {own} was inherited; {proposal.reason}"
        return VariableSetting(name, own_value, reason, lost=own, option=option, inherited=reaches)
    reason = f"already set; not changed to {value}"
    return VariableSetting(name, own, reason, users_own=True, lost=value)


def layout_option(request: LayoutRequest) -> str | None:
    """The option that determines the threads of each instance, as in ``--ncores 2``; None without one."""
    for name, value in (("ncores", request.ncores), ("instances", request.instances)):
        if value is not None:
            return f"--{name} {value if isinstance(value, int) else value.value}"
    if request.mode is not None:
        return f"--mode {request.mode.value}"
    return "--smt" if request.smt else None


def inherited_notes(
    settings: Sequence[VariableSetting], asked: Mapping[str, str]
) -> tuple[str, ...]:
    """Notes on the inherited variables that options replaced, and on those that were kept."""
    replaced: dict[str, list[str]] = {}
    kept = []
    for setting in settings:
        if setting.lost is None or setting.name in asked:
            continue
        if setting.users_own:
            kept.append(f"{setting.name}={setting.value} (not {setting.lost})")
        elif setting.option is not None:
            was = f"{setting.name}={setting.lost} (now {setting.value or 'not set'})"
            replaced.setdefault(setting.option, []).append(was)
    notes = [f"{option} replaces the inherited {', '.join(r)}" for option, r in replaced.items()]
    return (*notes, *([f"inherited variables are kept: {', '.join(kept)}"] if kept else []))


def instance_variables(
    plan: Plan,
    instance: Instance,
    asked: Mapping[str, str],
    settings: tuple[VariableSetting, ...],
    inherited: Mapping[str, str],
) -> dict[str, str]:
    """The complete environment of an instance. `inherited`: the user's own variables."""
    variables = {
        name: value for name, value in inherited.items() if not name.startswith(OPTION_PREFIX)
    }
    chosen = [setting for setting in settings if not setting.users_own]
    before = {**inherited, **asked}
    entries = list[str]()
    for name, value, *_, reaches_children in chosen:
        if value is None:
            variables.pop(name, None)
        else:
            variables[name] = value
            if name not in OF_THE_PLACE:
                entries.append(_entry(name, value, before.get(name)))
        if (value is None or not reaches_children) and before.get(name):
            entries.append(f"{_escaped(name)}{_BEFORE}{_escaped(before[name])}")
    variables[SET_VARIABLES] = _SEPARATOR.join(entries)
    variables[f"{INSTANCE_PREFIX}INDEX"] = str(instance.index)
    variables[f"{INSTANCE_PREFIX}COUNT"] = str(plan.count)
    variables[f"{INSTANCE_PREFIX}CPUS"] = format_cpu_list(instance.cpus)
    variables[f"{INSTANCE_PREFIX}NODES"] = format_cpu_list(instance.nodes)
    if plan.memory_share_bytes is not None:
        variables[MEMORY] = str(plan.memory_share_bytes)
    # A chosen value that extends one of --env (LD_PRELOAD) contains it.
    names = {setting.name for setting in chosen}
    variables.update((name, value) for name, value in asked.items() if name not in names)
    return variables


def without_names(listed: str, names: Collection[str]) -> str:
    """Remove the entries of some variables from a value of `SET_VARIABLES`."""
    entries = listed.split(_SEPARATOR)
    kept = [
        entry
        for entry in entries
        if _unescaped(entry.partition("=")[0].partition(_BEFORE)[0]) not in names
    ]
    return _SEPARATOR.join(kept)


def _entry(name: str, value: str, before: str | None) -> str:
    """A variable as `SET_VARIABLES` lists it."""
    entry = f"{_escaped(name)}={_listed(value)}"
    if before is None:
        return entry
    if len(before) > MAX_LISTED and before in value:
        return f"{entry}{_BEFORE}{_PLACE}{value.index(before)}+{len(before)}"
    return f"{entry}{_BEFORE}{_escaped(before)}"


def _listed(value: str) -> str:
    """A value as `SET_VARIABLES` lists it."""
    if len(value) <= MAX_LISTED:
        return _escaped(value)
    import hashlib

    return _DIGEST + hashlib.sha256(value.encode(errors="surrogateescape")).hexdigest()[:32]


def _replaced(listed: str, value: str) -> str:
    """The value that `value` replaced, as `SET_VARIABLES` lists it."""
    start, plus, length = listed.removeprefix(_PLACE).partition("+")
    if listed.startswith(_PLACE) and plus and start.isdecimal() and length.isdecimal():
        return value[int(start) : int(start) + int(length)]
    return _unescaped(listed)


def _escaped(text: str) -> str:
    for character, written in _ESCAPES:
        text = text.replace(character, written)
    return text


def _unescaped(text: str) -> str:
    for character, written in reversed(_ESCAPES):
        text = text.replace(written, character)
    return text
