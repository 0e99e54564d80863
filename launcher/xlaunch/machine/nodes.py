# SPDX-License-Identifier: Apache-2.0
"""NUMA nodes, including those without CPUs, from ``/sys/devices/system/node``."""

from __future__ import annotations

from xlaunch.machine.topology import CPUs, NumaNode
from xlaunch.machine.tree import Tree, parse_list, parse_mask

NODE_DIRECTORY = "/sys/devices/system/node"
MIN_SHARE = 0.5
"""Minimum share of the machine's memory that nodes must list to be believed."""
CPU_DIRECTORY = "/sys/devices/system/cpu"


def read_numa_nodes(tree: Tree, online: CPUs) -> tuple[tuple[NumaNode, ...], list[str]]:
    """Every node that the kernel lists, by id, and notes on inconsistent files."""
    ids = tree.numbered(NODE_DIRECTORY, "node")
    notes: list[str] = []
    cpus_of = {node: _node_cpus(tree, node, frozenset(online)) for node in ids}
    if ids and not any(cpus_of.values()):
        cpus_of = _cpus_by_links(tree, ids, online)
    _settle_doubles(cpus_of, notes)

    distances = {node: _distances(tree, node) for node in ids}
    if any(distances[node] and len(distances[node]) != len(ids) for node in ids):
        notes.append("NUMA distances do not match the number of nodes; they are ignored")
        distances = dict.fromkeys(ids, ())

    nodes = tuple(
        NumaNode(
            id=node,
            cpus=cpus_of[node],
            memory_bytes=_memory_bytes(tree, node),
            distances=distances[node],
            local_cpus=() if cpus_of[node] else _local_cpus(tree, node, cpus_of, distances[node]),
        )
        for node in ids
    )
    return _believed_sizes(nodes, read_memory_total(tree), notes), notes


def _node_cpus(tree: Tree, node: int, online: frozenset[int]) -> CPUs:
    directory = f"{NODE_DIRECTORY}/node{node}"
    if (text := tree.read(directory + "/cpulist")) is not None:
        cpus = parse_list(text)
    elif (text := tree.read(directory + "/cpumap")) is not None:
        cpus = parse_mask(text)
    else:
        cpus = tuple(tree.numbered(directory, "cpu"))
    return tuple(cpu for cpu in cpus if cpu in online)


def _cpus_by_links(tree: Tree, ids: list[int], online: CPUs) -> dict[int, CPUs]:
    """The CPUs of each node, from the links to nodes in CPU directories."""
    members: dict[int, list[int]] = {node: [] for node in ids}
    for cpu in online:
        for node in tree.numbered(f"{CPU_DIRECTORY}/cpu{cpu}", "node"):
            if node in members:
                members[node].append(cpu)
    return {node: tuple(cpus) for node, cpus in members.items()}


def read_memory_total(tree: Tree) -> int | None:
    """MemTotal of the machine in bytes; None when unknown."""
    for line in tree.read_start("/proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemTotal" and rest.split()[0].isdigit():
            return int(rest.split()[0]) * 1024
    return None


def _believed_sizes(
    nodes: tuple[NumaNode, ...], total: int | None, notes: list[str]
) -> tuple[NumaNode, ...]:
    """The nodes with the machine's memory if their own files list much less.

    A virtual machine that got memory after boot may list the first part only.
    """
    filled = [node for node in nodes if node.memory_bytes]
    known = sum([node.memory_bytes or 0 for node in filled])
    unknown = any(node.memory_bytes is None for node in nodes)
    if total is None or not filled or unknown or known >= total * MIN_SHARE:
        return nodes
    size = total if len(filled) == 1 else None
    notes.append(
        f"NUMA nodes list {known / 2**30:.1f} GiB of the machine's {total / 2**30:.1f} GiB; "
        + ("the latter counts" if size else "how much each node has is not known")
    )
    return tuple([node._replace(memory_bytes=size) if node in filled else node for node in nodes])


def _settle_doubles(cpus_of: dict[int, CPUs], notes: list[str]) -> None:
    """Assign a CPU that several nodes claim to the first of them."""
    seen: set[int] = set()
    for node, cpus in cpus_of.items():
        if not seen.isdisjoint(cpus):
            notes.append(f"NUMA node {node} claims CPUs of another node; they stay with the first")
            cpus_of[node] = tuple(cpu for cpu in cpus if cpu not in seen)
        seen.update(cpus)


def _memory_bytes(tree: Tree, node: int) -> int | None:
    text = tree.read(f"{NODE_DIRECTORY}/node{node}/meminfo") or ""
    _, found, rest = text.partition("MemTotal:")
    fields = rest.split(None, 1)
    return int(fields[0]) * 1024 if found and fields and fields[0].isdecimal() else None


def _distances(tree: Tree, node: int) -> tuple[int, ...]:
    fields = (tree.read(f"{NODE_DIRECTORY}/node{node}/distance") or "").split()
    return tuple(map(int, fields)) if all(field.isdecimal() for field in fields) else ()


def _local_cpus(
    tree: Tree, node: int, cpus_of: dict[int, CPUs], distances: tuple[int, ...]
) -> CPUs:
    """The CPUs nearest to a node without CPUs, as hwloc determines them; empty if all are equally near.

    First the initiators that the firmware names (``access1`` are CPUs, ``access0`` may be devices
    too), then the nodes at the smallest distance, unless all have it.
    """
    for access in ("access1", "access0"):
        nearest = tree.numbered(f"{NODE_DIRECTORY}/node{node}/{access}/initiators", "node")
        if cpus := _union(cpus_of, nearest):
            return cpus
    if not distances:
        return ()
    to_others = {other: d for other, d in zip(cpus_of, distances, strict=True) if other != node}
    own = distances[list(cpus_of).index(node)]
    smallest = min(to_others.values(), default=0)
    nearest = [other for other, distance in to_others.items() if distance == smallest]
    if smallest <= own or len(nearest) == len(to_others):
        return ()
    return _union(cpus_of, nearest)


def _union(cpus_of: dict[int, CPUs], nodes: list[int]) -> CPUs:
    return tuple(sorted({cpu for node in nodes for cpu in cpus_of.get(node, ())}))
