# SPDX-License-Identifier: Apache-2.0
"""A machine's shape, a request, and the exact plan."""

from __future__ import annotations

import pytest
from tests.launcher.options.settings import layout_of
from tests.launcher.planning.shapes import GIB, make_machine

from xlaunch.errors import UsageError
from xlaunch.machine import flat_machine
from xlaunch.machine.topology import CoreKind, Machine
from xlaunch.planning import MAX, LayoutRequest, Mode, Plan, plan
from xlaunch.text import format_cpu_list

DESKTOP = make_machine(packages=(8,), nodes=(8,), l3=(8,), smt=2, adjacent_siblings=True)
TWO_SOCKETS = make_machine(packages=(8, 8), nodes=(8, 8), l3=(8, 8), smt=2)
EPYC = make_machine(packages=(64,), nodes=(64,), l3=(8,) * 8, smt=2)
FOUR_SOCKETS = make_machine(packages=(6,) * 4, nodes=(6,) * 4, l3=(6,) * 4)
CLUSTERED = make_machine(packages=(128,), nodes=(43, 43, 42), l3=(128,))
LAPTOP = make_machine(
    packages=(12,),
    nodes=(12,),
    l3=(12,),
    kinds=(
        CoreKind((8, 9, 10, 11), 0, (("FrequencyMaxMHz", "2500"),)),
        CoreKind((4, 5, 6, 7), 1, (("FrequencyMaxMHz", "3800"),)),
        CoreKind((0, 1, 2, 3), 2, (("FrequencyMaxMHz", "5000"),)),
    ),
)
PHONE = LAPTOP._replace(topology=LAPTOP.topology._replace(architecture="aarch64"))
IRREGULAR = make_machine(packages=(7,), nodes=(4, 3), l3=(1, 3, 3))
SMALL_NODES = make_machine(packages=(4, 4, 4), nodes=(2,) * 6)
LARGE_NODES = make_machine(packages=(4,) * 4, nodes=(8, 8))
SMALL_PACKAGES = make_machine(packages=(2,) * 40, nodes=(4,) * 20)
SINGLE_CORES = make_machine(packages=(6,), nodes=(1, 1, 4))
UNEVEN_NODES = make_machine(packages=(11,), nodes=(3, 2, 1, 2, 3))
APART = make_machine(packages=(4,), smt=2)
ADJACENT = make_machine(packages=(4,), smt=2, adjacent_siblings=True)
HALF_ALLOWED = make_machine(
    packages=(8, 8), nodes=(8, 8), allowed=range(4, 12), narrowed_by=("cpuset 4-11",)
)
PARTS = make_machine(packages=(8, 8), nodes=(4,) * 4, l3=(2,) * 8)
ODD_CACHES = make_machine(packages=(4, 4), l3=(2, 1, 1, 1, 1, 1, 1))
LAPTOP_E_CORES = LAPTOP._replace(
    limits=LAPTOP.limits._replace(allowed_cpus=(8, 9), narrowed_by=("cpuset 8-9",))
)
ONE, TWO, FOUR, EIGHT = (make_machine(packages=(count,)) for count in (1, 2, 4, 8))


def with_kinds(machine: Machine, *kinds: CoreKind) -> Machine:
    return machine._replace(topology=machine.topology._replace(core_kinds=kinds))


def alternating_packages() -> Machine:
    """Two packages of four cores: even CPUs in one, odd CPUs in the other."""
    machine = make_machine(packages=(4, 4))
    packages = tuple(
        package._replace(cpus=cpus)
        for package, cpus in zip(
            machine.topology.packages, ((0, 2, 4, 6), (1, 3, 5, 7)), strict=True
        )
    )
    return machine._replace(topology=machine.topology._replace(packages=packages))


UNRANKED = [kind._replace(efficiency=-1, attributes=()) for kind in PHONE.topology.core_kinds]
UNRANKED_OF_CAPACITIES = [
    kind._replace(attributes=(("LinuxCapacity", capacity),))
    for kind, capacity in zip(UNRANKED, ("280", "855", "855"), strict=True)
]
Attributes = tuple[tuple[str, str], ...]


