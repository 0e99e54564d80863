# SPDX-License-Identifier: Apache-2.0
"""Explain a plan: the decisions that `--explain` prints, and warnings."""

from __future__ import annotations

from collections.abc import Sequence

from xlaunch.machine.cpu_list import format_cpu_list, name_numbers
from xlaunch.machine.topology import SLURM_COUNT, Machine, Topology
from xlaunch.planning.layout import Capacity, quota_cores
from xlaunch.planning.placement import NODE, PACKAGE, Core
from xlaunch.planning.plans import Decision, Instance
from xlaunch.planning.pool import Pool
from xlaunch.planning.request import MAX, LayoutRequest, MemoryPolicy
from xlaunch.text import counted


def explain_siblings(request: LayoutRequest, pool: Pool) -> list[Decision]:
    """The decision whether second SMT siblings are used; nothing if there are none."""
    second = [cpu for core in pool.cores for cpu in core[1:]]
    if not second:
        return []
    if request.smt:
        reason = f"a thread for each of {len(pool.cpus)} CPUs of {counted(len(pool.cores), 'core')}"
        return [Decision("SMT", "on", reason)]
    threads = (
        "one thread for 1 core"
        if len(pool.cores) == 1
        else f"a thread for each of {len(pool.cores)} cores"
    )
    reason = f"{threads}; {name_numbers('second sibling', second)} left out (--smt)"
    return [Decision("SMT", "off", reason)]


def explain_quota(machine: Machine, capacity: Capacity, *, can_bind: bool) -> list[Decision]:
    """The decision about the CPU quota, and why the plan does not set masks."""
    if not can_bind:
        return [Decision("binding", "no", "this system has no CPU masks: threads go anywhere")]
    if capacity.quota is None:
        if machine.limits.cpu_quota is None:
            return []
        reason = "it grants all the time of all allowed CPUs"
        return [Decision("CPU quota", f"{machine.limits.cpu_quota:g}", reason)]
    source = f" ({capacity.quota_source})" if capacity.quota_source else ""
    reason = f"time for {quota_cores(capacity.quota)} of {counted(capacity.pool, 'core')}{source}"
    decisions = [Decision("CPU quota", f"{capacity.quota:g}", reason)]
    if not capacity.bound:
        reason = "a quota is not a place: other containers or jobs would bind to the same CPUs"
        if capacity.quota_source == SLURM_COUNT:
            reason = (
                "Slurm gives this job no CPUs of its own: other jobs would bind to the same ones"
            )
        decisions.append(Decision("binding", "no", reason))
    return decisions


def explain_placement(
    request: LayoutRequest, crossed: list[tuple[int, ...]], idle: list[Core]
) -> list[Decision]:
    """The number of crossings of all instances, and the idle cores."""
    totals = [sum(level) for level in zip(*crossed, strict=True)]
    packages, nodes, caches, _ = totals
    if packages or nodes or caches:
        reason = (
            f"crossings in all: {packages} of packages, {nodes} of NUMA nodes, {caches} of caches"
        )
    else:
        reason = "no instance crosses packages, NUMA nodes or caches"
    decisions = [Decision("placement", request.place.value, reason)]
    if idle:
        why = (
            f"{request.reserve_cores} reserved"
            if request.reserve_cores
            else "not needed by the layout"
        )
        cpus = name_numbers("CPU", [cpu for core in idle for cpu in core.cpus])
        decisions.append(Decision("idle", counted(len(idle), "core"), f"{cpus}: {why}"))
    return decisions


def explain_memory(instances: list[tuple[Instance, str]]) -> list[Decision]:
    """One decision per policy and reason, for all instances that share them."""
    alike: dict[tuple[str, str], list[Instance]] = {}
    for instance, reason in instances:
        alike.setdefault((instance.memory.value, reason), []).append(instance)
    decisions = []
    for (value, reason), members in alike.items():
        subject = "memory"
        if len(alike) > 1:
            subject = f"{name_numbers('instance', [i.index for i in members])} memory"
        named = {i.memory_nodes for i in members}
        nodes = next(iter(named)) if len(named) == 1 else ()
        decisions.append(Decision(subject, f"{value} {format_cpu_list(nodes)}".rstrip(), reason))
    return decisions


