# SPDX-License-Identifier: Apache-2.0
"""`CPUPool` as a value: how pools are named, compared, combined and shown. The machines are made up."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import repeat

import pytest
from tests.golden import Golden
from tests.launcher.planning.shapes import make_machine
from tests.runtime_ext.conftest import Needs

from xlaunch.machine.topology import CoreKind, Machine
from xruntime.errors import CPUPoolError
from xruntime.native import library
from xruntime.threads.cpu_pool import (
    CPUPool,
    get_core_list_of_node_id,
    get_default_num_streams,
    is_runtime_ext_enabled,
)
from xruntime.threads.process_machine import _machine_of

TWO_NODES = make_machine(packages=(4, 4), nodes=(4, 4), l3=(2, 2, 2, 2), smt=2)
"""Eight cores; siblings are 0 and 8, 1 and 9; node 0 is 0-3,8-11."""
DESKTOP = make_machine(packages=(4,), nodes=(4,), l3=(4,), smt=2, adjacent_siblings=True)
"""Four cores; siblings are 0 and 1, 2 and 3."""
CONFINED = make_machine(
    packages=(4, 4, 4),
    nodes=(4, 4, 4),
    memory_only_nodes=1,
    allowed=(0, 1, 5),
    narrowed_by=("cpuset 0-1,5 (cgroup v2 /job)",),
    offline=(12, 13),
)
"""Twelve cores without SMT, of which three may be used, and two more that are offline."""
NO_NODES = make_machine(packages=(4,))
TWO_CPUS = make_machine(packages=(2,), narrowed_by=("affinity mask 0-1",))


def pool(*args: object, machine: Machine = TWO_NODES, **kwargs: object) -> CPUPool:
    return CPUPool(*args, machine=machine, **kwargs)


class TestNaming:
    @pytest.mark.parametrize(
        ("given", "cpus"),
        [
            ([0, 1], (0, 1)),
            ((9, 1), (1, 9)),
            (range(4), (0, 1, 2, 3)),
            ({3, 2}, (2, 3)),
            ((cpu for cpu in (2, 4)), (2, 4)),
            ("0-3", (0, 1, 2, 3)),
            (" 0-6:3,15 ", (0, 3, 6, 15)),
            ("3,1-3", (1, 2, 3)),
        ],
    )
    def test_cpus_by_number(self, given: object, cpus: tuple[int, ...]) -> None:
        assert pool(given).cpus == cpus
        assert pool("0-3").cpus == pool(core_ids="0-3").cpus

    def test_integers_of_numpy(self, needs: Needs) -> None:
        needs(find_spec("numpy"), "numpy")
        numpy = import_module("numpy")
        made = pool(numpy.arange(3))
        assert made.core_ids == [0, 1, 2]
        assert {type(cpu) for cpu in made} == {int}

    def test_a_pool_of_a_pool_is_equal_and_keeps_the_order(self) -> None:
        assert pool(pool([3, 1])).core_ids == [3, 1]

    @pytest.mark.parametrize(
        ("named", "machine", "core_ids"),
        [
            ({}, TWO_NODES, range(16)),
            ({}, CONFINED, [0, 1, 5]),
            ({"node": 1}, TWO_NODES, [4, 5, 6, 7, 12, 13, 14, 15]),
            ({"node_id": 1}, CONFINED, [5]),
            # A kernel without NUMA has node 0.
            ({"node": 0}, NO_NODES, [0, 1, 2, 3]),
            # Without SMT, the lowest sibling of each core that is named or allowed.
            ({"smt": False}, TWO_NODES, range(8)),
            ({"smt": False}, DESKTOP, [0, 2, 4, 6]),
            ({"smt": False}, make_machine(packages=(4,), smt=2, allowed=(1, 4, 5)), [1, 4]),
            ({"node": 1, "smt": False}, TWO_NODES, [4, 5, 6, 7]),
            ({"core_ids": "0-9", "smt": False}, TWO_NODES, range(8)),
            ({"core_ids": [8, 1, 9], "smt": False}, TWO_NODES, [8, 1]),
            # Lenient pools drop what may not be used.
            ({"core_ids": [7, 5, 1], "strict": False}, CONFINED, [5, 1]),
            ({"core_ids": "0-99", "strict": False}, TWO_NODES, range(16)),
        ],
    )
    def test_cpus_of_nodes_and_cores(
        self, named: dict[str, object], machine: Machine, core_ids: Sequence[int]
    ) -> None:
        assert pool(**named, machine=machine).core_ids == list(core_ids)

    def test_node_is_the_second_argument_as_it_was_for_ipex(self) -> None:
        assert pool(None, 1) == pool(node_id=1)


class TestRefusals:
    def test_cpus_that_may_not_be_used_are_named_with_what_is_wrong(self, golden: Golden) -> None:
        golden.errors(
            lambda: pool([0, 3, 12, 40, 41, 2], machine=CONFINED),
            lambda: pool("2-3", strict=False, machine=CONFINED),
            lambda: pool([0, 1], 0),
            lambda: pool(node_id=0, node=0),
            lambda: CPUPool(machine="/"),
        )

    def test_what_names_no_cpus(self, golden: Golden) -> None:
        wrong = (
            [], "", " ", [1, 2, 1], repeat(0), [0, -1], range((1 << 20) - 1, 1 << 30), [True], [0, 1.0],
            ["0-3"], [None], 3, False, b"0-3", "0-", "a", "-1", "3-1", "0-8:0",
        )  # fmt: skip
        golden.errors(*[lambda given=given: pool(given, strict=False) for given in wrong])

    def test_nodes_that_cannot_be_had(self, golden: Golden) -> None:
        wrong = (9, -1, 2, 3, "0", True, 0.0, [0])
        golden.errors(*[lambda node=node: pool(node=node, machine=CONFINED) for node in wrong])

    def test_other_systems_have_no_pools_of_their_own(
        self, golden: Golden, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _machine_of.cache_clear()
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(sys, "platform", "darwin")
            golden.errors(CPUPool)
            assert pool("0-3").cpus == (0, 1, 2, 3)
        assert len(CPUPool()) > 0


class TestValue:
    def test_the_order_is_kept_and_compared_by_nobody(self) -> None:
        turned = pool([3, 1, 2])
        assert turned.core_ids == list(turned) == turned.get_core_list() == [3, 1, 2]
        assert turned.cpu_pool.get_core_list() == [3, 1, 2]
        assert turned.cpus == (1, 2, 3)
        assert turned == pool("1-3")
        assert hash(turned) == hash(pool("1-3"))
        assert {turned, pool("1-3"), pool("1-2")} == {pool("1-3"), pool("1-2")}

    def test_it_is_a_collection_of_cpu_numbers(self) -> None:
        some = pool("4,8-9")
        assert len(some) == 3
        assert 8 in some
        assert 5 not in some
        assert "8" not in some
        assert some

    def test_it_equals_pools_alone(self) -> None:
        assert pool("0-1") != [0, 1]
        assert pool("0-1") != frozenset((0, 1))
        assert pool("0-1") != pool("0-2")

    @pytest.mark.parametrize("given", ["0-3", "0,2,4-7,15", [1, 0], [5]])
    def test_its_repr_makes_it_again(self, given: object) -> None:
        made = pool(given)
        again = eval(repr(made), {"CPUPool": pool})
        assert again == made
        assert again.core_ids == made.core_ids

    def test_its_text(self) -> None:
        assert repr(pool("3,0-1")) == "CPUPool('0-1,3')"
        assert repr(pool([1, 0])) == "CPUPool([1, 0])"
        assert str(pool([3, 1, 0])) == f"{pool('0,1,3')}" == "0-1,3"

    def test_nothing_can_be_changed(self) -> None:
        some = pool("0-1")
        some.core_ids.append(9)
        assert some.core_ids == [0, 1]
        for name in ("core_ids", "cpus", "anything"):
            with pytest.raises(AttributeError):
                setattr(some, name, [9])

    def test_copies_are_itself(self) -> None:
        some = pool("0-1")
        assert copy.copy(some) is some
        assert copy.deepcopy({"pool": some})["pool"] is some

    @pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
    def test_it_is_pickled_with_a_machine_of_its_own(self, protocol: int) -> None:
        made = pool([12, 0, 4])
        again = pickle.loads(pickle.dumps(made, protocol))
        assert again.core_ids == [12, 0, 4]
        assert again.machine == TWO_NODES
        assert again.split(2) == made.split(2)


class TestSets:
    def test_operators_keep_the_order_of_the_left_and_then_of_the_right(self) -> None:
        left, right = pool([3, 1, 2]), pool([5, 2, 4, 3])
        assert (left | right).core_ids == [3, 1, 2, 5, 4]
        assert (left & right).core_ids == [3, 2]
        assert (right - left).core_ids == [5, 4]
        assert (left ^ right).core_ids == [1, 5, 4]

    def test_isdisjoint(self) -> None:
        assert pool("0-3").isdisjoint(pool("4-7"))
        assert not pool("0-5").isdisjoint(pool("4-7"))

    def test_what_cannot_be_combined(self, golden: Golden) -> None:
        golden.errors(
            lambda: pool("0-5").isdisjoint([4]),
            lambda: pool("0-1") & pool("2"),
            lambda: pool("0-1") - pool("0-3"),
            lambda: pool("0-1") ^ pool([1, 0]),
            lambda: pool("0-5") | CPUPool("0-3", machine=DESKTOP._replace(root="/another")),
            lambda: CPUPool("0-1", machine=TWO_CPUS) | pool("0-3"),
        )

    def test_other_things_are_refused_by_python(self) -> None:
        left = pool("0-5")
        for make in (
            lambda: left | {9},
            lambda: left & [1],
            lambda: left - 1,
            lambda: left ^ "0",
            lambda: left < {1},
            lambda: left >= (1,),
        ):
            with pytest.raises(TypeError):
                make()

    def test_readings_of_one_machine_mix_unless_cpus_are_gone(self) -> None:
        left = pool("0-5")
        later = CPUPool("0-3", machine=TWO_NODES._replace(notes=("read later",)))
        assert left | later == left
        assert later & CPUPool("0-1", machine=TWO_CPUS) == pool("0-1")


class TestGroups:
    def test_nodes(self) -> None:
        assert pool().per_node() == (pool("0-3,8-11"), pool("4-7,12-15"))
        assert pool("5,4,13").per_node() == (pool("4-5,13"),)
        assert pool(machine=NO_NODES).per_node() == (pool(machine=NO_NODES),)

    def test_l3_caches(self) -> None:
        assert [str(part) for part in pool().per_l3()] == ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]  # fmt: skip
        assert [str(part) for part in pool("1-2,10").per_l3()] == ["1", "2,10"]
        assert pool(machine=NO_NODES).per_l3() == (pool(machine=NO_NODES),)

    def test_cpus_without_an_l3_are_the_last(self) -> None:
        topology = NO_NODES.topology._replace(l3_groups=((1, 2),))
        parts = pool(machine=NO_NODES._replace(topology=topology)).per_l3()
        assert [part.cpus for part in parts] == [(1, 2), (0, 3)]

    def test_cores(self) -> None:
        some = pool([9, 8, 1, 2])
        assert some.cores == ((1, 9), (2,), (8,))
        assert some.core_count == 3
        assert [part.core_ids for part in some.per_core()] == [[8], [9, 1], [2]]
        assert pool(machine=DESKTOP).cores == ((0, 1), (2, 3), (4, 5), (6, 7))

    def test_a_stream_for_each_core(self, golden: Golden) -> None:
        assert get_default_num_streams(pool()) == 8
        assert get_default_num_streams(pool("0-3,8")) == 4
        limited = make_machine(packages=(4,), quota=2.5)
        assert get_default_num_streams(CPUPool(machine=limited)) == 2
        barely = make_machine(packages=(4,), quota=0.5)
        assert get_default_num_streams(CPUPool(machine=barely)) == 1
        golden.errors(lambda: get_default_num_streams("0-3"))


class TestDescription:
    def test_of_made_up_machines(self, golden: Golden) -> None:
        unknown = NO_NODES._replace(topology=NO_NODES.topology._replace(cores_known=False))
        kinds = (
            CoreKind((2, 3), 0, (("CoreType", "IntelAtom"),)),
            CoreKind((0, 1), 1, (("CoreType", "IntelCore"),)),
        )
        hybrid = make_machine(packages=(4,), kinds=kinds, quota=1.5)
        for some in (
            *(pool("2-5,10-13"), pool("0-3"), pool("0-1,8"), pool([2], machine=unknown)),
            *(pool(machine=hybrid), pool([1], machine=hybrid)),
        ):
            golden(some.describe())

    def test_as_json(self) -> None:
        facts = pool([9, 1, 4]).to_dict()
        assert json.loads(json.dumps(facts)) == facts
        assert facts == {
            "cpus": [1, 4, 9],
            "core_ids": [9, 1, 4],
            "cores": [[1, 9], [4]],
            "packages": [{"id": 0, "cpus": [1, 9]}, {"id": 1, "cpus": [4]}],
            "numa_nodes": [{"id": 0, "cpus": [1, 9]}, {"id": 1, "cpus": [4]}],
            "l3_groups": [[1, 9], [4]],
            "efficiency_cpus": [],
        }


class TestCompatibility:
    def test_cores_of_a_node_are_one_cpu_each(self) -> None:
        everything = CPUPool()
        first = everything.machine.topology.numa_nodes[:1]
        number = first[0].id if first else 0
        assert get_core_list_of_node_id(number) == CPUPool(node=number, smt=False).core_ids
        with pytest.raises(CPUPoolError, match="node 4095 does not exist"):
            get_core_list_of_node_id(4095)

    def test_is_runtime_ext_enabled_says_no_without_the_library(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: object
    ) -> None:
        monkeypatch.setenv("XRUNTIME_KERNELS", f"{tmp_path}/absent.so")
        library.cache_clear()
        assert not is_runtime_ext_enabled()
        library.cache_clear()