def two_kinds(slow: Attributes, fast: Attributes) -> Machine:
    """Four cores each."""
    return with_kinds(EIGHT, CoreKind((4, 5, 6, 7), 0, slow), CoreKind((0, 1, 2, 3), 1, fast))


FAVOURED = two_kinds((("FrequencyMaxMHz", "4700"),), (("FrequencyMaxMHz", "5000"),))
NAMED = two_kinds(
    (("CoreType", "IntelAtom"), ("FrequencyMaxMHz", "4900")),
    (("CoreType", "IntelCore"), ("FrequencyMaxMHz", "5000")),
)


def described(made: Plan) -> dict[str, object]:
    """What the facts of `PLANS` are compared with; by instance where there is one for each."""
    instances = made.instances
    return {
        "count": made.count,
        "bound": made.bound,
        "idle": made.idle_cpus,
        "warnings": made.warnings,
        "index": [i.index for i in instances],
        "cpus": " ".join([format_cpu_list(i.cpus) for i in instances]),
        "cores": [i.ncores for i in instances],
        "threads": [i.threads for i in instances],
        "nodes": [i.nodes for i in instances],
        "touched": [(i.packages_touched, i.nodes_touched, i.l3_touched) for i in instances],
        "memory": " ".join(
            [":".join([i.memory.value, *map(str, i.memory_nodes)]) for i in instances]
        ),
    }


