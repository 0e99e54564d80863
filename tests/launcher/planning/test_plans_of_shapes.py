# SPDX-License-Identifier: Apache-2.0
"""A machine's shape, a request, and the exact plan."""

from __future__ import annotations

from typing import Any

import pytest
from tests.launcher.options.settings import typed
from tests.launcher.planning.shapes import GIB, make_machine

from xlaunch.errors import UsageError
from xlaunch.machine import flat_machine
from xlaunch.machine.cpu_list import format_cpu_list
from xlaunch.machine.topology import CoreKind, Machine
from xlaunch.planning import MAX, ECores, LayoutRequest, MemoryPolicy, Mode, Place, Plan, plan

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


def request_of(options: str) -> LayoutRequest:
    """**Ex.:** ``--instances 2 --ncores 4``"""
    return typed("--isolated", *options.split(), "program").request.layout


def masks(request: LayoutRequest, machine: Machine) -> list[str]:
    """The CPUs of each instance. **Ex.:** ``["0-3", "4-7"]``."""
    return [format_cpu_list(instance.cpus) for instance in plan(request, machine).instances]


def threads(made: Plan) -> list[int]:
    return [instance.threads for instance in made.instances]


def memory(request: LayoutRequest, machine: Machine) -> list[tuple[str, tuple[int, ...]]]:
    return [(i.memory.value, i.memory_nodes) for i in plan(request, machine).instances]


def error(request: LayoutRequest, machine: Machine) -> str:
    with pytest.raises(UsageError) as raised:
        plan(request, machine)
    return str(raised.value)


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
    assert masks(request_of(options), machine) == expected.split()


class TestLayout:
    def test_everything_is_one_instance(self) -> None:
        made = plan(LayoutRequest(), DESKTOP)
        assert masks(LayoutRequest(), DESKTOP) == ["0,2,4,6,8,10,12,14"]
        assert (made.count, made.bound, made.idle_cpus, threads(made)) == (1, True, (), [8])

    def test_equal_shares_leave_spare_cores_idle(self) -> None:
        made = plan(LayoutRequest(instances=3), DESKTOP)
        assert [format_cpu_list(i.cpus) for i in made.instances] == ["0,2", "4,6", "8,10"]
        assert made.idle_cpus == (12, 13, 14, 15)

    def test_as_many_as_fit(self) -> None:
        assert masks(LayoutRequest(instances=MAX, ncores=3), DESKTOP) == ["0,2,4", "6,8,10"]
        assert plan(LayoutRequest(instances=MAX), TWO_SOCKETS).count == 16

    def test_latency_on_few_cores_warns(self) -> None:
        made = plan(LayoutRequest(mode=Mode.LATENCY), make_machine(packages=(3,)))
        assert [i.cpus for i in made.instances] == [(0, 1, 2)]
        assert "there are 3: one instance of 3 cores" in made.warnings[0]

    def test_one_instance_of_the_whole_plan(self) -> None:
        made = plan(LayoutRequest(instances=4, instance_index=(3, 1)), TWO_SOCKETS)
        assert [(i.index, i.cpus[0]) for i in made.instances] == [(1, 4), (3, 12)]
        assert made.count == 4


class TestPlacement:
    def test_an_instance_larger_than_a_cache_group_touches_no_more_than_it_must(self) -> None:
        assert [i.l3_touched for i in plan(LayoutRequest(ncores=20), EPYC).instances] == [3]

    def test_crossing_happens_only_where_the_count_demands_it(self) -> None:
        made = plan(LayoutRequest(instances=5, ncores=4), FOUR_SOCKETS)
        assert [i.packages_touched for i in made.instances] == [1, 2, 1, 1, 1]
        assert made.warnings == ("instance 1 spans NUMA nodes 0-1: --ncores 3 would not",)

    def test_no_domain_is_broken_up_without_need(self) -> None:
        made = plan(LayoutRequest(instances=3, ncores=8), FOUR_SOCKETS)
        assert sum(i.packages_touched - 1 for i in made.instances) == 3

    def test_of_too_many_nodes_to_try_the_largest_and_the_smallest_that_suffices(self) -> None:
        sizes = tuple(range(10, 31))
        machine = make_machine(packages=(sum(sizes),), nodes=sizes)
        (instance,) = plan(LayoutRequest(ncores=32), machine).instances
        assert instance.nodes == (0, 20)

    def test_smt_has_a_thread_for_each_sibling(self) -> None:
        made = plan(LayoutRequest(ncores=3, smt=True), DESKTOP)
        assert [(i.ncores, i.threads) for i in made.instances] == [(3, 6)]


