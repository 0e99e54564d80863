# SPDX-License-Identifier: Apache-2.0
"""Plan a request for a machine: `plan`; and explain the plan: what `--explain` prints, and warnings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from operator import attrgetter

from xlaunch.errors import UsageError
from xlaunch.machine.limits import usable_memory_bytes
from xlaunch.machine.topology import SLURM_COUNT, CPUs, Machine, Topology
from xlaunch.planning.layout import Capacity, Layout, choose_layout, quota_cores, takes_everything
from xlaunch.planning.placement import (
    UNLISTED,
    Core,
    Levels,
    choose_memory,
    crossings,
    locate_cores,
    memory_nodes,
    place_instances,
)
from xlaunch.planning.plans import Decision, Instance, Plan
from xlaunch.planning.pool import Pool, select_pool
from xlaunch.planning.request import (
    MAX,
    ECores,
    LayoutRequest,
    MemoryPolicy,
    checked,
    refuse_contradictions,
)
from xlaunch.text import cited, counted, format_cpu_list, name_numbers


def plan(
    request: LayoutRequest,
    machine: Machine,
    *,
    taken: Collection[int] = (),
    taken_gpus: Collection[str] = (),
) -> Plan:
    """Decide what runs where, and why. Equal requests on equal machines give equal plans.

    `taken`: CPUs of other launches, which are avoided where another place is as good; `taken_gpus`:
    identities of their GPUs, which are given last.
    Raises `UsageError` if the request contradicts itself or does not fit the machine.

    **Ex.:** two instances on two nodes of 8 cores: CPUs 0-7 with memory preferred on node 0, 8-15 on 1.
    """
    request = checked(request, LayoutRequest)
    refuse_contradictions(request._asdict())
    # Only a live system without CPU masks has no uname.
    can_bind = machine.root != "/" or machine.topology.architecture != "unknown"
    bound = can_bind and _binds(request, machine)
    pool = select_pool(request, machine, bound=bound)
    cores = locate_cores(machine.topology, pool.cores, taken)
    by_node = _cores_by_node(machine.topology, cores)
    capacity = _capacity(machine, pool, by_node, bound=bound)
    layout = _layout(request, machine, cores, capacity, taken_gpus)
    placed = _place(request, layout, cores, by_node) if bound else []
    instances, reasons = _instances(request, machine, layout, cores, placed if bound else None)
    used = {core.cpus[0] for slot in placed for core in slot}
    idle = [core for core in cores if bound and core.cpus[0] not in used]
    crossed = [crossings(slot) for slot in placed]
    memory_bytes = usable_memory_bytes(machine.limits)
    share = memory_bytes // len(instances) if memory_bytes is not None and instances else None
    decisions = [
        *pool.decisions,
        *(_explain_siblings(request, pool) if bound else ()),
        *_explain_quota(machine, capacity, can_bind=can_bind),
        *layout.decisions,
        *(_explain_placement(request, crossed, idle) if bound else ()),
        *_explain_memory(instances, reasons),
        *_explain_memory_share(machine, share),
    ]
    warnings = [*machine.warnings, *pool.warnings, *layout.warnings]
    if not can_bind and (request.cpus is not None or request.numa_nodes is not None):
        warnings.append(
            "CPUs cannot be bound on this system: --cpus and --numa-nodes only set the counts"
        )
    warnings += _warn_of_placement(request, machine.topology, layout, cores, placed, crossed)
    warnings += _warn_of_one_node(request, instances)
    warnings += _warn_of_isolated(instances, machine.topology, bound=bound)
    return Plan(
        instances=_selected(request, instances),
        count=len(instances),
        bound=bound,
        allowed_cpus=pool.cpus if bound else machine.limits.allowed_cpus,
        idle_cpus=tuple(sorted([cpu for core in idle for cpu in core.cpus])),
        decisions=tuple(decisions),
        warnings=tuple(warnings),
        layout=request,
        cpu_quota=capacity.quota,
        memory_share_bytes=share,
        cores_known=machine.topology.cores_known,
    )


def _capacity(
    machine: Machine, pool: Pool, by_node: Sequence[Sequence[Core]], *, bound: bool
) -> Capacity:
    sizes = tuple([len(group) for group in by_node])
    return Capacity(
        pool=sum(sizes),
        origin=pool.origin if sum(sizes) != 1 else pool.origin.replace("are ", "is ", 1),
        node_sizes=sizes,
        quota=_effective_quota(machine),
        quota_source=machine.limits.cpu_quota_source,
        bound=bound,
    )


def _layout(
    request: LayoutRequest,
    machine: Machine,
    cores: Sequence[Core],
    capacity: Capacity,
    taken_gpus: Collection[str],
) -> Layout:
    if request.gpus_per_instance is None and not request.near_gpus:
        return choose_layout(request, capacity)
    from xlaunch.planning.gpus import layout_for_gpus

    return layout_for_gpus(request, machine, cores, capacity, taken_gpus)


def _binds(request: LayoutRequest, machine: Machine) -> bool:
    """Whether instances get masks of their own.

    A CPU quota is not a place: each container with one would bind to the same lowest CPUs, of the
    machine or of a cpuset that several share. So CPUs are divided up where the quota grants all the
    time of those that are allowed, or where the user names them.
    """
    return (
        _effective_quota(machine) is None
        or request.cpus is not None
        or request.numa_nodes is not None
        or request.ecores in (ECores.EXCLUDE, ECores.ONLY)
    )


def _effective_quota(machine: Machine) -> float | None:
    """The CPU quota, unless it grants all the time of all allowed CPUs."""
    quota = machine.limits.cpu_quota
    if quota is None or quota >= len(machine.limits.allowed_cpus):
        return None
    return quota


def _cores_by_node(topology: Topology, cores: Sequence[Core]) -> list[list[Core]]:
    """The cores of each NUMA node that has any, in the order of the nodes; then the other cores."""
    groups: dict[int, list[Core]] = {}
    for core in cores:
        groups.setdefault(core.domains.node, []).append(core)
    order = [node.cpus[0] for node in topology.numa_nodes if node.cpus]
    return [groups[node] for node in (*order, UNLISTED) if node in groups]


def _place(
    request: LayoutRequest, layout: Layout, cores: Sequence[Core], by_node: list[list[Core]]
) -> list[list[Core]]:
    """Place the instances. Oversubscribed ones fill the machine in rounds."""
    if layout.shares and not layout.oversubscribed:
        from xlaunch.planning.gpus import place_near

        return place_near(layout.shares, cores, layout.sizes[0], request.place)
    if layout.by_node:
        return [
            place_instances(group, count=1, size=size, place=request.place)[0]
            for group, size in zip(by_node, layout.sizes, strict=True)
            if size
        ]
    unreserved = len(cores) - request.reserve_cores
    size = min(layout.sizes[0], unreserved)
    placed: list[list[Core]] = []
    while len(placed) < len(layout.sizes):
        count = min(unreserved // size, len(layout.sizes) - len(placed))
        slots = place_instances(cores, count=count, size=size, place=request.place)
        if request.reserve_cores and not placed:
            # The cores that the first round leaves are the reserved ones.
            used = {core.cpus[0] for slot in slots for core in slot}
            cores = [core for core in cores if core.cpus[0] in used]
        placed += slots
    return placed


def _instances(
    request: LayoutRequest,
    machine: Machine,
    layout: Layout,
    cores: Sequence[Core],
    placed: Sequence[Sequence[Core]] | None,
) -> tuple[list[Instance], list[str]]:
    """The instances, and the reason for the memory policy of each.

    `placed`: the cores of their masks; None: they may run on any allowed CPU, with a share of the time.
    """
    topology, nodes_known = machine.topology, memory_nodes(machine)
    package_of = _group_of([package.cpus for package in topology.packages])
    node_of = {cpu: node.id for node in topology.numa_nodes for cpu in node.cpus}
    l3_of = _group_of(topology.l3_groups)
    siblings = sum(len(core.cpus) for core in cores) // len(cores) if request.smt else 1
    limits: Sequence[int | None] = layout.threads_at_most or [None] * len(layout.sizes)
    sizes = [pair for pair in zip(layout.sizes, limits, strict=True) if pair[0]]
    instances, reasons = [], []
    for index, (size, threads_at_most) in enumerate(sizes):
        cpus, ncores, threads = machine.limits.allowed_cpus, size, size * siblings
        if placed is not None:
            slot = placed[index]
            count = None if request.smt else 1
            cpus = tuple(sorted([cpu for core in slot for cpu in core.cpus[:count]]))
            ncores = len(slot)
            threads = len(cpus) if ncores == size else size
        if threads_at_most is not None:
            threads = min(threads, threads_at_most)
        nodes = tuple(sorted({node_of[cpu] for cpu in cpus if cpu in node_of}))
        memory = choose_memory(
            request.mem_policy,
            index=index,
            nodes=nodes,
            everywhere=placed is None or ncores == len(cores),
            known_nodes=nodes_known,
        )
        instance = Instance(
            index=index,
            cpus=cpus,
            ncores=ncores,
            threads=threads,
            nodes=nodes,
            packages_touched=len({package_of.get(cpu) for cpu in cpus} - {None}),
            nodes_touched=len(nodes),
            l3_touched=len({l3_of.get(cpu) for cpu in cpus} - {None}),
            memory=memory.policy,
            memory_nodes=memory.nodes,
            gpus=layout.shares[index].gpus if layout.shares else (),
        )
        instances.append(instance)
        reasons.append(memory.reason)
    return instances, reasons


def _group_of(groups: Sequence[CPUs]) -> dict[int, int]:
    """The number of each CPU's group."""
    return {cpu: number for number, group in enumerate(groups) for cpu in group}


