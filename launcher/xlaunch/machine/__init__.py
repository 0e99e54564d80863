# SPDX-License-Identifier: Apache-2.0
"""The machine: its hardware, and what this process may use of it.

``read_machine()`` reads this machine, ``read_machine("captured/")`` a captured tree of another.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from xlaunch.errors import UsageError
from xlaunch.machine.topology import Limits, Machine, Package, Topology
from xlaunch.machine.tree import Tree, is_live, scratch_directory
from xlaunch.text import name_numbers

__all__ = ["machine_of", "read_machine"]


def read_machine(root: str = "/") -> Machine:
    """The machine under `root`: this one, or one whose sysfs and procfs were captured there.

    Without Linux, this machine is one package of cores that are each a CPU. Where /sys is hidden, as
    in many sandboxes, the affinity mask says which CPUs there are.
    Raises `UsageError` when another `root` does not contain a machine.
    """
    if root == "/" and not sys.platform.startswith("linux"):
        return flat_machine(os.cpu_count() or 1, sys.platform)
    tree = Tree(root)
    if not root or not tree.has_directory("/"):
        raise UsageError(
            f"{root or repr(root)}: no such file or directory; --sysroot takes a directory that holds "
            "sys/devices/system/cpu, or the file that `xlaunch topology --capture` wrote"
        )
    live = is_live(root)
    if not live and not tree.has_directory("/sys/devices/system/cpu"):
        raise UsageError(
            f"{root}: holds no sys/devices/system/cpu; "
            "--sysroot takes the directory that contains sys and proc of a machine"
        )
    # Imported here: the readers use system calls that other systems do not have.
    from xlaunch.machine.gpus import openable, read_gpus, usable_gpus
    from xlaunch.machine.limits import read_limits
    from xlaunch.machine.sysfs import read_topology

    topology, notes = read_topology(root)
    all_gpus = read_gpus(tree, captured=not live)
    gpus = usable_gpus(openable(all_gpus), os.environ) if live else usable_gpus(all_gpus, {})
    limits = read_limits(root, topology)
    warnings = _hidden_hardware(tree, limits) if live else ()
    notes = (*warnings, *notes)
    return Machine(root, topology, limits, notes, gpus._replace(found=all_gpus), warnings)


def _hidden_hardware(tree: Tree, limits: Limits) -> tuple[str, ...]:
    """What to know where parts of the live /sys are hidden or empty; nothing where they are shown."""
    cpus, nodes = "/sys/devices/system/cpu", "/sys/devices/system/node"
    if not tree.numbered(cpus, "cpu"):
        places = (("NUMA nodes", nodes), ("CPU quotas", "/sys/fs/cgroup"))
        unknown = ["cores", *[what for what, place in places if not tree.names(place)]]
        warning = (
            f"{cpus} shows no CPUs (is /sys hidden?): the affinity mask counts, "
            f"{name_numbers('CPU', limits.allowed_cpus)}; not known: {', '.join(unknown)}"
        )
        return (warning,)
    # Kernels without NUMA have no such directory.
    if tree.has_directory(nodes) and not tree.numbered(nodes, "node"):
        return (f"{nodes} shows no NUMA nodes (is it hidden?): memory is not placed",)
    return ()


@contextlib.contextmanager
def machine_of(sysroot: str | None, synthetic: str | None) -> Iterator[Machine]:
    """The machine that the options name; this one if they name none.

    What had to be unpacked or made up is in a temporary directory, which is removed at the end.
    Raises `UsageError` if it cannot be read.
    """
    if synthetic is not None:
        from xlaunch.machine.synthetic import parse_levels, write_tree

        levels = parse_levels(synthetic)
        with scratch_directory() as directory:
            write_tree(levels, directory)
            yield read_machine(directory)
    elif sysroot is not None and os.path.exists(sysroot) and not os.path.isdir(sysroot):
        from xlaunch.machine.capture import unpacked

        with unpacked(sysroot) as directory:
            yield read_machine(directory)
    else:
        yield read_machine("/" if sysroot is None else sysroot)


def flat_machine(cpu_count: int, platform: str) -> Machine:
    """A machine with a known number of CPUs only, to which nothing can be bound."""
    cpus = tuple(range(cpu_count))
    topology = Topology(
        architecture="unknown",
        online_cpus=cpus,
        packages=(Package(None, cpus),),
        cores=tuple((cpu,) for cpu in cpus),
    )
    note = f"on {platform} only the number of CPUs is known, and instances are not bound"
    return Machine("/", topology, Limits(cpus), (note,))
