# SPDX-License-Identifier: Apache-2.0
"""Select the cores to plan on, by what is allowed, what was requested, and the kind of core."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from xlaunch.errors import UsageError
from xlaunch.machine.topology import CoreKind, CPUs, Limits, Machine, Topology
from xlaunch.planning.plans import Decision
from xlaunch.planning.request import ECores, LayoutRequest
from xlaunch.text import format_cpu_list, name_numbers

X86 = frozenset(("x86_64", "i386", "i486", "i586", "i686", "amd64", "AMD64"))
FAVOURED = 0.9
"""Cores above this share of the highest frequency are performance cores too."""


class Pool(NamedTuple):
    """Whole cores to plan on."""

    cores: tuple[CPUs, ...]
    """The allowed siblings of each core, ordered by the lowest CPU."""
    cpus: CPUs
    origin: str
    """What limits the number of cores. **Ex.:** ``"are allowed (cpuset 0-15)"``."""
    decisions: tuple[Decision, ...]
    warnings: tuple[str, ...]


def select_pool(request: LayoutRequest, machine: Machine, *, bound: bool) -> Pool:
    """Select the cores for `request` among those that `machine` allows.

    Efficiency cores are left out here; not from an unbound plan, which cannot keep threads off them.
    Raises `UsageError` for CPUs and nodes that cannot be had and for a pool that comes out empty.
    """
    topology, limits = machine.topology, machine.limits
    cpus = set(limits.allowed_cpus)
    if request.cpus is not None:
        _check_cpus(request.cpus, machine)
        cpus &= set(request.cpus)
    if request.numa_nodes is not None:
        _check_nodes(request.numa_nodes, machine)
        node_ids = set(request.numa_nodes)
        cpus &= {c for node in topology.numa_nodes if node.id in node_ids for c in node.cpus}
    if not cpus:
        raise UsageError(
            f"--cpus {format_cpu_list(request.cpus or ())} and "
            f"--numa-nodes {format_cpu_list(request.numa_nodes or ())} have no CPU in common"
        )
    decisions = [Decision("CPUs", format_cpu_list(cpus), _why_these(request, limits))]
    warnings: list[str] = []
    origin = _origin(request, limits)
    if bound:
        kept, decision, warning = _choose_kinds(request, topology, cpus)
        if len(kept) < len(cpus) and request.ecores is ECores.ONLY:
            origin += ", counting only E-cores"
        elif len(kept) < len(cpus):
            origin += ", not counting E-cores (--ecores include)"
        cpus = kept
        decisions += decision
        warnings += warning
    cores = whole_cores(topology, cpus)
    if not topology.cores_known:
        decisions.append(
            Decision("cores", f"{len(cores)}", "core siblings are not known: each CPU is a core")
        )
    return Pool(cores, tuple(sorted(cpus)), origin, tuple(decisions), tuple(warnings))


def whole_cores(topology: Topology, cpus: Iterable[int]) -> tuple[CPUs, ...]:
    """The CPUs of each physical core that are in `cpus`, ordered by the lowest CPU.

    **Ex.:** siblings 0 and 8, 1 and 9; of CPUs 0, 8 and 9: ``((0, 8), (9,))``.
    """
    members = set(cpus)
    cores = [tuple([cpu for cpu in core if cpu in members]) for core in topology.cores]
    return tuple(sorted([core for core in cores if core]))


def efficiency_cpus(topology: Topology) -> frozenset[int]:
    """The CPUs of efficiency cores; none if there is one kind of core or the kinds are not ranked.

    Where the kernel names Intel's core types, all but its performance cores. On other x86 all kinds
    but the fastest, and those whose highest frequency comes within a tenth of it: favoured cores of
    one design differ by as much. Elsewhere (Arm) only the slowest kind: of A510, A710, A715 and X3
    the A510 are the efficiency cores, and the others differ in degree.
    """
    kinds = topology.core_kinds
    ranks = [kind.efficiency for kind in kinds]
    if min(ranks, default=0) < 0:
        # Two designs may be equally fast, but the slowest kind can still be identified.
        ranks = [_number(kind, "LinuxCapacity") for kind in kinds]
    if not kinds or min(ranks) == max(ranks) or min(ranks) < 0:
        return frozenset()
    types = [dict(kind.attributes).get("CoreType") for kind in kinds]
    if "IntelCore" in types:
        slow = [kind.cpus for kind, name in zip(kinds, types, strict=True) if name != "IntelCore"]
    elif topology.architecture in X86:
        mhz = [_number(kind, "FrequencyMaxMHz") for kind in kinds]
        slow = [
            kind.cpus
            for kind, rank, highest in zip(kinds, ranks, mhz, strict=True)
            if rank < max(ranks) and not 0 < FAVOURED * max(mhz) < highest
        ]
    else:
        slow = [kind.cpus for kind, rank in zip(kinds, ranks, strict=True) if rank == min(ranks)]
    return frozenset([cpu for cpus in slow for cpu in cpus])


def _number(kind: CoreKind, attribute: str) -> int:
    """A kind's attribute as a number; -1 if it has none."""
    return int(dict(kind.attributes).get(attribute, "-1"))


