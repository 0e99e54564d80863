# SPDX-License-Identifier: Apache-2.0
"""Where this process stands in the control groups, version 1 and 2, as folders to read.

A control group is named twice: ``/proc/self/cgroup`` has its path in the hierarchy, and the mount
table tells which part of the hierarchy is mounted where. Containers and cgroup namespaces make
the two differ; what a process can see of its own groups is from the mount point downwards.
"""

from __future__ import annotations

from typing import NamedTuple

from xlaunch.machine.files import Tree

CPUSET_FILE_SYSTEM = "cpuset"
"""The file system type before control groups: a cpuset hierarchy with file names without prefix."""


class Mount(NamedTuple):
    """A mounted hierarchy of control groups."""

    version: int
    """1 or 2; cpusets of their own count as 1."""
    controllers: frozenset[str]
    """Of version 1; empty for version 2, which has them all."""
    root: str
    """The group that the mount point shows. **Ex.:** ``/docker/3f9a`` in a container."""
    folder: str
    """The mount point."""
    prefixed: bool
    """Whether files are called ``cpuset.cpus`` rather than ``cpus``."""


class Group(NamedTuple):
    """One level of a hierarchy that holds this process."""

    version: int
    folder: str
    """**Ex.:** ``/sys/fs/cgroup/batch/job1``."""
    prefixed: bool
    mount_folder: str
    """Where the hierarchy is mounted. **Ex.:** ``/sys/fs/cgroup``."""

    def file(self, controller: str, name: str) -> str:
        """The path of a controller's file."""
        return f"{self.folder}/{controller}.{name}" if self.prefixed else f"{self.folder}/{name}"


class ControlGroups:
    """The control groups of this process; the tables are read once, for a host has many mounts."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.mounts = _mounts(tree)
        self._paths = _own_paths(tree)

    def enclosing(self, controller: str) -> list[list[Group]]:
        """For each hierarchy with `controller`, the groups that hold this process, innermost first.

        There is more than one where versions 1 and 2 are mounted together. A controller sits in
        one of them; the files of the other simply do not exist.
        """
        hierarchies: list[list[Group]] = []
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


def _levels(tree: Tree, mount: Mount, path: str) -> list[Group]:
    """The folders from the process's group up to the mount point."""
    below = _below_mount(path, mount.root)
    # A path from outside our view of the hierarchy leads nowhere: begin where folders exist.
    while below and not tree.has_folder(f"{mount.folder}/{below}"):
        below = below.rpartition("/")[0]
    folders = [f"{mount.folder}/{below}"] if below else []
    while below := below.rpartition("/")[0]:
        folders.append(f"{mount.folder}/{below}")
    folders.append(mount.folder)
    return [Group(mount.version, folder, mount.prefixed, mount.folder) for folder in folders]


def _below_mount(path: str, mount_root: str) -> str:
    """The part of `path` below the group that is mounted; empty when it is that group.

    **Ex.:** ``/docker/3f9a/sub`` under a mount of ``/docker/3f9a`` is ``sub``. In a cgroup
    namespace both are relative to the namespace; ``/..`` is outside of it, and cannot be followed.
    """
    path = path.strip("/")
    root = mount_root.strip("/")
    if root and (path == root or path.startswith(root + "/")):
        path = path[len(root) :].strip("/")
    return "" if ".." in path.split("/") else path


def _own_paths(tree: Tree) -> dict[str, str]:
    """The path of the process by controller; that of version 2 by the empty name."""
    paths: dict[str, str] = {}
    for line in (tree.read("/proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        names, colon, path = rest.partition(":")
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
    """Every mounted hierarchy of control groups, by the best table that there is."""
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
            mounts.append(_mount(right[0], right[2], root=left[3], folder=left[4]))
    return [mount for mount in mounts if mount]


def _from_mounts(text: str) -> list[Mount]:
    """proc_pid_mounts(5): ``source /mount/point type options 0 0``; the mounted part is not told."""
    lines = [line.split() for line in text.splitlines()]
    mounts = [_mount(line[2], line[3], root="/", folder=line[1]) for line in lines if len(line) > 3]
    return [mount for mount in mounts if mount]


def _mount(kind: str, options: str, *, root: str, folder: str) -> Mount | None:
    root, folder = _unescape(root), _unescape(folder).rstrip("/")
    names = frozenset(options.split(","))
    if kind == "cgroup2":
        return Mount(2, frozenset(), root, folder, prefixed=True)
    if kind == "cgroup":
        return Mount(1, names, root, folder, prefixed="noprefix" not in names)
    if kind == CPUSET_FILE_SYSTEM:
        return Mount(1, frozenset({"cpuset"}), root, folder, prefixed=False)
    return None


def _from_convention(tree: Tree) -> list[Mount]:
    """The usual places, for a captured tree without a mount table."""
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
    if "\\" not in path:
        return path
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, character)
    return path