def _selected(request: LayoutRequest, instances: list[Instance]) -> tuple[Instance, ...]:
    """The instances that `--instance-index` selects, or all."""
    if request.instance_index is None:
        return tuple(instances)
    last = len(instances) - 1
    held = f"the plan has {name_numbers('instance', range(last + 1))}"
    wrong = [index for index in request.instance_index if not 0 <= index <= last]
    if wrong:
        raise UsageError(f"--instance-index {format_cpu_list(wrong)}: {held}")
    if not request.instance_index:
        raise UsageError(f"--instance-index names no instance; {held}")
    return tuple([instances[index] for index in sorted(set(request.instance_index))])


def _explain_siblings(request: LayoutRequest, pool: Pool) -> list[Decision]:
    """The decision whether second SMT siblings are used; nothing if there are none."""
    second = [cpu for core in pool.cores for cpu in core[1:]]
    if not second:
        return []
    if request.smt:
        reason = f"a thread for each of {len(pool.cpus)} CPUs of {counted(len(pool.cores), 'core')}"
        return [Decision("SMT", "on", reason)]
    threads = "one thread for 1 core"
    if len(pool.cores) > 1:
        threads = f"a thread for each of {len(pool.cores)} cores"
    reason = f"{threads}; {name_numbers('second sibling', second)} left out (--smt)"
    return [Decision("SMT", "off", reason)]


