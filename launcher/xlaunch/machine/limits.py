# SPDX-License-Identifier: Apache-2.0
"""What this process may use of a machine: affinity mask, cpusets, CPU quotas, memory limits, huge pages.

The limits but for the mask come from its control groups, of version 1 and 2. ``/proc/self/cgroup`` has the path of a
group in its hierarchy, and the mount table says which part of the hierarchy is mounted where. The two
differ in containers and cgroup namespaces; a process can only see its groups below the mount point.
"""

from __future__ import annotations

import enum
import os
from typing import NamedTuple

from xlaunch.machine.sysfs import read_memory_total
from xlaunch.machine.topology import SLURM_COUNT, CPUs, Limits, Topology
from xlaunch.machine.tree import Tree, is_live, parse_fields, parse_list, parse_mask, read_file
from xlaunch.text import format_cpu_list

CPUSET_FILE_SYSTEM = "cpuset"
"""The file system type before control groups: a cpuset hierarchy, file names without a prefix."""
UNLIMITED_BYTES = 1 << 62
"""Version 1 writes "no limit" as the largest whole number of pages, a little below 2**63."""

# The set in force comes first: the other one is what was requested, and may be empty or contain
# offline CPUs.
CPUSET_CPUS = {2: ("cpus.effective", "cpus"), 1: ("effective_cpus", "cpus")}
CPUSET_MEMS = {2: ("mems.effective", "mems"), 1: ("effective_mems", "mems")}

VERSION_1_NAMES = {
    ("memory", "max"): "limit_in_bytes",
    ("memory", "current"): "usage_in_bytes",
    ("memory", "peak"): "max_usage_in_bytes",
    ("memory", "events"): "oom_control",
}
"""What version 1 calls files of version 2."""


class Mount(NamedTuple):
    """A mounted hierarchy of control groups."""

    version: int
    """1 or 2; 1 for the file system type before control groups."""
    controllers: frozenset[str]
    """Controllers of version 1; empty for version 2, which has all."""
    root: str
    """The group that the mount point shows. **Ex.:** ``/docker/3f9a`` in a container."""
    directory: str
    """The mount point."""
    prefixed: bool
    """Whether files are called ``cpuset.cpus`` rather than ``cpus``."""


class ControlGroup(NamedTuple):
    """One level of the hierarchy above this process."""

    version: int
    directory: str
    """**Ex.:** ``/sys/fs/cgroup/batch/job1``."""
    prefixed: bool
    mount_directory: str
    """Where the hierarchy is mounted. **Ex.:** ``/sys/fs/cgroup``."""

    def file(self, controller: str, name: str) -> str:
        """The path of a controller's file, whose name is that of version 2 where both have one."""
        if self.version == 1:
            name = VERSION_1_NAMES.get((controller, name), name)
        return (
            f"{self.directory}/{controller}.{name}" if self.prefixed else f"{self.directory}/{name}"
        )


class ControlGroups:
    """The control groups of this process. The tables are read once: a host has many mounts."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.mounts = _mounts(tree)
        self._paths = _own_paths(tree)

    def all_enclosing(self, controller: str) -> list[ControlGroup]:
        """The groups of this process in all hierarchies with `controller`."""
        return [group for levels in self.enclosing(controller) for group in levels]

    def enclosing(self, controller: str) -> list[list[ControlGroup]]:
        """The groups of this process in each hierarchy with `controller`, innermost first.

        There are several hierarchies if versions 1 and 2 are mounted together. A controller is in
        one of them; its files do not exist in the other.
        """
        hierarchies: list[list[ControlGroup]] = []
        for mount in self.mounts:
            if mount.version == 1 and controller not in mount.controllers:
                continue
            path = self._paths.get("" if mount.version == 2 else controller)
            if path is None:
                continue
            levels = _levels(self._tree, mount, path)
            if levels not in hierarchies:
                hierarchies.append(levels)
        return hierarchies


def read_counters(tree: Tree, path: str) -> dict[str, int]:
    """The lines ``name number`` of a file such as ``cpu.stat``; empty if it cannot be read."""
    rows = [line.split() for line in (tree.read(path) or "").splitlines()]
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdecimal()}


def _levels(tree: Tree, mount: Mount, path: str) -> list[ControlGroup]:
    """The directories from the process's group up to the mount point."""
    below = _below_mount(path, mount.root)
    # The path may be outside the mounted part: begin where directories exist.
    while below and not tree.has_directory(f"{mount.directory}/{below}"):
        below = below.rpartition("/")[0]
    levels = []
    while True:
        directory = f"{mount.directory}/{below}" if below else mount.directory
        levels.append(ControlGroup(mount.version, directory, mount.prefixed, mount.directory))
        if not below:
            return levels
        below = below.rpartition("/")[0]


