# SPDX-License-Identifier: Apache-2.0
"""Captured machines: writes and unpacks archives of the files that describe a machine.

A capture lets other machines plan for this one, and turns a bug report into a test. It contains no
serial numbers, host name or names of processes: control groups, which are often named after what
runs in them, are renamed, and only the masks of ``/proc/self/status`` are kept.
"""

from __future__ import annotations

import contextlib
import io
import lzma
import os
import re
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from xlaunch.errors import UsageError
from xlaunch.files import OutputKind, check_output, open_input, write_whole
from xlaunch.machine.gpus import DRIVERS, bound_devices
from xlaunch.machine.groups import CPU_DIRECTORY as CPU
from xlaunch.machine.limits import ControlGroups
from xlaunch.machine.sysfs import NODE_DIRECTORY as NODE
from xlaunch.machine.sysfs import UNKNOWN, read_architecture
from xlaunch.machine.tree import Tree, is_live, parse_list, scratch_directory
from xlaunch.text import format_cpu_list

SUFFIXES = (".tar.xz", ".tar.gz", ".tar")
MAX_BYTES = 1 << 30
"""Maximum unpacked size; no capture of a machine is larger."""
MEMBER_BYTES = 1 << 10
"""Counted for each member besides its content."""
MAX_DEPTH = 100
"""Maximum number of directories above a member."""
DAMAGE = (LookupError, ValueError, OverflowError, RecursionError)
"""What else tarfile raises for damaged members. **Ex.:** KeyError for a hard link to no member."""

SHARED_FILES = (
    *(f"{CPU}/{name}" for name in ("online", "offline", "possible", "present", "kernel_max")),
    *(f"{CPU}/{name}" for name in ("isolated", "nohz_full", "smt/active", "smt/control")),
    *(f"{NODE}/{name}" for name in ("online", "possible", "has_cpu", "has_memory")),
    *(f"/sys/devices/{name}/cpus" for name in ("cpu_core", "cpu_atom", "cpu_lowpower")),
    "/proc/meminfo",
)
CPU_FILES = (
    "online",
    "cpu_capacity",
    *(f"cpufreq/{name}" for name in ("cpuinfo_max_freq", "cpuinfo_min_freq", "base_frequency")),
    *(f"cpufreq/{name}" for name in ("scaling_driver", "related_cpus")),
    *(f"acpi_cppc/{name}" for name in ("highest_perf", "lowest_perf", "nominal_perf")),
    *(f"acpi_cppc/{name}" for name in ("lowest_freq", "nominal_freq", "reference_perf")),
    "regs/identification/midr_el1",
)
CACHE_FILES = (
    *("id", "level", "type", "size", "shared_cpu_list", "shared_cpu_map", "coherency_line_size"),
    *("number_of_sets", "ways_of_associativity", "physical_line_partition"),
)
POLICY_FILES = ("related_cpus", "cpuinfo_max_freq", "base_frequency")
NODE_FILES = ("cpulist", "cpumap", "meminfo", "distance")
GROUP_FILE = re.compile(
    r"(cpuset\.|effective_)?(cpus|mems)(\.effective|\.partition|\.exclusive)?"
    r"|cpuset\.effective_(cpus|mems)|cpu\.max|cpu\.cfs_(quota|period)_us"
    r"|memory\.(max|high|limit_in_bytes)|cgroup\.(controllers|type)"
)
PCI_FILES = ("class", "vendor", "device", "numa_node", "local_cpulist", "local_cpus")
PCI_CLASSES = ("0x02", "0x03", "0x12", "0x0108")
"""Network, display, accelerator, NVMe."""


def _is_capture(head: bytes) -> bool:
    """Whether an archive begins as ours do, with a directory or file of /sys or /proc."""
    try:
        start = lzma.LZMADecompressor().decompress(head, tarfile.BLOCKSIZE)
        return tarfile.TarInfo.frombuf(start, "utf-8", "strict").name.startswith(("sys/", "proc/"))
    except (lzma.LZMAError, EOFError, tarfile.TarError, ValueError):
        return False


CAPTURE = OutputKind("a capture of a machine", _is_capture)


