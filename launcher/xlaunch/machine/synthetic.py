# SPDX-License-Identifier: Apache-2.0
"""Synthetic machines from a line of text, written as the sysfs tree that Linux would show.

They are read by the same reader as a real machine, so their numbers have the same meaning.
"""

from __future__ import annotations

import os
from math import prod
from typing import NamedTuple

from xlaunch.errors import UsageError
from xlaunch.text import format_cpu_list, read_digits

LEVELS = ("package", "die", "node", "l3", "gpu", "core", "pu")
OUTER_LEVELS = LEVELS[:4]
GPU = {"vendor": "0x10de", "device": "0x2330", "class": "0x030200"}
"""What each GPU is: an H100."""
EXAMPLE = "package:2 node:2 l3:4 core:8 pu:2"
MAX_CPUS = 8192
MAX_GPUS = 1024
MEMORY_PER_CORE_KB = 4 << 20
CACHES = ((1, "Data", "48K"), (1, "Instruction", "32K"), (2, "Unified", "2048K"))
L3_SIZE = "32768K"


class Level(NamedTuple):
    """The number of things of one level in each thing of the next outer level."""

    name: str
    """One of `LEVELS`."""
    each: int


def parse_levels(text: str) -> tuple[Level, ...]:
    """The levels that a text such as `EXAMPLE` names, the outermost first.

    Packages, dies, nodes and L3 caches may be nested in any order, with dies inside packages. Cores
    and then SMT siblings (pu) are inside all of them; one each if not named. GPUs are beside the cores
    of the level named before them. Raises `UsageError`, which lists the levels.
    """

    def refuse(reason: str) -> UsageError:
        return UsageError(
            f"--synthetic {text!r}: {reason}; "
            f"the levels are {', '.join(LEVELS)}, each as NAME:COUNT, as in {EXAMPLE!r}"
        )

    levels: list[Level] = []
    for word in text.split():
        name, colon, count = word.lower().partition(":")
        if name not in LEVELS:
            raise refuse(f"there is no level {name!r}")
        if not colon or not (count.isascii() and count.isdecimal() and read_digits(count) > 0):
            raise refuse(f"{word!r} has no count of 1 or more")
        if any(level.name == name for level in levels):
            raise refuse(f"{name!r} is named twice")
        levels.append(Level(name, read_digits(count)))
    if not levels:
        raise refuse("nothing is named")

    names = [level.name for level in levels]
    for outer, inner in (("package", "die"), *((name, "core") for name in OUTER_LEVELS)):
        if outer in names and inner in names and names.index(outer) > names.index(inner):
            raise refuse(f"{outer!r} cannot be within {inner!r}")
    if "pu" in names and names[-1] != "pu":
        raise refuse(f"{names[-1]!r} cannot be within 'pu'")
    if "core" not in names:
        levels.insert(names.index("pu") if "pu" in names else len(levels), Level("core", 1))
    if "pu" not in names:
        levels.append(Level("pu", 1))
    if prod(level.each for level in levels if level.name != "gpu") > MAX_CPUS:
        raise refuse(f"that is more than {MAX_CPUS} CPUs")
    if (
        "gpu" in names
        and prod([level.each for level in levels[: names.index("gpu") + 1]]) > MAX_GPUS
    ):
        raise refuse(f"that is more than {MAX_GPUS} GPUs")
    return tuple(levels)


class _Shape(NamedTuple):
    """The groups of each core. Cores are numbered in the order of the nesting."""

    core_count: int
    threads: int
    cores_in: dict[str, int]
    """Cores per group of each named outer level."""

    def groups(self, level: str) -> int:
        """The number of groups at `level`; one if it is not named."""
        return self.core_count // self.cores_in.get(level, self.core_count)

    def group_of(self, level: str, core: int) -> int:
        """The number of the group of `core` at `level`."""
        return core // self.cores_in.get(level, self.core_count)

    def cpu_list(self, first_core: int, last_core: int) -> str:
        """The CPUs of a range of cores: first one thread of each, then their siblings, as Linux on x86."""
        return format_cpu_list(
            core + thread * self.core_count
            for thread in range(self.threads)
            for core in range(first_core, last_core + 1)
        )

    def group_list(self, level: str, core: int) -> str:
        """The CPUs of the group of `core` at `level`."""
        size = self.cores_in.get(level, self.core_count)
        first = core // size * size
        return self.cpu_list(first, first + size - 1)


