# SPDX-License-Identifier: Apache-2.0
"""Choose the memory policy of each instance and the NUMA nodes that it names."""

from __future__ import annotations

from typing import NamedTuple

from xlaunch.errors import UsageError
from xlaunch.machine.cpu_list import format_cpu_list, name_numbers
from xlaunch.machine.topology import Machine
from xlaunch.planning.request import MemoryPolicy


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
    known: MemoryNodes,
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
    own = tuple([node for node in nodes if node in known.usable])
    if wanted is MemoryPolicy.BIND and known.usable:
        if own:
            return Memory(wanted, own, "as asked")
        has = "have" if len(nodes) > 1 else "has"
        raise UsageError(
            f"--mem-policy bind: instance {index} runs on {name_numbers('NUMA node', nodes)}, which {has} "
            f"no memory that may be used; nodes with memory: {format_cpu_list(known.usable)}; "
            "choose another --mem-policy, or --numa-nodes"
        )
    if len(known.usable) < 2:
        seen = "one NUMA node" if known.usable else "no NUMA nodes"
        return Memory(MemoryPolicy.NONE, (), f"{seen} to choose from: nothing to set")
    if wanted is MemoryPolicy.INTERLEAVE:
        spread = (known.with_cpus or known.usable) if everywhere or not own else own
        return Memory(wanted, spread, "as asked")
    if wanted is MemoryPolicy.PREFERRED and own:
        return Memory(wanted, own, "as asked")
    if not own:
        node = "NUMA nodes have" if len(nodes) > 1 else "NUMA node has"
        return Memory(MemoryPolicy.NONE, (), f"its {node} no memory that may be used")
    if len(nodes) > 1:
        return Memory(MemoryPolicy.NONE, (), f"spans {len(nodes)} NUMA nodes: first touch decides")
    return Memory(MemoryPolicy.PREFERRED, own, "lies within one NUMA node")