def _check_cpus(requested: CPUs, machine: Machine) -> None:
    topology, limits = machine.topology, machine.limits
    allowed, online = set(limits.allowed_cpus), set(topology.online_cpus)
    offline = set(topology.offline_cpus)
    if not requested:
        raise UsageError(f"--cpus names no CPU; allowed: {format_cpu_list(allowed)}")
    by = f"not allowed by {_narrowing(limits)}"
    for wrong, singular, plural in (
        ([c for c in requested if c not in online and c not in offline], "does not exist", "do not exist"),
        ([c for c in requested if c in offline and c not in online], "is offline", "are offline"),
        ([c for c in requested if c in online and c not in allowed], f"is {by}", f"are {by}"),
    ):  # fmt: skip
        if wrong:
            problem = singular if len(wrong) == 1 else plural
            raise UsageError(
                f"--cpus {format_cpu_list(requested)}: {name_numbers('CPU', wrong)} {problem}; "
                f"allowed: {format_cpu_list(allowed)}{_how_to_allow(requested, machine)}"
            )


def _check_nodes(requested: tuple[int, ...], machine: Machine) -> None:
    nodes = {node.id: node for node in machine.topology.numa_nodes}
    allowed = set(machine.limits.allowed_cpus)
    usable = [node.id for node in nodes.values() if not allowed.isdisjoint(node.cpus)]
    advice = (
        f"nodes to plan on: {format_cpu_list(usable)}"
        if usable
        else "this machine shows no NUMA nodes: leave --numa-nodes out"
    )
    if not requested:
        raise UsageError(f"--numa-nodes names no node; {advice}")
    for number in sorted(requested):
        if number not in nodes:
            problem = "does not exist"
        elif not nodes[number].cpus:
            problem = "has memory but no CPUs"
        elif number not in usable:
            cpus = nodes[number].cpus
            none = "which is not" if len(cpus) == 1 else "none of which is"
            problem = (
                f"has {name_numbers('CPU', cpus)}, {none} allowed by {_narrowing(machine.limits)}"
            )
        else:
            continue
        advice += _how_to_allow(nodes[number].cpus if number in nodes else (), machine)
        raise UsageError(
            f"--numa-nodes {format_cpu_list(requested)}: node {number} {problem}; {advice}"
        )