# The rows of a table are a machine, options of a layout, and the CPUs of each instance.
PLACES = [
    # Everything is one instance, however it is asked for.
    (DESKTOP, "", "0,2,4,6,8,10,12,14"),
    (DESKTOP, "--ncores max", "0,2,4,6,8,10,12,14"),
    (DESKTOP, "--instances 1", "0,2,4,6,8,10,12,14"),
    (DESKTOP, "--instances 1 --ncores max", "0,2,4,6,8,10,12,14"),
    (DESKTOP, "--ncores 8", "0,2,4,6,8,10,12,14"),
    (DESKTOP, "--mode throughput", "0,2,4,6,8,10,12,14"),
    # Part of it, as many as fit, as large as fits; nodes of any size, the cores of their ends reserved.
    (DESKTOP, "--ncores 3", "0,2,4"),
    (DESKTOP, "--instances max --ncores 3", "0,2,4 6,8,10"),
    (TWO_SOCKETS, "--instances 2 --ncores max", "0-7 8-15"),
    (TWO_SOCKETS, "--mode latency", "0-3 4-7 8-11 12-15"),
    (CLUSTERED, "--mode throughput", "0-42 43-85 86-127"),
    (CLUSTERED, "--mode throughput --cpus 0-5,100-110", "0-5 100-110"),
    (CLUSTERED, "--mode throughput --reserve-cores 3", "0-41 43-84 86-126"),
    # Side by side, or far apart: over packages, then nodes, then caches.
    (TWO_SOCKETS, "--instances 2 --ncores 4", "0-3 4-7"),
    (alternating_packages(), "--instances 2 --ncores 2", "0,2 4,6"),
    (TWO_SOCKETS, "--instances 2 --ncores 4 --place scatter", "0-3 8-11"),
    (EPYC, "--instances 3 --ncores 4 --place scatter", "0-3 8-11 16-19"),
    (PARTS, "--instances 6 --ncores 1 --place scatter", "0 2 4 8 10 12"),
    # Nodes that are full are passed over.
    (SINGLE_CORES, "--instances 4 --ncores 1 --place scatter", "0 1 2 3"),
    # CPUs 0-1 alone share a cache; then package 1 is the less loaded one.
    (ODD_CACHES, "--instances 2 --ncores 2 --place scatter", "0-1 4-5"),
    # Cores are skipped rather than crossed; what is larger than a part touches as few as it must.
    (EPYC, "--instances 2 --ncores 5", "0-4 8-12"),
    (EPYC, "--instances 4 --ncores 16", "0-15 16-31 32-47 48-63"),
    # The smaller node is taken whole if that breaks up only one.
    (IRREGULAR, "--ncores 5", "1-2,4-6"),
    # Three left-overs are worse than cutting in order.
    (SMALL_NODES, "--instances 4 --ncores 3", "0-2 3-5 6-8 9-11"),
    (LARGE_NODES, "--instances 2 --ncores 6", "0-5 8-13"),
    # Cutting in order has to be better, not as good: the first nodes are taken.
    (SMALL_PACKAGES, "--instances 2 --ncores 7", "0-6 8-14"),
    # Of equally good places the first one that was tried.
    (UNEVEN_NODES, "--ncores 7", "0-2,5,8-10"),
    (LARGE_NODES, "--instances 4", "0-3 4-7 8-11 12-15"),
    # Without L3, other shared parts count.
    (make_machine(packages=(9,), dies=(3, 3, 3)), "--instances 3 --ncores 2", "0-1 3-4 6-7"),
    (make_machine(packages=(9,), clusters=(3, 3, 3)), "--instances 3 --ncores 2", "0-1 3-4 6-7"),
    # Siblings: numbered apart, and adjacent.
    (APART, "--instances 2", "0-1 2-3"),
    (APART, "--instances 2 --smt", "0-1,4-5 2-3,6-7"),
    (ADJACENT, "--instances 2", "0,2 4,6"),
    (ADJACENT, "--instances 2 --smt", "0-3 4-7"),
    # Second siblings are used alone, and left out beside first ones.
    (TWO_SOCKETS, "--instances 2 --cpus 17,19,21,23", "17,19 21,23"),
    (TWO_SOCKETS, "--cpus 0-3,16-19", "0-3"),
    # A cpuset is the machine; nodes and CPUs meet.
    (HALF_ALLOWED, "--instances 2", "4-7 8-11"),
    (TWO_SOCKETS, "--numa-nodes 1 --instances 2", "8-11 12-15"),
    (TWO_SOCKETS, "--numa-nodes 1 --cpus 6-9", "8-9"),
    # E-cores are used if they are asked for, named, or all that there is.
    (LAPTOP, "--ecores include", "0-11"),
    (LAPTOP, "--ecores only", "4-11"),
    (LAPTOP, "--cpus 2-5", "2-5"),
    (LAPTOP, "--cpus 2-5 --ecores exclude", "2-3"),
    (LAPTOP_E_CORES, "", "8-9"),
    # Of three Arm designs only the slowest is left out. Capacities tell unranked ones apart.
    (PHONE, "", "0-7"),
    (with_kinds(PHONE, *UNRANKED_OF_CAPACITIES), "", "0-7"),
    (with_kinds(PHONE, *UNRANKED), "", "0-11"),
    # The kernel names Intel's types; favoured cores are no kind of their own.
    (NAMED, "", "0-3"),
    (FAVOURED, "", "0-7"),
    # Oversubscribed, rounds are each disjoint. What fits is not shared.
    (FOUR, "--instances 5 --ncores 2 --oversubscribe", "0-1 2-3 0-1 2-3 0-1"),
    (TWO, "--instances 3 --oversubscribe", "0 1 0"),
    (TWO_SOCKETS, "--instances 2 --oversubscribe", "0-7 8-15"),
]


@pytest.mark.parametrize(("machine", "options", "expected"), PLACES)
def test_cpus_of_each_instance(machine: Machine, options: str, expected: str) -> None:
    assert described(plan(layout_of(options), machine))["cpus"] == expected


