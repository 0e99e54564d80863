# SPDX-License-Identifier: Apache-2.0
"""Placements have the fewest crossings there are: compared with brute force on small machines."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.launcher.planning.brute_force import add, fewest_crossings
from tests.launcher.planning.shapes import make_machine

from xlaunch.machine.topology import Machine
from xlaunch.planning import Place
from xlaunch.planning.placement import Core, crossings, locate_cores, place_instances

LARGEST = 12
"""Cores; brute force takes milliseconds up to here."""


def regular_machines() -> Iterator[tuple[int, int, int, int]]:
    """Packages, nodes in each, L3 groups in each, cores in each."""
    for shape in itertools.product((1, 2, 3), (1, 2), (1, 2), (1, 2, 3, 4)):
        packages, nodes, l3, cores = shape
        if 4 <= packages * nodes * l3 * cores <= LARGEST:
            yield shape


def total(placed: Sequence[Sequence[Core]]) -> tuple[int, ...]:
    sums = (0,) * len(placed[0][0].domains)
    for slot in placed:
        sums = add(sums, crossings(slot))
    return sums


@pytest.mark.parametrize(
    "shape",
    [
        shape if math.prod(shape) <= 8 else pytest.param(shape, marks=pytest.mark.long)
        for shape in regular_machines()
    ],
    ids=str,
)
def test_every_layout_of_a_regular_machine_crosses_as_little_as_can_be(
    shape: tuple[int, int, int, int],
) -> None:
    packages, nodes, l3, cores_each = shape
    machine = make_machine(
        packages=(nodes * l3 * cores_each,) * packages,
        nodes=(l3 * cores_each,) * (packages * nodes),
        l3=(cores_each,) * (packages * nodes * l3),
    )
    cores = locate_cores(machine.topology, machine.topology.cores)
    for size in range(1, len(cores) + 1):
        for count in range(1, len(cores) // size + 1):
            fewest = fewest_crossings(cores, [size] * count)
            for place in Place:
                placed = place_instances(cores, count=count, size=size, place=place)
                assert total(placed) == fewest, f"{count} x {size}, {place.value}"


@st.composite
def partitions(draw: st.DrawFn, cores: int) -> tuple[int, ...]:
    """Sizes of neighbouring domains that hold all cores."""
    borders = draw(st.sets(st.integers(1, cores - 1), max_size=3)) if cores > 1 else set()
    edges = [0, *sorted(borders), cores]
    return tuple(high - low for low, high in itertools.pairwise(edges))


@st.composite
def irregular_machines(draw: st.DrawFn) -> Machine:
    """Domains of any sizes, which need not nest, some of them unknown."""
    cores = draw(st.integers(1, LARGEST))
    return make_machine(
        packages=draw(partitions(cores)),
        nodes=draw(st.one_of(st.just(()), partitions(cores))),
        l3=draw(st.one_of(st.just(()), partitions(cores))),
    )


@st.composite
def nested_machines(draw: st.DrawFn) -> Machine:
    """Domains of any sizes, each within one of the level above."""
    l3 = draw(
        st.lists(st.integers(1, 4), min_size=1, max_size=5).filter(lambda s: sum(s) <= LARGEST)
    )
    nodes = joined(draw, l3)
    return make_machine(packages=joined(draw, nodes), nodes=nodes, l3=l3)


def joined(draw: st.DrawFn, sizes: Sequence[int]) -> list[int]:
    """Some neighbours made one."""
    result = [sizes[0]]
    for size in sizes[1:]:
        if draw(st.booleans()):
            result[-1] += size
        else:
            result.append(size)
    return result


@settings(max_examples=300)
@given(machine=nested_machines(), data=st.data())
def test_one_instance_of_an_irregular_machine_crosses_as_little_as_can_be(
    machine: Machine, data: st.DataObject
) -> None:
    cores = locate_cores(machine.topology, machine.topology.cores)
    size = data.draw(st.integers(1, len(cores)), label="size")
    placed = place_instances(cores, count=1, size=size, place=Place.COMPACT)
    assert total(placed) == fewest_crossings(cores, [size])


@settings(max_examples=300)
@given(machine=st.one_of(nested_machines(), irregular_machines()), data=st.data())
def test_instances_of_an_irregular_machine_cross_once_too_often_at_the_most(
    machine: Machine, data: st.DataObject
) -> None:
    """And no more often where they are scattered."""
    cores = locate_cores(machine.topology, machine.topology.cores)
    size = data.draw(st.integers(1, len(cores)), label="size")
    count = data.draw(st.integers(1, len(cores) // size), label="count")
    found, scattered = (
        total(place_instances(cores, count=count, size=size, place=place))
        for place in (Place.COMPACT, Place.SCATTER)
    )
    fewest = fewest_crossings(cores, [size] * count)
    first = next((i for i in range(len(found)) if found[i] != fewest[i]), None)
    assert first is None or found[first] == fewest[first] + 1
    assert scattered == found


def test_cores_are_in_the_order_of_the_tree() -> None:
    """Packages whose CPUs are numbered in turn; of a package, cores of other launches come last."""
    topology = make_machine(packages=(4, 4)).topology
    first, second = topology.packages
    in_turn = (first._replace(cpus=(0, 2, 4, 6)), second._replace(cpus=(1, 3, 5, 7)))
    topology = topology._replace(packages=in_turn)

    def order(*taken: int) -> list[int]:
        return [core.cpus[0] for core in locate_cores(topology, topology.cores, taken)]

    assert order() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert order(0, 5) == [2, 4, 6, 0, 1, 3, 7, 5]
