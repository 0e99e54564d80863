# SPDX-License-Identifier: Apache-2.0
"""Command lines of ipexrun and run_cpu give the instances that those launchers themselves bound.

`record_old_plans` ran the launchers and kept what they did. A plan here agrees if it has as many
instances, each with as many CPUs, on the same NUMA nodes, or if both are refused. Every other outcome
must be one of `RULES`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.launcher.options.record_old_plans import MACHINES, OldPlan, read_old_plans
from tests.launcher.options.settings import typed
from tests.launcher.planning.shapes import make_machine

from xlaunch.errors import UsageError
from xlaunch.machine.topology import CPUs, Machine
from xlaunch.options.migration import translate
from xlaunch.planning import plan
from xlaunch.planning.pool import efficiency_cpus
from xlaunch.text import parse_cpu_list

OLD_PLANS = read_old_plans()


class Pair(NamedTuple):
    """What an old command line did, and what it does here."""

    row: OldPlan
    machine: Machine
    old: tuple[CPUs, ...]
    new: tuple[CPUs, ...]
    notes: tuple[str, ...]
    """Notes of the translation, and warnings of the plan."""
    error: str = ""

    def has(self, *options: str) -> bool:
        return any(option in self.row.options.split() for option in options)

    def nodes_of(self, cpus: CPUs) -> tuple[int, ...]:
        nodes = self.machine.topology.numa_nodes
        return tuple(node.id for node in nodes if not set(node.cpus).isdisjoint(cpus))

    def agrees(self) -> bool:
        old, new = (
            Counter((len(cpus), self.nodes_of(cpus)) for cpus in instances)
            for instances in (self.old, self.new)
        )
        return old == new and bool(old or self.error)

    def crossings(self, instances: tuple[CPUs, ...]) -> int:
        return sum(len(self.nodes_of(cpus)) - 1 for cpus in instances)

    def same_sizes(self) -> bool:
        return sorted(map(len, self.old)) == sorted(map(len, self.new))

    def says(self, words: str) -> bool:
        return any(words in text for text in (self.error, *self.notes))


def pair_of(row: OldPlan) -> Pair:
    machine = MACHINES[row.machine]
    old = tuple(parse_cpu_list(text) for text in row.instances)
    try:
        arguments, notes = translate([*row.options.split(), "x.py"], machine)
        made = plan(typed("--isolated", *arguments).request.layout, machine)
    except UsageError as error:
        return Pair(row, machine, old, (), (), str(error))
    new = tuple(instance.cpus for instance in made.instances)
    return Pair(row, machine, old, new, (*notes, *made.warnings))


BINDING = ("--bind-numa-node", "--skip-cross-node-cores")
LOGICAL = ("--use-logical-cores", "--use-logical-core", "--core-list")
LISTS = ("--cores-list", "--core-list", "--nodes-list")


def takes_whole_cores(it: Pair) -> bool:
    if not it.has(*LOGICAL):
        return False
    if it.says("multiple of 2") or it.says("1 core need"):
        return True
    cores = [set(core) for core in it.machine.topology.cores]
    divided = any(core & set(cpus) not in (set(), core) for cpus in it.old for core in cores)
    width = max(map(len, cores))
    sizes = [sorted(map(len, instances)) for instances in (it.old, it.new)]
    rounded = len(it.old) == len(it.new) and all(
        0 <= old - new < width for old, new in zip(*sizes, strict=True)
    )
    return divided and rounded


def has_one_size(it: Pair) -> bool:
    if len(set(map(len, it.old))) < 2 and not it.has("--instance-idx"):
        return False  # of a part of the instances the old sizes are not known
    if it.has("-1"):
        return it.says("instances of several sizes") or it.says("1 core need")
    if not it.says("one size") or len(it.new) != len(it.old):
        return False
    return it.has("--instance-idx") or min(map(len, it.new)) >= min(map(len, it.old))


def lies_elsewhere(it: Pair) -> bool:
    if not it.same_sizes() or it.crossings(it.new) != it.crossings(it.old):
        return it.same_sizes() and it.crossings(it.new) < it.crossings(it.old)
    old, new = (
        len({node for cpus in instances for node in it.nodes_of(cpus)})
        for instances in (it.old, it.new)
    )
    return new <= old if it.has("close") else new >= old if it.has("scatter") else True


def runs_as_many_as_asked(it: Pair) -> bool:
    words = it.row.options.split()
    asked = int(words[words.index("--ninstances") + 1]) if "--ninstances" in words else 0
    if it.row.launcher == "run_cpu":
        return it.has("--core-list") and len(it.old) > asked == len(it.new)
    scattered = not it.has(*BINDING, "close")
    return scattered and len(it.old) < asked == len(it.new)


def keeps_within_a_node(it: Pair) -> bool:
    if it.row.launcher != "run_cpu" or not it.has(*BINDING):
        return False
    return it.says("within NUMA nodes") or (
        it.crossings(it.new) == 0 < it.crossings(it.old) and it.says("NUMA node")
    )


def is_one_instance_a_node(it: Pair) -> bool:
    nodes = {it.nodes_of(cpus) for cpus in it.new}
    mode = it.has("--throughput-mode", "--multi-instance")
    if not mode or len(nodes) != len(it.new) or it.crossings(it.new):
        return False
    counted_others = it.has(*LISTS) and (it.row.ended == "no-cores" or len(it.old) > len(it.new))
    return counted_others or it.crossings(it.old) > 0


def reaches_efficiency_cores(it: Pair) -> bool:
    efficient = efficiency_cpus(it.machine.topology)
    if it.row.launcher == "ipexrun" and not it.has(*LISTS):
        return False
    reached = any(not efficient.isdisjoint(cpus) for cpus in (*it.old, *it.new))
    return bool(efficient) and (reached or it.says("E-cores"))


RULES: dict[str, tuple[str, Callable[[Pair], bool]]] = {
    "whole cores": (
        "the old launchers counted siblings one by one, and instances shared a core",
        takes_whole_cores,
    ),
    "one size": (
        "instances of one layout have one size; -1 asks for several and is refused",
        has_one_size,
    ),
    "place": (
        "the count and the sizes are the same, with no more crossings of NUMA nodes: part of the cores"
        " is taken side by side unless --strategy says otherwise",
        lies_elsewhere,
    ),
    "as many as asked": (
        "ipexrun's step between instances ran fewer than fit, and run_cpu more than one on a list",
        runs_as_many_as_asked,
    ),
    "bound in run_cpu too": (
        "run_cpu heeded --skip-cross-node-cores only with a size and no count",
        keeps_within_a_node,
    ),
    "E-cores": (
        "run_cpu did not know efficiency cores, which are left out here unless a list names them;"
        " ipexrun left them out of its lists, too",
        reaches_efficiency_cores,
    ),
    "one instance a node": (
        "ipexrun's throughput mode counted the nodes that its list leaves out, and run_cpu's cut equal"
        " shares across nodes",
        is_one_instance_a_node,
    ),
    "list without a size": (
        "run_cpu refused a list of cores without a size; here it is the machine",
        lambda it: it.has("--core-list") and not it.has("--ncores-per-instance") and bool(it.new),
    ),
    "mode without sizes": (
        "run_cpu refused sizes that do not fit, although its mode ignores them",
        lambda it: it.row.launcher == "run_cpu" and not it.old and it.says("had no effect either"),
    ),
    "few cores": (
        "the latency mode started nothing on fewer than 4 cores; here it starts one, with a warning",
        lambda it: not it.old and it.says("--mode latency gives an instance 4 cores"),
    ),
}
"""Where a plan may differ: the reason, and what must hold then."""


def rules_of(it: Pair) -> list[str]:
    return [name for name, (_, applies) in RULES.items() if applies(it)]


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    return [pair_of(row) for row in OLD_PLANS]


def test_old_command_lines_bind_as_they_did(pairs: list[Pair]) -> None:
    assert [it for it in pairs if not it.agrees() and not rules_of(it)] == []
    assert [it for it in pairs if it.has(*BINDING) and it.crossings(it.new)] == []


def test_every_rule_is_needed_and_most_plans_need_none(pairs: list[Pair]) -> None:
    different = [it for it in pairs if not it.agrees()]
    assert {name for it in different for name in rules_of(it)} == set(RULES)
    assert len(different) < len(pairs) / 5
    assert sum(bool(it.old) for it in pairs) > 300


@settings(max_examples=40)
@given(
    nodes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    one_package=st.booleans(),
    smt=st.integers(1, 2),
    count=st.none() | st.integers(1, 9),
    size=st.none() | st.integers(1, 9),
    more=st.sampled_from(["", "--latency-mode", "--use-logical-cores", "--strategy scatter"]),
    seed=st.randoms(use_true_random=False),
)
def test_bound_instances_never_straddle_nodes(nodes, one_package, smt, count, size, more, seed):
    packages = (sum(nodes),) if one_package else nodes
    machine = make_machine(packages=packages, nodes=nodes, smt=smt)
    cores = [core[0] for core in machine.topology.cores]
    words = ["--bind-numa-node", *more.split()]
    words += [] if count is None else ["--ninstances", str(count)]
    words += [] if size is None else ["--ncores-per-instance", str(size)]
    if seed.random() < 0.5:
        some = seed.sample(cores, seed.randint(1, len(cores)))
        words += ["--cores-list", ",".join(map(str, sorted(some)))]
    try:
        arguments, _ = translate([*words, "x.py"], machine)
        made = plan(typed("--isolated", *arguments).request.layout, machine)
    except UsageError:
        return
    assert made.instances
    assert all(instance.nodes_touched == 1 for instance in made.instances), (words, made)
