# SPDX-License-Identifier: Apache-2.0
"""The hardware from sysfs and procfs, of this machine or a captured tree: CPUs, NUMA nodes, architecture.

The kernel's documentation of the files: Documentation/admin-guide/cputopology.rst and
Documentation/ABI/stable/sysfs-devices-node. If files are missing or contradictory, this follows
hwloc, and adds a note.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection

from xlaunch.machine.groups import (
    CPU_DIRECTORY,
    CacheReader,
    Groups,
    SharingReader,
    gather,
    read_core_kinds,
    sample_cores,
)
from xlaunch.machine.topology import CPUs, NumaNode, Package, Topology
from xlaunch.machine.tree import Tree, is_live, parse_fields, parse_list, parse_mask
from xlaunch.text import plural

NODE_DIRECTORY = "/sys/devices/system/node"
UNKNOWN = "unknown"
"""An architecture that no file names."""
MIN_SHARE = 0.5
"""Minimum share of the machine's memory that nodes must list to be believed."""

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
    nodes, node_notes = _read_numa_nodes(tree, online)
    packages = _read_packages(tree, sharing, online, nodes, notes)
    package_cpus = tuple(package.cpus for package in packages)
    dies = _read_dies(sharing, online, package_cpus, notes)

    caches = CacheReader(tree, sharing, cores)
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
    siblings = gather(online, lambda cpu: sharing.read(_topology(cpu), cpu, CORE))
    _note_contradiction(siblings, "SMT siblings", notes)
    if _are_amd_modules(tree, siblings.groups):
        return tuple((cpu,) for cpu in online), True
    if not siblings.without:
        return siblings.groups, True
    by_id, without = _group_by_ids(
        tree, siblings.without, ("physical_package_id", "die_id", "core_id")
    )
    are_known = bool(siblings.groups or by_id)
    if without:
        is_single = are_known and len(without) == 1
        cpus = f"{plural(len(without), 'CPU')} {_shorten(without)}" if are_known else "any CPU"
        counts = "it counts" if is_single else "each counts"
        notes.append(f"the SMT siblings of {cpus} are not known; {counts} as a core")
    singles = tuple((cpu,) for cpu in without)
    return tuple(sorted((*siblings.groups, *by_id, *singles))), are_known


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
    fields = parse_fields(tree.read_start("/proc/cpuinfo"))
    return fields.get("vendor_id") == "AuthenticAMD" and fields.get("cpu family") == "21"


def _read_packages(
    tree: Tree, sharing: SharingReader, online: CPUs, nodes: tuple[NumaNode, ...], notes: list[str]
) -> tuple[Package, ...]:
    packages_by_file = gather(online, lambda cpu: sharing.read(_topology(cpu), cpu, PACKAGE))
    _note_contradiction(packages_by_file, "packages", notes)
    by_id, without = _group_by_ids(tree, packages_by_file.without, ("physical_package_id",))
    # CPUs without any information are put into one package.
    remaining = (without,) if without else ()
    groups = sorted((*packages_by_file.groups, *by_id, *remaining))
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
    dies = gather(online, lambda cpu: sharing.read(_topology(cpu), cpu, DIE))
    # Architectures without dies show each CPU as a die.
    if dies.without or all(len(die) == 1 for die in dies.groups):
        return ()
    _note_contradiction(dies, "dies", notes)
    return () if set(packages).issuperset(dies.groups) else dies.groups


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
    clusters = gather(cpus, lambda cpu: sharing.read(_topology(cpu), cpu, CLUSTER))
    _note_contradiction(clusters, "clusters", notes)
    useless = any(set(level).issuperset(clusters.groups) for level in (cores, dies, packages))
    return () if useless or all(len(group) == 1 for group in clusters.groups) else clusters.groups


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


def _note_contradiction(groups: Groups, what: str, notes: list[str]) -> None:
    if groups.contradictory:
        notes.append(f"CPUs contradict each other about {what}; the majority is followed")


def _shorten(cpus: CPUs) -> str:
    shown = ",".join(map(str, cpus[:8]))
    return shown if len(cpus) <= 8 else f"{shown},... ({len(cpus)} in all)"


