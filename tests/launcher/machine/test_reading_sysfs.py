# SPDX-License-Identifier: Apache-2.0
"""One quirk of sysfs a test, on a tree that shows it and little else."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.launcher.machine.trees import CPU, NODE, cache, cpus, each, write_files

from xlaunch.machine.core_kinds import CoreKind
from xlaunch.machine.sysfs import read_topology
from xlaunch.machine.topology import Package, Topology


def read(root: Path, *parts: dict[str, str]) -> Topology:
    """The topology of a tree made of `parts`, which must be read without a note."""
    topology, notes = read_with_notes(root, *parts)
    assert notes == ()
    return topology


def read_with_notes(root: Path, *parts: dict[str, str]) -> tuple[Topology, tuple[str, ...]]:
    return read_topology(
        write_files(root, {path: text for part in parts for path, text in part.items()})
    )


def lone_cores(count: int, package: str | None = None) -> dict[str, str]:
    """CPUs that are each a core of one package."""
    everything = package or f"0-{count - 1}"
    return cpus(
        f"0-{count - 1}",
        core_cpus_list=[str(cpu) for cpu in range(count)],
        package_cpus_list=[everything] * count,
        physical_package_id=["0"] * count,
    )


# Which CPUs there are


def test_online_list_rules_and_directories_beyond_it_are_offline(tmp_path: Path) -> None:
    files = cpus("0,2", core_cpus_list={0: "0", 2: "2"}, package_cpus_list={0: "0,2", 2: "0,2"})
    topology = read(tmp_path, files, {f"{CPU}/cpu1/": "", f"{CPU}/cpu3/": ""})
    assert topology.online_cpus == (0, 2)
    assert topology.offline_cpus == (1, 3)


def test_without_online_list_each_cpu_is_asked(tmp_path: Path) -> None:
    files = lone_cores(3, "0,2")
    del files[f"{CPU}/online"]
    topology = read(tmp_path, files, {f"{CPU}/cpu1/online": "0", f"{CPU}/cpu2/online": "1"})
    # CPU 0 has no file of its own where it cannot be taken offline.
    assert topology.online_cpus == (0, 2)
    assert topology.offline_cpus == (1,)
    assert topology.cores == ((0,), (2,))


def test_without_online_list_the_offline_list_counts(tmp_path: Path) -> None:
    files = lone_cores(3, "0-1")
    del files[f"{CPU}/online"]
    assert read(tmp_path, files, {f"{CPU}/offline": "2,5"}).online_cpus == (0, 1)


def test_a_whole_package_offline_is_no_package(tmp_path: Path) -> None:
    files = lone_cores(2) | {f"{CPU}/cpu2/online": "0", f"{CPU}/cpu3/online": "0"}
    topology = read(tmp_path, files)
    assert topology.packages == (Package(0, (0, 1)),)
    assert topology.offline_cpus == (2, 3)


def test_stale_sibling_lists_are_cut_to_online_cpus(tmp_path: Path) -> None:
    files = cpus("0-1", core_cpus_list={0: "0,2", 1: "1,3"}, package_cpus_list={0: "0-3", 1: "0-3"})
    topology = read(tmp_path, files)
    assert topology.cores == ((0,), (1,))
    assert topology.packages[0].cpus == (0, 1)


def test_a_tree_of_bare_directories_is_one_package_of_lone_cores(tmp_path: Path) -> None:
    topology, notes = read_with_notes(tmp_path, {f"{CPU}/cpu0/": "", f"{CPU}/cpu1/": ""})
    assert topology.packages == (Package(None, (0, 1)),)
    assert topology.cores == ((0,), (1,))
    assert not topology.cores_known
    assert notes == ("the SMT siblings of any CPU are not known; each counts as a core",)


# Cores


def test_siblings_by_masks_of_old_kernels(tmp_path: Path) -> None:
    # The leading word may be of any width; each of the others is 32 bits.
    files = cpus(
        "0,32,36",
        thread_siblings={0: "1,00000001", 32: "1,00000001", 36: "10,00000000"},
        core_siblings={0: "11,00000001", 32: "11,00000001", 36: "11,00000001"},
    )
    topology = read(tmp_path, files)
    assert topology.cores == ((0, 32), (36,))
    assert topology.packages == (Package(None, (0, 32, 36)),)


def test_the_new_name_wins_over_the_old(tmp_path: Path) -> None:
    files = lone_cores(2) | {
        f"{CPU}/cpu0/topology/thread_siblings_list": "0-1",
        f"{CPU}/cpu1/topology/thread_siblings_list": "0-1",
    }
    assert read(tmp_path, files).cores == ((0,), (1,))


def test_cores_by_ids_where_no_siblings_are_listed(tmp_path: Path) -> None:
    # Core ids repeat in the second package.
    files = cpus("0-3", core_id=["0", "0", "0", "1"], physical_package_id=["0", "0", "1", "1"])
    topology = read(tmp_path, files)
    assert topology.cores == ((0, 1), (2,), (3,))
    assert topology.cores_known
    assert topology.packages == (Package(0, (0, 1)), Package(1, (2, 3)))


def amd_pair(tmp_path: Path, *, family: str, core_ids: list[str]) -> tuple[tuple[int, ...], ...]:
    files = cpus(
        "0-1",
        thread_siblings_list=["0-1", "0-1"],
        core_siblings_list=["0-1", "0-1"],
        core_id=core_ids,
    )
    cpuinfo = f"processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: {family}\n\nprocessor\t: 1"
    return read(tmp_path, files, {"proc/cpuinfo": cpuinfo}).cores


def test_the_two_cores_of_an_amd_module_are_cores(tmp_path: Path) -> None:
    assert amd_pair(tmp_path, family="21", core_ids=["0", "1"]) == ((0,), (1,))


def test_threads_of_other_amd_cores_are_not(tmp_path: Path) -> None:
    assert amd_pair(tmp_path, family="25", core_ids=["0", "1"]) == ((0, 1),)


def test_threads_of_one_core_id_are_not(tmp_path: Path) -> None:
    assert amd_pair(tmp_path, family="21", core_ids=["3", "3"]) == ((0, 1),)


# Packages, dies, clusters


def test_packages_of_one_id_in_different_books_are_different(tmp_path: Path) -> None:
    files = cpus(
        "0-3",
        core_cpus_list=["0", "1", "2", "3"],
        core_siblings_list=["0-1", "0-1", "2-3", "2-3"],
        physical_package_id=["0"] * 4,
        book_id=["0", "0", "1", "1"],
    )
    assert read(tmp_path, files).packages == (Package(0, (0, 1)), Package(0, (2, 3)))


def test_package_id_minus_one_is_unknown(tmp_path: Path) -> None:
    files = lone_cores(2) | {f"{CPU}/cpu0/topology/physical_package_id": "-1"}
    assert read(tmp_path, files).packages == (Package(None, (0, 1)),)


def test_packages_cut_at_numa_nodes_are_joined(tmp_path: Path) -> None:
    files = cpus(
        "0-3",
        core_cpus_list=["0", "1", "2", "3"],
        core_siblings_list=["0-1", "0-1", "2-3", "2-3"],
        physical_package_id=["0"] * 4,
    )
    nodes = {f"{NODE}/node0/cpulist": "0-1", f"{NODE}/node1/cpulist": "2-3"}
    topology, notes = read_with_notes(tmp_path, files, nodes)
    assert topology.packages == (Package(0, (0, 1, 2, 3)),)
    assert notes == ("the kernel cuts packages at NUMA nodes; packages of one id are joined",)


def test_the_majority_settles_contradictory_packages(tmp_path: Path) -> None:
    # CPU 0 claims half of the other package; everybody else agrees.
    files = lone_cores(6, "0-2")
    files |= {f"{CPU}/cpu{cpu}/topology/package_cpus_list": "3-5" for cpu in (3, 4, 5)}
    files |= {f"{CPU}/cpu0/topology/package_cpus_list": "0-3"}
    topology, notes = read_with_notes(tmp_path, files)
    assert [package.cpus for package in topology.packages] == [(0, 1, 2), (3, 4, 5)]
    assert notes == ("CPUs contradict each other about packages; the majority is followed",)


def test_dies_only_where_a_package_has_several(tmp_path: Path) -> None:
    several = lone_cores(4) | cpus("0-3", die_cpus_list=["0-1", "0-1", "2-3", "2-3"])
    assert read(tmp_path / "several", several).dies == ((0, 1), (2, 3))
    one = lone_cores(4) | cpus("0-3", die_cpus_list=["0-3"] * 4)
    assert read(tmp_path / "one", one).dies == ()


def test_dies_of_architectures_without_any_are_ignored(tmp_path: Path) -> None:
    files = lone_cores(2) | cpus("0-1", die_cpus_list=["0", "1"], die_id=["-1", "-1"])
    assert read(tmp_path, files).dies == ()


def test_clusters_unless_they_are_cores_or_packages(tmp_path: Path) -> None:
    def clusters(name: str, lists: list[str]) -> tuple[tuple[int, ...], ...]:
        files = lone_cores(4) | cpus("0-3", cluster_cpus_list=lists)
        return read(tmp_path / name, files).clusters

    assert clusters("pairs", ["0-1", "0-1", "2-3", "2-3"]) == ((0, 1), (2, 3))
    assert clusters("cores", ["0", "1", "2", "3"]) == ()
    assert clusters("package", ["0-3"] * 4) == ()


def test_clusters_of_many_cores_are_found_by_a_few(tmp_path: Path) -> None:
    files = lone_cores(96)
    for cpu in range(96):
        low = cpu // 48 * 48
        files |= cache(cpu, 0, 3, f"{low}-{low + 47}")
        # One half has clusters of four; the other cores are their own.
        four = cpu // 4 * 4
        name = f"{CPU}/cpu{cpu}/topology/cluster_cpus_list"
        files[name] = f"{four}-{four + 3}" if cpu >= 48 else str(cpu)
    clusters = read(tmp_path, files).clusters
    assert clusters[47:50] == ((47,), (48, 49, 50, 51), (52, 53, 54, 55))


# Caches


def test_l3_and_l2_groups(tmp_path: Path) -> None:
    files = lone_cores(4)
    for cpu in range(4):
        pair = "0-1" if cpu < 2 else "2-3"
        files |= cache(cpu, 0, 1, str(cpu), "Data") | cache(cpu, 1, 1, str(cpu), "Instruction")
        files |= cache(cpu, 2, 2, pair) | cache(cpu, 3, 3, "0-3")
    topology = read(tmp_path, files)
    assert topology.l3_groups == ((0, 1, 2, 3),)
    assert topology.l2_groups == ((0, 1), (2, 3))


def test_l2_that_is_each_cores_own_is_left_out(tmp_path: Path) -> None:
    files = cpus("0-1", core_cpus_list=["0-1", "0-1"], package_cpus_list=["0-1", "0-1"])
    topology = read(tmp_path, files, cache(0, 0, 2, "0-1"), cache(1, 0, 2, "0-1"))
    assert topology.l2_groups == ()


def test_low_power_cores_outside_the_l3(tmp_path: Path) -> None:
    # Meteor Lake: the last two cores have an L2 of their own and no L3.
    files = lone_cores(4)
    for cpu in (0, 1):
        files |= cache(cpu, 0, 2, str(cpu)) | cache(cpu, 1, 3, "0-1")
    for cpu in (2, 3):
        files |= cache(cpu, 0, 2, "2-3")
    topology = read(tmp_path, files)
    assert topology.l3_groups == ((0, 1),)
    assert topology.l2_groups == ((0,), (1,), (2, 3))


def test_caches_numbered_otherwise_behind_one_l3(tmp_path: Path) -> None:
    files = lone_cores(2)
    files |= cache(0, 0, 1, "0", "Data") | cache(0, 1, 2, "0") | cache(0, 2, 3, "0-1")
    files |= cache(1, 0, 2, "1") | cache(1, 1, 3, "0-1")
    topology = read(tmp_path, files)
    assert topology.l3_groups == ((0, 1),)
    assert topology.l2_groups == ()  # each its own: CPU 1's index1 is not taken for an L2


def test_share_masks_of_zeros_mean_the_core(tmp_path: Path) -> None:
    files = cpus("0-3", thread_siblings=["3", "3", "c", "c"], core_siblings=["f"] * 4)
    for cpu in range(4):
        directory = f"{CPU}/cpu{cpu}/cache/index0"
        files |= {
            f"{directory}/level": "3",
            f"{directory}/type": "Unified",
            f"{directory}/shared_cpu_map": "0",
        }
    assert read(tmp_path, files).l3_groups == ((0, 1), (2, 3))


def test_a_level_2_cache_for_instructions_alone_is_no_l2(tmp_path: Path) -> None:
    files = lone_cores(2) | cache(0, 0, 2, "0-1", "Instruction")
    assert read(tmp_path, files, cache(1, 0, 2, "0-1", "Instruction")).l2_groups == ()


# NUMA nodes


def node(number: int, cpulist: str, distance: str = "", kib: int | None = 1024) -> dict[str, str]:
    directory = f"{NODE}/node{number}"
    files = {f"{directory}/cpulist": cpulist}
    if distance:
        files[f"{directory}/distance"] = distance
    if kib is not None:
        files[f"{directory}/meminfo"] = (
            f"Node {number} MemTotal:  {kib} kB\nNode {number} MemFree: 7 kB"
        )
    return files


def test_nodes_with_sparse_ids_memory_and_distances(tmp_path: Path) -> None:
    topology = read(tmp_path, lone_cores(2), node(1, "0", "10 20"), node(72, "1", "20 10", None))
    first, second = topology.numa_nodes
    assert (first.id, first.cpus, first.memory_bytes, first.distances) == (
        1,
        (0,),
        1 << 20,
        (10, 20),
    )
    assert (second.id, second.cpus, second.memory_bytes) == (72, (1,), None)


@pytest.mark.parametrize(
    ("sizes_gib", "total_gib", "expected_gib"),
    [
        ((5,), 251, (251,)),
        ((0, 5), 251, (0, 251)),
        ((5, 4), 251, (None, None)),
        ((120, 120), 251, (120, 120)),
        ((5,), None, (5,)),
        ((5, None), 251, (5, None)),
    ],
)
def test_nodes_that_lag_far_behind_the_machine_s_memory_are_not_believed(
    tmp_path: Path,
    sizes_gib: tuple[int | None, ...],
    total_gib: int | None,
    expected_gib: tuple[int | None, ...],
) -> None:
    files = lone_cores(2)
    for number, size in enumerate(sizes_gib):
        files |= node(number, str(number), kib=None if size is None else size << 20)
    if total_gib is not None:
        files["proc/meminfo"] = f"MemTotal:       {total_gib << 20} kB\nMemFree: 7 kB"
    topology, notes = read_with_notes(tmp_path, files)
    found = [n.memory_bytes for n in topology.numa_nodes]
    assert found == [None if size is None else size << 30 for size in expected_gib]
    changed = expected_gib != sizes_gib
    assert [f"of the machine's {total_gib}.0 GiB" in note for note in notes] == [True] * changed


def test_more_than_64_nodes_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    nodes = {f"{NODE}/node{n}/cpulist": str(n) for n in range(100)}
    topology = read(tmp_path, lone_cores(100), nodes)
    assert [n.cpus for n in topology.numa_nodes] == [(cpu,) for cpu in range(100)]


def test_nodes_by_mask_and_by_links(tmp_path: Path) -> None:
    files = lone_cores(3)
    nodes = {f"{NODE}/node0/cpumap": "00000000,00000003", f"{NODE}/node1/cpu2/": ""}
    assert [n.cpus for n in read(tmp_path, files, nodes).numa_nodes] == [(0, 1), (2,)]


def test_nodes_by_the_links_of_the_cpus(tmp_path: Path) -> None:
    nodes = {f"{NODE}/node0/": "", f"{NODE}/node1/": ""}
    links = {f"{CPU}/cpu0/node1/": "", f"{CPU}/cpu1/node0/": ""}
    assert [n.cpus for n in read(tmp_path, lone_cores(2), nodes, links).numa_nodes] == [(1,), (0,)]


def test_local_cpus_by_the_firmware_before_the_distance(tmp_path: Path) -> None:
    nodes = node(0, "0", "10 20 14") | node(1, "1", "20 10 17") | node(2, "", "14 17 10")
    by_distance = read(tmp_path / "distance", lone_cores(2), nodes)
    assert by_distance.numa_nodes[2].local_cpus == (0,)
    initiator = {f"{NODE}/node2/access1/initiators/node1/": ""}
    by_firmware = read(tmp_path / "firmware", lone_cores(2), nodes, initiator)
    assert by_firmware.numa_nodes[2].local_cpus == (1,)


def test_a_node_equally_far_from_all_is_near_to_none(tmp_path: Path) -> None:
    nodes = node(0, "0", "10 20 20") | node(1, "1", "20 10 20") | node(2, "", "20 20 10")
    assert read(tmp_path, lone_cores(2), nodes).numa_nodes[2].local_cpus == ()


def test_distances_that_do_not_fit_are_ignored(tmp_path: Path) -> None:
    topology, notes = read_with_notes(tmp_path, lone_cores(1), node(0, "0", "10 20"))
    assert topology.numa_nodes[0].distances == ()
    assert notes == ("NUMA distances do not match the number of nodes; they are ignored",)


# Kinds of cores


def kinds(topology: Topology) -> list[tuple[tuple[int, ...], int]]:
    return [(kind.cpus, kind.efficiency) for kind in topology.core_kinds]


def test_intel_hybrid_by_its_performance_monitors(tmp_path: Path) -> None:
    monitors = {"sys/devices/cpu_core/cpus": "0-1", "sys/devices/cpu_atom/cpus": "2-3"}
    topology = read(tmp_path, lone_cores(4), monitors)
    assert topology.core_kinds == (
        CoreKind((2, 3), 0, (("CoreType", "IntelAtom"),)),
        CoreKind((0, 1), 1, (("CoreType", "IntelCore"),)),
    )


def test_low_power_cores_are_a_third_kind_by_their_frequency(tmp_path: Path) -> None:
    monitors = {"sys/devices/cpu_core/cpus": "0", "sys/devices/cpu_atom/cpus": "1-2"}
    top = each(range(3), "cpufreq/cpuinfo_max_freq", ["4800000", "3800000", "2500000"])
    base = each(range(3), "cpufreq/base_frequency", ["1400000", "900000", "700000"])
    assert kinds(read(tmp_path, lone_cores(3), monitors, top, base)) == [
        ((2,), 0),
        ((1,), 1),
        ((0,), 2),
    ]


def test_favoured_cores_are_no_kind(tmp_path: Path) -> None:
    top = each(range(3), "cpufreq/cpuinfo_max_freq", ["5000000", "5000000", "5200000"])
    base = each(range(3), "cpufreq/base_frequency", ["3000000"] * 3)
    capacity = each(range(3), "cpu_capacity", ["1000", "1000", "1024"])
    assert kinds(read(tmp_path, lone_cores(3), top, base, capacity)) == []


def test_dense_cores_of_another_highest_frequency_are_a_kind(tmp_path: Path) -> None:
    top = each(range(4), "cpufreq/cpuinfo_max_freq", ["5100000"] * 2 + ["3300000"] * 2)
    base = each(range(4), "acpi_cppc/nominal_freq", ["2000"] * 4)
    assert kinds(read(tmp_path, lone_cores(4), top, base)) == [((2, 3), 0), ((0, 1), 1)]


def test_arm_designs_by_their_register_ranked_by_capacity(tmp_path: Path) -> None:
    midr = each(
        range(3),
        "regs/identification/midr_el1",
        ["0x00000000411fd850", "0x00000000411fd870", "0x00000000411fd850"],
    )
    capacity = each(range(3), "cpu_capacity", ["1024", "700", "990"])
    topology = read(tmp_path, lone_cores(3), midr, capacity)
    assert topology.core_kinds == (
        CoreKind((1,), 0, (("LinuxCapacity", "700"), ("CPUPart", "0xd87"))),
        CoreKind((0, 2), 1, (("LinuxCapacity", "990"), ("CPUPart", "0xd85"))),
    )


def test_designs_that_nothing_ranks(tmp_path: Path) -> None:
    midr = each(range(2), "regs/identification/midr_el1", ["0x411fd4d0", "0x412fd470"])
    assert kinds(read(tmp_path, lone_cores(2), midr)) == [((0,), -1), ((1,), -1)]


def test_a_frequency_that_only_some_cpus_show_tells_nothing(tmp_path: Path) -> None:
    top = {f"{CPU}/cpu0/cpufreq/cpuinfo_max_freq": "1000000"}
    assert kinds(read(tmp_path, lone_cores(2), top)) == []


def test_frequencies_by_policy_where_cpus_have_no_link(tmp_path: Path) -> None:
    policies = {
        f"{CPU}/cpufreq/policy0/related_cpus": "0 1",
        f"{CPU}/cpufreq/policy0/cpuinfo_max_freq": "1800000",
        f"{CPU}/cpufreq/policy2/related_cpus": "2",
        f"{CPU}/cpufreq/policy2/cpuinfo_max_freq": "2800000",
    }
    assert kinds(read(tmp_path, lone_cores(3), policies)) == [((0, 1), 0), ((2,), 1)]


def test_of_many_cores_the_ends_of_each_l3_group_are_looked_at(tmp_path: Path) -> None:
    files = lone_cores(80)
    for cpu in range(80):
        low = cpu // 40 * 40
        files |= cache(cpu, 0, 3, f"{low}-{low + 39}")
    slow_half = ["3000000"] * 40 + ["2000000"] * 40
    topology = read(tmp_path, files, each(range(80), "cpufreq/cpuinfo_max_freq", slow_half))
    assert kinds(topology) == [(tuple(range(40, 80)), 0), (tuple(range(40)), 1)]


# Other


def test_isolated_cpus(tmp_path: Path) -> None:
    assert read(tmp_path, lone_cores(4), {f"{CPU}/isolated": "2-3"}).isolated_cpus == (2, 3)


def test_architecture_by_the_kernels_own_file(tmp_path: Path) -> None:
    arch = {"proc/sys/kernel/arch": "riscv64", "proc/cpuinfo": "flags\t\t: fpu lm"}
    assert read(tmp_path, lone_cores(1), arch).architecture == "riscv64"


def test_a_32_bit_kernel_on_a_64_bit_processor(tmp_path: Path) -> None:
    cpuinfo = "processor\t: 0\nfdiv_bug\t: no\nflags\t\t: fpu lm sse2"
    assert read(tmp_path, lone_cores(1), {"proc/cpuinfo": cpuinfo}).architecture == "i686"