def write_capture(path: str, root: str = "/", *, force: bool = False) -> None:
    """Write a capture of the machine under `root` to `path`, a ``.tar.xz``, whole or not at all.

    It holds no command line and no variable, so other users may read it. `force`: it may replace any file.
    Raises `UsageError` for a wrong name, if it cannot be written, and for a machine that shows no CPUs.
    """
    tree = Tree(root)
    if not path.endswith(".tar.xz"):
        raise UsageError(f"--capture {path}: a capture is a .tar.xz; write --capture {path}.tar.xz")
    if not tree.numbered(CPU, "cpu"):
        raise UsageError(f"--capture: {CPU} shows no CPUs to capture; is /sys hidden?")
    check_output(path, CAPTURE, option="--capture", force=force)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz") as archive:
        for directory in _directories(tree):
            member = tarfile.TarInfo(directory.lstrip("/"))
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(member)
        for name, text in _files(tree, live=is_live(root)):
            content = text.encode() + b"\n"
            member = tarfile.TarInfo(name.lstrip("/"))
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    try:
        write_whole(path, buffer.getvalue())
    except OSError as error:
        raise UsageError(f"--capture {path}: cannot write it: {error.strerror}") from None


@contextlib.contextmanager
def unpacked(path: str) -> Iterator[str]:
    """Unpack the capture `path` into a temporary directory, which is removed after the block.

    Members outside the directory, and anything but files, directories and links, are refused. Raises
    `UsageError` for what cannot be unpacked.
    """
    if not hasattr(tarfile, "data_filter"):
        raise UsageError(f"{path}: this Python cannot unpack archives safely; unpack it by hand")
    with scratch_directory() as directory:
        try:
            with open_input(path) as stream:
                content = io.BytesIO(stream.read(MAX_BYTES))  # a pipe cannot be read twice
            with tarfile.open(fileobj=content) as archive:
                _check_members(archive, path)
                archive.extractall(directory, filter="data")
        except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, *DAMAGE) as error:
            reason = str(error).partition("\n")[0].rstrip(":")
            raise UsageError(f"{path}: not a capture that can be unpacked: {reason}") from None
        except OSError as error:
            raise UsageError(f"{path}: cannot be unpacked: {error.strerror or error}") from None
        root = _root_within(directory)
        if not os.path.isdir(root + CPU):
            raise UsageError(
                f"{path}: holds no {CPU.lstrip('/')}; `xlaunch topology --capture` writes a capture"
            )
        yield root


def _check_members(archive: tarfile.TarFile, path: str) -> None:
    """Raise `UsageError` for more or deeper members than a capture has, before they take room."""
    total = 0
    for member in archive:
        total += MEMBER_BYTES + max(0, member.size)
        if total > MAX_BYTES or member.name.count("/") > MAX_DEPTH:
            raise UsageError(f"{path}: unpacks to more, or deeper, than any capture of a machine")


def _root_within(directory: str) -> str:
    """The directory itself, or its only subdirectory if the archive has the machine in one."""
    if not (Path(directory) / "sys").is_dir():
        inside = list(Path(directory).iterdir())
        if len(inside) == 1 and (inside[0] / "sys").is_dir():
            return str(inside[0])
    return directory


def _directories(tree: Tree) -> Iterator[str]:
    """Directories and links that matter by their name; links are captured as empty directories."""
    yield CPU.lstrip("/")
    if tree.has_directory(DRIVERS):
        yield DRIVERS
    yield from (f"{CPU}/cpu{cpu}" for cpu in tree.numbered(CPU, "cpu"))
    for node in tree.numbered(NODE, "node"):
        directory = f"{NODE}/node{node}"
        yield directory
        yield from (f"{directory}/cpu{cpu}" for cpu in tree.numbered(directory, "cpu"))
        for access in ("access0", "access1"):
            initiators = f"{directory}/{access}/initiators"
            yield from (f"{initiators}/node{n}" for n in tree.numbered(initiators, "node"))


