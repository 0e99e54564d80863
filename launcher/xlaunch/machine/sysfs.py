# SPDX-License-Identifier: Apache-2.0
"""The hardware from sysfs and procfs, of this machine or a captured tree.

The kernel's documentation of the files: Documentation/admin-guide/cputopology.rst and
Documentation/ABI/stable/sysfs-devices-node. If files are missing or contradictory, this follows
hwloc, and adds a note.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from xlaunch.machine.architecture import parse_cpuinfo, read_architecture
from xlaunch.machine.core_kinds import read_core_kinds
from xlaunch.machine.groups import Groups, SharingReader, gather, sample_cores
from xlaunch.machine.nodes import read_numa_nodes
from xlaunch.machine.shared_caches import CacheReader
from xlaunch.machine.topology import CPUs, NumaNode, Package, Topology
from xlaunch.machine.tree import Tree, is_live, parse_list
from xlaunch.text import plural

CPU_DIRECTORY = "/sys/devices/system/cpu"

# Newest name first: package_cpus and core_cpus replaced core_siblings and thread_siblings in
# Linux 5.3, and very old kernels have masks without lists.
CORE = ("core_cpus_list", "thread_siblings_list", "core_cpus", "thread_siblings")
PACKAGE = ("package_cpus_list", "core_siblings_list", "package_cpus", "core_siblings")
DIE = ("die_cpus_list", "die_cpus")
CLUSTER = ("cluster_cpus_list", "cluster_cpus")


def read_topology(root: str) -> tuple[Topology, tuple[str, ...]]:
    """The hardware under `root`, and notes on what was missing or contradictory.

    Nothing raises: a machine that shows only its CPUs is read as one package of cores that are each a
    CPU. On this machine the CPUs of the affinity mask are online, whether or not /sys shows them.
    """
    tree, live = Tree(root), is_live(root)
    notes: list[str] = []
    online, offline = _read_cpus(tree, os.sched_getaffinity(0) if live else (), notes)
    sharing = SharingReader(tree, online)

    cores, cores_known = _read_cores(tree, sharing, online, notes)
    nodes, node_notes = read_numa_nodes(tree, online)
    packages = _read_packages(tree, sharing, online, nodes, notes)
    package_cpus = tuple(package.cpus for package in packages)
    dies = _read_dies(sharing, online, package_cpus, notes)

    caches = CacheReader(tree, sharing, CPU_DIRECTORY, cores)
    l3 = caches.read_l3(online)
    l2 = caches.read_l2(online)
    _note_contradiction(l3, "L3 caches", notes)
    _note_contradiction(l2, "L2 caches", notes)

    clusters = _read_clusters(
        sharing, cores, package_cpus, dies, sample_cores(cores, l3.groups), notes
    )

    topology = Topology(
        architecture=read_architecture(tree, live=live),
        online_cpus=online,
        offline_cpus=offline,
        packages=packages,
        dies=dies,
        clusters=clusters,
        numa_nodes=nodes,
        l3_groups=l3.groups,
        l2_groups=() if set(cores).issuperset(l2.groups) else l2.groups,
        cores=cores,
        cores_known=cores_known,
        core_kinds=read_core_kinds(tree, cores, l3.groups, online),
        isolated_cpus=parse_list(tree.read(CPU_DIRECTORY + "/isolated") or ""),
    )
    return topology, (*notes, *node_notes)


def _read_cpus(tree: Tree, mask: Collection[int], notes: list[str]) -> tuple[CPUs, CPUs]:
    """The online CPUs, and the other CPUs that have a directory.

    `mask`: the affinity mask of this machine's process. It holds online CPUs alone, and may hold more
    than the file: in containers lxcfs shows as many CPUs as the quota grants, always the first ones.
    """
    directories = tuple(tree.numbered(CPU_DIRECTORY, "cpu"))
    online = parse_list(tree.read(CPU_DIRECTORY + "/online") or "")
    if not online:
        off = set(parse_list(tree.read(CPU_DIRECTORY + "/offline") or ""))
        online = tuple(
            cpu
            for cpu in directories
            if cpu not in off and tree.read(f"{CPU_DIRECTORY}/cpu{cpu}/online") != "0"
        )
    online = tuple(sorted({*online, *mask}))
    if not online:
        notes.append("no CPU is shown as online; CPU 0 is assumed")
        online = (0,)
    present = set(online)
    return online, tuple(cpu for cpu in directories if cpu not in present)


def _read_cores(
    tree: Tree, sharing: SharingReader, online: CPUs, notes: list[str]
) -> tuple[tuple[CPUs, ...], bool]:
    """The SMT siblings of each core, and whether they are known at all."""
    found = gather(online, lambda cpu: sharing.read(_topology(cpu), cpu, CORE))
    _note_contradiction(found, "SMT siblings", notes)
    if _are_amd_modules(tree, found.groups):
        return tuple((cpu,) for cpu in online), True
    if not found.without:
        return found.groups, True
    by_id, without = _group_by_ids(
        tree, found.without, ("physical_package_id", "die_id", "core_id")
    )
    known = bool(found.groups or by_id)
    if without:
        one = known and len(without) == 1
        what = f"{plural(len(without), 'CPU')} {_shorten(without)}" if known else "any CPU"
        counts = "it counts" if one else "each counts"
        notes.append(f"the SMT siblings of {what} are not known; {counts} as a core")
    singles = tuple((cpu,) for cpu in without)
    return tuple(sorted((*found.groups, *by_id, *singles))), known


def _are_amd_modules(tree: Tree, siblings: tuple[CPUs, ...]) -> bool:
    """Whether the SMT siblings are the two cores of an AMD module (family 21).

    They have their own integer units, L1 caches and core ids; hwloc counts them as cores too.
    """
    pair = next((group for group in siblings if len(group) > 1), None)
    if pair is None:
        return False
    ids = {tree.read_int(_topology(cpu) + "/core_id") for cpu in pair}
    if len(ids) != len(pair) or None in ids:
        return False
    fields = parse_cpuinfo(tree.read_start("/proc/cpuinfo"))
    return fields.get("vendor_id") == "AuthenticAMD" and fields.get("cpu family") == "21"


def _read_packages(
    tree: Tree,
    sharing: SharingReader,
    online: CPUs,
    nodes: tuple[NumaNode, ...],
    notes: list[str],
) -> tuple[Package, ...]:
    found = gather(online, lambda cpu: sharing.read(_topology(cpu), cpu, PACKAGE))
    _note_contradiction(found, "packages", notes)
    by_id, without = _group_by_ids(tree, found.without, ("physical_package_id",))
    # CPUs without any information are put into one package.
    rest = (without,) if without else ()
    groups = sorted((*found.groups, *by_id, *rest))
    packages = [Package(_package_id(tree, group[0]), group) for group in groups]
    return tuple(_mend_packages_cut_at_nodes(packages, nodes, notes))


def _mend_packages_cut_at_nodes(
    packages: list[Package], nodes: tuple[NumaNode, ...], notes: list[str]
) -> list[Package]:
    """Join packages of one id that are exactly NUMA nodes.

    With cluster-on-die or sub-NUMA clustering, some kernels split core_siblings by node. Ids that
    repeat within a node, or outside it (Itanium, s390 books), are different packages.
    """
    node_cpus = {node.cpus for node in nodes if node.cpus}
    cut = [package for package in packages if package.cpus in node_cpus and package.id is not None]
    ids = [package.id for package in packages]
    joined: dict[int | None, list[int]] = {}
    for package in cut:
        if ids.count(package.id) > 1 and ids.count(package.id) == sum(
            other.id == package.id for other in cut
        ):
            joined.setdefault(package.id, []).extend(package.cpus)
    if not joined:
        return packages
    notes.append("the kernel cuts packages at NUMA nodes; packages of one id are joined")
    kept = [package for package in packages if package.id not in joined]
    mended = [Package(id_, tuple(sorted(cpus))) for id_, cpus in joined.items()]
    return sorted((*kept, *mended), key=lambda package: package.cpus)


def _read_dies(
    sharing: SharingReader, online: CPUs, packages: tuple[CPUs, ...], notes: list[str]
) -> tuple[CPUs, ...]:
    """The dies, if any package has more than one."""
    if sharing.read(_topology(online[0]), online[0], DIE) is None:
        return ()
    found = gather(online, lambda cpu: sharing.read(_topology(cpu), cpu, DIE))
    # Architectures without dies show each CPU as a die.
    if found.without or all(len(die) == 1 for die in found.groups):
        return ()
    _note_contradiction(found, "dies", notes)
    return () if set(packages).issuperset(found.groups) else found.groups


def _read_clusters(
    sharing: SharingReader,
    cores: tuple[CPUs, ...],
    packages: tuple[CPUs, ...],
    dies: tuple[CPUs, ...],
    sample: tuple[CPUs, ...],
    notes: list[str],
) -> tuple[CPUs, ...]:
    """The clusters, unless they are the same as the cores, the dies or the packages.

    On x86 they usually are the cores, so a `sample` of cores is checked first.
    """
    first = cores[0][0]
    if sharing.read(_topology(first), first, CLUSTER) is None:
        return ()
    if all(sharing.read(_topology(core[0]), core[0], CLUSTER) == core for core in sample):
        return ()
    cpus = tuple(sorted(cpu for core in cores for cpu in core))
    found = gather(cpus, lambda cpu: sharing.read(_topology(cpu), cpu, CLUSTER))
    _note_contradiction(found, "clusters", notes)
    useless = any(set(level).issuperset(found.groups) for level in (cores, dies, packages))
    return () if useless or all(len(group) == 1 for group in found.groups) else found.groups


def _group_by_ids(tree: Tree, cpus: CPUs, names: tuple[str, ...]) -> tuple[tuple[CPUs, ...], CPUs]:
    """CPUs grouped by equal ids, for kernels that show ids but no siblings; and CPUs without ids.

    The last of `names` must be present and not -1. The others qualify it.
    """
    groups: dict[tuple[int | None, ...], list[int]] = {}
    without: list[int] = []
    for cpu in cpus:
        ids = tuple(tree.read_int(f"{_topology(cpu)}/{name}") for name in names)
        if ids[-1] is None or ids[-1] < 0:
            without.append(cpu)
        else:
            groups.setdefault(ids, []).append(cpu)
    return tuple(tuple(group) for group in groups.values()), tuple(without)


def _package_id(tree: Tree, cpu: int) -> int | None:
    id_ = tree.read_int(_topology(cpu) + "/physical_package_id")
    return None if id_ == -1 else id_


def _topology(cpu: int) -> str:
    return f"{CPU_DIRECTORY}/cpu{cpu}/topology"


def _note_contradiction(found: Groups, what: str, notes: list[str]) -> None:
    if found.contradictory:
        notes.append(f"CPUs contradict each other about {what}; the majority is followed")


def _shorten(cpus: CPUs) -> str:
    shown = ",".join(map(str, cpus[:8]))
    return shown if len(cpus) <= 8 else f"{shown},... ({len(cpus)} in all)"