def _below_mount(path: str, mount_root: str) -> str:
    """The part of `path` below the group that is mounted; empty when it is that group.

    **Ex.:** ``/docker/3f9a/sub`` under a mount of ``/docker/3f9a`` is ``sub``. In a cgroup
    namespace both are relative to the namespace; ``/..`` is outside it, and cannot be followed.
    """
    path = path.strip("/")
    root = mount_root.strip("/")
    if root and (path == root or path.startswith(root + "/")):
        path = path[len(root) :].strip("/")
    return "" if ".." in path.split("/") else path


def _own_paths(tree: Tree) -> dict[str, str]:
    """The path of this process by controller; that of version 2 under the empty name."""
    paths: dict[str, str] = {}
    for line in (tree.read("/proc/self/cgroup") or "").splitlines():
        number, _, fields = line.partition(":")
        names, colon, path = fields.partition(":")
        if not colon:
            continue
        if number == "0" and not names:
            paths[""] = path
        for name in names.split(","):
            if name:
                paths[name] = path
    if "cpuset" not in paths and (path := tree.read("/proc/self/cpuset") or ""):
        # Kernels before control groups, and the path in version 2 where there is no other.
        paths["cpuset"] = path
        if not paths.keys() - {"cpuset"}:
            paths.setdefault("", path)
    return paths


def _mounts(tree: Tree) -> list[Mount]:
    """Every mounted hierarchy of control groups, from the best table available."""
    mounts = _from_mountinfo(tree.read("/proc/self/mountinfo") or "")
    if not mounts:
        mounts = _from_mounts(tree.read("/proc/self/mounts") or tree.read("/proc/mounts") or "")
    return mounts or _from_convention(tree)


def _from_mountinfo(text: str) -> list[Mount]:
    """proc_pid_mountinfo(5): ``36 35 98:0 /root /mount/point options... - type source superoptions``."""
    mounts = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        if not after.startswith(("cgroup", CPUSET_FILE_SYSTEM)):
            continue
        left, right = before.split(), after.split()
        if len(left) >= 5 and len(right) >= 3:
            mounts.append(_mount(right[0], right[2], root=left[3], directory=left[4]))
    return [mount for mount in mounts if mount]


def _from_mounts(text: str) -> list[Mount]:
    """proc_pid_mounts(5): ``source /mount/point type options 0 0``; the mounted part is missing."""
    lines = [line.split() for line in text.splitlines()]
    mounts = [
        _mount(line[2], line[3], root="/", directory=line[1]) for line in lines if len(line) > 3
    ]
    return [mount for mount in mounts if mount]


def _mount(kind: str, options: str, *, root: str, directory: str) -> Mount | None:
    if "\\" in root + directory:
        root, directory = _unescape(root), _unescape(directory)
    directory = directory.rstrip("/")
    names = frozenset(options.split(","))
    if kind == "cgroup2":
        return Mount(2, frozenset(), root, directory, prefixed=True)
    if kind == "cgroup":
        return Mount(1, names, root, directory, prefixed="noprefix" not in names)
    if kind == CPUSET_FILE_SYSTEM:
        return Mount(1, frozenset({"cpuset"}), root, directory, prefixed=False)
    return None