def _files(tree: Tree, *, live: bool) -> Iterator[tuple[str, str]]:
    """Path and text of every file of a capture."""
    for path in _paths(tree):
        if (text := tree.read(path)) is not None:
            if live and path == f"{CPU}/online":  # the mask may hold more, see sysfs.read_topology
                text = format_cpu_list({*parse_list(text), *os.sched_getaffinity(0)})
            yield path, text
    architecture = read_architecture(tree, live=live)
    if architecture != UNKNOWN:
        yield "/proc/sys/kernel/arch", architecture
    cpuinfo = tree.read("/proc/cpuinfo") or ""
    # Boards with Arm processors show a serial number.
    yield "/proc/cpuinfo", re.sub(r"(?im)^(serial\s*:\s*)\S+$", r"\g<1>0000000000000000", cpuinfo)
    status = (tree.read("/proc/self/status") or "").splitlines()
    yield (
        "/proc/self/status",
        "\n".join(line for line in status if line.startswith(("Cpus_allowed", "Mems_allowed"))),
    )
    yield from _group_files(tree)


def _paths(tree: Tree) -> Iterator[str]:
    yield from SHARED_FILES
    for cpu in tree.numbered(CPU, "cpu"):
        directory = f"{CPU}/cpu{cpu}"
        yield from (f"{directory}/{name}" for name in CPU_FILES)
        for name in sorted(tree.names(directory + "/topology")):
            if name != "ppin":  # the processor's serial number
                yield f"{directory}/topology/{name}"
        for index in tree.numbered(directory + "/cache", "index"):
            yield from (f"{directory}/cache/index{index}/{name}" for name in CACHE_FILES)
    for policy in tree.numbered(CPU + "/cpufreq", "policy"):
        yield from (f"{CPU}/cpufreq/policy{policy}/{name}" for name in POLICY_FILES)
    for node in tree.numbered(NODE, "node"):
        yield from (f"{NODE}/node{node}/{name}" for name in NODE_FILES)
    bus = "/sys/bus/pci/devices"
    for device in sorted(tree.names(bus)):
        if (tree.read(f"{bus}/{device}/class") or "").startswith(PCI_CLASSES):
            yield from (f"{bus}/{device}/{name}" for name in PCI_FILES)
    for driver, device in bound_devices(tree):
        yield from (f"{DRIVERS}/{driver}/{device}/{name}" for name in PCI_FILES)


def _group_files(tree: Tree) -> Iterator[tuple[str, str]]:
    """The files of this process's control groups, whose names are replaced by generic ones."""
    groups = ControlGroups(tree)
    names: dict[str, str] = {}

    def rename(path: str) -> str:
        """``/user.slice/app-editor.scope`` as ``/group0/group1``."""
        return "/".join(
            names.setdefault(part, f"group{len(names)}") if part not in ("", "..") else part
            for part in path.split("/")
        )

    lines = []
    for line in (tree.read("/proc/self/cgroup") or "").splitlines():
        number, _, fields = line.partition(":")
        controllers, _, path = fields.partition(":")
        # Named hierarchies belong to service managers, and have no limits.
        if not controllers.startswith("name="):
            lines.append(f"{number}:{controllers}:{rename(path)}")
    yield "/proc/self/cgroup", "\n".join(lines)
    if (own_cpuset := tree.read("/proc/self/cpuset")) is not None:
        yield "/proc/self/cpuset", rename(own_cpuset)

    table = []
    for id_, mount in enumerate(groups.mounts, start=1):
        kind = "cgroup2" if mount.version == 2 else "cgroup"
        # Options with a value name programs and service managers.
        options = sorted(option for option in mount.controllers if "=" not in option)
        if not mount.prefixed:
            options = sorted({*options, "noprefix"})
        place = f"{rename(mount.root)} {mount.directory}"
        table.append(f"{id_} 0 0:{id_} {place} rw - {kind} {kind} {','.join(options) or 'rw'}")
    yield "/proc/self/mountinfo", "\n".join(table)

    seen: set[str] = set()
    for controller in ("cpuset", "cpu", "memory"):
        for levels in groups.enclosing(controller):
            for group in levels:
                below = group.directory.removeprefix(group.mount_directory)
                for name in sorted(tree.names(group.directory)):
                    source = f"{group.directory}/{name}"
                    if source not in seen and GROUP_FILE.fullmatch(name):
                        seen.add(source)
                        if (text := tree.read(source)) is not None:
                            yield f"{group.mount_directory}{rename(below)}/{name}", text