def _explain_quota(machine: Machine, capacity: Capacity, *, can_bind: bool) -> list[Decision]:
    """The decision about the CPU quota, and why the plan does not set masks."""
    if not can_bind:
        return [Decision("binding", "no", "this system has no CPU masks: threads go anywhere")]
    if capacity.quota is None:
        if machine.limits.cpu_quota is None:
            return []
        reason = "it grants all the time of all allowed CPUs"
        return [Decision("CPU quota", f"{machine.limits.cpu_quota:g}", reason)]
    reason = f"time for {quota_cores(capacity.quota)} of {counted(capacity.pool, 'core')}"
    reason = cited(reason, capacity.quota_source)
    decisions = [Decision("CPU quota", f"{capacity.quota:g}", reason)]
    if not capacity.bound:
        reason = "a quota is not a place: other containers or jobs would bind to the same CPUs"
        if capacity.quota_source == SLURM_COUNT:
            reason = (
                "Slurm gives this job no CPUs of its own: other jobs would bind to the same ones"
            )
        decisions.append(Decision("binding", "no", reason))
    return decisions


def _explain_placement(
    request: LayoutRequest, crossed: list[Levels], idle: list[Core]
) -> list[Decision]:
    """The number of crossings of all instances, and the idle cores."""
    packages = sum([crossing.package for crossing in crossed])
    nodes = sum([crossing.node for crossing in crossed])
    caches = sum([crossing.cache for crossing in crossed])
    if packages or nodes or caches:
        reason = (
            f"crossings in all: {packages} of packages, {nodes} of NUMA nodes, {caches} of caches"
        )
    else:
        reason = "no instance crosses packages, NUMA nodes or caches"
    decisions = [Decision("placement", request.place.value, reason)]
    if idle:
        why = "not needed by the layout"
        if request.reserve_cores:
            why = f"{request.reserve_cores} reserved"
        cpus = name_numbers("CPU", [cpu for core in idle for cpu in core.cpus])
        decisions.append(Decision("idle", counted(len(idle), "core"), f"{cpus}: {why}"))
    return decisions


