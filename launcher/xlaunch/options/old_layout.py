# SPDX-License-Identifier: Apache-2.0
"""Sizes and places that the old launchers' options mean on one machine.

They counted logical cores where siblings are used, and left out what does not fit: both need the
machine, and come to plain ``--instances`` and ``--ncores`` here.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from xlaunch.errors import UsageError
from xlaunch.machine.topology import Machine
from xlaunch.machine.tree import is_live
from xlaunch.options.definitions import BY_KEY
from xlaunch.planning.layout import LATENCY_CORES
from xlaunch.planning.planner import plan
from xlaunch.planning.pool import whole_cores
from xlaunch.planning.request import MAX, LayoutRequest, RankMode, Request
from xlaunch.shared_host import share_here
from xlaunch.text import counted

Options = dict[str, str | None]
"""Today's options by name; None for a flag."""

BINDING = ("bind-numa-node", "skip-cross-node-cores")
"""Old options by which no instance straddles NUMA nodes."""


class AllowedCores(NamedTuple):
    node_sizes: tuple[int, ...]
    """Cores in each NUMA node; one entry if nodes are not known, or instances are not bound."""
    widths: tuple[int, ...]
    """CPUs of each core."""
    bound: bool

    @property
    def size(self) -> int:
        return sum(self.node_sizes)


def _allowed_cores(layout: LayoutRequest, machine: Machine) -> AllowedCores:
    """The cores of a request that names CPUs, nodes, kinds of core and reserved cores."""
    one_core_each = plan(layout._replace(instances=MAX, ncores=1, smt=True), machine)
    instances = one_core_each.instances
    if not one_core_each.bound:
        cores = whole_cores(machine.topology, one_core_each.allowed_cpus)
        return AllowedCores((len(instances),), tuple(map(len, cores)), bound=False)
    sizes = Counter([instance.nodes for instance in instances])
    widths = tuple([len(instance.cpus) for instance in instances])
    return AllowedCores(tuple(sizes.values()), widths, bound=True)


def _value(options: Mapping[str, str | None], name: str) -> Any:
    """The value of an option, parsed; None if it is not given. Raises `UsageError`."""
    text = options.get(name)
    try:
        return None if text is None else BY_KEY[name.replace("-", "_")].kind.parse(text)
    except UsageError as error:
        raise UsageError(f"--{name}: {error}") from None


def _number(options: Mapping[str, str | None], name: str) -> int | None:
    """A number of instances, cores or ranks; None if none is given, or ``max``."""
    value = _value(options, name)
    return value if isinstance(value, int) else None


def settle_layout(
    options: Options,
    old: Mapping[str, str],
    today: Mapping[str, str | None],
    machine: Machine,
    notes: list[str],
) -> None:
    """Set sizes in `options`, the translated old options, so that they hold on `machine`.

    `old`: values of the old options. `today`: today's options that were typed beside them.
    """
    typed_values = {**today, **options}
    every_core = "smt" in options or "core-list" in old
    binds = [name for name in BINDING if name in old]
    spreads = old.get("ncores-per-instance", old.get("ncore-per-instance")) == "-1"
    if not (every_core or binds or spreads):
        return
    fields = ("cpus", "numa_nodes", "ecores", "reserve_cores")
    values = {field: _value(typed_values, field.replace("_", "-")) for field in fields}
    layout = LayoutRequest(**{name: value for name, value in values.items() if value is not None})
    if is_live(machine.root):  # a rank plans on its share
        mode = _value(typed_values, "rank-mode") or RankMode.AUTO
        request, machine = share_here(Request(layout=layout), machine, os.environ, mode)
        layout = request.layout
    cores = _allowed_cores(layout, machine)
    if "core-list" in old and max(cores.widths) > 1:
        options["smt"] = None  # run_cpu used every CPU of its list, siblings too
    if "smt" in options and (cpus := _number(options, "ncores")) is not None:
        options["ncores"] = _cores_of_cpus(cpus, cores)
    if "core-list" in old:
        _run_what_the_list_holds(options, cores, notes)
    if spreads and "mode" not in typed_values:
        _refuse_to_spread(typed_values, cores, binds)
    if binds:
        ranks = _number(typed_values, "nproc-per-node")
        if ranks is None and ("nnodes" in typed_values or "distributed" in old):
            ranks = len(cores.node_sizes)
        if ranks is not None and cores.bound:
            _refuse_straddling_ranks(binds[0], ranks, layout, machine)
        else:
            _keep_within_nodes(options, today, binds[0], cores, notes)