QUOTA_7 = make_machine(packages=(8,), smt=2, quota=7.0)
THREE_IN_CPUSET = make_machine(packages=(8,), smt=2, quota=3.0, narrowed_by=("cpuset 0-15",))
QUOTA_3 = make_machine(packages=(16,), quota=3.5)
QUOTA_6 = make_machine(packages=(8, 8), nodes=(8, 8), quota=6.5)
UNEVEN = {
    quota: make_machine(packages=(6,), nodes=(2, 4), quota=quota) for quota in (1.5, 2.0, 4.0)
}
LARGE_CPUSET = make_machine(
    packages=(64,), allowed=range(2, 64), narrowed_by=("cpuset 2-63",), quota=4.0
)
SMALL_CPUSET = make_machine(
    packages=(16,), allowed=range(4, 8), narrowed_by=("cpuset 4-7",), quota=4.0
)
ISOLATED = make_machine(packages=(8,), isolated=(6, 7))
MANY_NODES = make_machine(packages=(sum(range(10, 31)),), nodes=tuple(range(10, 31)))
BESIDE_MEMORY = make_machine(packages=(4, 4), nodes=(4, 4), memory_only_nodes=2)
FEW_NODES = make_machine(packages=(4, 4), nodes=(2,) * 4, allowed_nodes=(1, 2))
WITHOUT_MASKS = flat_machine(8, "darwin")

