# SPDX-License-Identifier: Apache-2.0
"""Translates the options of ipexrun and of torch's run_cpu to those of xlaunch.

    xlaunch --ninstances 2 --ncores-per-instance 4 infer.py
    xlaunch: note: today this is: xlaunch --instances 2 --ncores 4 infer.py

Old names are accepted with dashes and with underscores. What an option meant there it means here: the
facts are in the launchers' own ``--help`` (Intel's extension for PyTorch 1.11 to 2.8, torch 2.13).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from shutil import which
from typing import NamedTuple

from xlaunch.errors import UsageError
from xlaunch.machine import machine_of
from xlaunch.machine.topology import Machine
from xlaunch.options.definitions import FLAG, OPTIONS
from xlaunch.options.old_layout import settle_layout
from xlaunch.options.precedence import variable_of


class Old(NamedTuple):
    """The translation of an option of the old launchers."""

    new: str = ""
    """Today's option; empty: nothing is needed. **Ex.:** ``"instances"``."""
    value: str | None = None
    """The value of `new`, for an old flag. None: as typed, or `new` is a flag too."""
    takes_value: bool = False
    words: Mapping[str, str] = {}
    """Values that xlaunch spells differently."""
    unset: Collection[str] = ("", "-1")
    """Values that mean the same as leaving the option out."""
    note: str = ""
    """A note: why no option is needed, or what is different."""
    error: str = ""
    """Why the option cannot be translated, and what to use instead."""


_NONE_GIVEN = ("", "-1", "0")
_BINDS = "xlaunch binds by itself, without numactl or taskset"
_ONECCL = "oneCCL's workers have no cores of their own under torchrun: leave it out, and use --reserve-cores N"
_MPI = (
    "xlaunch calls no mpiexec: mpirun ... xlaunch train.py gives each rank its share of the cores"
)
_IPEX = "what --optimize does is printed when the program starts"

OLD = {
    "ninstances": Old("instances", takes_value=True, unset=_NONE_GIVEN),
    "ncores-per-instance": Old("ncores", takes_value=True, unset=_NONE_GIVEN),
    "ncore-per-instance": Old("ncores", takes_value=True, unset=_NONE_GIVEN),
    "instance-idx": Old("instance-index", takes_value=True),
    "rank": Old("instance-index", takes_value=True),
    "latency-mode": Old("mode", "latency"),
    "throughput-mode": Old("mode", "throughput"),
    "multi-instance": Old(),
    "nodes-list": Old("numa-nodes", takes_value=True),
    "node-id": Old("numa-nodes", takes_value=True),
    "cores-list": Old("cpus", takes_value=True),
    "core-list": Old("cpus", takes_value=True),
    "use-logical-cores": Old("smt"),
    "use-logical-core": Old("smt"),
    "use-e-cores": Old("ecores", "include"),
    "strategy": Old("place", takes_value=True, words={"close": "compact"}),
    "bind-numa-node": Old(),
    "skip-cross-node-cores": Old(),
    "memory-allocator": Old("allocator", takes_value=True, words={"default": "glibc"}),
    "enable-tcmalloc": Old("allocator", "tcmalloc"),
    "enable-jemalloc": Old("allocator", "jemalloc"),
    "use-default-allocator": Old("allocator", "glibc"),
    "benchmark": Old(note="allocator profiles keep memory for reuse without it"),
    "omp-runtime": Old("omp", takes_value=True, words={"default": "gnu"}),
    "disable-iomp": Old("omp", "gnu"),
    "multi-task-manager": Old(takes_value=True, note=_BINDS),
    "disable-numactl": Old(note=_BINDS),
    "disable-taskset": Old(note=_BINDS),
    "log-path": Old("log-dir", takes_value=True),
    "log-dir": Old("log-dir", takes_value=True),
    "log-file-prefix": Old(takes_value=True),
    "auto-ipex": Old("optimize", "fp32"),
    "dtype": Old(takes_value=True),
    "auto-ipex-verbose": Old(note=_IPEX),
    "disable-ipex-graph-mode": Old(
        error='use xruntime.optimize(model, graph="none") in the script'
    ),
    "convert-fp64-to-fp32": Old(error="it was for Intel's GPUs; convert the model in the script"),
    "distributed": Old(),
    "nprocs-per-node": Old("nproc-per-node", takes_value=True, unset=_NONE_GIVEN),
    "master-addr": Old(takes_value=True),
    "master-port": Old(takes_value=True),
    "hostfile": Old(takes_value=True, error=_MPI),
    "extra-mpi-params": Old(takes_value=True, error=_MPI),
    "more-mpi-params": Old(takes_value=True, error=_MPI),
    "ccl-worker-count": Old(takes_value=True, error=_ONECCL),
    "logical-cores-for-ccl": Old(error=_ONECCL),
}
"""Options of the old launchers that xlaunch spells differently, or that only have a meaning together."""

