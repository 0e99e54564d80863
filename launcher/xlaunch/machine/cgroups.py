# SPDX-License-Identifier: Apache-2.0
"""The control groups of this process, version 1 and 2, as directories to read.

``/proc/self/cgroup`` has the path of a group in its hierarchy, and the mount table says which part
of the hierarchy is mounted where. The two differ in containers and cgroup namespaces; a process can
only see its groups below the mount point.
"""

from __future__ import annotations

from typing import NamedTuple

from xlaunch.machine.tree import Tree

CPUSET_FILE_SYSTEM = "cpuset"
"""The file system type before control groups: a cpuset hierarchy, file names without a prefix."""


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
        """The path of a controller's file."""
        return (
            f"{self.directory}/{controller}.{name}" if self.prefixed else f"{self.directory}/{name}"
        )


class ControlGroups:
    """The control groups of this process. The tables are read once: a host has many mounts."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.mounts = _mounts(tree)
        self._paths = _own_paths(tree)

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
    directories = [f"{mount.directory}/{below}"] if below else []
    while below := below.rpartition("/")[0]:
        directories.append(f"{mount.directory}/{below}")
    directories.append(mount.directory)
    return [
        ControlGroup(mount.version, directory, mount.prefixed, mount.directory)
        for directory in directories
    ]


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
    root, directory = _unescape(root), _unescape(directory).rstrip("/")
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
    if "\\" not in path:
        return path
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, character)
    return path