PLANS: list[tuple[Machine, str, dict[str, object]]] = [
    (DESKTOP, "", {"count": 1, "bound": True, "idle": (), "threads": [8]}),
    (DESKTOP, "--instances 3", {"cpus": "0,2 4,6 8,10", "idle": (12, 13, 14, 15)}),
    (TWO_SOCKETS, "--instances max", {"count": 16}),
    (make_machine(packages=(3,)), "--mode latency", {"cpus": "0-2", "warnings": (
        "--mode latency gives an instance 4 cores and there are 3: one instance of 3 cores",
    )}),
    (TWO_SOCKETS, "--instances 4 --instance-index 3,1",
     {"index": [1, 3], "cpus": "4-7 12-15", "count": 4}),
    (DESKTOP, "--ncores 3 --smt", {"cores": [3], "threads": [6]}),
    # An instance touches no more than it must, and crosses where the count demands it.
    (EPYC, "--ncores 20", {"touched": [(1, 1, 3)]}),
    (FOUR_SOCKETS, "--instances 5 --ncores 4", {
        "touched": [(1, 1, 1), (2, 2, 2), *[(1, 1, 1)] * 3],
        "warnings": ("instance 1 spans NUMA nodes 0-1: --ncores 3 would not",),
    }),
    # Neither 6 cores fit twice, nor is there a need to go down to 4.
    (make_machine(packages=(14,), nodes=(9, 5)), "--instances 2 --ncores 7", {
        "warnings": ("instance 1 spans NUMA nodes 0-1: --ncores 5 would not",),
    }),
    (FOUR_SOCKETS, "--instances 3 --ncores 8", {"touched": [(2, 2, 2)] * 3}),
    # Of too many nodes to try: the largest, and the smallest that suffices.
    (MANY_NODES, "--ncores 32", {"nodes": [(0, 20)]}),
    # Reserved cores are those least in the way. Several threads on isolated ones are warned of.
    (TWO_SOCKETS, "--instances 2 --reserve-cores 2", {"cpus": "0-6 8-14", "idle": (7, 15, 23, 31)}),
    (ISOLATED, "", {"warnings": (
        "CPUs 6-7 are isolated (isolcpus): the kernel does not spread threads over them; bind each "
        "thread to its CPU (OMP_PROC_BIND), or leave them out with --cpus",
    )}),
    (ISOLATED, "--ncores 4", {"warnings": ()}),
    (ISOLATED, "--instances 8", {"warnings": ()}),
    (LAPTOP, "", {"cpus": "0-3", "warnings": (
        "8 E-cores are left out (CPUs 4-11); use them too with --ecores include",
    )}),
    # A quota gives threads and binds nothing; siblings count within it where nothing is bound.
    (make_machine(packages=(8,), quota=0.5), "", {"threads": [1]}),
    (QUOTA_7, "--ncores 2 --smt", {"threads": [4]}),
    (QUOTA_7, "--ncores 2", {"threads": [2]}),
    (QUOTA_7, "--ncores 6 --smt", {"threads": [7]}),
    (THREE_IN_CPUSET, "--smt", {"threads": [3]}),
    (QUOTA_6, "--instances 2",
     {"bound": False, "cpus": "0-15 0-15", "cores": [3, 3], "threads": [3, 3], "idle": ()}),
    # It limits nothing where it is as large as the machine, and naming CPUs asks to be bound.
    (make_machine(packages=(8,), quota=8.0), "--instances 2", {"bound": True, "threads": [4, 4]}),
    (make_machine(packages=(16,), quota=4.0), "--cpus 0-7 --instances 2",
     {"bound": True, "cpus": "0-1 2-3"}),
    # A cpuset larger than the quota is shared with others; one that is no larger is a place.
    (LARGE_CPUSET, "", {"bound": False, "cpus": "2-63", "threads": [4]}),
    (LARGE_CPUSET, "--instances 2", {"bound": False, "cpus": "2-63 2-63", "threads": [2, 2]}),
    (LARGE_CPUSET, "--cpus 2-9 --instances 2", {"cpus": "2-3 4-5"}),
    (SMALL_CPUSET, "--instances 2", {"cpus": "4-5 6-7"}),
    (SMALL_CPUSET, "", {"threads": [4]}),
    # Nodes share a quota by their size.
    (UNEVEN[4.0], "--mode throughput --cpus 0-5", {"threads": [1, 3], "warnings": ()}),
    (UNEVEN[2.0], "--mode throughput --cpus 0-5", {"threads": [1, 1], "warnings": ()}),
    (UNEVEN[1.5], "--mode throughput --cpus 0-5", {"threads": [1, 1], "warnings": (
        "2 instances share a CPU quota of 1.5 (cgroup v2 /job): it will hold them back",
    )}),
    (QUOTA_3, "--instances 2 --ncores 2 --oversubscribe", {"threads": [2, 2]}),
    # Oversubscribed: all of the machine for one that is larger. Crossings are not warned of.
    (FOUR, "--ncores 6 --oversubscribe", {"cpus": "0-3", "cores": [4], "threads": [6]}),
    (TWO_SOCKETS, "--instances 4 --ncores 5 --oversubscribe", {
        "touched": [(1, 1, 1), (2, 2, 2), *[(1, 1, 1)] * 2], "warnings": ()
    }),
    (TWO, "--instances 2048 --oversubscribe", {"cpus": " ".join(["0", "1"] * 1024)}),
    (ONE, "--ncores 1024 --oversubscribe", {"threads": [1024]}),
    (make_machine(packages=(4, 4), nodes=(4, 4)),
     "--instances 1024 --ncores 3 --reserve-cores 2 --oversubscribe",
     {"cpus": " ".join(["0-2", "4-6"] * 512), "idle": (3, 7)}),
    (make_machine(packages=(2, 2), l3=(2, 2)),
     "--instances 4 --ncores 1 --reserve-cores 1 --oversubscribe --place scatter", {"idle": (3,)}),
    # Memory: preferred within a node, first touch across; one node needs nothing.
    (TWO_SOCKETS, "--instances 2", {"memory": "preferred:0 preferred:1"}),
    (TWO_SOCKETS, "", {"memory": "none"}),
    (DESKTOP, "", {"memory": "none"}),
    (DESKTOP, "--mem-policy interleave", {"memory": "none", "warnings": (
        "--mem-policy interleave does nothing for instance 0: no second NUMA node to spread pages "
        "over",
    )}),
    (TWO_SOCKETS, "--instances 2 --mem-policy interleave", {"warnings": (
        "--mem-policy interleave does nothing for instances 0-1: no second NUMA node to spread "
        "pages over",
    )}),
    (TWO_SOCKETS, "--mem-policy interleave", {"memory": "interleave:0:1", "warnings": ()}),
    (DESKTOP, "--mem-policy bind", {"memory": "bind:0"}),
    *[(TWO_SOCKETS, f"--numa-nodes 1 --ncores 2 --mem-policy {policy}", {"memory": f"{policy}:1"})
      for policy in ("preferred", "bind", "interleave")],
    *[(TWO_SOCKETS, f"--numa-nodes 1 --mem-policy {policy}", {"memory": policy})
      for policy in ("local", "none")],
    (BESIDE_MEMORY, "--mem-policy interleave", {"memory": "interleave:0:1"}),
    (FEW_NODES, "--instances 4", {"memory": "none preferred:1 preferred:2 none"}),
    # Where CPUs have no masks, instances share the cores, and named CPUs only count.
    (WITHOUT_MASKS, "--instances 2", {"bound": False, "threads": [4, 4]}),
    (WITHOUT_MASKS, "--cpus 0-2", {"threads": [3], "warnings": (
        "CPUs cannot be bound on this system: --cpus and --numa-nodes only set the counts",
    )}),
]  # fmt: skip