class TestPool:
    def test_reserved_cores_are_those_least_in_the_way(self) -> None:
        made = plan(LayoutRequest(instances=2, reserve_cores=2), TWO_SOCKETS)
        assert [format_cpu_list(i.cpus) for i in made.instances] == ["0-6", "8-14"]
        assert made.idle_cpus == (7, 15, 23, 31)

    def test_isolated_cpus_are_warned_of(self) -> None:
        machine = make_machine(packages=(8,), isolated=(6, 7))
        assert "CPUs 6-7 are isolated (isolcpus)" in plan(LayoutRequest(), machine).warnings[0]
        assert plan(LayoutRequest(ncores=4), machine).warnings == ()
        assert plan(LayoutRequest(instances=8), machine).warnings == ()


class TestCoreKinds:
    def test_efficiency_cores_are_left_out_and_said_to_be(self) -> None:
        made = plan(LayoutRequest(), LAPTOP)
        assert [i.cpus for i in made.instances] == [(0, 1, 2, 3)]
        assert made.warnings == (
            "8 E-cores are left out (CPUs 4-11); use them too with --ecores include",
        )

    def test_nothing_left(self) -> None:
        assert "all efficiency cores" in error(
            LayoutRequest(cpus=(8, 9), ecores=ECores.EXCLUDE), LAPTOP
        )
        assert error(LayoutRequest(ecores=ECores.ONLY), DESKTOP) == (
            "--ecores only: there are no E-cores among CPUs 0-15"
        )