def _read_numa_nodes(tree: Tree, online: CPUs) -> tuple[tuple[NumaNode, ...], list[str]]:
    """Every node that the kernel lists, by id, and notes on inconsistent files."""
    ids = tree.numbered(NODE_DIRECTORY, "node")
    notes: list[str] = []
    cpus_of = {node: _node_cpus(tree, node, frozenset(online)) for node in ids}
    if ids and not any(cpus_of.values()):
        cpus_of = _cpus_by_links(tree, ids, online)
    _settle_doubles(cpus_of, notes)

    distances = {node: _distances(tree, node) for node in ids}
    if any(distances[node] and len(distances[node]) != len(ids) for node in ids):
        notes.append("NUMA distances do not match the number of nodes; they are ignored")
        distances = dict.fromkeys(ids, ())

    nodes = tuple(
        NumaNode(
            id=node,
            cpus=cpus_of[node],
            memory_bytes=_memory_bytes(tree, node),
            distances=distances[node],
            local_cpus=() if cpus_of[node] else _local_cpus(tree, node, cpus_of, distances[node]),
        )
        for node in ids
    )
    return _believed_sizes(nodes, read_memory_total(tree), notes), notes


def _node_cpus(tree: Tree, node: int, online: frozenset[int]) -> CPUs:
    directory = f"{NODE_DIRECTORY}/node{node}"
    if (text := tree.read(directory + "/cpulist")) is not None:
        cpus = parse_list(text)
    elif (text := tree.read(directory + "/cpumap")) is not None:
        cpus = parse_mask(text)
    else:
        cpus = tuple(tree.numbered(directory, "cpu"))
    return tuple(cpu for cpu in cpus if cpu in online)


def _cpus_by_links(tree: Tree, ids: list[int], online: CPUs) -> dict[int, CPUs]:
    """The CPUs of each node, from the links to nodes in CPU directories."""
    members: dict[int, list[int]] = {node: [] for node in ids}
    for cpu in online:
        for node in tree.numbered(f"{CPU_DIRECTORY}/cpu{cpu}", "node"):
            if node in members:
                members[node].append(cpu)
    return {node: tuple(cpus) for node, cpus in members.items()}


def read_memory_total(tree: Tree) -> int | None:
    """MemTotal of the machine in bytes; None when unknown."""
    text = parse_fields(tree.read_start("/proc/meminfo")).get("MemTotal", "").partition(" ")[0]
    return int(text) * 1024 if text.isdecimal() else None


def _believed_sizes(
    nodes: tuple[NumaNode, ...], total: int | None, notes: list[str]
) -> tuple[NumaNode, ...]:
    """The nodes with the machine's memory if their own files list much less.

    A virtual machine that got memory after boot may list the first part only.
    """
    filled = [node for node in nodes if node.memory_bytes]
    listed_bytes = sum([node.memory_bytes or 0 for node in filled])
    unknown = any(node.memory_bytes is None for node in nodes)
    if total is None or not filled or unknown or listed_bytes >= total * MIN_SHARE:
        return nodes
    size = total if len(filled) == 1 else None
    notes.append(
        f"NUMA nodes list {listed_bytes / 2**30:.1f} GiB of the machine's {total / 2**30:.1f} GiB; "
        + ("the latter counts" if size else "how much each node has is not known")
    )
    return tuple([node._replace(memory_bytes=size) if node in filled else node for node in nodes])


def _settle_doubles(cpus_of: dict[int, CPUs], notes: list[str]) -> None:
    """Assign a CPU that several nodes claim to the first of them."""
    seen: set[int] = set()
    for node, cpus in cpus_of.items():
        if not seen.isdisjoint(cpus):
            notes.append(f"NUMA node {node} claims CPUs of another node; they stay with the first")
            cpus_of[node] = tuple(cpu for cpu in cpus if cpu not in seen)
        seen.update(cpus)


def _memory_bytes(tree: Tree, node: int) -> int | None:
    text = tree.read(f"{NODE_DIRECTORY}/node{node}/meminfo") or ""
    match = re.search(r"MemTotal:\s*([0-9]+)\b", text)
    return int(match[1]) * 1024 if match else None


def _distances(tree: Tree, node: int) -> tuple[int, ...]:
    fields = (tree.read(f"{NODE_DIRECTORY}/node{node}/distance") or "").split()
    return tuple(map(int, fields)) if all(field.isdecimal() for field in fields) else ()