def _cores_of_cpus(cpus: int, cores: AllowedCores) -> str:
    """With logical cores, the old launchers counted CPUs: 8 of them are 4 cores of 2 siblings."""
    width = max(cores.widths)
    if min(cores.widths) < width:
        raise UsageError(
            f"--ncores-per-instance {cpus} with logical cores: of some cores the list has one CPU, of others"
            f" {width}; name all CPUs of each core, or one"
        )
    if cpus % width:
        raise UsageError(
            f"--ncores-per-instance {cpus} with logical cores: a core has {width} of them here, so"
            f" write a multiple of {width}; xlaunch places whole cores"
        )
    return str(cpus // width)


def _run_what_the_list_holds(options: Options, cores: AllowedCores, notes: list[str]) -> None:
    """run_cpu ran as many instances as its list of cores held, whatever number was asked for."""
    count, size = _number(options, "instances"), _number(options, "ncores")
    if count is None or size is None or not 0 < cores.size // size < count:
        return
    options["instances"] = str(cores.size // size)
    notes.append(
        f"the list holds {counted(cores.size // size, 'instance')} of {counted(size, 'core')}, not {count}; "
        "run_cpu ran as many"
    )


def _refuse_to_spread(
    given: Mapping[str, str | None], cores: AllowedCores, binds: list[str]
) -> None:
    """Refuse ``--ncores-per-instance -1`` where it meant instances of several sizes."""
    count = _number(given, "instances") or 1
    cpus = sum(cores.widths) if "smt" in given else cores.size
    if count == 1 or count > cores.size:
        return
    size = _largest_within(cores.node_sizes, count) if binds else cores.size // count
    if size * count == cores.size:
        return
    raise UsageError(
        f"--ncores-per-instance -1 spreads {cpus} cores over {count} instances of several sizes, and those of"
        f" xlaunch have one: leave it out for {count} of {counted(size, 'core')}"
    )


def _keep_within_nodes(
    options: Options,
    today: Mapping[str, str | None],
    option: str,
    cores: AllowedCores,
    notes: list[str],
) -> None:
    """Choose count and size so that no instance straddles NUMA nodes, or say what would fit."""
    typed_values = {**today, **options}
    if not cores.bound:
        notes.append(f"--{option} has no effect: under a CPU quota instances are bound to no CPUs")
        return
    if len(cores.node_sizes) < 2 or typed_values.get("mode") == "throughput":
        return
    if "gpus-per-instance" in typed_values:
        raise UsageError(
            f"--{option} contradicts --gpus-per-instance, which places instances by their GPUs: drop one"
        )
    count = _number(typed_values, "instances")
    size = (
        LATENCY_CORES if typed_values.get("mode") == "latency" else _number(typed_values, "ncores")
    )
    if size is None:
        size = _largest_within(cores.node_sizes, count or 1)
        # One core each never straddles, and of too many instances the planner says what would fit.
        if size and _value(typed_values, "instances") is not MAX:
            count = count or 1
            options |= {"instances": str(count), "ncores": str(size)}
            idle = f"{cores.size - count * size} of {counted(cores.size, 'core')} idle"
            notes.append(
                f"one instance lies within one NUMA node (--{option}): {idle}; --mode throughput runs one on each"
                if count == 1
                else f"instances have one size, {counted(size, 'core')}, so that none straddles NUMA nodes"
                f" (--{option}): {idle}"
            )
        return
    slots = sum(node_size // size for node_size in cores.node_sizes)
    if not slots or (count or 0) > slots:
        fits = [f"{counted(slots, 'instance')} of {counted(size, 'core')}"] if slots else []
        if count is not None and (fitting := _largest_within(cores.node_sizes, count)):
            fits.append(
                f"{count} of {fitting}" if fits else f"{count} of {counted(fitting, 'core')}"
            )
        if not fits:
            fits.append(f"instances of {counted(max(cores.node_sizes), 'core')}")
        raise UsageError(
            f"{counted(count or 1, 'instance')} x {counted(size, 'core')} within NUMA nodes (--{option}) of"
            f" {', '.join(map(str, cores.node_sizes))} cores: at most {', or '.join(fits)}"
        )
    if count is not None:
        return
    if slots == cores.size // size:
        return  # as many as without nodes, so that the planner finds a place for each within one
    options.pop("mode", None)
    options |= {"instances": str(slots), "ncores": str(size)}
    notes.append(
        f"{counted(slots, 'instance')}, so that none straddles NUMA nodes (--{option}):"
        f" {counted(cores.size - slots * size, 'core')} idle"
    )


def _largest_within(node_sizes: tuple[int, ...], count: int) -> int:
    """The largest size of which `count` instances lie within nodes; 0: there are too many."""
    sizes = range(max(node_sizes), 0, -1)
    fitting = (size for size in sizes if sum(cores // size for cores in node_sizes) >= count)
    return next(fitting, 0)


def _refuse_straddling_ranks(
    option: str, ranks: int, layout: LayoutRequest, machine: Machine
) -> None:
    plan_of_ranks = plan(layout._replace(instances=ranks, smt=True, oversubscribe=True), machine)
    if any(instance.nodes_touched > 1 for instance in plan_of_ranks.instances):
        nodes = len({node for instance in plan_of_ranks.instances for node in instance.nodes})
        raise UsageError(
            f"--{option}: {ranks} ranks with equal shares straddle NUMA nodes; start a multiple of {nodes} ranks"
            f" on nodes of one size, or name nodes with --numa-nodes"
        )