class TestQuota:
    @pytest.mark.parametrize(
        ("quota", "more", "request_", "expected"),
        [
            (0.5, {}, LayoutRequest(), 1),
            # Siblings count within the quota where nothing is bound.
            (7.0, {"smt": 2}, LayoutRequest(ncores=2, smt=True), 4),
            (7.0, {"smt": 2}, LayoutRequest(ncores=2), 2),
            (7.0, {"smt": 2}, LayoutRequest(ncores=6, smt=True), 7),
            (3.0, {"smt": 2, "narrowed_by": ("cpuset 0-15",)}, LayoutRequest(smt=True), 3),
        ],
    )
    def test_threads_of_an_instance(
        self, quota: float, more: dict[str, Any], request_: LayoutRequest, expected: int
    ) -> None:
        machine = make_machine(packages=(8,), quota=quota, **more)
        assert threads(plan(request_, machine)) == [expected]

    def test_a_quota_binds_nothing(self) -> None:
        machine = make_machine(packages=(8, 8), nodes=(8, 8), quota=6.5)
        made = plan(LayoutRequest(instances=2), machine)
        assert not made.bound
        assert [(i.cpus, i.ncores, i.threads) for i in made.instances] == [
            (tuple(range(16)), 3, 3),
            (tuple(range(16)), 3, 3),
        ]
        assert made.idle_cpus == ()

    def test_a_quota_of_all_cpus_limits_nothing(self) -> None:
        machine = make_machine(packages=(8,), quota=8.0)
        made = plan(LayoutRequest(instances=2), machine)
        assert made.bound
        assert threads(made) == [4, 4]

    def test_a_cpuset_larger_than_the_quota_is_shared_with_others(self) -> None:
        machine = make_machine(
            packages=(64,), allowed=range(2, 64), narrowed_by=("cpuset 2-63",), quota=4.0
        )
        for request, expected in ((LayoutRequest(), [4]), (LayoutRequest(instances=2), [2, 2])):
            made = plan(request, machine)
            assert not made.bound
            assert [i.cpus for i in made.instances] == [tuple(range(2, 64))] * len(expected)
            assert threads(made) == expected
        assert masks(LayoutRequest(cpus=tuple(range(2, 10)), instances=2), machine) == [
            "2-3",
            "4-5",
        ]

    def test_a_cpuset_no_larger_than_the_quota_is_a_place(self) -> None:
        machine = make_machine(
            packages=(16,), allowed=range(4, 8), narrowed_by=("cpuset 4-7",), quota=4.0
        )
        assert masks(LayoutRequest(instances=2), machine) == ["4-5", "6-7"]
        assert threads(plan(LayoutRequest(), machine)) == [4]

    def test_naming_cpus_asks_to_be_bound(self) -> None:
        machine = make_machine(packages=(16,), quota=4.0)
        made = plan(LayoutRequest(cpus=tuple(range(8)), instances=2), machine)
        assert made.bound
        assert [i.cpus for i in made.instances] == [(0, 1), (2, 3)]

    def test_throughput_shares_the_quota_by_size(self) -> None:
        machine = make_machine(packages=(6,), nodes=(2, 4), quota=4.0)
        request = LayoutRequest(mode=Mode.THROUGHPUT, cpus=tuple(range(6)))
        made = plan(request, machine)
        assert (threads(made), made.warnings) == ([1, 3], ())

    def test_throughput_warns_of_a_quota_smaller_than_its_instances(self) -> None:
        machine = make_machine(packages=(6,), nodes=(2, 4), quota=1.5)
        made = plan(LayoutRequest(mode=Mode.THROUGHPUT, cpus=tuple(range(6))), machine)
        assert (threads(made), made.warnings) == (
            [1, 1],
            ("2 instances share a CPU quota of 1.5 (cgroup v2 /job): it will hold them back",),
        )
        exact = plan(
            LayoutRequest(mode=Mode.THROUGHPUT, cpus=tuple(range(6))),
            make_machine(packages=(6,), nodes=(2, 4), quota=2.0),
        )
        assert (threads(exact), exact.warnings) == ([1, 1], ())

    def test_more_than_the_quota_is_an_error_that_names_it(self) -> None:
        machine = make_machine(packages=(16,), quota=3.5)
        assert error(LayoutRequest(instances=2, ncores=2), machine) == (
            "2 instances x 2 cores need 4 cores and 16 are allowed, and the CPU quota of 3.5 "
            "(cgroup v2 /job) is worth 3: at most 1 instance of 2 cores, or 2 of 1; "
            "or --oversubscribe"
        )
        over = plan(LayoutRequest(instances=2, ncores=2, oversubscribe=True), machine)
        assert threads(over) == [2, 2]


class TestOversubscription:
    def test_an_instance_larger_than_the_machine_gets_all_of_it(self) -> None:
        machine = make_machine(packages=(4,))
        made = plan(LayoutRequest(ncores=6, oversubscribe=True), machine)
        assert [(i.cpus, i.ncores, i.threads) for i in made.instances] == [((0, 1, 2, 3), 4, 6)]

    def test_crossings_are_not_warned_of(self) -> None:
        """The instances share cores anyway, and were asked to."""
        request = LayoutRequest(instances=4, ncores=5, oversubscribe=True)
        made = plan(request, TWO_SOCKETS)
        assert [i.nodes_touched for i in made.instances] == [1, 2, 1, 1]
        assert made.warnings == ()

    def test_most_threads_of_a_core(self) -> None:
        one, two = ONE, TWO
        most = plan(LayoutRequest(instances=2048, oversubscribe=True), two)
        assert [i.cpus for i in most.instances] == [(0,), (1,)] * 1024
        assert (
            plan(LayoutRequest(ncores=1024, oversubscribe=True), one).instances[0].threads == 1024
        )
        assert error(LayoutRequest(instances=1 << 20, oversubscribe=True), two) == (
            "1048576 instances x 1 core: 1048576 threads on 2 cores; "
            "--oversubscribe takes at most 1024 for each core, 2048 here"
        )
        assert error(LayoutRequest(instances=5, ncores=205, oversubscribe=True), one) == (
            "5 instances x 205 cores: 1025 threads on 1 core; "
            "--oversubscribe takes at most 1024 for each core"
        )

    def test_rounds_with_a_reserve_are_alike(self) -> None:
        machine = make_machine(packages=(4, 4), nodes=(4, 4))
        request = LayoutRequest(instances=1024, ncores=3, reserve_cores=2, oversubscribe=True)
        assert masks(request, machine) == ["0-2", "4-6"] * 512
        assert plan(request, machine).idle_cpus == (3, 7)

    def test_reserved_cores_stay_free(self) -> None:
        machine = make_machine(packages=(2, 2), l3=(2, 2))
        request = LayoutRequest(
            instances=4, ncores=1, reserve_cores=1, oversubscribe=True, place=Place.SCATTER
        )
        assert len(plan(request, machine).idle_cpus) == 1


