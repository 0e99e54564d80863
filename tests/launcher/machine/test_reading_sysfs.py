# SPDX-License-Identifier: Apache-2.0
"""One quirk of sysfs a row, on a tree that shows it and little else."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.launcher.machine.trees import CPU, NODE, cache, cpus, each, write_files

from xlaunch.machine.groups import CoreKind
from xlaunch.machine.sysfs import read_topology
from xlaunch.machine.topology import Package

Files = dict[str, str]


def lone_cores(count: int, package: str | None = None) -> Files:
    """CPUs that are each a core of one package."""
    everything = package or f"0-{count - 1}"
    return cpus(
        f"0-{count - 1}",
        core_cpus_list=[str(cpu) for cpu in range(count)],
        package_cpus_list=[everything] * count,
        physical_package_id=["0"] * count,
    )


def without_online(files: Files) -> Files:
    """The files without the list of online CPUs."""
    return {path: text for path, text in files.items() if path != f"{CPU}/online"}


def amd_pair(family: str, core_ids: list[str]) -> Files:
    """Two CPUs that name each other as siblings."""
    both = ["0-1", "0-1"]
    cpuinfo = f"processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: {family}\n\nprocessor\t: 1"
    files = cpus("0-1", thread_siblings_list=both, core_siblings_list=both, core_id=core_ids)
    return files | {"proc/cpuinfo": cpuinfo}


def two_packages(**more: list[str]) -> Files:
    """Two pairs of CPUs with package lists of their own, and one id."""
    return cpus(
        "0-3",
        core_cpus_list=["0", "1", "2", "3"],
        core_siblings_list=["0-1", "0-1", "2-3", "2-3"],
        physical_package_id=["0"] * 4,
        **more,
    )


def caches(*found: tuple[int, int, int, str] | tuple[int, int, int, str, str]) -> Files:
    """For each CPU, index, level, list, and perhaps type."""
    return {path: text for one in found for path, text in cache(*one).items()}


def node(number: int, cpulist: str, distance: str = "", kib: int | None = 1024) -> Files:
    directory = f"{NODE}/node{number}"
    files = {f"{directory}/cpulist": cpulist}
    if distance:
        files[f"{directory}/distance"] = distance
    if kib is not None:
        files[f"{directory}/meminfo"] = (
            f"Node {number} MemTotal:  {kib} kB\nNode {number} MemFree: 7 kB"
        )
    return files


def clusters_of_four_in_one_half() -> Files:
    files = lone_cores(96)
    for cpu in range(96):
        low, four = cpu // 48 * 48, cpu // 4 * 4
        files |= cache(cpu, 0, 3, f"{low}-{low + 47}")
        files[f"{CPU}/cpu{cpu}/topology/cluster_cpus_list"] = (
            f"{four}-{four + 3}" if cpu >= 48 else str(cpu)
        )
    return files


def top_speeds(*values: str) -> Files:
    return each(range(len(values)), "cpufreq/cpuinfo_max_freq", list(values))


def base_speeds(*values: str) -> Files:
    return each(range(len(values)), "cpufreq/base_frequency", list(values))


def capacities(*values: str) -> Files:
    return each(range(len(values)), "cpu_capacity", list(values))


def designs(*values: str) -> Files:
    return each(range(len(values)), "regs/identification/midr_el1", list(values))


FOUR_DISTANCES = node(0, "0", "10 20 14") | node(1, "1", "20 10 17") | node(2, "", "14 17 10")
TWO_L3_OF_40 = caches(*[(cpu, 0, 3, "0-39" if cpu < 40 else "40-79") for cpu in range(80)])
ZEROS = {
    f"{CPU}/cpu{cpu}/cache/index0/{name}": text
    for cpu in range(4)
    for name, text in (("level", "3"), ("type", "Unified"), ("shared_cpu_map", "0"))
}

CASES: dict[str, tuple[Files, dict[str, object]]] = {
    # Which CPUs there are.
    "the online list rules, and directories beyond it are offline": (
        cpus("0,2", core_cpus_list={0: "0", 2: "2"}, package_cpus_list={0: "0,2", 2: "0,2"})
        | {f"{CPU}/cpu1/": "", f"{CPU}/cpu3/": ""},
        {"online_cpus": (0, 2), "offline_cpus": (1, 3)},
    ),
    # CPU 0 has no file of its own where it cannot be taken offline.
    "without an online list each CPU is asked": (
        without_online(lone_cores(3, "0,2"))
        | {f"{CPU}/cpu1/online": "0", f"{CPU}/cpu2/online": "1"},
        {"online_cpus": (0, 2), "offline_cpus": (1,), "cores": ((0,), (2,))},
    ),
    "without an online list the offline list counts":
        (without_online(lone_cores(3, "0-1")) | {f"{CPU}/offline": "2,5"}, {"online_cpus": (0, 1)}),
    "a whole package offline is no package": (
        lone_cores(2) | {f"{CPU}/cpu2/online": "0", f"{CPU}/cpu3/online": "0"},
        {"packages": (Package(0, (0, 1)),), "offline_cpus": (2, 3)},
    ),
    "stale lists of siblings are cut to online CPUs": (
        cpus("0-1", core_cpus_list={0: "0,2", 1: "1,3"}, package_cpus_list={0: "0-3", 1: "0-3"}),
        {"cores": ((0,), (1,)), "package_cpus": [(0, 1)]},
    ),
    "bare directories are one package of lone cores": ({f"{CPU}/cpu0/": "", f"{CPU}/cpu1/": ""},
        {"packages": (Package(None, (0, 1)),), "cores": ((0,), (1,)), "cores_known": False,
         "notes": ("the SMT siblings of any CPU are not known; each counts as a core",)}),
    # Cores. The leading word of a mask may be of any width; each of the others is 32 bits.
    "siblings by the masks of old kernels": (
        cpus("0,32,36", thread_siblings={0: "1,00000001", 32: "1,00000001", 36: "10,00000000"},
         core_siblings={0: "11,00000001", 32: "11,00000001", 36: "11,00000001"}),
        {"cores": ((0, 32), (36,)), "packages": (Package(None, (0, 32, 36)),)},
    ),
    "the new name wins over the old": (
        lone_cores(2) | each(range(2), "topology/thread_siblings_list", ["0-1", "0-1"]),
        {"cores": ((0,), (1,))},
    ),
    # Core ids repeat in the second package.
    "cores by ids where no siblings are listed": (
        cpus("0-3", core_id=["0", "0", "0", "1"], physical_package_id=["0", "0", "1", "1"]),
        {"cores": ((0, 1), (2,), (3,)), "cores_known": True,
         "packages": (Package(0, (0, 1)), Package(1, (2, 3)))},
    ),
    "the cores of an AMD module are cores": (amd_pair("21", ["0", "1"]), {"cores": ((0,), (1,))}),
    "threads of other AMD cores are not": (amd_pair("25", ["0", "1"]), {"cores": ((0, 1),)}),
    "threads of one core id are not": (amd_pair("21", ["3", "3"]), {"cores": ((0, 1),)}),
    # Packages, dies, clusters.
    "packages of one id in different books are different": (
        two_packages(book_id=["0", "0", "1", "1"]),
        {"packages": (Package(0, (0, 1)), Package(0, (2, 3)))},
    ),
    "package id -1 is unknown": (
        lone_cores(2) | {f"{CPU}/cpu0/topology/physical_package_id": "-1"},
        {"packages": (Package(None, (0, 1)),)},
    ),
    "packages cut at NUMA nodes are joined": (
        two_packages() | {f"{NODE}/node0/cpulist": "0-1", f"{NODE}/node1/cpulist": "2-3"},
        {"packages": (Package(0, (0, 1, 2, 3)),),
         "notes": ("the kernel cuts packages at NUMA nodes; packages of one id are joined",)},
    ),
    # CPU 0 claims half of the other package; everybody else agrees.
    "the majority settles contradictory packages": (
        lone_cores(6)
        | each(range(6), "topology/package_cpus_list", ["0-3"] + ["0-2"] * 2 + ["3-5"] * 3),
        {
            "package_cpus": [(0, 1, 2), (3, 4, 5)],
            "notes": ("CPUs contradict each other about packages; the majority is followed",),
        },
    ),
    "dies where a package has several": (
        lone_cores(4) | cpus("0-3", die_cpus_list=["0-1", "0-1", "2-3", "2-3"]),
        {"dies": ((0, 1), (2, 3))},
    ),
    "no dies where it has one":
        (lone_cores(4) | cpus("0-3", die_cpus_list=["0-3"] * 4), {"dies": ()}),
    "dies of architectures without any are ignored":
        (lone_cores(2) | cpus("0-1", die_cpus_list=["0", "1"], die_id=["-1", "-1"]), {"dies": ()}),
    **{
        f"clusters unless they are {what}": (
            lone_cores(4) | cpus("0-3", cluster_cpus_list=lists), {"clusters": expected}
        )
        for what, lists, expected in (
            ("none", ["0-1", "0-1", "2-3", "2-3"], ((0, 1), (2, 3))),
            ("cores", ["0", "1", "2", "3"], ()),
            ("packages", ["0-3"] * 4, ()),
        )
    },
    "clusters of many cores are found by a few": (clusters_of_four_in_one_half(),
        {"clusters": (
            *((cpu,) for cpu in range(48)), *(tuple(range(n, n + 4)) for n in range(48, 96, 4)),
        )}),
    # Caches.
    "L3 and L2 groups": (
        lone_cores(4)
        | caches(*[
            one
            for cpu, pair in enumerate(("0-1", "0-1", "2-3", "2-3"))
            for one in (
                (cpu, 0, 1, str(cpu), "Data"), (cpu, 1, 1, str(cpu), "Instruction"),
                (cpu, 2, 2, pair), (cpu, 3, 3, "0-3"),
            )
        ]),
        {"l3_groups": ((0, 1, 2, 3),), "l2_groups": ((0, 1), (2, 3))},
    ),
    "an L2 that is each core's own is left out": (
        cpus("0-1", core_cpus_list=["0-1", "0-1"], package_cpus_list=["0-1", "0-1"])
        | caches((0, 0, 2, "0-1"), (1, 0, 2, "0-1")),
        {"l2_groups": ()},
    ),
    # Meteor Lake: the last two cores have an L2 of their own and no L3.
    "low-power cores outside the L3": (
        lone_cores(4) | caches((0, 0, 2, "0"), (1, 0, 2, "1"), (0, 1, 3, "0-1"), (1, 1, 3, "0-1"))
        | caches((2, 0, 2, "2-3"), (3, 0, 2, "2-3")),
        {"l3_groups": ((0, 1),), "l2_groups": ((0,), (1,), (2, 3))},
    ),
    # CPU 1's index1 is not taken for an L2.
    "caches numbered otherwise behind one L3": (
        lone_cores(2) | caches((0, 0, 1, "0", "Data"), (0, 1, 2, "0"), (0, 2, 3, "0-1"))
        | caches((1, 0, 2, "1"), (1, 1, 3, "0-1")),
        {"l3_groups": ((0, 1),), "l2_groups": ()},
    ),
    "masks of zeros mean the core": (
        cpus("0-3", thread_siblings=["3", "3", "c", "c"], core_siblings=["f"] * 4) | ZEROS,
        {"l3_groups": ((0, 1), (2, 3))},
    ),
    "a level 2 cache for instructions alone is no L2": (
        lone_cores(2) | caches((0, 0, 2, "0-1", "Instruction"), (1, 0, 2, "0-1", "Instruction")),
        {"l2_groups": ()},
    ),
    # NUMA nodes.
    "nodes with sparse ids, memory and distances": (
        lone_cores(2) | node(1, "0", "10 20") | node(72, "1", "20 10", None),
        {"nodes": [(1, (0,), 1 << 20, (10, 20)), (72, (1,), None, (20, 10))]},
    ),
    "more than 64 nodes come in the order of their numbers": (
        lone_cores(100) | {f"{NODE}/node{n}/cpulist": str(n) for n in range(100)},
        {"node_cpus": [(cpu,) for cpu in range(100)]},
    ),
    "nodes by mask and by links": (
        lone_cores(3) | {f"{NODE}/node0/cpumap": "00000000,00000003", f"{NODE}/node1/cpu2/": ""},
        {"node_cpus": [(0, 1), (2,)]},
    ),
    "nodes by the links of the CPUs": (
        lone_cores(2) | {f"{NODE}/node0/": "", f"{NODE}/node1/": ""}
        | {f"{CPU}/cpu0/node1/": "", f"{CPU}/cpu1/node0/": ""},
        {"node_cpus": [(1,), (0,)]},
    ),
    "local CPUs by the distance": (lone_cores(2) | FOUR_DISTANCES, {"local_cpus": (0,)}),
    "local CPUs by the firmware before the distance": (
        lone_cores(2) | FOUR_DISTANCES | {f"{NODE}/node2/access1/initiators/node1/": ""},
        {"local_cpus": (1,)},
    ),
    "a node equally far from all is near to none": (
        lone_cores(2) | node(0, "0", "10 20 20") | node(1, "1", "20 10 20")
        | node(2, "", "20 20 10"),
        {"local_cpus": ()},
    ),
    "distances that do not fit are ignored": (lone_cores(1) | node(0, "0", "10 20"),
        {"nodes": [(0, (0,), 1 << 20, ())],
         "notes": ("NUMA distances do not match the number of nodes; they are ignored",)}),
    # Kinds of cores.
    "Intel's hybrids by their performance monitors": (
        lone_cores(4) | {"sys/devices/cpu_core/cpus": "0-1", "sys/devices/cpu_atom/cpus": "2-3"},
        {"core_kinds": (
            CoreKind((2, 3), 0, (("CoreType", "IntelAtom"),)),
            CoreKind((0, 1), 1, (("CoreType", "IntelCore"),)),
        )},
    ),
    "low-power cores are a third kind by their frequency": (
        lone_cores(3) | {"sys/devices/cpu_core/cpus": "0", "sys/devices/cpu_atom/cpus": "1-2"}
        | top_speeds("4800000", "3800000", "2500000") | base_speeds("1400000", "900000", "700000"),
        {"kinds": [((2,), 0), ((1,), 1), ((0,), 2)]},
    ),
    "favoured cores are no kind": (
        lone_cores(3) | top_speeds("5000000", "5000000", "5200000")
        | base_speeds(*["3000000"] * 3) | capacities("1000", "1000", "1024"),
        {"kinds": []},
    ),
    "dense cores of another highest frequency are a kind": (
        lone_cores(4) | top_speeds("5100000", "5100000", "3300000", "3300000")
        | each(range(4), "acpi_cppc/nominal_freq", ["2000"] * 4),
        {"kinds": [((2, 3), 0), ((0, 1), 1)]},
    ),
    "Arm's designs by their register, ranked by capacity": (
        lone_cores(3) | designs("0x00000000411fd850", "0x00000000411fd870", "0x00000000411fd850")
        | capacities("1024", "700", "990"),
        {"core_kinds": (
            CoreKind((1,), 0, (("LinuxCapacity", "700"), ("CPUPart", "0xd87"))),
            CoreKind((0, 2), 1, (("LinuxCapacity", "990"), ("CPUPart", "0xd85"))),
        )},
    ),
    "designs that nothing ranks":
        (lone_cores(2) | designs("0x411fd4d0", "0x412fd470"), {"kinds": [((0,), -1), ((1,), -1)]}),
    "a frequency that only some CPUs show tells nothing":
        (lone_cores(2) | top_speeds("1000000"), {"kinds": []}),
    "frequencies by policy where CPUs have no link": (
        lone_cores(3)
        | {
            f"{CPU}/cpufreq/policy{cpu}/{name}": text
            for cpu, related, frequency in ((0, "0 1", "1800000"), (2, "2", "2800000"))
            for name, text in (("related_cpus", related), ("cpuinfo_max_freq", frequency))
        },
        {"kinds": [((0, 1), 0), ((2,), 1)]},
    ),
    "of many cores the ends of each L3 group are looked at": (
        lone_cores(80) | TWO_L3_OF_40 | top_speeds(*["3000000"] * 40, *["2000000"] * 40),
        {"kinds": [(tuple(range(40, 80)), 0), (tuple(range(40)), 1)]},
    ),
    # Other.
    "isolated CPUs": (lone_cores(4) | {f"{CPU}/isolated": "2-3"}, {"isolated_cpus": (2, 3)}),
    "the architecture by the kernel's own file": (
        lone_cores(1) | {"proc/sys/kernel/arch": "riscv64", "proc/cpuinfo": "flags\t\t: fpu lm"},
        {"architecture": "riscv64"},
    ),
    "a 32-bit kernel on a 64-bit processor": (
        lone_cores(1) | {"proc/cpuinfo": "processor\t: 0\nfdiv_bug\t: no\nflags\t\t: fpu lm sse2"},
        {"architecture": "i686"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_read(tmp_path: Path, case: str) -> None:
    files, expected = CASES[case]
    topology, notes = read_topology(write_files(tmp_path, files))
    nodes = topology.numa_nodes
    found = {
        **topology._asdict(),
        "notes": notes,
        "package_cpus": [package.cpus for package in topology.packages],
        "nodes": [(n.id, n.cpus, n.memory_bytes, n.distances) for n in nodes],
        "node_cpus": [n.cpus for n in nodes],
        "local_cpus": nodes[-1].local_cpus if nodes else None,
        "kinds": [(kind.cpus, kind.efficiency) for kind in topology.core_kinds],
    }
    expected = {"notes": (), **expected}
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("sizes_gib", "total_gib", "expected_gib"),
    [
        ((5,), 251, (251,)), ((0, 5), 251, (0, 251)), ((5, 4), 251, (None, None)),
        ((120, 120), 251, (120, 120)), ((5,), None, (5,)), ((5, None), 251, (5, None)),
    ],
)  # fmt: skip
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
    topology, notes = read_topology(write_files(tmp_path, files))
    found = [n.memory_bytes for n in topology.numa_nodes]
    assert found == [None if size is None else size << 30 for size in expected_gib]
    changed = expected_gib != sizes_gib
    assert [f"of the machine's {total_gib}.0 GiB" in note for note in notes] == [True] * changed
