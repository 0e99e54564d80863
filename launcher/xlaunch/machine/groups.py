# SPDX-License-Identifier: Apache-2.0
"""Groups of CPUs from the files of each CPU: those that share something, such as a cache, and kinds of cores.

The kernel repeats a group in the files of each member. One member is read for all, and the others
only if two groups overlap, which they do not on a sound machine.

It has no file for cores of several designs. They are distinguished, in this order, by the identification
register of Arm cores, the performance monitors of Intel's hybrids, the capacity that the scheduler
computed, and the maximum and base frequency.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from xlaunch.machine.topology import CoreKind, CPUs
from xlaunch.machine.tree import Tree, number, parse_list, parse_mask

CPU_DIRECTORY = "/sys/devices/system/cpu"
MANY_CORES = 64
"""A machine with more cores is regular enough to be judged by a sample of them."""


class Groups(NamedTuple):
    """Disjoint groups of CPUs, in the order of their lowest CPU."""

    groups: tuple[CPUs, ...]
    without: CPUs
    """CPUs without a usable file, which are in no group."""
    contradictory: bool
    """Two CPUs named overlapping groups; the groups are those that most members agree on."""


class SharingReader:
    """Reads files that name the online CPUs with which a CPU shares something."""

    def __init__(self, tree: Tree, online: CPUs) -> None:
        self._tree = tree
        self._online = frozenset(online)
        self._known: dict[str, CPUs] = {}
        self._usable: dict[tuple[str, ...], str] = {}

    def read(self, directory: str, cpu: int, names: tuple[str, ...]) -> CPUs | None:
        """The online CPUs in the first usable one of the files `names` in `directory`.

        A name that ends in ``_list`` is a list, any other a mask. A file that does not name `cpu`
        itself is not usable: some kernels leave masks of zeros. None if no file is usable.
        """
        # Every CPU of a machine has the same files, so try the one that was usable last first.
        last = self._usable.get(names)
        for name in names if last is None else (last, *names):
            cpus = self._parse(directory, name)
            if cpu in cpus:
                self._usable[names] = name
                return cpus
        return None

    def _parse(self, directory: str, name: str) -> CPUs:
        text = self._tree.read(f"{directory}/{name}")
        if not text:
            return ()
        # A list and a mask can look the same ("10"), so the kind is part of the key.
        is_list = name.endswith("_list")
        key = text if is_list else "#" + text
        cpus = self._known.get(key)
        if cpus is None:
            parsed = parse_list(text) if is_list else parse_mask(text)
            online = self._online
            cpus = parsed if online.issuperset(parsed) else tuple(c for c in parsed if c in online)
            self._known[key] = cpus
        return cpus


def gather(cpus: Iterable[int], claim: Callable[[int], CPUs | None]) -> Groups:
    """The groups that `claim` returns, called for as few CPUs as possible."""
    groups: list[CPUs] = []
    without: list[int] = []
    seen: set[int] = set()
    for cpu in cpus:
        if cpu in seen:
            continue
        group = claim(cpu)
        if group is None:
            without.append(cpu)
        elif seen.isdisjoint(group):
            groups.append(group)
            seen.update(group)
        else:
            return _reconcile(cpus, claim)
    return Groups(tuple(groups), tuple(cpu for cpu in without if cpu not in seen), False)


def _reconcile(cpus: Iterable[int], claim: Callable[[int], CPUs | None]) -> Groups:
    """Groups as most of their members claim; another member keeps the free part of its own claim."""
    claims = {cpu: group for cpu in cpus if (group := claim(cpu)) is not None}
    votes: dict[CPUs, int] = {}
    for group in claims.values():
        votes[group] = votes.get(group, 0) + 1
    groups: list[CPUs] = []
    seen: set[int] = set()
    for group in sorted(votes, key=lambda group: (-votes[group] / len(group), -len(group), group)):
        unclaimed = tuple(cpu for cpu in group if cpu not in seen)
        # Only a CPU that made the claim may start a group with it.
        if any(claims.get(cpu) == group for cpu in unclaimed):
            groups.append(unclaimed)
            seen.update(unclaimed)
    without = tuple(cpu for cpu in cpus if cpu not in seen)
    return Groups(tuple(sorted(groups)), without, True)


def sample_cores(cores: tuple[CPUs, ...], l3_groups: tuple[CPUs, ...]) -> tuple[CPUs, ...]:
    """All cores of a small machine; the first and last of each L3 group, or every eighth, of a large one."""
    if len(cores) <= MANY_CORES:
        return cores
    if not l3_groups:
        return (*cores[::8], cores[-1])
    core_of = {cpu: core for core in cores for cpu in core}
    return tuple(sorted({core_of[cpu] for group in l3_groups for cpu in (group[0], group[-1])}))


SHARED = ("shared_cpu_list", "shared_cpu_map")


class CacheReader:
    """Reads the caches of one machine.

    The level of each ``indexM`` is read once per L3 group, because CPUs that share an L3 number their
    caches alike even if their designs differ. A CPU without an L3 is read by itself.
    """

    def __init__(self, tree: Tree, sharing: SharingReader, cores: tuple[CPUs, ...]) -> None:
        self._tree = tree
        self._sharing = sharing
        self._core_of = {cpu: core for core in cores for cpu in core}
        self._indices: dict[int, dict[str, int]] = {}
        """By CPU: the numbers M of the ``indexM`` that are its L2 and L3, by level."""
        self._l3_of: dict[int, CPUs] = {}

    def read_l3(self, cpus: CPUs) -> Groups:
        """The groups of `cpus` that share an L3 cache. Call it before `read_l2`."""
        l3 = gather(cpus, self._l3_claim)
        for group in l3.groups:
            for cpu in group:
                self._l3_of[cpu] = group
        return l3

    def read_l2(self, cpus: CPUs) -> Groups:
        """The groups of `cpus` that share a level 2 cache for data."""
        return gather(cpus, self._l2_claim)

    def _l3_claim(self, cpu: int) -> CPUs | None:
        index = self._indices_of(cpu).get("3")
        return None if index is None else self._claim(cpu, index)

    def _l2_claim(self, cpu: int) -> CPUs | None:
        l3 = self._l3_of.get(cpu)
        guess = self._indices.get(l3[0], {}).get("2") if l3 else None
        if guess is not None:
            group = self._sharing.read(self._index_directory(cpu, guess), cpu, SHARED)
            # If it is the whole L3 group, this CPU numbers its caches differently, or shares them all.
            if group is not None and (group != l3 or l3 == self._core_of.get(cpu)):
                return group
        index = self._indices_of(cpu).get("2")
        return None if index is None else self._claim(cpu, index)

    def _claim(self, cpu: int, index: int) -> CPUs:
        group = self._sharing.read(self._index_directory(cpu, index), cpu, SHARED)
        # Itanium kernels list private caches with share masks of zeros.
        return group or self._core_of.get(cpu) or (cpu,)

    def _indices_of(self, cpu: int) -> dict[str, int]:
        if cpu not in self._indices:
            indices: dict[str, int] = {}
            self._indices[cpu] = indices
            for index in self._tree.numbered(f"{CPU_DIRECTORY}/cpu{cpu}/cache", "index"):
                directory = self._index_directory(cpu, index)
                level = self._tree.read(directory + "/level")
                if level in ("2", "3") and self._tree.read(directory + "/type") != "Instruction":
                    indices[level] = index
        return self._indices[cpu]

    def _index_directory(self, cpu: int, index: int) -> str:
        return f"{CPU_DIRECTORY}/cpu{cpu}/cache/index{index}"


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
    all_traits = list(traits.values())
    if all(trait.midr for trait in all_traits):
        # The register names the design; the slowest core of a design stands for it.
        slowest: dict[int, _Traits] = {}
        for trait in all_traits:
            slowest[trait.midr] = min(trait, slowest.get(trait.midr, trait))
        return {core: slowest[trait.midr] for core, trait in traits.items()}

    traits = {core: trait._replace(midr=0) for core, trait in traits.items()}
    if [trait for trait in all_traits if trait.max_khz and not trait.base_khz]:
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
    for name, field, divisor in (
        ("FrequencyMaxMHz", "max_khz", 1000),
        ("FrequencyBaseMHz", "base_khz", 1000),
        ("LinuxCapacity", "capacity", 1),
    ):
        if (value := getattr(trait, field)) and differs(field):
            attributes.append((name, str(value // divisor)))
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