def warn_of_crossings(
    request: LayoutRequest,
    topology: Topology,
    cores: Sequence[Core],
    placed: list[list[Core]],
    crossed: list[tuple[int, ...]],
) -> list[str]:
    """Warn of instances that span NUMA nodes or packages where smaller instances would not."""
    if not placed:
        return []
    warnings = []
    size, told = len(placed[0]), set[int]()
    for level, name, ids in (
        (NODE, "NUMA nodes", {n.cpus[0]: n.id for n in topology.numa_nodes if n.cpus}),
        (PACKAGE, "packages", {p.cpus[0]: p.id for p in topology.packages}),
    ):
        spanning = [i for i, levels in enumerate(crossed) if levels[level] and i not in told]
        told.update(spanning)
        held = _sizes([core.domains[level] for core in cores])
        if not spanning or size > max(held):
            continue
        # Start with the largest size that could fit; instances of one core span nothing.
        smaller = next(s for s in range(size - 1, 0, -1) if _fit(held, s) >= len(placed))
        if len(spanning) > 1:
            which = f"instances {format_cpu_list(spanning)} span {name}"
        else:
            slot = placed[spanning[0]]
            spanned = {i for i in [ids.get(c.domains[level]) for c in slot] if i is not None}
            which = f"instance {spanning[0]} spans {name} {format_cpu_list(spanned)}".rstrip()
        # If the count follows from the size, a smaller size alone would give more instances.
        fixed = request.mode is None and request.instances is not MAX
        count = "" if fixed else f"--instances {len(placed)} "
        warnings.append(f"{which}: {count}--ncores {smaller} would not")
    return warnings


def _sizes(domains: list[int]) -> list[int]:
    """The number of cores in each domain."""
    counts = dict.fromkeys(domains, 0)
    for domain in domains:
        counts[domain] += 1
    return list(counts.values())


def _fit(held: list[int], size: int) -> int:
    """How many instances of `size` cores fit into domains of `held` cores without spanning any."""
    return sum([cores // size for cores in held])


def explain_memory_share(machine: Machine, share_bytes: int | None) -> list[Decision]:
    """Each instance's share of a memory limit that is below the machine's memory."""
    limit, total = machine.limits.memory_limit_bytes, machine.limits.memory_total_bytes
    if share_bytes is None or limit is None or (total is not None and limit >= total):
        return []
    source = (
        f" ({machine.limits.memory_limit_source})" if machine.limits.memory_limit_source else ""
    )
    reason = f"an equal part of the memory limit of {limit / 2**30:.1f} GiB{source}"
    return [Decision("memory share", f"{share_bytes / 2**30:.1f} GiB", reason)]


def warn_of_one_node(request: LayoutRequest, instances: Sequence[Instance]) -> list[str]:
    """Warn of instances that `--mem-policy interleave` was asked for, and that have one node."""
    within = [i.index for i in instances if len(i.memory_nodes) < 2]
    if request.mem_policy is not MemoryPolicy.INTERLEAVE or not within:
        return []
    return [
        f"--mem-policy interleave does nothing for {name_numbers('instance', within)}: "
        "no second NUMA node to spread pages over"
    ]


def warn_of_isolated(instances: list[Instance], topology: Topology, *, bound: bool) -> list[str]:
    """Warn of isolated CPUs: the kernel does not move threads between them."""
    isolated = set(topology.isolated_cpus)
    used = {cpu for i in instances if i.threads > 1 for cpu in i.cpus if cpu in isolated}
    if not used or not bound:
        return []
    are, them = ("is", "it") if len(used) == 1 else ("are", "them")
    warning = (
        f"{name_numbers('CPU', used)} {are} isolated (isolcpus): the kernel does not spread threads "
        f"over {them}; bind each thread to its CPU (OMP_PROC_BIND), or leave {them} out with --cpus"
    )
    return [warning]
