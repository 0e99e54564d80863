# SPDX-License-Identifier: Apache-2.0
"""Division of cores into disjoint parts that cross as few packages, nodes and caches as possible.

Equal parts are placed as the launcher places instances. If the number of cores does not divide, some
parts are one core larger, which the launcher never needs:

Parts of `size` and ``size + 1`` cores fill a domain of c cores exactly when there are k of them with
``k * size <= c <= k * (size + 1)``, and ``c - k * size`` of them are the larger ones. So only the k of
each domain are to be chosen, and they must add up to the number of parts. This is tried with the
innermost domains first (L3 groups), then with the next larger ones, and last with the whole pool, which
always works. Within domains that hold smaller ones the best of four simple orders is taken.

Tests compare with brute force. On machines with domains of equal size no division has fewer crossings;
on an irregular machine or mask it can have one more than the best, as in the launcher: an L3 crossing
on one of about 250 small random machines.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from xlaunch.machine.topology import CPUs, Topology
from xlaunch.planning.placement import Core, crossings, locate_cores, place_instances
from xlaunch.planning.request import Place

Part = list[Core]


def equal_shares(topology: Topology, cores: Sequence[CPUs], count: int) -> list[CPUs]:
    """Return the CPUs of `count` parts of equally many cores; cores that are left over are in none."""
    located = locate_cores(topology, cores)
    return _cpus_of(_placed(located, count, len(cores) // count))


def share_out(topology: Topology, cores: Sequence[CPUs], count: int) -> list[CPUs]:
    """Return the CPUs of `count` parts that have all the cores; the first parts may have one more.

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
    """Return the number of parts in each domain; None if the domains cannot be filled exactly.

    **Ex.:** four parts of two or three on domains of 4 and 6 cores: two each, of 2 and of 3 cores.
    """
    minimum = [-(-number // (size + 1)) for number in cores]
    maximum = [number // size for number in cores]
    spare = count - sum(minimum)
    if (
        spare < 0
        or sum(maximum) < count
        or any(low > high for low, high in zip(minimum, maximum, strict=True))
    ):
        return None
    # The last domains hold more and smaller parts, so that the larger parts come first.
    counts = list(minimum)
    for index in reversed(range(len(counts))):
        more = min(spare, maximum[index] - minimum[index])
        counts[index] += more
        spare -= more
    return counts


def _filled(cores: Part, count: int, size: int) -> list[Part]:
    """Divide all of `cores` into `count` parts of `size` cores or one more."""
    larger = len(cores) - count * size
    smaller = count - larger
    candidates = [
        _in_turn(cores, (larger, size + 1), (smaller, size)),
        _in_turn(cores, (smaller, size), (larger, size + 1)),
        _cut(cores, [size + 1] * larger + [size] * smaller),
        _cut(cores, [size] * smaller + [size + 1] * larger),
    ]
    # Crossings of all parts by level, the most important level first.
    return min(
        candidates,
        key=lambda parts: [sum(level) for level in zip(*map(crossings, parts), strict=True)],
    )


def _in_turn(cores: Part, first: tuple[int, int], second: tuple[int, int]) -> list[Part]:
    """Place the parts of the first size, then those of the second on the cores that are left."""
    parts = _placed(cores, *first)
    taken = {core.cpus for part in parts for core in part}
    return parts + _placed([core for core in cores if core.cpus not in taken], *second)


def _placed(cores: Part, count: int, size: int) -> list[Part]:
    return place_instances(cores, count=count, size=size, place=Place.COMPACT) if count else []


def _cut(cores: Part, sizes: list[int]) -> list[Part]:
    """Cut the cores into parts, in their order."""
    cores_left = iter(cores)
    return [list(islice(cores_left, size)) for size in sizes]


def _domains(cores: Part, depth: int) -> list[Part]:
    """Group the cores by the domain that they share down to `depth`, in the order of the tree."""
    domains: dict[tuple[int, ...], Part] = {}
    for core in cores:
        domains.setdefault(core.path[:depth], []).append(core)
    return list(domains.values())


def _cpus_of(parts: list[Part]) -> list[CPUs]:
    return [tuple(sorted(cpu for core in part for cpu in core.cpus)) for part in parts]
