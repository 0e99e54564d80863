# SPDX-License-Identifier: Apache-2.0
"""Place instances on whole cores with as few crossings as the machine allows, and their memory near them.

An instance *crosses* a level (packages, NUMA nodes, L3 groups) once for every domain of that level
that it touches after the first: 16 cores on 8-core L3 groups touch two groups, one crossing.

The method. Domains form a tree (machine, package, node, L3 group). From the leaves up, every domain
forms as many instances as fit in it alone and hands the cores left over, fewer than one instance's,
to its parent, which combines the left-overs of its children. Each domain then holds as many whole
instances as it can, floor(cores / size); and that costs nobody more, because whoever is displaced
can have the place of the one that moved in. Those that cross least are taken first. Where an
instance joins three left-overs or more, cutting the domain in order is tried too.

The crossings of one instance are the fewest there are, and so are those of packages where the domains
of each level have one size: tests compare with brute force. Several instances are placed one after the
other, so an irregular machine or mask can cost a crossing more than the best, and so can, at the node
or L3 level, a layout that leaves a core or two of every domain idle. Where domains do not nest (a NUMA
node of two half packages), the parts in which they overlap serve as domains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from heapq import heapify, heapreplace
from operator import itemgetter
from typing import NamedTuple

from xlaunch.errors import UsageError
from xlaunch.machine.topology import CPUs, Machine, Topology
from xlaunch.planning.request import MemoryPolicy, Place
from xlaunch.text import format_cpu_list, name_numbers

UNLISTED = -1
"""The domain of CPUs that are in no group of a level, such as an L3 shown for some CPUs only."""

MAX_WORK = 4096
"""Limit of cores times combinations for an exhaustive search; above it, the largest pieces are taken."""


class Levels(NamedTuple):
    """A number for each level, first that whose crossings cost most."""

    package: int
    node: int
    cache: int
    die: int


class Core(NamedTuple):
    """A physical core of the pool and its domains."""

    cpus: CPUs
    """Its allowed siblings."""
    domains: Levels
    """Its package, NUMA node, cache group and die, each named by its lowest CPU.

    **Ex.:** CPUs 12 and 76 of a two-package EPYC: ``(0, 0, 8, 0)``."""
    path: tuple[int, ...] = ()
    """The domains that divide the pool, outermost first: its path in the tree."""
    taken: bool = False
    """Whether another launch has taken it. Equally good places with fewer of these come first."""


Cores = Sequence[Core]


def locate_cores(
    topology: Topology, cores: Iterable[CPUs], taken: Collection[int] = ()
) -> list[Core]:
    """The cores with their domains, in the order of the tree: neighbours are side by side.

    `taken`: CPUs of other launches; their cores come last in the innermost domain. Otherwise the order
    is by lowest CPU at each level. **Ex.:** where even CPUs are in package 0 and odd ones
    in package 1: 0, 2, 4, 6, 1, 3, 5, 7.
    """
    levels = [{cpu: group[0] for group in groups for cpu in group} for groups in _levels(topology)]
    located = [
        Core(cpus, Levels(*[level.get(cpus[0], UNLISTED) for level in levels])) for cpus in cores
    ]
    counts = [len({core.domains[level] for core in located}) for level in range(len(levels))]
    outermost_first = sorted(range(len(levels)), key=counts.__getitem__)
    dividing: list[int] = []
    parts = 1
    for level in outermost_first:
        parts_below = len({tuple([c.domains[i] for i in (*dividing, level)]) for c in located})
        if parts_below > parts:
            dividing.append(level)
            parts = parts_below
    busy = {cpu for core in topology.cores if not set(taken).isdisjoint(core) for cpu in core}
    located = [
        Core(c.cpus, c.domains, tuple([c.domains[i] for i in dividing]), c.cpus[0] in busy)
        for c in located
    ]
    located.sort(key=_position)
    return located


def place_instances(cores: Cores, *, count: int, size: int, place: Place) -> list[list[Core]]:
    """`count` disjoint instances of `size` cores each, with as few crossings as possible.

    `cores` are in the order of `locate_cores`, at least ``count * size`` of them. The instances
    come in the order of their first cores. Of equally good places those with the fewest taken cores
    win; then compact takes the first, scatter those that load packages, then nodes, then caches as
    evenly as possible.
    """
    chosen = _best_slots(_slots_in(cores, size, depth=0)[0], count, place)
    # If an instance joins three left-overs, cutting in order may be better: see _slots_in.
    if count > 1 and any(max(crossings(slot)) > 1 for slot in chosen):
        chained = _best_slots(_slots_in(cores, size, depth=0, chain=True)[0], count, place)
        if _total_crossings(chained) < _total_crossings(chosen):
            chosen = chained
    chosen.sort(key=lambda slot: _position(slot[0]))
    return chosen


def _best_slots(slots: list[list[Core]], count: int, place: Place) -> list[list[Core]]:
    """The `count` slots with the fewest crossings: the first ones, or those far apart."""
    slots.sort(key=lambda slot: (crossings(slot), _count_taken(slot), _position(slot[0])))
    if place is Place.COMPACT or count == len(slots):
        return slots[:count]
    worst = crossings(slots[count - 1])
    better = [slot for slot in slots if crossings(slot) < worst]
    equal = [slot for slot in slots if crossings(slot) == worst]
    return better + _spread(equal, count - len(better), among=better, depth=0)


def _total_crossings(slots: list[list[Core]]) -> list[int]:
    return [sum(level) for level in zip(*map(crossings, slots), strict=True)]


def crossings(cores: Cores) -> Levels:
    """Additional domains touched at each level."""
    if len(cores) == 1:
        return Levels(0, 0, 0, 0)
    return Levels(*[len(set(level)) - 1 for level in zip(*[c.domains for c in cores], strict=True)])


def _levels(topology: Topology) -> tuple[tuple[CPUs, ...], ...]:
    """Groups of CPUs at each of the `Levels`; without an L3, L2 groups, clusters or dies are the innermost."""
    caches = topology.l3_groups or topology.l2_groups or topology.clusters
    return (
        tuple([package.cpus for package in topology.packages]),
        tuple([node.cpus for node in topology.numa_nodes]),
        caches,
        topology.dies,
    )


def _position(core: Core) -> tuple[tuple[int, ...], bool, int]:
    return core.path, core.taken, core.cpus[0]


def _count_taken(cores: Cores) -> int:
    return sum([core.taken for core in cores])


def _slots_in(
    cores: Cores, size: int, *, depth: int, chain: bool = False
) -> tuple[list[list[Core]], list[Core]]:
    """Every instance that fits in one domain, and the cores left over.

    `chain`: also try to cut the domain's cores in order, so that each instance begins where the one
    before ended, and take that if it crosses less. **Ex.:** four instances of 3 cores on three packages
    of two 2-core nodes. Without a chain three instances lie within a package each, and the fourth has a
    core of each package. In a chain every instance has cores of two nodes.
    """
    if len(cores) < size:
        return [], list(cores)
    end = len(cores) - len(cores) % size
    cut = [list(cores[i : i + size]) for i in range(0, end, size)]
    if depth == len(cores[0].path):
        return cut, list(cores[end:])
    slots: list[list[Core]] = []
    free: list[Core] = []
    for child in _children(cores, depth):
        inside, outside = _slots_in(child, size, depth=depth + 1, chain=chain)
        slots += inside
        free += outside
    while len(free) >= size:
        slot = _gather(free, size=size, depth=depth)
        taken = {core.cpus[0] for core in slot}
        free = [core for core in free if core.cpus[0] not in taken]
        slots.append(slot)
    if chain and _total_crossings(cut) < _total_crossings(slots):
        return cut, list(cores[end:])
    return slots, free


def _children(cores: Cores, depth: int) -> list[list[Core]]:
    """The cores by the domain they share down to `depth`, in the order of the tree."""
    children: dict[tuple[int, ...], list[Core]] = {}
    for core in cores:
        children.setdefault(core.path[: depth + 1], []).append(core)
    return list(children.values())


def _gather(cores: Cores, *, size: int, depth: int) -> list[Core]:
    """`size` of the cores that touch the fewest domains at `depth`, then at the levels below.

    Of equally good ones those that break up the fewest domains, then those that leave the fewest
    cores behind in the domains they touch.
    """
    if depth == len(cores[0].path):
        return list(cores[:size])
    candidates: list[tuple[tuple[Levels, int, int, int], list[Core]]] = []
    """What each place costs, and its cores."""
    for pieces in _smallest_sets(_children(cores, depth), size):
        union = _joined(pieces)
        spare = len(union) - size
        slot = _gather(union, size=size, depth=depth + 1)
        broken = _broken(slot, pieces, depth)
        candidates.append(((crossings(slot), _count_taken(slot), broken, spare), slot))
        if broken < 2:
            continue
        for partial in (min(pieces, key=len), max(pieces, key=len)):
            taken = _gather(partial, size=len(partial) - spare, depth=depth + 1)
            slot = _joined([taken if piece is partial else piece for piece in pieces])
            candidates.append(((crossings(slot), _count_taken(slot), 1, spare), slot))
    return min(candidates, key=itemgetter(0))[1]


def _joined(pieces: list[list[Core]]) -> list[Core]:
    """The cores of all pieces in the order of the tree."""
    pieces = sorted(pieces, key=lambda piece: _position(piece[0]))
    return [core for piece in pieces for core in piece]


def _broken(slot: Cores, pieces: list[list[Core]], depth: int) -> int:
    """The number of pieces that the slot takes only partly."""
    taken = Counter([core.path[: depth + 1] for core in slot])
    return sum([taken[piece[0].path[: depth + 1]] < len(piece) for piece in pieces])


def _smallest_sets(pieces: list[list[Core]], size: int) -> list[list[list[Core]]]:
    """The smallest sets of pieces that hold `size` cores; of pieces of equal shape the freest count."""
    pieces = sorted(pieces, key=_count_taken)
    largest = sorted(pieces, key=len, reverse=True)
    needed, fewest = size, 0
    while needed > 0:
        needed -= len(largest[fewest])
        fewest += 1
    # The last piece is the smallest that suffices, so that the fewest cores are left over.
    needed += len(largest[fewest - 1])
    last = min([piece for piece in largest[fewest - 1 :] if len(piece) >= needed], key=len)
    sets = [[*largest[: fewest - 1], last]]

    kinds: dict[tuple[tuple[int, ...], ...], list[list[Core]]] = {}
    for piece in pieces:
        kinds.setdefault(_build(piece), []).append(piece)
    if len(kinds) == 1:
        return sets
    choices: list[list[list[Core]]] = [[]]
    for alike in kinds.values():
        choices = [
            [*choice, *alike[:taken]]
            for choice in choices
            for taken in range(min(len(alike), fewest - len(choice)) + 1)
        ]
        if len(choices) * sum(map(len, pieces)) > MAX_WORK:
            return sets
    sets += [c for c in choices if len(c) == fewest and sum(map(len, c)) >= size]
    return sets


def _build(piece: list[Core]) -> tuple[tuple[int, ...], ...]:
    """The shape of a piece: equal for pieces that can replace each other."""
    names: dict[int, int] = {}
    return tuple(
        [tuple([names.setdefault(domain, len(names)) for domain in core.path]) for core in piece]
    )


def _spread(
    slots: list[list[Core]], count: int, *, among: list[list[Core]], depth: int
) -> list[list[Core]]:
    """Choose `count` of the slots so that they and the slots in `among` load the domains evenly."""
    if count == 0 or count == len(slots) or depth == len(slots[0][0].path):
        return slots[:count]
    children: dict[tuple[int, ...], list[list[Core]]] = {}
    for slot in slots:
        children.setdefault(slot[0].path[: depth + 1], []).append(slot)
    load = Counter([slot[0].path[: depth + 1] for slot in among])
    shares = dict.fromkeys(children, 0)
    least_loaded = [(load[prefix], prefix) for prefix in children]
    heapify(least_loaded)
    for _ in range(count):
        while shares[least_loaded[0][1]] == len(children[least_loaded[0][1]]):
            heapreplace(least_loaded, (len(slots) + len(among) + 1, least_loaded[0][1]))
        amount, prefix = least_loaded[0]
        shares[prefix] += 1
        heapreplace(least_loaded, (amount + 1, prefix))
    chosen: list[list[Core]] = []
    for prefix, share in shares.items():
        chosen += _spread(children[prefix], share, among=among, depth=depth + 1)
    return chosen


class MemoryNodes(NamedTuple):
    """The NUMA nodes that a policy may name."""

    usable: tuple[int, ...]
    """Allowed nodes that have memory."""
    with_cpus: tuple[int, ...]
    """Those with CPUs: without nodes that are only HBM, CXL or persistent memory."""


class Memory(NamedTuple):
    """A policy, the nodes it names, and why."""

    policy: MemoryPolicy
    nodes: tuple[int, ...]
    reason: str


def memory_nodes(machine: Machine) -> MemoryNodes:
    """The nodes whose memory this process may use. A node of unknown size counts as usable."""
    allowed = set(machine.limits.allowed_nodes)
    nodes = [
        node
        for node in machine.topology.numa_nodes
        if node.id in allowed and (node.memory_bytes is None or node.memory_bytes > 0)
    ]
    return MemoryNodes(
        usable=tuple([node.id for node in nodes]),
        with_cpus=tuple([node.id for node in nodes if node.cpus]),
    )


def choose_memory(
    wanted: MemoryPolicy,
    *,
    index: int,
    nodes: tuple[int, ...],
    everywhere: bool,
    known_nodes: MemoryNodes,
) -> Memory:
    """Choose the policy of instance `index`, whose CPUs belong to `nodes`.

    `everywhere`: it may use all CPUs, or is not bound. On a machine with one node there is nothing to
    prefer or interleave. Raises `UsageError` if it should be bound to nodes without memory.

    **Ex.:** auto on CPUs of node 1 of 2: ``PREFERRED``, ``(1,)``; on CPUs of both: ``NONE``, ``()``.
    """
    if wanted is MemoryPolicy.NONE:
        return Memory(wanted, (), "as asked: the inherited policy stays")
    if wanted is MemoryPolicy.LOCAL:
        return Memory(wanted, (), "as asked: pages go to the node that first touches them")
    own = tuple([node for node in nodes if node in known_nodes.usable])
    if wanted is MemoryPolicy.BIND and known_nodes.usable:
        if own:
            return Memory(wanted, own, "as asked")
        has = "have" if len(nodes) > 1 else "has"
        raise UsageError(
            f"--mem-policy bind: instance {index} runs on {name_numbers('NUMA node', nodes)}, which {has} "
            f"no memory that may be used; nodes with memory: {format_cpu_list(known_nodes.usable)}; "
            "choose another --mem-policy, or --numa-nodes"
        )
    if len(known_nodes.usable) < 2:
        seen = "one NUMA node" if known_nodes.usable else "no NUMA nodes"
        return Memory(MemoryPolicy.NONE, (), f"{seen} to choose from: nothing to set")
    if wanted is MemoryPolicy.INTERLEAVE:
        spread = (known_nodes.with_cpus or known_nodes.usable) if everywhere or not own else own
        return Memory(wanted, spread, "as asked")
    if wanted is MemoryPolicy.PREFERRED and own:
        return Memory(wanted, own, "as asked")
    if not own:
        node = "NUMA nodes have" if len(nodes) > 1 else "NUMA node has"
        return Memory(MemoryPolicy.NONE, (), f"its {node} no memory that may be used")
    if len(nodes) > 1:
        return Memory(MemoryPolicy.NONE, (), f"spans {len(nodes)} NUMA nodes: first touch decides")
    return Memory(MemoryPolicy.PREFERRED, own, "lies within one NUMA node")
