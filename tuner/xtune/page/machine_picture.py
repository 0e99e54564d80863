# SPDX-License-Identifier: Apache-2.0
"""The machine as nested boxes: packages, NUMA nodes, L3 caches, cores - and which instance is where.

The same as `xlaunch topology` draws as text, which stands below it on the page: of very many cores
that text is all there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from xlaunch.machine.cpu_list import format_cpu_list
from xlaunch.machine.topology import CPUs, Machine
from xlaunch.planning.plan import Plan
from xtune.page.markup import Markup, element, join
from xtune.page.quantities import size

MOST_CORES = 512
COLOURS = 6
"""Instances beyond that share colours; their numbers tell them apart."""


class _Level(NamedTuple):
    name: str
    groups: tuple[CPUs, ...]
    labels: tuple[str, ...]


def machine_picture(machine: Machine, plan: Plan | None) -> Markup | None:
    """The boxes; None where there are too many cores to see anything."""
    topology = machine.topology
    if len(topology.cores) > MOST_CORES:
        return None
    nodes = [node for node in topology.numa_nodes if node.cpus]
    levels = [
        _Level(
            "package",
            tuple([package.cpus for package in topology.packages]),
            tuple(["" if p.id is None else str(p.id) for p in topology.packages]),
        ),
        _Level("die", topology.dies, ("",) * len(topology.dies)),
        _Level(
            "NUMA node",
            tuple([node.cpus for node in nodes]),
            tuple([f"{n.id}, {size(n.memory_bytes)}" for n in nodes]),
        ),
        _Level("L3 cache", topology.l3_groups, ("",) * len(topology.l3_groups)),
    ]
    # As the text has it: what has fewer groups lies outside.
    used = sorted([level for level in levels if level.groups], key=lambda one: len(one.groups))
    place = _Places(machine, plan)
    return element("div", join(*_boxes(topology.cores, used, place)), klass="machine")


class _Places:
    """What to say of a core."""

    def __init__(self, machine: Machine, plan: Plan | None) -> None:
        self._allowed = frozenset(machine.limits.allowed_cpus)
        self._instances: dict[int, list[int]] = {}
        # Where masks stay as they are, an instance has no place.
        if plan is not None and plan.bound:
            for instance in plan.instances:
                for cpu in instance.cpus:
                    self._instances.setdefault(cpu, []).append(instance.index)

    def core(self, cpus: CPUs) -> Markup:
        """One core: its CPUs, and who is on it."""
        on = sorted({index for cpu in cpus for index in self._instances.get(cpu, ())})
        allowed = any(cpu in self._allowed for cpu in cpus)
        told = f"core with CPU {format_cpu_list(cpus)}"
        if on:
            kind, who = f"taken i{on[0] % COLOURS}", f"#{','.join(map(str, on))}"
            told += f": instance {', '.join(map(str, on))}"
        elif allowed:
            kind, who = "free", None
        else:
            kind, who, told = "barred", None, f"{told}, which may not be used"
        numbers = " ".join([str(cpu) if cpu in self._allowed else f"({cpu})" for cpu in cpus])
        return element(
            "span",
            element("b", who) if who else None,
            element("i", numbers),
            klass=f"core {kind}",
            title=told,
        )


def _boxes(cores: Sequence[CPUs], levels: Sequence[_Level], places: _Places) -> Iterator[Markup]:
    if not levels:
        yield element("div", join(*[places.core(core) for core in cores]), klass="cores")
        return
    level, *inner = levels
    owner = {cpu: at for at, group in enumerate(level.groups) for cpu in group}
    members: dict[int | None, list[CPUs]] = {}
    for core in cores:
        members.setdefault(owner.get(core[0]), []).append(core)
    for group, found in members.items():
        inside = join(*_boxes(found, inner, places))
        if group is None:
            yield inside
            continue
        label = f"{level.name} {level.labels[group]}".strip()
        kind = level.name.replace(" ", "-").lower()
        yield element(
            "div",
            element("span", label, klass="label"),
            element("div", inside, klass="inside"),
            klass=f"box {kind}",
        )
