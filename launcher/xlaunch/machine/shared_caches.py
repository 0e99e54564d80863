# SPDX-License-Identifier: Apache-2.0
"""Which CPUs share an L2 or L3 cache, from ``cpuN/cache/indexM``."""

from __future__ import annotations

from typing import NamedTuple

from xlaunch.machine.groups import Groups, SharingReader, gather
from xlaunch.machine.topology import CPUs
from xlaunch.machine.tree import Tree

SHARED = ("shared_cpu_list", "shared_cpu_map")


class _Layout(NamedTuple):
    """The numbers M of the ``indexM`` that are a CPU's L2 and L3; None if it has none."""

    l2: int | None
    l3: int | None


class CacheReader:
    """Reads the caches of one machine.

    The level of each ``indexM`` is read once per L3 group, because CPUs that share an L3 number their
    caches alike even if their designs differ. A CPU without an L3 is read by itself.
    """

    def __init__(
        self, tree: Tree, sharing: SharingReader, cpu_directory: str, cores: tuple[CPUs, ...]
    ) -> None:
        self._tree = tree
        self._sharing = sharing
        self._cpu_directory = cpu_directory
        self._core_of = {cpu: core for core in cores for cpu in core}
        self._layouts: dict[int, _Layout] = {}
        self._l3_of: dict[int, CPUs] = {}

    def read_l3(self, cpus: CPUs) -> Groups:
        """The groups of `cpus` that share an L3 cache. Call it before `read_l2`."""
        found = gather(cpus, self._l3_claim)
        for group in found.groups:
            for cpu in group:
                self._l3_of[cpu] = group
        return found

    def read_l2(self, cpus: CPUs) -> Groups:
        """The groups of `cpus` that share a level 2 cache for data."""
        return gather(cpus, self._l2_claim)

    def _l3_claim(self, cpu: int) -> CPUs | None:
        index = self._layout(cpu).l3
        return None if index is None else self._claim(cpu, index)

    def _l2_claim(self, cpu: int) -> CPUs | None:
        l3 = self._l3_of.get(cpu)
        guess = self._layouts.get(l3[0]) if l3 else None
        if guess is not None and guess.l2 is not None:
            group = self._sharing.read(self._index_directory(cpu, guess.l2), cpu, SHARED)
            # If it is the whole L3 group, this CPU numbers its caches differently, or shares them all.
            if group is not None and (group != l3 or l3 == self._core_of.get(cpu)):
                return group
        index = self._layout(cpu).l2
        return None if index is None else self._claim(cpu, index)

    def _claim(self, cpu: int, index: int) -> CPUs:
        group = self._sharing.read(self._index_directory(cpu, index), cpu, SHARED)
        # Itanium kernels list private caches with share masks of zeros.
        return group or self._core_of.get(cpu) or (cpu,)

    def _layout(self, cpu: int) -> _Layout:
        layout = self._layouts.get(cpu)
        if layout is None:
            layout = self._layouts[cpu] = self._read_layout(cpu)
        return layout

    def _read_layout(self, cpu: int) -> _Layout:
        l2: int | None = None
        l3: int | None = None
        read = self._tree.read
        for index in self._tree.numbered(f"{self._cpu_directory}/cpu{cpu}/cache", "index"):
            directory = self._index_directory(cpu, index)
            level = read(directory + "/level")
            if level in ("2", "3") and read(directory + "/type") != "Instruction":
                if level == "2":
                    l2 = index
                else:
                    l3 = index
        return _Layout(l2, l3)

    def _index_directory(self, cpu: int, index: int) -> str:
        return f"{self._cpu_directory}/cpu{cpu}/cache/index{index}"