PRECISIONS = {"float32": "fp32", "bfloat16": "bf16"}

OF_LAYOUT = (
    *("instances", "ncores", "cpus", "numa-nodes", "ecores", "reserve-cores"),
    *("gpus-per-instance", "nproc-per-node", "nnodes"),
)
"""Options with which the old ones only have a meaning together, wherever they are set."""


class Translation(NamedTuple):
    arguments: tuple[str, ...]
    """The options of xlaunch, then the program and its arguments."""
    notes: tuple[str, ...]


def without_ipexruns_words(arguments: Sequence[str]) -> tuple[str, ...]:
    """Leave out the word ``ipexrun``, and its ``cpu``, where they stand before the program.

    Programs of these names, where they are installed, are run. Raises `UsageError` for ``xpu``.
    **Ex.:** ``ipexrun cpu --ninstances 2 infer.py``: ``--ninstances 2 infer.py``.
    """
    options, program = split(arguments)
    before = tuple(arguments[: len(arguments) - len(program)])
    as_typed = any(name in ("module", "no-python") for name, _, _ in options)
    for words in (("ipexrun",), ("cpu", "xpu")):
        if not program or program[0] not in words or as_typed or which(program[0]) is not None:
            continue
        if program[0] == "xpu":
            raise UsageError(
                "ipexrun's xpu: xlaunch places programs on CPUs, and next to Intel's GPUs with"
                " --gpus-per-instance; leave the word out"
            )
        program = program[1:]
    return (*before, *program)


def is_old(name: str) -> bool:
    """Whether this is an option of the old launchers, or one with underscores: ``--log_dir``."""
    dashed = name.lstrip("-").replace("_", "-")
    return dashed in OLD or ("_" in name and dashed in _TODAY)


def in_todays_words(arguments: Sequence[str], command: str) -> Translation:
    """Translate the `arguments` of ``xlaunch`` or one of its commands; a note shows the result."""
    typed = {name: value for name, value, _ in split(arguments)[0]}
    with machine_of(typed.get("sysroot"), typed.get("synthetic")) as machine:
        variables = {name: os.environ.get(variable_of(name)) for name in OF_LAYOUT}
        inherited = {name: text for name, text in variables.items() if text}
        translation = translate(arguments, machine, inherited)
    shown = shlex.join([*command.split(), *translation.arguments])
    return translation._replace(notes=(f"today this is: {shown}", *translation.notes))


def translate(
    arguments: Sequence[str], machine: Machine, inherited: Mapping[str, str] = {}
) -> Translation:
    """Translate the old options among `arguments`; the program's own arguments are not changed.

    `machine`: where cores are counted for ``--use-logical-cores`` and ``--bind-numa-node``.
    `inherited`: options of the layout that variables set. Raises `UsageError` for a value that is missing or that means nothing, for options that contradict each
    other, and for those of mpiexec.
    """
    typed, program = split(arguments)
    today = {name: value for name, value, _ in typed if name not in OLD}
    if (mode := today.get("mode")) is not None:
        today["mode"] = mode.lower()
    options: dict[str, str | None] = {}
    set_by: dict[str, str] = {}
    old: dict[str, str] = {}
    notes: list[str] = []
    for name, value, words in typed:
        entry = OLD.get(name)
        if entry is None:
            continue
        if entry.error:
            raise UsageError(f"{words[0]}: {entry.error}")
        old[name] = (value or "").strip()
        if entry.note:
            notes.append(f"{words[0]} is not needed: {entry.note}")
        if not entry.new or (entry.takes_value and old[name] in entry.unset):
            continue
        new = entry.value
        if value is not None:
            new = entry.words.get(value, value).replace(" ", "")
        key, option = entry.new, words[0].partition("=")[0]
        for other in (key, f"no-{key}"):
            if other in today and (other != key or today[key] != new):
                raise UsageError(f"{option} contradicts --{other}: drop one")
        # The last of equal words counts.
        if key in options and options[key] != new and set_by[key] != option:
            raise UsageError(f"{option} contradicts {set_by[key]}: drop one")
        options[key], set_by[key] = new, option
    _combine(options, old, {**inherited, **today}, machine, notes)
    others = [word for name, _, words in typed if name in today.keys() - options for word in words]
    order = sorted(options, key=lambda key: list(_TODAY).index(key))
    new_words = [word for key in order for word in (f"--{key}", options[key]) if word is not None]
    return Translation((*others, *new_words, *program), tuple(notes))