class TestMemory:
    def test_preferred_within_a_node_and_first_touch_across(self) -> None:
        assert memory(LayoutRequest(instances=2), TWO_SOCKETS) == [
            ("preferred", (0,)),
            ("preferred", (1,)),
        ]
        assert memory(LayoutRequest(), TWO_SOCKETS) == [("none", ())]

    def test_one_node_needs_nothing(self) -> None:
        assert memory(LayoutRequest(), DESKTOP) == [("none", ())]
        assert memory(LayoutRequest(mem_policy=MemoryPolicy.INTERLEAVE), DESKTOP) == [("none", ())]
        assert memory(LayoutRequest(mem_policy=MemoryPolicy.BIND), DESKTOP) == [("bind", (0,))]

    def test_as_asked(self) -> None:
        one = LayoutRequest(numa_nodes=(1,))
        for policy in (MemoryPolicy.PREFERRED, MemoryPolicy.BIND, MemoryPolicy.INTERLEAVE):
            wanted = one._replace(mem_policy=policy, ncores=2)
            assert memory(wanted, TWO_SOCKETS) == [(policy.value, (1,))]
        for policy in (MemoryPolicy.LOCAL, MemoryPolicy.NONE):
            assert memory(one._replace(mem_policy=policy), TWO_SOCKETS) == [(policy.value, ())]

    def test_interleaving_everywhere_leaves_out_memory_without_cpus(self) -> None:
        machine = make_machine(packages=(4, 4), nodes=(4, 4), memory_only_nodes=2)
        request = LayoutRequest(mem_policy=MemoryPolicy.INTERLEAVE)
        assert memory(request, machine) == [("interleave", (0, 1))]

    def test_nodes_that_are_not_allowed_are_never_named(self) -> None:
        machine = make_machine(packages=(4, 4), nodes=(2,) * 4, allowed_nodes=(1, 2))
        assert memory(LayoutRequest(instances=4), machine) == [
            ("none", ()),
            ("preferred", (1,)),
            ("preferred", (2,)),
            ("none", ()),
        ]
        assert error(LayoutRequest(instances=4, mem_policy=MemoryPolicy.BIND), machine) == (
            "--mem-policy bind: instance 0 runs on NUMA node 0, which has no memory that may be used; "
            "nodes with memory: 1-2; choose another --mem-policy, or --numa-nodes"
        )


class TestMemoryShare:
    @pytest.mark.parametrize(
        ("total", "limit", "share"),
        [(64, 8, 4), (8, 64, 4), (64, None, 32), (None, 8, 4), (None, None, None)],
    )
    def test_each_instance_has_an_equal_part_of_the_tighter_bound(
        self, total: int | None, limit: int | None, share: int | None
    ) -> None:
        sizes = [None if size is None else size * GIB for size in (total, limit, share)]
        limits = TWO_SOCKETS.limits._replace(
            memory_total_bytes=sizes[0], memory_limit_bytes=sizes[1]
        )
        made = plan(LayoutRequest(instances=2), TWO_SOCKETS._replace(limits=limits))
        assert made.memory_share_bytes == sizes[2]


