# SPDX-License-Identifier: Apache-2.0
"""Cores of several designs in one machine, and their ranking by performance.

The kernel has no file for this. Designs are distinguished, in this order, by the identification
register of Arm cores, the performance monitors of Intel's hybrids, the capacity that the scheduler
computed, and the maximum and base frequency.
"""

from __future__ import annotations

from typing import NamedTuple

from xlaunch.machine.groups import sample_cores
from xlaunch.machine.topology import CoreKind, CPUs
from xlaunch.machine.tree import Tree, number, parse_list

CPU_DIRECTORY = "/sys/devices/system/cpu"
INTEL_MONITORS = ("cpu_lowpower", "cpu_atom", "cpu_core")
"""``/sys/devices/NAME/cpus`` on Intel's hybrid machines, the slowest design first."""
TURBO_SPREAD = 0.10
"""Maximum difference in the maximum frequency of cores of one design ("favoured" cores)."""


class _Traits(NamedTuple):
    """What is known of one core; 0 if unknown. The fields are in ranking order."""

    monitor: int
    capacity: int
    max_khz: int
    base_khz: int
    midr: int


def read_core_kinds(
    tree: Tree, cores: tuple[CPUs, ...], l3_groups: tuple[CPUs, ...], online: CPUs
) -> tuple[CoreKind, ...]:
    """The kinds of cores, the slowest first; empty when all are of one kind."""
    looked_at = sample_cores(cores, l3_groups)
    reader = _TraitReader(tree, online)
    traits = {core: reader.read(core[0]) for core in looked_at}
    if len(set(traits.values())) > 1 and len(looked_at) < len(cores):
        traits = {core: reader.read(core[0]) for core in cores}
    traits = _by_design(traits)

    cpus_of: dict[_Traits, list[int]] = {}
    for core, trait in traits.items():
        cpus_of.setdefault(trait, []).extend(core)
    if len(cpus_of) < 2:
        return ()

    ordered = sorted(cpus_of)
    # Two designs that differ only in their name cannot be ranked.
    ranked = len({trait[:-1] for trait in ordered}) == len(ordered)
    return tuple(
        CoreKind(
            cpus=tuple(sorted(cpus_of[trait])),
            efficiency=rank if ranked else -1,
            attributes=_attributes(trait, ordered),
        )
        for rank, trait in enumerate(ordered)
    )


class _TraitReader:
    """Reads the traits of a core from the files that this kernel has."""

    def __init__(self, tree: Tree, online: CPUs) -> None:
        self._tree = tree
        self._monitor: dict[int, int] = {}
        for rank, name in enumerate(INTEL_MONITORS, start=1):
            for cpu in parse_list(tree.read(f"/sys/devices/{name}/cpus") or ""):
                self._monitor[cpu] = rank
        ends = {online[0], online[-1]}
        self._names = {
            name: any(tree.read(f"{CPU_DIRECTORY}/cpu{cpu}/{name}") for cpu in ends)
            for name in (
                "cpu_capacity",
                "cpufreq/cpuinfo_max_freq",
                "cpufreq/base_frequency",
                "acpi_cppc/nominal_freq",
                "regs/identification/midr_el1",
            )
        }
        self._policies: dict[int, tuple[int, int]] = {}
        if not self._names["cpufreq/cpuinfo_max_freq"]:
            self._policies = self._read_policies()

    def read(self, cpu: int) -> _Traits:
        max_khz, base_khz = self._policies.get(cpu, (0, 0))
        max_khz = max_khz or self._number(cpu, "cpufreq/cpuinfo_max_freq")
        base_khz = base_khz or self._number(cpu, "cpufreq/base_frequency")
        if not base_khz:
            base_khz = 1000 * self._number(cpu, "acpi_cppc/nominal_freq")
        return _Traits(
            monitor=self._monitor.get(cpu, 0),
            capacity=self._number(cpu, "cpu_capacity"),
            max_khz=max_khz,
            base_khz=base_khz,
            midr=self._number(cpu, "regs/identification/midr_el1"),
        )

    def _number(self, cpu: int, name: str) -> int:
        if not self._names[name]:
            return 0
        # Some firmware reports negative numbers for unknown values.
        return max(self._tree.read_int(f"{CPU_DIRECTORY}/cpu{cpu}/{name}") or 0, 0)

    def _read_policies(self) -> dict[int, tuple[int, int]]:
        """Frequencies from ``cpufreq/policyN``, if the CPUs' own links to them are missing."""
        frequencies: dict[int, tuple[int, int]] = {}
        for policy in self._tree.numbered(f"{CPU_DIRECTORY}/cpufreq", "policy"):
            directory = f"{CPU_DIRECTORY}/cpufreq/policy{policy}"
            max_khz = number(self._tree.read(directory + "/cpuinfo_max_freq")) or 0
            base_khz = number(self._tree.read(directory + "/base_frequency")) or 0
            for cpu in (self._tree.read(directory + "/related_cpus") or "").split():
                if cpu.isdecimal():
                    frequencies[int(cpu)] = (max_khz, base_khz)
        return frequencies