def _combine(
    options: dict[str, str | None],
    old: Mapping[str, str],
    today: Mapping[str, str | None],
    machine: Machine,
    notes: list[str],
) -> None:
    """Translate the options that only have a meaning together."""
    if "cpus" in options and options.pop("numa-nodes", None) is not None:
        notes.append("--cpus decides; the given NUMA nodes had no effect either")
    _choose_mode(options, old, today, notes)
    settle_layout(options, old, today, machine, notes)
    names = options.keys() | today.keys()
    if "ncores" in options and not names & {"instances", "nproc-per-node", "nnodes"}:
        options["instances"] = "max"
    if "distributed" in old and names & {"nproc-per-node", "nnodes"}:
        notes.append("--distributed is not needed: the number of ranks or hosts says as much")
    elif "distributed" in old:
        options["nnodes"] = "1"
    if "dtype" in old and "auto-ipex" in old:
        precision = PRECISIONS.get(old["dtype"])
        if precision is None:
            raise UsageError(f"--dtype {old['dtype']!r}: write float32 or bfloat16")
        options["optimize"] = precision
    if "master-addr" in old or "master-port" in old:
        if "nnodes" not in options and not names & {"nproc-per-node", "nnodes"}:
            notes.append("--master-addr and --master-port are not needed: no ranks are started")
        else:
            address = old.get("master-addr")
            options["rendezvous"] = f"{address or '127.0.0.1'}:{old.get('master-port') or '29500'}"
    if prefix := old.get("log-file-prefix"):
        if options.get("log-dir") is None:
            raise UsageError("--log-file-prefix: name the directory too, with --log-dir")
        options["log-dir"] = f"{options['log-dir']}/{prefix}"


def _choose_mode(
    options: dict[str, str | None],
    old: Mapping[str, str],
    today: Mapping[str, str | None],
    notes: list[str],
) -> None:
    """Apply a mode as the old launchers did: it replaces sizes, logical cores and run_cpu's node."""
    sized = [key for key in ("instances", "ncores") if key in options]
    if "multi-instance" in old and not sized and not today.keys() & {"instances", "ncores"}:
        if "throughput" != options.get("mode", today.get("mode")) is not None:
            raise UsageError(
                "--multi-instance without sizes is --throughput-mode, and contradicts the other mode:"
                " drop one"
            )
        options["mode"] = "throughput"
    if "mode" not in options:
        return
    mode = options["mode"]
    if "core-list" in old and "ncores" in options:
        del options["mode"]
        notes.append(f"the given CPUs and size decide; --mode {mode} had no effect either")
        return
    replaced = [*sized, "smt"]
    if "node-id" in old:
        replaced.append("numa-nodes")
    for key in [key for key in replaced if key in options]:
        del options[key]
        notes.append(f"--mode {mode} decides; the given --{key} had no effect either")


_TODAY = {option.name: option for option in OPTIONS}
_SHORT = {option.short: option for option in OPTIONS if option.short}


def split(
    arguments: Sequence[str],
) -> tuple[list[tuple[str, str | None, list[str]]], tuple[str, ...]]:
    """The options before the program, each as (name, value, words), and the program's words."""
    options: list[tuple[str, str | None, list[str]]] = []
    position = 0
    while position < len(arguments):
        word = arguments[position]
        if word == "--" or not word.startswith("-") or word == "-":
            break
        typed, has_value, value = word.partition("=")
        option = _SHORT.get(typed)
        name = option.name if option is not None else typed.lstrip("-").replace("_", "-")
        today = _TODAY.get(name)
        takes_value = today is not None and today.kind is not FLAG
        if name in OLD:
            takes_value = OLD[name].takes_value
        words = [word if name in OLD or option is not None else word.replace(typed, f"--{name}", 1)]
        if takes_value and not has_value:
            position += 1
            if position == len(arguments):
                raise UsageError(f"{typed} takes a value")
            value = arguments[position]
            words.append(value)
        options.append((name, value if takes_value else None, words))
        position += 1
    return options, tuple(arguments[position:])
