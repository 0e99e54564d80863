# SPDX-License-Identifier: Apache-2.0
"""Groups of CPUs that share something, from the files of each CPU.

The kernel repeats a group in the files of each member. One member is read for all, and the others
only if two groups overlap, which they do not on a sound machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from xlaunch.machine.topology import CPUs
from xlaunch.machine.tree import Tree, parse_list, parse_mask

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
        self._found: dict[tuple[str, ...], str] = {}

    def read(self, directory: str, cpu: int, names: tuple[str, ...]) -> CPUs | None:
        """The online CPUs in the first usable one of the files `names` in `directory`.

        A name that ends in ``_list`` is a list, any other a mask. A file that does not name `cpu`
        itself is not usable: some kernels leave masks of zeros. None if no file is usable.
        """
        # Every CPU of a machine has the same files, so try the one that was found last first.
        found = self._found.get(names)
        if found is not None:
            cpus = self._parse(directory, found)
            if cpu in cpus:
                return cpus
        for name in names:
            if name != found:
                cpus = self._parse(directory, name)
                if cpu in cpus:
                    self._found[names] = name
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
    """Groups on which most of their members agree; a CPU that disagrees keeps the free part of its
    own claim.
    """
    claims = {cpu: group for cpu in cpus if (group := claim(cpu)) is not None}
    votes: dict[CPUs, int] = {}
    for group in claims.values():
        votes[group] = votes.get(group, 0) + 1
    groups: list[CPUs] = []
    seen: set[int] = set()
    for group in sorted(votes, key=lambda group: (-votes[group] / len(group), -len(group), group)):
        rest = tuple(cpu for cpu in group if cpu not in seen)
        # Only a CPU that made the claim may start a group with it.
        if any(claims.get(cpu) == group for cpu in rest):
            groups.append(rest)
            seen.update(rest)
    without = tuple(cpu for cpu in cpus if cpu not in seen)
    return Groups(tuple(sorted(groups)), without, True)


def sample_cores(cores: tuple[CPUs, ...], l3_groups: tuple[CPUs, ...]) -> tuple[CPUs, ...]:
    """All cores of a small machine; the first and last of each L3 group of a large one.

    The sample shows whether cores differ at all, before all are read. Without L3 caches it is every
    eighth core.
    """
    if len(cores) <= MANY_CORES:
        return cores
    if not l3_groups:
        return (*cores[::8], cores[-1])
    core_of = {cpu: core for core in cores for cpu in core}
    return tuple(sorted({core_of[cpu] for group in l3_groups for cpu in (group[0], group[-1])}))