class TestErrors:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ("--instances 5 --ncores 4", "5 instances x 4 cores need 20 cores and 16 are allowed: "
             "at most 4 instances of 4 cores, or 5 of 3; or --oversubscribe"),
            ("--instances 17", "17 instances x 1 core need 17 cores and 16 are allowed: "
             "at most 16 instances of 1 core; or --oversubscribe"),
            ("--ncores 4 --numa-nodes 1 --reserve-cores 6", "1 instance x 4 cores needs 4 cores and 8 "
             "are in --numa-nodes 1, 6 of them reserved: at most 1 instance of 2 cores; or "
             "--oversubscribe"),
            ("--reserve-cores 16", "--reserve-cores 16: nothing would be left of the 16 cores that "
             "are allowed; at most --reserve-cores 15"),
            ("--cpus 0,40", "--cpus 0,40: CPU 40 does not exist; allowed: 0-31"),
            ("--numa-nodes 2", "--numa-nodes 2: node 2 does not exist; nodes to plan on: 0-1"),
            ("--numa-nodes 0 --cpus 8,9", "--cpus 8-9 and --numa-nodes 0 have no CPU in common"),
            ("--instances 2 --instance-index 0,2-4",
             "--instance-index 2-4: the plan has instances 0-1"),
        ],
    )  # fmt: skip
    def test_what_cannot_be_had(self, options: str, message: str) -> None:
        assert error(request_of(options), TWO_SOCKETS) == message

    @pytest.mark.parametrize(
        ("request_", "message"),
        [
            (
                LayoutRequest(instances=MAX, ncores=MAX),
                "--instances max contradicts --ncores max: only one of them can be max; drop one",
            ),
            (
                LayoutRequest(mode=Mode.LATENCY, ncores=2),
                "--mode contradicts --ncores: a mode fixes the layout; drop one",
            ),
            (LayoutRequest(instances=0), "--instances 0: must be at least 1, or max"),
            (LayoutRequest(ncores=-2), "--ncores -2: must be at least 1, or max"),
            (LayoutRequest(reserve_cores=-1), "--reserve-cores -1: must be 0 or more cores"),
            (LayoutRequest(cpus=()), "--cpus names no CPU; allowed: 0-31"),
            (LayoutRequest(numa_nodes=()), "--numa-nodes names no node; nodes to plan on: 0-1"),
            (
                LayoutRequest(instance_index=()),
                "--instance-index names no instance; the plan has instance 0",
            ),
        ],
    )
    def test_what_options_would_not_say(self, request_: LayoutRequest, message: str) -> None:
        assert error(request_, TWO_SOCKETS) == message

    def test_cpus_that_cannot_be_had_are_named_with_the_limit(self) -> None:
        machine = make_machine(
            packages=(8,),
            nodes=(4, 4),
            memory_only_nodes=1,
            allowed=(0, 1, 2, 3),
            narrowed_by=("cpuset 0-3 (cgroup v2 /job)",),
            offline=(8, 9),
        )
        assert error(LayoutRequest(cpus=(2, 3, 4, 5)), machine) == (
            "--cpus 2-5: CPUs 4-5 are not allowed by cpuset 0-3 (cgroup v2 /job); allowed: 0-3"
        )
        assert error(LayoutRequest(cpus=(3, 8, 9)), machine) == (
            "--cpus 3,8-9: CPUs 8-9 are offline; allowed: 0-3"
        )
        assert error(LayoutRequest(numa_nodes=(0, 1)), machine) == (
            "--numa-nodes 0-1: node 1 has CPUs 4-7, none of which is allowed by "
            "cpuset 0-3 (cgroup v2 /job); nodes to plan on: 0"
        )
        assert error(LayoutRequest(numa_nodes=(2,)), machine) == (
            "--numa-nodes 2: node 2 has memory but no CPUs; nodes to plan on: 0"
        )
        assert error(LayoutRequest(ncores=5), machine) == (
            "1 instance x 5 cores needs 5 cores and 4 are allowed (cpuset 0-3 (cgroup v2 /job)): "
            "at most 1 instance of 4 cores; or --oversubscribe"
        )


class TestSystemsWithoutMasks:
    def test_instances_are_not_bound_and_share_the_cores(self) -> None:
        made = plan(LayoutRequest(instances=2), flat_machine(8, "darwin"))
        assert not made.bound
        assert threads(made) == [4, 4]
        assert (
            "this system has no CPU masks"
            in next(d for d in made.decisions if d.value == "no").reason
        )

    def test_named_cpus_only_count(self) -> None:
        made = plan(LayoutRequest(cpus=(0, 1, 2)), flat_machine(8, "darwin"))
        assert threads(made) == [3]
        assert made.warnings == (
            "CPUs cannot be bound on this system: --cpus and --numa-nodes only set the counts",
        )
