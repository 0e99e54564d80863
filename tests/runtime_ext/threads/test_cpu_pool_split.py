# SPDX-License-Identifier: Apache-2.0
"""`CPUPool.split`: which cores each part gets, and what holds for all parts of all pools."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.captures import own_captures, read_capture
from tests.launcher.planning.brute_force import Crossings, add, fewest_crossings
from tests.launcher.planning.shapes import make_machine

from xlaunch.machine.topology import CPUs, Machine
from xlaunch.planning.placement import Core, crossings, locate_cores
from xruntime.errors import CPUPoolError
from xruntime.threads.cpu_pool import CPUPool

DESKTOP = make_machine(packages=(6,), nodes=(6,), l3=(6,), smt=2, adjacent_siblings=True)
EIGHT_CORES = make_machine(packages=(8,), nodes=(8,), l3=(4, 4))
TWO_PACKAGES = make_machine(packages=(8, 8), nodes=(8, 8), l3=(4, 4, 4, 4), smt=2)
THREE_NODES = make_machine(packages=(128,), nodes=(42, 43, 43), l3=(128,))


def shares(pool: CPUPool, n: int, *, equal: bool = False) -> list[str]:
    return [str(part) for part in pool.split(n, equal=equal)]


class TestExactly:
    @pytest.mark.parametrize(
        ("machine", "n", "parts"),
        [
            (EIGHT_CORES, 2, ["0-3", "4-7"]),
            (EIGHT_CORES, 3, ["0-2", "4-6", "3,7"]),
            (EIGHT_CORES, 5, ["0-1", "2-3", "4-5", "6", "7"]),
            (DESKTOP, 2, ["0-5", "6-11"]),
            (DESKTOP, 4, ["0-3", "4-7", "8-9", "10-11"]),
            (TWO_PACKAGES, 4, ["0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31"]),
            (TWO_PACKAGES, 6, ["0-2,16-18", "4-6,20-22", "8-10,24-26", "12-14,28-30", "3,7,19,23", "11,15,27,31"]),
        ],
    )  # fmt: skip
    def test_every_core_is_in_a_part(self, machine: Machine, n: int, parts: list[str]) -> None:
        assert shares(CPUPool(machine=machine), n) == parts

    @pytest.mark.parametrize(
        ("machine", "n", "parts"),
        [
            (EIGHT_CORES, 3, ["0-1", "2-3", "4-5"]),
            (EIGHT_CORES, 5, ["0", "1", "2", "3", "4"]),
            (TWO_PACKAGES, 3, ["0-4,16-20", "5-7,13-14,21-23,29-30", "8-12,24-28"]),
            (TWO_PACKAGES, 6, ["0-1,16-17", "2-3,18-19", "4-5,20-21", "6-7,22-23", "8-9,24-25", "10-11,26-27"]),
        ],
    )  # fmt: skip
    def test_equal_parts_leave_cores_idle(self, machine: Machine, n: int, parts: list[str]) -> None:
        assert shares(CPUPool(machine=machine), n, equal=True) == parts

    def test_the_larger_parts_come_first_wherever_they_lie(self) -> None:
        assert shares(CPUPool(machine=THREE_NODES), 3) == ["42-84", "85-127", "0-41"]

    def test_sizes_are_chosen_to_fit_the_caches(self) -> None:
        """L3 groups of four and six cores hold two parts of two and two of three."""
        machine = make_machine(packages=(10,), l3=(4, 6))
        assert shares(CPUPool(machine=machine), 4) == ["4-6", "7-9", "0-1", "2-3"]

    def test_siblings_that_are_not_in_the_pool_are_not_in_a_part(self) -> None:
        pool = CPUPool("0-3,16-17", machine=TWO_PACKAGES)
        assert shares(pool, 2) == ["0-1,16-17", "2-3"]

    def test_one_part_is_the_pool(self) -> None:
        pool = CPUPool([3, 1, 2], machine=EIGHT_CORES)
        assert pool.split(1)[0].core_ids == [3, 1, 2]

    def test_parts_keep_the_order_of_the_pool(self) -> None:
        pool = CPUPool(range(7, -1, -1), machine=EIGHT_CORES)
        assert [part.core_ids for part in pool.split(2)] == [[3, 2, 1, 0], [7, 6, 5, 4]]


class TestRefusals:
    @pytest.mark.parametrize("n", [0, -1, 7, 12, True, 2.0, "2", None], ids=repr)
    def test_numbers_of_parts_that_cannot_be_had(self, n: object) -> None:
        with pytest.raises(CPUPoolError) as raised:
            CPUPool(machine=DESKTOP).split(n)
        assert str(raised.value) == (
            f"split({n!r}): CPUPool('0-11') has 6 cores, enough for 1 to 6 parts; "
            "a part has one core or more, with its SMT siblings"
        )

    def test_a_single_core_is_one_part(self) -> None:
        with pytest.raises(CPUPoolError, match="has 1 core, enough for 1 part;"):
            CPUPool("2-3", machine=DESKTOP).split(2)


@st.composite
def made_up_machines(draw: st.DrawFn) -> Machine:
    """Up to 32 cores in equal domains, with any mask."""
    packages, nodes, l3 = (draw(st.integers(1, 2)) for _ in range(3))
    cores, smt = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    count = packages * nodes * l3 * cores
    mask = st.sets(st.integers(0, count * smt - 1), min_size=1).map(sorted)
    return make_machine(
        packages=(nodes * l3 * cores,) * packages,
        nodes=draw(st.sampled_from(((), (l3 * cores,) * (packages * nodes)))),
        l3=draw(st.sampled_from(((), (cores,) * (packages * nodes * l3)))),
        smt=smt,
        adjacent_siblings=draw(st.booleans()),
        allowed=draw(st.one_of(st.none(), mask)),
    )


MACHINES = made_up_machines() | st.sampled_from(own_captures()).map(read_capture)


@st.composite
def pools(draw: st.DrawFn) -> CPUPool:
    """Everything that is allowed, or some of it in any order."""
    machine = draw(MACHINES)
    allowed = machine.limits.allowed_cpus
    some = st.lists(st.sampled_from(allowed), min_size=1, unique=True)
    return CPUPool(draw(st.one_of(st.none(), some)), smt=draw(st.booleans()), machine=machine)


SETTINGS = settings(
    max_examples=400,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@SETTINGS
@given(pool=pools(), data=st.data())
def test_parts_are_disjoint_and_made_of_whole_cores(pool: CPUPool, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, pool.core_count), label="n")
    equal = data.draw(st.booleans(), label="equal")
    parts = pool.split(n, equal=equal)

    size, larger = divmod(pool.core_count, n)
    expected = [size] * n if equal else [size + 1] * larger + [size] * (n - larger)
    assert [part.core_count for part in parts] == expected

    held = [cpu for part in parts for cpu in part]
    assert len(held) == len(set(held)), "disjoint"
    assert set(held) <= set(pool)
    assert equal or set(held) == set(pool)
    cores = set(pool.cores)
    assert all(cores.issuperset(part.cores) for part in parts), "siblings stay together"

    turned = CPUPool(list(pool)[::-1], machine=pool.machine)
    assert turned.split(n, equal=equal) == parts == pool.split(n, equal=equal), "deterministic"


@SETTINGS
@given(pool=pools(), data=st.data())
def test_pools_are_combined_as_sets_are(pool: CPUPool, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(pool.cpus), min_size=1, unique=True))
    other = CPUPool(chosen, machine=pool.machine)
    left, right = set(pool), set(other)
    assert set(pool | other) == left | right
    assert set(pool & other) == left & right
    if left != right:
        assert set(pool - other) == left - right
        assert set(pool ^ other) == left ^ right
    assert (other < pool, other <= pool, other == pool) == (right < left, True, right == left)
    assert eval(repr(other), {"CPUPool": functools.partial(CPUPool, machine=pool.machine)}) == other


def crossings_of(machine: Machine, cores: Sequence[Core], n: int) -> tuple[Crossings, Crossings]:
    """Those of `n` parts of the whole machine, and the fewest there are."""
    core_of = {core.cpus: core for core in cores}
    parts = CPUPool(machine=machine).split(n)
    found = (0,) * len(cores[0].domains)
    for part in parts:
        found = add(found, crossings([core_of[core] for core in part.cores]))
    return found, fewest_crossings(cores, [part.core_count for part in parts])


@pytest.mark.parametrize(
    "shape",
    [(1, 1, 2, 4), (1, 2, 2, 3), (2, 1, 2, 3), (2, 2, 1, 3), (2, 1, 1, 6), (3, 1, 2, 2), (1, 1, 4, 3)],
    ids=str,
)  # fmt: skip
def test_on_a_regular_machine_parts_cross_as_little_as_can_be(
    shape: tuple[int, int, int, int],
) -> None:
    packages, nodes, l3, each = shape
    machine = make_machine(
        packages=(nodes * l3 * each,) * packages,
        nodes=(l3 * each,) * (packages * nodes),
        l3=(each,) * (packages * nodes * l3),
        smt=2,
    )
    cores = locate_cores(machine.topology, machine.topology.cores)
    for n in range(1, len(cores) + 1):
        found, fewest = crossings_of(machine, cores, n)
        assert found == fewest, f"{n} parts"


def test_on_irregular_machines_parts_seldom_cross_more_than_they_must() -> None:
    """Packages never; an L3 group more in one of a hundred at the most."""
    chance = random.Random(20)
    tried = more = 0
    while tried < 400:
        l3 = [chance.randint(1, 6) for _ in range(chance.randint(1, 5))]
        border = sum(l3[: chance.randint(0, len(l3))])
        packages = [size for size in (border, sum(l3) - border) if size]
        n = chance.randint(2, 12)
        if not n <= sum(l3) <= 14 or sum(l3) % n == 0:
            continue
        tried += 1
        machine = make_machine(packages=packages, nodes=packages, l3=l3)
        cores = locate_cores(machine.topology, machine.topology.cores)
        found, fewest = crossings_of(machine, cores, n)
        assert found[:2] == fewest[:2], f"packages {packages}, L3 {l3}, {n} parts"
        more += found != fewest
    assert more <= tried // 100


def test_splitting_does_not_depend_on_how_the_mask_was_narrowed() -> None:
    allowed: CPUs = (1, 2, 5, 6, 7, 9, 17, 21)
    confined = make_machine(packages=(8, 8), nodes=(8, 8), l3=(4, 4, 4, 4), smt=2, allowed=allowed)
    named = CPUPool(allowed, machine=TWO_PACKAGES)
    for n in range(1, named.core_count + 1):
        assert shares(CPUPool(machine=confined), n) == shares(named, n)