def _local_cpus(
    tree: Tree, node: int, cpus_of: dict[int, CPUs], distances: tuple[int, ...]
) -> CPUs:
    """The CPUs nearest to a node without CPUs, as hwloc determines them; empty if all are equally near.

    First the initiators that the firmware names (``access1`` are CPUs, ``access0`` may be devices
    too), then the nodes at the smallest distance, unless all have it.
    """
    for access in ("access1", "access0"):
        nearest = tree.numbered(f"{NODE_DIRECTORY}/node{node}/{access}/initiators", "node")
        if cpus := _union(cpus_of, nearest):
            return cpus
    if not distances:
        return ()
    to_others = {other: d for other, d in zip(cpus_of, distances, strict=True) if other != node}
    own = distances[list(cpus_of).index(node)]
    smallest = min(to_others.values(), default=0)
    nearest = [other for other, distance in to_others.items() if distance == smallest]
    if smallest <= own or len(nearest) == len(to_others):
        return ()
    return _union(cpus_of, nearest)


def _union(cpus_of: dict[int, CPUs], nodes: list[int]) -> CPUs:
    return tuple(sorted({cpu for node in nodes for cpu in cpus_of.get(node, ())}))


def read_architecture(tree: Tree, *, live: bool) -> str:
    """The name that uname gives; for a captured tree, the kernel's file's, else a guess."""
    if live:
        return os.uname().machine
    return (
        tree.read("/proc/sys/kernel/arch")  # since Linux 6.1
        or _from_cpuinfo(tree.read("/proc/cpuinfo") or "")
        or _from_sysfs(tree)
        or UNKNOWN
    )


def _from_cpuinfo(text: str) -> str | None:
    """The architecture from fields that only its kernel prints."""
    # Reversed, so that the first counts: 32-bit Arm kernels write "Processor" before "processor".
    fields = {name.lower(): value for name, value in reversed(parse_fields(text[:16384]).items())}
    if "flags" in fields:
        # Only 32-bit kernels report the bug of the first Pentium, also on 64-bit processors.
        is_64_bit = "fdiv_bug" not in fields and " lm " in f" {fields['flags']} "
        return "x86_64" if is_64_bit else "i686"
    if fields.get("vendor_id", "").startswith("IBM/S390"):
        return "s390x"
    if fields.get("arch") == "IA-64":
        return "ia64"
    if "cpu implementer" in fields or "ARM" in fields.get("processor", ""):
        features = fields.get("features", "").split()
        return "armv7l" if {"half", "thumb", "swp"}.intersection(features) else "aarch64"
    if isa := fields.get("isa"):
        for beginning, name in (("rv64", "riscv64"), ("rv32", "riscv32")):
            if isa.startswith(beginning):
                return name
        return "loongarch64" if "loongarch64" in isa else None
    if "loongson-64bit" in fields.get("cpu family", "").lower():
        return "loongarch64"
    cpu = fields.get("cpu", "")
    if "sparc" in cpu.lower():
        return "sparc64"
    if cpu.startswith("POWER"):
        # The byte order is nowhere in cpuinfo; systems for POWER9 and later are little-endian.
        generation = "".join(ch for ch in cpu[5:7] if ch.isdecimal())
        return "ppc64le" if generation and int(generation) >= 9 else "ppc64"
    if "platform" in fields and "machine" in fields:
        return "ppc"
    return None


def _from_sysfs(tree: Tree) -> str | None:
    """The architecture from an attribute that only its kernel fills in.

    ``physical_line_partition`` is x86's alone among the attributes of caches, and Itanium was the
    only one with a level 2 cache for instructions.
    """
    first = f"{CPU_DIRECTORY}/cpu{next(iter(tree.numbered(CPU_DIRECTORY, 'cpu')), 0)}"
    if tree.read(first + "/regs/identification/midr_el1"):
        return "aarch64"
    if tree.read(first + "/topology/book_id"):
        return "s390x"
    if tree.read(first + "/topology/ppin"):
        return "x86_64"
    for index in tree.numbered(first + "/cache", "index"):
        directory = f"{first}/cache/index{index}"
        if tree.read(directory + "/physical_line_partition"):
            return "x86_64"
        if (
            tree.read(directory + "/level") == "2"
            and tree.read(directory + "/type") == "Instruction"
        ):
            return "ia64"
    return None


def glibc_version() -> tuple[int, int] | None:
    """The system's glibc version; None with another C library."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        major, minor = version.split(".")[:2]
    except (ValueError, OSError, AttributeError):
        return None
    return (int(major), int(minor)) if name == "glibc" else None