def _how_to_allow(requested: CPUs, machine: Machine) -> str:
    """The command that allows isolated CPUs, which the kernel leaves out of every mask; else empty."""
    limits = machine.limits
    left_out = [cpu for cpu in requested if cpu not in limits.allowed_cpus]
    by_mask = all(reason.startswith("affinity mask") for reason in limits.narrowed_by)
    if not left_out or not by_mask or not set(machine.topology.isolated_cpus).issuperset(left_out):
        return ""
    are = "is" if len(left_out) == 1 else "are"
    listed = format_cpu_list(requested)
    return (
        f". {name_numbers('CPU', left_out)} {are} isolated (isolcpus), which a mask must name: "
        f"taskset -c {listed} xlaunch"
    )


def _choose_kinds(
    request: LayoutRequest, topology: Topology, cpus: set[int]
) -> tuple[set[int], list[Decision], list[str]]:
    """Apply `--ecores`. Return the remaining CPUs, the decision and the warning."""
    efficiency = cpus & efficiency_cpus(topology)
    performance = cpus - efficiency
    choice, listed = request.ecores, name_numbers("CPU", efficiency)
    warnings: list[str] = []
    if choice is ECores.ONLY:
        if not efficiency:
            among = "on" if len(cpus) == 1 else "among"
            raise UsageError(
                f"--ecores only: {_no_efficiency_cores(topology)} {among} {name_numbers('CPU', cpus)}"
            )
        left_out = f"; {name_numbers('CPU', performance)} left out" if performance else ""
        cpus, reason = efficiency, f"E-cores only, as asked{left_out}"
    elif not efficiency:
        if choice is None:
            return cpus, [], []
        reason = f"{_no_efficiency_cores(topology)} here"
    elif choice is ECores.EXCLUDE:
        if not performance:
            are = "is an efficiency core" if len(efficiency) == 1 else "are all efficiency cores"
            raise UsageError(f"--ecores exclude: {listed} {are}; use --ecores include")
        cpus, reason = performance, f"{listed} left out as asked"
    elif choice is ECores.INCLUDE or request.cpus is not None or not performance:
        why = "there are no performance cores to use"
        if choice is ECores.INCLUDE:
            why = "included as asked"
        elif request.cpus is not None:
            why = "named by --cpus"
        if performance:
            warnings.append(
                "E-cores and performance cores are used together: where threads get equal shares, all wait "
                "for the slowest core"
            )
        choice, reason = ECores.INCLUDE, f"{listed}: {why}"
    else:
        count = len(whole_cores(topology, efficiency))
        cores, them = ("1 E-core is", "it") if count == 1 else (f"{count} E-cores are", "them")
        warnings.append(f"{cores} left out ({listed}); use {them} too with --ecores include")
        choice, cpus = ECores.EXCLUDE, performance
        reason = f"{listed} left out: threads with equal shares would wait for the slowest"
    return cpus, [Decision("E-cores", choice.value, reason)], warnings


def _no_efficiency_cores(topology: Topology) -> str:
    if len(topology.core_kinds) > 1 and not efficiency_cpus(topology):
        return "the kinds of core are not ranked, so no E-cores are known"
    return "there are no E-cores"


def _narrowing(limits: Limits) -> str:
    return " and ".join(limits.narrowed_by) or "what the process may use"


def _given(request: LayoutRequest, cpus: str) -> str:
    """The options that name CPUs. `cpus`: how to write the first."""
    options = [] if request.cpus is None else [cpus]
    if request.numa_nodes is not None:
        options.append(f"--numa-nodes {format_cpu_list(request.numa_nodes)}")
    return " and ".join(options)


def _why_these(request: LayoutRequest, limits: Limits) -> str:
    if given := _given(request, "--cpus"):
        return f"given by {given}"
    if limits.narrowed_by:
        return f"allowed by {_narrowing(limits)}"
    return "all online CPUs are allowed"


def _origin(request: LayoutRequest, limits: Limits) -> str:
    if given := _given(request, f"--cpus {format_cpu_list(request.cpus or ())}"):
        return f"are in {given}"
    if limits.narrowed_by:
        return f"are allowed ({'; '.join(limits.narrowed_by)})"
    return "are allowed"