def _explain_memory(instances: Sequence[Instance], reasons: Sequence[str]) -> list[Decision]:
    """One decision per policy and reason, for all instances that share them."""
    alike: dict[tuple[str, str], list[Instance]] = {}
    for instance, reason in zip(instances, reasons, strict=True):
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


def _warn_of_placement(
    request: LayoutRequest,
    topology: Topology,
    layout: Layout,
    cores: Sequence[Core],
    placed: list[list[Core]],
    crossed: list[Levels],
) -> list[str]:
    """Warn of instances that span more than they must, or that are far from their GPUs."""
    warnings: list[str] = []
    sized = not takes_everything(request) and not (layout.shares and request.ncores is None)
    if not layout.oversubscribed and not layout.by_node and sized:
        warnings += _warn_of_crossings(request, topology, cores, placed, crossed)
    if layout.shares:
        from xlaunch.planning.gpus import warn_of_remote_gpus

        warnings += warn_of_remote_gpus(layout.shares, topology, placed)
    return warnings


def _warn_of_crossings(
    request: LayoutRequest,
    topology: Topology,
    cores: Sequence[Core],
    placed: list[list[Core]],
    crossed: list[Levels],
) -> list[str]:
    """Warn of instances that span NUMA nodes or packages where smaller instances would not."""
    if not placed:
        return []
    warnings = []
    size, told = len(placed[0]), set[int]()
    for level, name, ids in (
        ("node", "NUMA nodes", {n.cpus[0]: n.id for n in topology.numa_nodes if n.cpus}),
        ("package", "packages", {p.cpus[0]: p.id for p in topology.packages}),
    ):
        domain_of = attrgetter(level)
        spanning = [i for i, levels in enumerate(crossed) if domain_of(levels) and i not in told]
        told.update(spanning)
        held = Counter([domain_of(core.domains) for core in cores]).values()
        if not spanning or size > max(held):
            continue
        # Start with the largest size that could fit; instances of one core span nothing.
        fitting = (s for s in range(size - 1, 0, -1) if sum(n // s for n in held) >= len(placed))
        smaller = next(fitting)
        if len(spanning) > 1:
            which = f"instances {format_cpu_list(spanning)} span {name}"
        else:
            slot = placed[spanning[0]]
            spanned = {i for i in [ids.get(domain_of(c.domains)) for c in slot] if i is not None}
            which = f"instance {spanning[0]} spans {name} {format_cpu_list(spanned)}".rstrip()
        # If the count follows from the size, a smaller size alone would give more instances.
        fixed = request.mode is None and request.instances is not MAX
        count = "" if fixed else f"--instances {len(placed)} "
        warnings.append(f"{which}: {count}--ncores {smaller} would not")
    return warnings


def _explain_memory_share(machine: Machine, share_bytes: int | None) -> list[Decision]:
    """Each instance's share of a memory limit that is below the machine's memory."""
    limit, total = machine.limits.memory_limit_bytes, machine.limits.memory_total_bytes
    if share_bytes is None or limit is None or (total is not None and limit >= total):
        return []
    reason = f"an equal part of the memory limit of {limit / 2**30:.1f} GiB"
    reason = cited(reason, machine.limits.memory_limit_source)
    return [Decision("memory share", f"{share_bytes / 2**30:.1f} GiB", reason)]


def _warn_of_one_node(request: LayoutRequest, instances: Sequence[Instance]) -> list[str]:
    """Warn of instances that `--mem-policy interleave` was asked for, and that have one node."""
    within = [i.index for i in instances if len(i.memory_nodes) < 2]
    if request.mem_policy is not MemoryPolicy.INTERLEAVE or not within:
        return []
    return [
        f"--mem-policy interleave does nothing for {name_numbers('instance', within)}: "
        "no second NUMA node to spread pages over"
    ]


def _warn_of_isolated(instances: list[Instance], topology: Topology, *, bound: bool) -> list[str]:
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