@pytest.mark.parametrize(("machine", "options", "expected"), PLANS)
def test_what_is_planned(machine: Machine, options: str, expected: dict[str, object]) -> None:
    found = described(plan(layout_of(options), machine))
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("total", "limit", "share"),
    [(64, 8, 4), (8, 64, 4), (64, None, 32), (None, 8, 4), (None, None, None)],
)
def test_each_instance_has_an_equal_part_of_the_tighter_bound_on_memory(
    total: int | None, limit: int | None, share: int | None
) -> None:
    sizes = [None if size is None else size * GIB for size in (total, limit, share)]
    limits = TWO_SOCKETS.limits._replace(memory_total_bytes=sizes[0], memory_limit_bytes=sizes[1])
    made = plan(LayoutRequest(instances=2), TWO_SOCKETS._replace(limits=limits))
    assert made.memory_share_bytes == sizes[2]


CONFINED = make_machine(
    packages=(8,), nodes=(4, 4), memory_only_nodes=1, allowed=(0, 1, 2, 3),
    narrowed_by=("cpuset 0-3 (cgroup v2 /job)",), offline=(8, 9),
)  # fmt: skip
WITHOUT_ISOLATED = make_machine(
    packages=(8,), nodes=(6, 2), allowed=(0, 1, 2, 3, 4, 5), isolated=(6, 7),
    narrowed_by=("affinity mask 0-5",),
)  # fmt: skip
REFUSED: list[tuple[Machine, str | LayoutRequest, str]] = [
    (TWO_SOCKETS, "--instances 5 --ncores 4", "5 instances x 4 cores need 20 cores and 16 are "
     "allowed: at most 4 instances of 4 cores, or 5 of 3; or --oversubscribe"),
    (TWO_SOCKETS, "--instances 17", "17 instances x 1 core need 17 cores and 16 are allowed: "
     "at most 16 instances of 1 core; or --oversubscribe"),
    (TWO_SOCKETS, "--ncores 4 --numa-nodes 1 --reserve-cores 6",
     "1 instance x 4 cores needs 4 cores "
     "and 8 are in --numa-nodes 1, 6 of them reserved: at most 1 instance of 2 cores; or "
     "--oversubscribe"),
    (TWO_SOCKETS, "--reserve-cores 16", "--reserve-cores 16: nothing would be left of the 16 cores "
     "that are allowed; at most --reserve-cores 15"),
    (TWO_SOCKETS, "--cpus 0,40", "--cpus 0,40: CPU 40 does not exist; allowed: 0-31"),
    (TWO_SOCKETS, "--numa-nodes 2", "--numa-nodes 2: node 2 does not exist; nodes to plan on: 0-1"),
    (TWO_SOCKETS, "--numa-nodes 0 --cpus 8,9",
     "--cpus 8-9 and --numa-nodes 0 have no CPU in common"),
    (TWO_SOCKETS, "--instances 2 --instance-index 0,2-4",
     "--instance-index 2-4: the plan has instances 0-1"),
    (FOUR, "--instances 2 --ncores 4", "2 instances x 4 cores need 8 cores and 4 are allowed: at most "
     "1 instance of 4 cores, or 2 of 2; or --oversubscribe"),
    (CONFINED, "--cpus 2-5",
     "--cpus 2-5: CPUs 4-5 are not allowed by cpuset 0-3 (cgroup v2 /job); allowed: 0-3"),
    (CONFINED, "--cpus 3,8,9", "--cpus 3,8-9: CPUs 8-9 are offline; allowed: 0-3"),
    (CONFINED, "--numa-nodes 0,1",
     "--numa-nodes 0-1: node 1 has CPUs 4-7, none of which is allowed "
     "by cpuset 0-3 (cgroup v2 /job); nodes to plan on: 0"),
    (CONFINED, "--numa-nodes 2",
     "--numa-nodes 2: node 2 has memory but no CPUs; nodes to plan on: 0"),
    (CONFINED, "--ncores 5", "1 instance x 5 cores needs 5 cores and 4 are allowed (cpuset 0-3 "
     "(cgroup v2 /job)): at most 1 instance of 4 cores; or --oversubscribe"),
    (WITHOUT_ISOLATED, "--cpus 5-7",
     "--cpus 5-7: CPUs 6-7 are not allowed by affinity mask 0-5; allowed: 0-5. CPUs 6-7 are isolated "
     "(isolcpus), which a mask must name: taskset -c 5-7 xlaunch"),
    (WITHOUT_ISOLATED, "--numa-nodes 1",
     "--numa-nodes 1: node 1 has CPUs 6-7, none of which is allowed by affinity mask 0-5; nodes to plan "
     "on: 0. CPUs 6-7 are isolated (isolcpus), which a mask must name: taskset -c 6-7 xlaunch"),
    (LAPTOP, "--cpus 8,9 --ecores exclude",
     "--ecores exclude: CPUs 8-9 are all efficiency cores; use --ecores include"),
    (DESKTOP, "--ecores only", "--ecores only: there are no E-cores among CPUs 0-15"),
    (QUOTA_3, "--instances 2 --ncores 2",
     "2 instances x 2 cores need 4 cores and 16 are allowed, and "
     "the CPU quota of 3.5 (cgroup v2 /job) is worth 3: at most 1 instance of 2 cores, or 2 of 1; "
     "or --oversubscribe"),
    (TWO, "--instances 1048576 --oversubscribe", "1048576 instances x 1 core: 1048576 threads on 2 "
     "cores; --oversubscribe takes at most 1024 for each core, 2048 here"),
    (ONE, "--instances 5 --ncores 205 --oversubscribe",
     "5 instances x 205 cores: 1025 threads on 1 "
     "core; --oversubscribe takes at most 1024 for each core"),
    (FEW_NODES, "--instances 4 --mem-policy bind",
     "--mem-policy bind: instance 0 runs on NUMA node 0, "
     "which has no memory that may be used; nodes with memory: 1-2; choose another --mem-policy, or "
     "--numa-nodes"),
    # What only a caller of `plan` can ask for.
    (TWO_SOCKETS, LayoutRequest(instances=MAX, ncores=MAX),
     "--instances max contradicts --ncores max: only one of them can be max; drop one"),
    (TWO_SOCKETS, LayoutRequest(mode=Mode.LATENCY, ncores=2),
     "--mode contradicts --ncores: a mode fixes the layout; drop one"),
    (TWO_SOCKETS, LayoutRequest(instances=0), "--instances 0: must be at least 1, or max"),
    (TWO_SOCKETS, LayoutRequest(ncores=-2), "--ncores -2: must be at least 1, or max"),
    (TWO_SOCKETS, LayoutRequest(reserve_cores=-1), "--reserve-cores -1: must be 0 or more cores"),
    (TWO_SOCKETS, LayoutRequest(cpus=()), "--cpus names no CPU; allowed: 0-31"),
    (TWO_SOCKETS, LayoutRequest(numa_nodes=()),
     "--numa-nodes names no node; nodes to plan on: 0-1"),
    (TWO_SOCKETS, LayoutRequest(instance_index=()),
     "--instance-index names no instance; the plan has instance 0"),
]  # fmt: skip


@pytest.mark.parametrize(("machine", "wanted", "message"), REFUSED)
def test_what_cannot_be_had(machine: Machine, wanted: str | LayoutRequest, message: str) -> None:
    request = layout_of(wanted) if isinstance(wanted, str) else wanted
    with pytest.raises(UsageError) as raised:
        plan(request, machine)
    assert str(raised.value) == message