def _from_convention(tree: Tree) -> list[Mount]:
    """The usual mount points, for a captured tree without a mount table."""
    base = "/sys/fs/cgroup"
    if tree.read(base + "/cgroup.controllers") is not None:
        return [Mount(2, frozenset(), "/", base, prefixed=True)]
    return [
        Mount(1, frozenset(name.split(",")), "/", f"{base}/{name}", prefixed=True)
        for name in sorted(tree.names(base))
        if not {"cpuset", "cpu", "memory"}.isdisjoint(name.split(","))
    ]


def _unescape(path: str) -> str:
    r"""A path of a mount table: white space and backslashes are octal, as in ``my\040disk``."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, character)
    return path


def read_limits(root: str, topology: Topology) -> Limits:
    """What the calling process may use; in a captured tree, what the captured process might use.

    A limit that would leave no online CPU is ignored: a captured tree may be inconsistent.
    """
    tree = Tree(root)
    groups = ControlGroups(tree)
    allowed = topology.online_cpus
    narrowed_by: list[str] = []
    narrowed_via: list[str] = []

    for kind, cpus, group in _cpu_limits(tree, groups, live=is_live(root)):
        inside = frozenset(cpus)
        narrowed = tuple(cpu for cpu in allowed if cpu in inside)
        if narrowed and len(narrowed) < len(allowed):
            allowed = narrowed
            where = f" ({_describe(group)})" if group else ""
            narrowed_by.append(f"{kind} {format_cpu_list(cpus)}{where}")
            via = kind
            if group is not None:
                version = f"cgroup v{group.version} " if group.prefixed else ""
                via = f"{version}{kind} at {group.mount_directory}"
            narrowed_via.append(via)

    quotas = [
        (quota, _describe(group))
        for group in groups.all_enclosing("cpu")
        if (quota := read_cpu_quota(tree, group)) is not None
    ]
    if is_live(root):
        quotas += _slurm_quota(topology, allowed)
    quota, quota_source = _tightest(quotas)
    memory, memory_source = _tightest(_memory_limits(tree, groups))
    return Limits(
        allowed_cpus=allowed,
        allowed_nodes=_allowed_nodes(tree, groups, topology),
        narrowed_by=tuple(narrowed_by),
        cpu_quota=quota,
        cpu_quota_source=quota_source,
        memory_limit_bytes=None if memory is None else int(memory),
        memory_limit_source=memory_source,
        narrowed_via=tuple(narrowed_via),
        memory_total_bytes=read_memory_total(tree),
    )


def usable_memory_bytes(limits: Limits) -> int | None:
    """The memory of the machine or its limit, whichever is less; None if neither is known."""
    sizes = (limits.memory_limit_bytes, limits.memory_total_bytes)
    return min([size for size in sizes if size is not None], default=None)


def _cpu_limits(
    tree: Tree, groups: ControlGroups, *, live: bool
) -> list[tuple[str, CPUs, ControlGroup | None]]:
    """The sets of CPUs that confine this process: kind, CPUs, and the group that sets it."""
    limits: list[tuple[str, CPUs, ControlGroup | None]] = [
        ("cpuset", *cpus_and_group)
        for levels in groups.enclosing("cpuset")
        if (cpus_and_group := _cpuset(tree, levels, CPUSET_CPUS))
    ]
    mask = tuple(sorted(os.sched_getaffinity(0))) if live else _status_list(tree, "Cpus_allowed")
    if mask:
        limits.append(("affinity mask", mask, None))
    return limits


def _cpuset(
    tree: Tree, levels: list[ControlGroup], names: dict[int, tuple[str, str]]
) -> tuple[CPUs, ControlGroup] | None:
    """The set in force and the group that sets it; None if no group has one.

    The kernel keeps the innermost effective set within all outer ones, except for CPUs that a
    partition took from its parents; so the outer ones must not be intersected. A set is empty if the
    group inherits, and absent if the controller is not enabled: then the next one counts.
    """
    for level, group in enumerate(levels):
        for name in names[group.version]:
            if numbers := parse_list(tree.read(group.file("cpuset", name)) or ""):
                return numbers, _origin(tree, levels[level:], name, numbers)
    return None


def _origin(tree: Tree, levels: list[ControlGroup], name: str, numbers: CPUs) -> ControlGroup:
    """The outermost of `levels` with the same set, which is where it was limited."""
    origin = levels[0]
    for group in levels[1:]:
        if parse_list(tree.read(group.file("cpuset", name)) or "") != numbers:
            break
        origin = group
    return origin


def _allowed_nodes(tree: Tree, groups: ControlGroups, topology: Topology) -> tuple[int, ...]:
    nodes = tuple(node.id for node in topology.numa_nodes)
    sets = [
        nodes_and_group[0]
        for levels in groups.enclosing("cpuset")
        if (nodes_and_group := _cpuset(tree, levels, CPUSET_MEMS))
    ]
    sets.append(_status_list(tree, "Mems_allowed"))
    for allowed in sets:
        common = tuple(node for node in nodes if node in allowed)
        nodes = common or nodes
    return nodes


def _status_list(tree: Tree, name: str) -> CPUs:
    """A list of ``/proc/self/status``; old kernels have the mask only."""
    fields = parse_fields(tree.read("/proc/self/status") or "")
    return parse_list(fields.get(name + "_list", "")) or parse_mask(fields.get(name, "0"))


def read_cpu_quota(tree: Tree, group: ControlGroup) -> float | None:
    """The CPU quota of one control group, in CPUs; None if it has none."""
    if group.version == 2:
        fields = (tree.read(group.file("cpu", "max")) or "").split()
    else:
        fields = [
            tree.read(group.file("cpu", name)) or "" for name in ("cfs_quota_us", "cfs_period_us")
        ]
    # "max" and -1 are no limit; a period that is missing is the kernel's 100 ms.
    if not fields or not fields[0].isdecimal() or not int(fields[0]):
        return None
    period = fields[1] if len(fields) > 1 and fields[1].isdecimal() else "100000"
    return int(fields[0]) / (int(period) or 100000)


def _slurm_quota(topology: Topology, allowed: CPUs) -> list[tuple[float, str]]:
    """The CPUs that Slurm counts for this job here, where it confines the job to none (TaskPlugin=task/none).

    It counts cores or SMT siblings, as its administrator chose: only fewer CPUs than cores are a limit.
    """
    count = os.environ.get(SLURM_COUNT, "")
    members = frozenset(allowed)
    cores = sum(not members.isdisjoint(core) for core in topology.cores)
    if not count.isdecimal() or not 0 < int(count) < cores:
        return []
    return [(float(count), SLURM_COUNT)]


def _memory_limits(tree: Tree, groups: ControlGroups) -> list[tuple[float, str]]:
    """The memory limits of all levels, in bytes, each with its group."""
    limits: list[tuple[float, str]] = []
    for group in groups.all_enclosing("memory"):
        # At memory.high the kernel slows a group down and reclaims its pages, before memory.max.
        for name in ("max", "high"):
            text = tree.read(group.file("memory", name)) or ""
            if text.isdecimal() and int(text) < UNLIMITED_BYTES:
                limits.append((int(text), _describe(group)))
    return limits


def _tightest(limits: list[tuple[float, str]]) -> tuple[float | None, str | None]:
    return min(limits, key=lambda limit: limit[0], default=(None, None))


def _describe(group: ControlGroup) -> str:
    return f"cgroup v{group.version} {group.directory}" if group.prefixed else group.directory


SYSTEM_MODE_FILE = "/sys/kernel/mm/transparent_hugepage/enabled"


class SystemMode(enum.Enum):
    """What the kernel does about huge pages (Documentation/admin-guide/mm/transhuge.rst)."""

    ALWAYS = "always"
    MADVISE = "madvise"
    NEVER = "never"
    UNKNOWN = "unknown"


def system_mode(path: str = SYSTEM_MODE_FILE) -> SystemMode:
    """The mode in brackets: ``always [madvise] never``."""
    text = (read_file(path) or b"").decode(errors="replace")
    mode = text.partition("[")[2].partition("]")[0]
    return next((member for member in SystemMode if member.value == mode), SystemMode.UNKNOWN)
