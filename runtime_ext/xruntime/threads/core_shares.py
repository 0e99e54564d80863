# SPDX-License-Identifier: Apache-2.0
"""Cores shared out into disjoint parts, with as few crossings as the machine allows.

Equal parts are placed as the launcher places instances. Where the number of cores does not divide,
every core goes to a part and some parts are one core larger, which the launcher never asks for:

Parts of `size` and ``size + 1`` cores fill a domain of c cores exactly when there are k of them with
``k * size <= c <= k * (size + 1)``, and ``c - k * size`` of them are the larger ones. So the k of
each domain are all there is to choose, and they must add up to the number of parts. That is tried
with the innermost domains first (L3 groups), then with those around them, at last with the whole
pool, which always can. Within domains that hold smaller ones the best of four simple orders is taken.

Tests compare with brute force. On machines whose domains of a level are of one size nothing crosses
less; an irregular machine or mask can cost a crossing more than the best, as in the launcher: one of
some 250 small irregular machines made up at random, and there an L3 crossing.
"""

from __future__ import annotations

from collections.abc import Sequence

from xlaunch.machine.topology import CPUs, Topology
from xlaunch.planning.placement import Core, crossings, locate_cores, place_instances
from xlaunch.planning.request import Place

Part = list[Core]


def equal_shares(topology: Topology, cores: Sequence[CPUs], count: int) -> list[CPUs]:
    """The CPUs of `count` parts of as many cores each; cores that are left over are in none."""
    located = locate_cores(topology, cores)
    return _cpus_of(_placed(located, count, len(cores) // count))


def share_out(topology: Topology, cores: Sequence[CPUs], count: int) -> list[CPUs]:
    """The CPUs of `count` parts that have all the cores, the first of them one more than the others.

    `count` is from 1 to the number of cores.
    """
    located = locate_cores(topology, cores)
    size = len(located) // count
    for depth in range(len(located[0].path), -1, -1):
        domains = _domains(located, depth)
        counts = _counts_that_fill([len(domain) for domain in domains], count, size)
        if counts is not None:
            break
    else:
        raise AssertionError(f"{count} parts of {size} or {size + 1} fill {len(located)} cores")
    parts = [
        part
        for domain, share in zip(domains, counts, strict=True)
        for part in _filled(domain, share, size)
    ]
    position = {core.cpus: index for index, core in enumerate(located)}
    parts.sort(key=lambda part: (-len(part), position[part[0].cpus]))
    return _cpus_of(parts)


def _counts_that_fill(cores: Sequence[int], count: int, size: int) -> list[int] | None:
    """How many parts each domain of so many cores holds; None where they cannot be filled exactly.

    **Ex.:** four parts of two or three on domains of 4 and 6 cores: two each, of 2 and of 3 cores.
    """
    fewest = [-(-number // (size + 1)) for number in cores]
    most = [number // size for number in cores]
    spare = count - sum(fewest)
    if spare < 0 or sum(most) < count or any(f > m for f, m in zip(fewest, most, strict=True)):
        return None
    # The last domains hold more and smaller parts: the larger ones come first.
    counts = list(fewest)
    for index in reversed(range(len(counts))):
        more = min(spare, most[index] - fewest[index])
        counts[index] += more
        spare -= more
    return counts


def _filled(cores: Part, count: int, size: int) -> list[Part]:
    """`count` parts of `size` cores, or of one more, that have all of `cores`."""
    larger = len(cores) - count * size
    smaller = count - larger
    candidates = [
        _in_turn(cores, (larger, size + 1), (smaller, size)),
        _in_turn(cores, (smaller, size), (larger, size + 1)),
        _cut(cores, [size + 1] * larger + [size] * smaller),
        _cut(cores, [size] * smaller + [size + 1] * larger),
    ]
    return min(candidates, key=_total_crossings)


def _in_turn(cores: Part, first: tuple[int, int], second: tuple[int, int]) -> list[Part]:
    """First so many parts of one size, well placed, and then those of the other from what is left."""
    parts = _placed(cores, *first)
    taken = {core.cpus for part in parts for core in part}
    return parts + _placed([core for core in cores if core.cpus not in taken], *second)


def _placed(cores: Part, count: int, size: int) -> list[Part]:
    return place_instances(cores, count=count, size=size, place=Place.COMPACT) if count else []


def _cut(cores: Part, sizes: list[int]) -> list[Part]:
    """Parts side by side, in the order of the cores."""
    parts, start = [], 0
    for size in sizes:
        parts.append(cores[start : start + size])
        start += size
    return parts


def _total_crossings(parts: list[Part]) -> list[int]:
    """Crossings of all parts by level, the level that matters most first."""
    return [sum(level) for level in zip(*map(crossings, parts), strict=True)]


def _domains(cores: Part, depth: int) -> list[Part]:
    """The cores by the domain that they share down to `depth`, in the order of the tree."""
    domains: dict[tuple[int, ...], Part] = {}
    for core in cores:
        domains.setdefault(core.path[:depth], []).append(core)
    return list(domains.values())


def _cpus_of(parts: list[Part]) -> list[CPUs]:
    return [tuple(sorted(cpu for core in part for cpu in core.cpus)) for part in parts]