def _by_design(traits: dict[CPUs, _Traits]) -> dict[CPUs, _Traits]:
    """Equal traits for cores of one design, whatever their frequencies are."""
    # A trait that some CPU lacks (a trimmed tree, a CPU that was just added) is ignored.
    for field in ("capacity", "max_khz", "base_khz", "midr"):
        if not all(getattr(trait, field) for trait in traits.values()):
            traits = {core: trait._replace(**{field: 0}) for core, trait in traits.items()}
    known = list(traits.values())
    if all(trait.midr for trait in known):
        # The register names the design; the slowest core of a design stands for it.
        slowest: dict[int, _Traits] = {}
        for trait in known:
            slowest[trait.midr] = min(trait, slowest.get(trait.midr, trait))
        return {core: slowest[trait.midr] for core, trait in traits.items()}

    traits = {core: trait._replace(midr=0) for core, trait in traits.items()}
    if any(trait.max_khz and not trait.base_khz for trait in known):
        return traits
    # Favoured cores: for equal base frequencies, a small spread of the maximum is ignored.
    alike: dict[tuple[int, int], list[_Traits]] = {}
    for trait in traits.values():
        alike.setdefault((trait.monitor, trait.base_khz), []).append(trait)
    merged: dict[tuple[int, int], _Traits] = {}
    for key, group in alike.items():
        low = min(trait.max_khz for trait in group)
        high = max(trait.max_khz for trait in group)
        if low < high < low * (1 + TURBO_SPREAD):
            merged[key] = min(group)
    return {
        core: merged.get((trait.monitor, trait.base_khz), trait) for core, trait in traits.items()
    }


def _attributes(trait: _Traits, kinds: list[_Traits]) -> tuple[tuple[str, str], ...]:
    """What distinguishes this kind from the others, in hwloc's terms."""
    attributes: list[tuple[str, str]] = []

    def differs(field: str) -> bool:
        return len({getattr(kind, field) for kind in kinds}) > 1

    if trait.monitor and differs("monitor"):
        names = ("IntelLowPower", "IntelAtom", "IntelCore")
        attributes.append(("CoreType", names[trait.monitor - 1]))
    if trait.max_khz and differs("max_khz"):
        attributes.append(("FrequencyMaxMHz", str(trait.max_khz // 1000)))
    if trait.base_khz and differs("base_khz"):
        attributes.append(("FrequencyBaseMHz", str(trait.base_khz // 1000)))
    if trait.capacity and differs("capacity"):
        attributes.append(("LinuxCapacity", str(trait.capacity)))
    if trait.midr and differs("midr"):
        fields = (
            ("CPUImplementer", 24, 0xFF, "0x{:02x}"),
            ("CPUVariant", 20, 0xF, "0x{:x}"),
            ("CPUPart", 4, 0xFFF, "0x{:03x}"),
            ("CPURevision", 0, 0xF, "{}"),
        )
        for name, shift, bits, form in fields:
            if len({kind.midr >> shift & bits for kind in kinds}) > 1:
                attributes.append((name, form.format(trait.midr >> shift & bits)))
    return tuple(attributes)
