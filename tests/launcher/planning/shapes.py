# SPDX-License-Identifier: Apache-2.0
"""Machines and ranks made up, for tests that state the machine and the exact result."""

from __future__ import annotations

from collections.abc import Sequence

from xlaunch.machine.gpus import usable_gpus
from xlaunch.machine.topology import (
    CoreKind,
    CPUs,
    Gpu,
    Limits,
    Machine,
    NumaNode,
    Package,
    Topology,
    Vendor,
)
from xlaunch.planning.ranks import Rank
from xlaunch.planning.request import RankMode

GIB = 1 << 30


def make_machine(
    *,
    packages: Sequence[int],
    nodes: Sequence[int] = (),
    l3: Sequence[int] = (),
    dies: Sequence[int] = (),
    clusters: Sequence[int] = (),
    smt: int = 1,
    adjacent_siblings: bool = False,
    memory_only_nodes: int = 0,
    allowed: Sequence[int] | None = None,
    allowed_nodes: Sequence[int] | None = None,
    narrowed_by: Sequence[str] = (),
    quota: float | None = None,
    offline: Sequence[int] = (),
    isolated: Sequence[int] = (),
    kinds: Sequence[CoreKind] = (),
    architecture: str = "x86_64",
) -> Machine:
    """A machine whose domains hold so many cores each, one after the other.

    **Ex.:** ``packages=(8, 8), nodes=(16,), l3=(4, 4, 4, 4), smt=2``: 16 cores, core 0 is CPUs 0 and
    16, or with `adjacent_siblings` CPUs 0 and 1.
    """
    count = sum(packages)
    cores = [
        tuple(range(i * smt, i * smt + smt))
        if adjacent_siblings
        else tuple(range(i, count * smt, count))
        for i in range(count)
    ]

    def groups(sizes: Sequence[int]) -> tuple[CPUs, ...]:
        assert not sizes or sum(sizes) == count, "each level holds every core"
        found, start = [], 0
        for size in sizes:
            found.append(tuple(sorted(cpu for core in cores[start : start + size] for cpu in core)))
            start += size
        return tuple(found)

    online = tuple(range(count * smt))
    numa_nodes = [NumaNode(i, cpus, 16 * GIB) for i, cpus in enumerate(groups(nodes))]
    numa_nodes += [NumaNode(len(nodes) + i, (), 64 * GIB) for i in range(memory_only_nodes)]
    topology = Topology(
        architecture=architecture,
        online_cpus=online,
        offline_cpus=tuple(offline),
        packages=tuple(Package(i, cpus) for i, cpus in enumerate(groups(packages))),
        dies=groups(dies),
        clusters=groups(clusters),
        numa_nodes=tuple(numa_nodes),
        l3_groups=groups(l3),
        cores=tuple(sorted(cores)),
        cores_known=True,
        core_kinds=tuple(kinds),
        isolated_cpus=tuple(isolated),
    )
    limits = Limits(
        allowed_cpus=online if allowed is None else tuple(allowed),
        allowed_nodes=tuple(node.id for node in numa_nodes)
        if allowed_nodes is None
        else tuple(allowed_nodes),
        narrowed_by=tuple(narrowed_by),
        cpu_quota=quota,
        cpu_quota_source=None if quota is None else "cgroup v2 /job",
    )
    return Machine("/captured", topology, limits)


def with_gpus(machine: Machine, nodes: Sequence[int | None], **variables: str) -> Machine:
    """The machine with a GPU next to each of these NUMA nodes."""
    found = tuple(
        Gpu(Vendor.NVIDIA, "10de:2330", f"0000:{i:02x}:00.0", node) for i, node in enumerate(nodes)
    )
    return machine._replace(gpus=usable_gpus(found, variables))


def ranks(size: int) -> list[Rank]:
    """All ranks of torchrun on a host."""
    return [Rank(RankMode.TORCHRUN, local, size, local, "LOCAL_RANK") for local in range(size)]
