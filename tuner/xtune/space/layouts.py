# SPDX-License-Identifier: Apache-2.0
"""The layouts worth trying on a machine: how many instances of how many cores.

Sizes follow the machine's structure. Within one L3 cache they double (1, 2, 4, ..., all of it); then
whole L3 caches double up to a node, whole nodes up to a package, whole packages up to the machine.
For each size there is one instance, as many as fit, and half as many: programs limited by caches or
memory run better when fewer share them. So 512 cores have about thirty layouts, not 100,000.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from xlaunch.errors import UsageError
from xlaunch.machine.topology import CPUs, Machine, Topology
from xlaunch.planning import Plan, Request, plan
from xlaunch.planning.pool import whole_cores
from xtune.space.launch_options import ALL_CORES, BY_NODE, Layout, with_option

MIN_SHARE_BYTES = 256 << 20
"""Minimum memory for each instance: about that of a Python that has imported torch."""


class Candidate(NamedTuple):
    """One value of the parameter `layout`."""

    text: str
    """**Ex.:** ``4x8``, `ALL_CORES`, `BY_NODE`."""
    instances: int
    ncores: int
    """Cores of each instance; of the smallest if they differ."""


def find_layouts(
    machine: Machine, request: Request, *, one_instance: bool
) -> tuple[Candidate, ...]:
    """The layouts to try, xlaunch's default first; no two give the same placement.

    `request` has the user's other options (CPUs, reserved cores). `one_instance`: vary only the size,
    because several instances cannot be compared with one. Raises `UsageError` if nothing can be
    planned.
    """
    whole = plan(with_option(request, "layout", ALL_CORES).layout, machine)
    pool = whole_cores(machine.topology, whole.allowed_cpus)
    budget = _budget(whole, len(pool), request)
    found = {_places(whole): Candidate(ALL_CORES, 1, whole.instances[0].ncores)}
    for layout in _pairs(machine, pool, budget, one_instance=one_instance):
        text = str(layout)
        try:
            made = plan(with_option(request, "layout", text).layout, machine)
        except UsageError:
            continue
        if not _starves(made):
            found.setdefault(_places(made), Candidate(text, *layout))
    if not one_instance:
        made = plan(with_option(request, "layout", BY_NODE).layout, machine)
        smallest = min(instance.ncores for instance in made.instances)
        if not _starves(made):
            found.setdefault(_places(made), Candidate(BY_NODE, made.count, smallest))
    return tuple(found.values())


def _places(made: Plan) -> tuple[object, ...]:
    """The placement of a layout, independent of the numbering of its instances."""
    return made.count, *sorted([(i.cpus, i.ncores, i.threads) for i in made.instances])


def _starves(made: Plan) -> bool:
    share = made.memory_share_bytes
    return made.count > 1 and share is not None and share < MIN_SHARE_BYTES


def _budget(whole: Plan, pool: int, request: Request) -> int:
    """Cores that all instances together may use."""
    cores = pool - request.layout.reserve_cores if whole.bound else whole.instances[0].ncores
    quota = whole.cpu_quota
    return cores if quota is None else max(1, min(cores, int(quota)))


def _pairs(
    machine: Machine, pool: Sequence[CPUs], budget: int, *, one_instance: bool
) -> list[Layout]:
    """Candidate layouts, by instances and then cores; some may not fit."""
    levels = _levels(machine.topology, pool)
    pairs = set()
    for size in _sizes([unit for unit, _ in levels], budget):
        fits = budget // size
        pairs.add(Layout(1, size))
        if one_instance or fits == 1:
            continue
        counts = {fits, _whole_in_domains(levels, size)}
        counts |= {fits // 2} if fits >= 4 else set()
        pairs |= {Layout(count, size) for count in counts if 1 < count <= fits}
    return sorted(pairs)


def _sizes(units: Sequence[int], budget: int) -> list[int]:
    """Instance sizes in cores, ascending. `units`: the cores of one domain at each level.

    **Ex.:** L3 caches of 8 cores, 6 to a node, 2 nodes: 1, 2, 4, 8, 16, 24, 32, 48, 96.
    """
    ends = sorted({unit for unit in units if unit < budget} | {budget})
    sizes, inner = {1}, 1
    for outer in ends:
        times = 1
        while times * inner <= outer:
            sizes.add(times * inner)
            times *= 2
        half = outer // 2
        if half % inner == 0 and (outer % 2 == 0 or outer == budget > 1):
            sizes.add(half)
        sizes.add(outer)
        inner = outer
    return sorted(sizes)


def _levels(topology: Topology, pool: Sequence[CPUs]) -> list[tuple[int, list[int]]]:
    """For each level of domains, the typical number of cores, and those of all in the pool.

    If domains differ in size, the typical size is the one that places most cores in full domains:
    42 for 43, 43 and 42 cores, and 8 for 8, 8 and 2.
    """
    groups = (
        topology.l3_groups or topology.l2_groups or topology.clusters,
        tuple([node.cpus for node in topology.numa_nodes]),
        tuple([package.cpus for package in topology.packages]),
    )
    levels = []
    for group in groups:
        counts = [sum(core[0] in members for core in pool) for members in map(set, group)]
        sizes = [count for count in counts if count]
        if sizes:
            unit = max(sizes, key=lambda size: (size * sum(s >= size for s in sizes), size))
            levels.append((unit, sizes))
    return levels


def _whole_in_domains(levels: list[tuple[int, list[int]]], size: int) -> int:
    """How many instances of `size` cores fit into single domains, the smallest that can hold one.

    **Ex.:** 6 instances of 16 in nodes of 43, 43 and 42 cores; 8 fit if two of them span nodes.
    """
    holding = [(unit, sizes) for unit, sizes in levels if unit >= size]
    return sum(have // size for have in min(holding)[1]) if holding else 0
