# SPDX-License-Identifier: Apache-2.0
"""The configuration files of Intel's hypertune, as parameters to search.

tuning:                      # optional
  strategy: grid             # or random
  max_trials: 100
output_dir: results          # optional
hyperparams:
  launcher:
    hp: [ncores_per_instance, ninstances, malloc]
    ncores_per_instance: all_physical_cores    # or all_logical_cores, or a list
    malloc: [pt, tc, je]

Counts become layouts; those that do not fit are left out. Options that are not in `hp` keep xlaunch's
defaults. Each parameter also has xlaunch's own value, as its default, which is launched early.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from xlaunch.errors import UsageError
from xlaunch.files import open_input
from xlaunch.machine.topology import Machine
from xlaunch.planning import Request, plan
from xtune.errors import SpaceError
from xtune.space.launch_options import (
    ALL_CORES,
    ALLOCATOR,
    LAYOUT,
    MEMORY,
    OMP,
    SMT,
    WORDS,
    Layout,
    with_option,
)
from xtune.space.machine_space import MadeSpace, counts_of
from xtune.space.parameters import Parameter, Target, Value
from xtune.space.spaces import DerivedValue, Space

NCORES, NINSTANCES, ALL_NODES = "ncores_per_instance", "ninstances", "use_all_nodes"
COUNTS = (NCORES, NINSTANCES)
OLD_SPELLINGS = {"ncore_per_instance": NCORES, "use_logical_core": "use_logical_cores"}
ALL_PHYSICAL, ALL_LOGICAL = "all_physical_cores", "all_logical_cores"
NOT_SET = -1
"""A count with this value is treated as missing from `hp`."""

STRATEGIES = ("grid", "random")

_SWITCH: dict[Value, Value] = {True: True, False: False}
_MEANINGS: dict[str, tuple[str, dict[Value, Value]]] = {
    "use_logical_cores": (SMT, _SWITCH),
    # Without numactl, hypertune bound only CPUs (taskset).
    "disable_numactl": (MEMORY, {False: "auto", True: "none"}),
    "disable_iomp": (OMP, {False: "intel", True: "gnu"}),
    "malloc": (ALLOCATOR, {"pt": "glibc", "default": "glibc", "tc": "tcmalloc", "je": "jemalloc"}),
}
"""For each name, the parameter, and the parameter's value for each of hypertune's."""

DEFAULTS: dict[str, Any] = {
    NCORES: ALL_LOGICAL,
    NINSTANCES: ALL_LOGICAL,
    ALL_NODES: [True, False],
    "use_logical_cores": [True, False],
    "disable_numactl": [True, False],
    "disable_iomp": [True, False],
    "malloc": ["pt", "tc", "je"],
}
"""The values searched for a name in `hp` without a list."""


class HypertuneSettings(NamedTuple):
    """The contents of a configuration file."""

    max_trials: int
    output_dir: str | None
    searched: tuple[tuple[str, Any], ...]
    """Names in current spelling, each with its list, `ALL_PHYSICAL` or `ALL_LOGICAL`."""


def read_settings(path: str) -> HypertuneSettings:
    """Read a configuration file. Raises `SpaceError`, which names the key."""
    import yaml  # type: ignore[import-untyped]

    try:
        with open_input(path) as stream:
            content = yaml.safe_load(stream)
    except OSError as error:
        raise SpaceError(f"--conf-file {path!r}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SpaceError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    try:
        return _settings_of({} if content is None else content)
    except SpaceError as error:
        raise SpaceError(f"{path}: {error}") from None


def _refuse(key: str, value: object, allowed: str) -> NoReturn:
    raise SpaceError(f"{key}: {value!r} is not possible here; it takes {allowed}")


def _mapping(content: Any, key: str, allowed: Sequence[str]) -> dict[str, Any]:
    if not isinstance(content, dict):
        _refuse(key, content, f"a mapping with {', '.join(allowed)}")
    for name in content:
        if name not in allowed:
            _refuse(key, name, f"only {', '.join(allowed)}")
    return content


def _settings_of(content: Any) -> HypertuneSettings:
    top = _mapping(content, "the file", ("tuning", "output_dir", "hyperparams"))
    tuning = _mapping(top.get("tuning", {}), "tuning", ("strategy", "max_trials"))
    strategy = tuning.get("strategy", "grid")
    if not isinstance(strategy, str) or strategy.lower() not in STRATEGIES:
        _refuse("tuning.strategy", strategy, " or ".join(STRATEGIES))
    max_trials = tuning.get("max_trials", 100)
    if not _is_count(max_trials):
        _refuse("tuning.max_trials", max_trials, "a whole number from 1")
    directory = top.get("output_dir")
    if directory is not None and (not isinstance(directory, str) or not directory):
        _refuse("output_dir", directory, "the name of a directory")
    everything = {"launcher": {"hp": list(DEFAULTS)}}
    groups = _mapping(top.get("hyperparams", everything), "hyperparams", ("launcher",))
    lists = _lists_of(groups["launcher"]) if "launcher" in groups else {}
    searched = [(name, DEFAULTS[name] if own is None else own) for name, own in lists.items()]
    return HypertuneSettings(max_trials, directory, tuple(searched))


def _lists_of(content: Any) -> dict[str, Any]:
    """The list of each searched name in current spelling; None: its default."""
    parameters = (*DEFAULTS, *OLD_SPELLINGS)
    launcher = _mapping(content, "hyperparams.launcher", ("hp", *parameters))
    names: Any = launcher.get("hp")
    if not isinstance(names, list) or not names:
        _refuse("hyperparams.launcher.hp", names, f"a list of some of {', '.join(parameters)}")
    lists: dict[str, Any] = {}
    for name in names:
        if name not in parameters:
            _refuse("hyperparams.launcher.hp", name, ", ".join(parameters))
        today = OLD_SPELLINGS.get(name) or str(name)
        own = launcher.get(name)
        key = f"hyperparams.launcher.{name}"
        if own is None:
            lists.setdefault(today, None)
        elif lists.get(today) is not None and name not in DEFAULTS:
            _refuse(key, own, f"left out: {today} is given too")
        else:
            is_word = today in COUNTS and own in (ALL_PHYSICAL, ALL_LOGICAL)
            is_list = isinstance(own, list) and bool(own)
            wrong = [value for value in own if not _is_possible(today, value)] if is_list else [own]
            if wrong and not is_word:
                _refuse(key, wrong[0], _allowed(today))
            lists[today] = own
    return lists


def _is_possible(name: str, value: Any) -> bool:
    """Whether the list of a name may have a value."""
    if name in COUNTS:
        return _is_count(value) or value == NOT_SET
    return any(type(value) is type(meaning) and value == meaning for meaning in _meanings(name))


def _allowed(name: str) -> str:
    if name in COUNTS:
        return f"{ALL_PHYSICAL}, {ALL_LOGICAL} or a list of whole numbers from 1"
    return f"a list of some of {', '.join(map(str, _meanings(name)))}"


def _meanings(name: str) -> Mapping[Value, Value]:
    return _SWITCH if name == ALL_NODES else _MEANINGS[name][1]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def hypertune_space(
    path: str, request: Request, machine: Machine, own: Sequence[Parameter], when: Sequence[str]
) -> MadeSpace:
    """The space of a configuration file, with the user's own parameters and conditions.

    Raises `SpaceError` for a file that cannot be read, or if no layout fits.
    """
    settings = read_settings(path)
    parameters, notes = parameters_of(settings, request, machine)
    derived: list[DerivedValue] = []
    for parameter in parameters:
        if parameter.name == LAYOUT:
            requests = [with_option(request, LAYOUT, text) for text in parameter.values]
            derived = counts_of(plan(layout_request.layout, machine) for layout_request in requests)
    if settings.output_dir is not None:
        notes += (
            f"output_dir {settings.output_dir!r} of {path} is not used: launches are kept in the"
            " study (xtune export)",
        )
    space = Space([*parameters, *own], when, derived, words=WORDS)
    return MadeSpace(space, notes=notes, launches=max(2, settings.max_trials))


def parameters_of(
    settings: HypertuneSettings, request: Request, machine: Machine
) -> tuple[tuple[Parameter, ...], tuple[str, ...]]:
    """The parameters that the settings yield on a machine, and notes on what was left out.

    The defaults are xlaunch's own. `request`: the user's other options. Raises `SpaceError` if no layout
    fits.
    """
    parameters, notes = [], []
    defaults: dict[str, Value] = {
        LAYOUT: ALL_CORES,
        SMT: request.layout.smt,
        MEMORY: request.layout.mem_policy.value,
        OMP: request.program.omp,
        ALLOCATOR: request.program.allocator,
    }

    def searched_of(name: str, values: Iterable[Value]) -> Parameter:
        every = tuple(dict.fromkeys([defaults[name], *values]))
        return Parameter(name, every, defaults[name], Target.OPTION)

    searched = dict(settings.searched)
    if not searched.keys().isdisjoint((*COUNTS, ALL_NODES)):
        values, note = _layouts(searched, request, machine)
        parameters.append(searched_of(LAYOUT, values))
        notes += [note] if note else []
    for name, own in searched.items():
        if name in _MEANINGS:
            option, meanings = _MEANINGS[name]
            parameters.append(searched_of(option, [meanings[value] for value in own]))
    return tuple(parameters), tuple(notes)


def _layouts(
    searched: Mapping[str, Any], request: Request, machine: Machine
) -> tuple[tuple[str, ...], str]:
    """The pairs of counts that fit, as values of `LAYOUT`, and a note on the others."""
    whole = plan(with_option(request, LAYOUT, ALL_CORES).layout, machine)
    cores, cpus = whole.instances[0].ncores, len(whole.allowed_cpus)
    counts = {
        name: _counts(searched[name], cores=cores, cpus=cpus) if name in searched else [None]
        for name in COUNTS
    }
    pairs = [
        (everywhere, ninstances, ncores)
        for everywhere in dict.fromkeys(searched.get(ALL_NODES, [True]))
        for ninstances in counts[NINSTANCES]
        for ncores in counts[NCORES]
    ]
    texts = [
        _layout(request, machine, ninstances, ncores, everywhere=everywhere)
        for everywhere, ninstances, ncores in pairs
        if (ninstances or 1) * (ncores or 1) <= cores
    ]
    fitting = [text for text in texts if text is not None]
    if not fitting:
        names = f"{NINSTANCES} and {NCORES}"
        raise SpaceError(f"none of the {len(pairs)} pairs of {names} fits {cores} cores")
    left_out = len(pairs) - len(fitting)
    note = f"{left_out} of {len(pairs)} layouts do not fit {cores} cores and are left out"
    return tuple(dict.fromkeys(fitting)), note if left_out else ""


def _counts(own: Any, *, cores: int, cpus: int) -> list[int | None]:
    if own == ALL_PHYSICAL:
        return list(range(1, cores + 1))
    if own == ALL_LOGICAL:
        return list(range(1, cpus + 1))
    return [None if value == NOT_SET else value for value in dict.fromkeys(own)]


def _layout(
    request: Request,
    machine: Machine,
    ninstances: int | None,
    ncores: int | None,
    *,
    everywhere: bool,
) -> str | None:
    """The value of `LAYOUT` for a pair of counts, on all nodes or the first; None if it does not fit."""
    asked = request.replace(instances=ninstances, ncores=ncores, mode=None)
    if ninstances is None and ncores is None and everywhere:
        return ALL_CORES
    if not everywhere:
        every_node = tuple([node.id for node in machine.topology.numa_nodes])
        asked = asked.replace(numa_nodes=(request.layout.numa_nodes or every_node)[:1])
    try:
        layout_plan = plan(asked.layout, machine)
        smallest = min(instance.ncores for instance in layout_plan.instances)
        text = str(Layout(layout_plan.count, smallest))
        same = plan(with_option(request, LAYOUT, text).layout, machine)
    except UsageError:
        return None
    places = [instance.cpus for instance in layout_plan.instances]
    return text if places == [instance.cpus for instance in same.instances] else None