def write_tree(levels: tuple[Level, ...], directory: str) -> None:
    """Write the sysfs tree of the machine of `levels` to an existing directory."""
    names = [level.name for level in levels]
    gpus = levels[names.index("gpu")].each if "gpu" in names else 0
    beside = names[names.index("gpu") - 1] if gpus and names[0] != "gpu" else ""
    levels = tuple([level for level in levels if level.name != "gpu"])
    counts = [level.each for level in levels]
    outer = levels[:-2]
    shape = _Shape(
        core_count=prod(counts[:-1]),
        threads=levels[-1].each,
        cores_in={level.name: prod(counts[i + 1 : -1]) for i, level in enumerate(outer)},
    )
    cpu_directory = f"{directory}/sys/devices/system/cpu"
    all_cpus = shape.cpu_list(0, shape.core_count - 1)
    _write(f"{directory}/proc/sys/kernel", {"arch": "x86_64"})
    _write(
        cpu_directory,
        {
            "online": all_cpus,
            "possible": all_cpus,
            "present": all_cpus,
            "offline": "",
            "isolated": "",
        },
    )
    for core in range(shape.core_count):
        files = _core_files(shape, core)
        for thread in range(shape.threads):
            for name, contents in files.items():
                _write(f"{cpu_directory}/cpu{core + thread * shape.core_count}/{name}", contents)
    _write_nodes(shape, f"{directory}/sys/devices/system/node")
    for group in range(shape.groups(beside) if gpus else 0):
        node = shape.group_of("node", group * shape.cores_in.get(beside, shape.core_count))
        for number in range(group * gpus, (group + 1) * gpus):
            address = f"{number >> 8:04x}:{number & 0xFF:02x}:00.0"
            gpu = {**GPU, "numa_node": str(node)}
            _write(f"{directory}/sys/bus/pci/drivers/nvidia/{address}", gpu)


def _core_files(shape: _Shape, core: int) -> dict[str, dict[str, str]]:
    """The files of each CPU of a core, by directory."""
    own = shape.cpu_list(core, core)
    package = shape.group_list("package", core)
    in_package = core % shape.cores_in.get("package", shape.core_count)
    die_size = shape.cores_in.get("die", shape.core_count)
    caches = [(level, kind, size, own) for level, kind, size in CACHES]
    if "l3" in shape.cores_in:
        caches.append((3, "Unified", L3_SIZE, shape.group_list("l3", core)))
    files = {
        "topology": {
            "physical_package_id": str(shape.group_of("package", core)),
            "die_id": str(in_package // die_size),
            "core_id": str(in_package),
            "cluster_id": str(in_package),
            "package_cpus_list": package,
            "core_siblings_list": package,
            "die_cpus_list": shape.group_list("die", core) if "die" in shape.cores_in else package,
            "cluster_cpus_list": own,
            "core_cpus_list": own,
            "thread_siblings_list": own,
        },
        "cpufreq": {"base_frequency": "2400000", "cpuinfo_max_freq": "3600000"},
    }
    for index, (level, kind, size, shared) in enumerate(caches):
        files[f"cache/index{index}"] = {
            "level": str(level),
            "type": kind,
            "size": size,
            "shared_cpu_list": shared,
        }
    return files


def _write_nodes(shape: _Shape, directory: str) -> None:
    """Write the nodes; one if none are named, as Linux does."""
    count = shape.groups("node")
    size = shape.core_count // count
    _write(directory, {"online": f"0-{count - 1}" if count > 1 else "0"})
    packages = [shape.group_of("package", node * size) for node in range(count)]
    for node in range(count):
        distances = (
            10 if other == node else 12 if packages[other] == packages[node] else 32
            for other in range(count)
        )
        _write(
            f"{directory}/node{node}",
            {
                "cpulist": shape.cpu_list(node * size, (node + 1) * size - 1),
                "distance": " ".join(map(str, distances)),
                "meminfo": f"Node {node} MemTotal:       {size * MEMORY_PER_CORE_KB} kB",
            },
        )


def _write(directory: str, files: dict[str, str]) -> None:
    os.makedirs(directory, exist_ok=True)
    for name, text in files.items():
        fd = os.open(f"{directory}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            os.write(fd, text.encode() + b"\n")
        finally:
            os.close(fd)
