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
from tests.launcher.options.record_old_plans import MACHINES, OldPlan, read_old_plans
from tests.launcher.options.settings import typed

from xlaunch.errors import UsageError
from xlaunch.machine.cpu_list import parse_cpu_list
from xlaunch.machine.topology import CPUs, Machine
from xlaunch.options.migration import translate
from xlaunch.planning import plan

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
LOGICAL = ("--use-logical-cores", "--use-logical-core")


def divides_cores(it: Pair) -> bool:
    cores = [set(core) for core in it.machine.topology.cores]
    return any(core & set(cpus) not in (set(), core) for cpus in it.old for core in cores)


def takes_whole_cores(it: Pair) -> bool:
    refused = it.says("multiple of 2") or it.says("1 core need")
    return it.has(*LOGICAL) and (refused or (divides_cores(it) and it.same_sizes()))


def has_one_size(it: Pair) -> bool:
    if len(set(map(len, it.old))) < 2:
        return False
    if it.has("-1"):
        return it.says("instances of several sizes")
    smallest = min(map(len, it.old))
    sizes = set(map(len, it.new))
    return it.says("one size") and len(it.new) == len(it.old) and min(sizes) >= smallest


def lies_elsewhere(it: Pair) -> bool:
    if not it.same_sizes() or (it.has("--strategy") and not it.crossings(it.old)):
        return False
    return it.crossings(it.new) <= it.crossings(it.old)


def runs_all(it: Pair) -> bool:
    words = it.row.options.split()
    scattered = it.row.launcher == "ipexrun" and not it.has(*BINDING, "close")
    asked = int(words[words.index("--ninstances") + 1]) if "--ninstances" in words else 0
    return scattered and len(it.old) < asked == len(it.new)


def keeps_within_a_node(it: Pair) -> bool:
    return it.has(*BINDING) and it.crossings(it.new) == 0 < it.crossings(it.old) and it.says("node")


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
        "ipexrun's step between instances ran fewer than were asked for and fit",
        runs_all,
    ),
    "bound in run_cpu too": (
        "run_cpu heeded --skip-cross-node-cores only with a size and no count",
        lambda it: it.row.launcher == "run_cpu" and keeps_within_a_node(it),
    ),
    "E-cores": (
        "run_cpu did not know efficiency cores; here they are left out, and a line says so",
        lambda it: (
            it.row.launcher == "run_cpu"
            and it.row.machine == "hybrid"
            and (it.says("E-cores") or it.has("--core-list"))
        ),
    ),
    "one instance a node": (
        "ipexrun's throughput mode counted the nodes that its list leaves out",
        lambda it: (
            it.has("--throughput-mode")
            and it.has("--cores-list", "--nodes-list")
            and len(it.old) > len(it.new) == len({it.nodes_of(cpus) for cpus in it.new})
        ),
    ),
    "list without a size": (
        "run_cpu refused a list of cores without a size; here it is the machine",
        lambda it: it.has("--core-list") and not it.has("--ncores-per-instance") and bool(it.new),
    ),
    "mode without sizes": (
        "run_cpu refused sizes that do not fit, although its mode ignores them",
        lambda it: it.row.launcher == "run_cpu" and it.says("had no effect either"),
    ),
    "few cores": (
        "the latency mode started nothing on fewer than 4 cores; here it starts one, with a warning",
        lambda it: (
            it.row.ended == "nothing" and it.says("--mode latency gives an instance 4 cores")
        ),
    ),
}
"""Where a plan may differ: the reason, and what must hold then."""


def rules_of(it: Pair) -> list[str]:
    return [name for name, (_, applies) in RULES.items() if applies(it)]


@pytest.mark.parametrize(
    "row", OLD_PLANS, ids=lambda row: f"{row.machine}: {row.launcher} {row.options}"
)
def test_old_command_lines_bind_as_they_did(row: OldPlan) -> None:
    it = pair_of(row)
    assert it.agrees() or rules_of(it), it
    if it.has(*BINDING):
        assert it.crossings(it.new) == 0


def test_every_rule_is_needed_and_most_plans_need_none() -> None:
    pairs = [pair_of(row) for row in OLD_PLANS]
    different = [it for it in pairs if not it.agrees()]
    assert {name for it in different for name in rules_of(it)} == set(RULES)
    assert len(different) < len(pairs) / 5
    assert sum(bool(it.old) for it in pairs) > 250
