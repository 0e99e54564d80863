# SPDX-License-Identifier: Apache-2.0
"""A plan for people and for programs: aligned text, and a plain dict for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from xlaunch.machine.cpu_list import format_cpu_list, name_numbers
from xlaunch.machine.topology import CPUs, Machine
from xlaunch.planning.plans import Instance, Plan
from xlaunch.planning.request import MemoryPolicy

SCHEMA_VERSION = 1
"""Of `plan_to_dict`: rises when a key changes its meaning or goes."""

LONGEST_CELL = 28
"""Characters that the nodes, packages or caches of an instance may take in a line."""


def render_plan(plan: Plan, machine: Machine, *, explain: bool = False) -> str:
    """The plan as lines of text, one for each instance; ends without a newline.

    `explain` adds the reasons, and the numactl line that would place each instance the same way.

    **Ex.:** ``instance 0: cores 4, CPUs 0-3, node 0, package 0, L3 0, threads 4, memory preferred 0``
    """
    lines = [_heading(plan)]
    lines += _aligned(
        [_instance_cells(i, bound=plan.bound, machine=machine) for i in plan.instances]
    )
    if plan.idle_cpus:
        lines.append(f"idle: {name_numbers('CPU', plan.idle_cpus)}")
    lines += [f"warning: {warning}" for warning in plan.warnings]
    if explain:
        lines += [f"{d.subject}: {d.value} - {d.reason}" for d in plan.decisions]
        lines += [
            f"as numactl, {i.index}: {numactl_line(i, bound=plan.bound)}" for i in plan.instances
        ]
    return "\n".join(lines)


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """The plan as plain lists, dicts, strings and numbers. CPU and node numbers are the kernel's."""
    return {
        "schema_version": SCHEMA_VERSION,
        "instance_count": plan.count,
        "bound": plan.bound,
        "allowed_cpus": list(plan.allowed_cpus),
        "idle_cpus": list(plan.idle_cpus),
        "cpu_quota": plan.cpu_quota,
        "memory_share_bytes": plan.memory_share_bytes,
        "instances": [
            {
                "index": instance.index,
                "cpus": list(instance.cpus),
                "core_count": instance.ncores,
                "thread_count": instance.threads,
                "numa_nodes": list(instance.nodes),
                "packages_touched": instance.packages_touched,
                "numa_nodes_touched": instance.nodes_touched,
                "l3_groups_touched": instance.l3_touched,
                "memory_policy": instance.memory.value,
                "memory_numa_nodes": list(instance.memory_nodes),
            }
            for instance in plan.instances
        ],
        "decisions": [
            {"subject": d.subject, "value": d.value, "reason": d.reason} for d in plan.decisions
        ],
        "warnings": list(plan.warnings),
    }


def numactl_line(instance: Instance, *, bound: bool) -> str:
    """The numactl command line that places a program as this instance is placed.

    **Ex.:** ``numactl -C 0-3 --preferred=0``. ``numactl`` alone changes nothing.
    """
    words = ["numactl"]
    if bound:
        words += ["-C", format_cpu_list(instance.cpus)]
    nodes = format_cpu_list(instance.memory_nodes)
    if instance.memory is MemoryPolicy.PREFERRED:
        option = "--preferred" if len(instance.memory_nodes) == 1 else "--preferred-many"
        words.append(f"{option}={nodes}")
    elif instance.memory is MemoryPolicy.BIND:
        words.append(f"--membind={nodes}")
    elif instance.memory is MemoryPolicy.INTERLEAVE:
        words.append(f"--interleave={nodes}")
    elif instance.memory is MemoryPolicy.LOCAL:
        words.append("--localalloc")
    return " ".join(words)


def _heading(plan: Plan) -> str:
    total = "1 instance" if plan.count == 1 else f"{plan.count} instances"
    if len(plan.instances) < plan.count:
        total = f"{len(plan.instances)} of {total}"
    how = "on" if plan.bound else "not bound, on any of"
    return f"{total} {how} {name_numbers('CPU', plan.allowed_cpus)}"


def _instance_cells(instance: Instance, *, bound: bool, machine: Machine) -> list[str]:
    topology = machine.topology
    cpus = set(instance.cpus)
    packages = [
        index if package.id is None else package.id
        for index, package in enumerate(topology.packages)
        if not cpus.isdisjoint(package.cpus)
    ]
    memory = instance.memory.value
    if instance.memory_nodes:
        memory += f" {format_cpu_list(instance.memory_nodes)}"
    return [
        f"instance {instance.index}: cores {instance.ncores}",
        name_numbers("CPU", instance.cpus) if bound else "any CPU",
        _named_briefly("node", instance.nodes),
        _named_briefly("package", packages),
        _named_briefly("L3", _touched(cpus, topology.l3_groups)),
        f"threads {instance.threads}",
        f"memory {memory}",
    ]


def _touched(cpus: set[int], groups: Sequence[CPUs]) -> list[int]:
    """The numbers of the groups that hold some of the CPUs."""
    return [index for index, group in enumerate(groups) if not cpus.isdisjoint(group)]


def _named_briefly(name: str, numbers: Iterable[int]) -> str:
    """**Ex.:** ``nodes 0-1``; where the list would be long how many there are, ``128 packages``."""
    distinct = set(numbers)
    named = name_numbers(name, distinct)
    return named if len(named) <= LONGEST_CELL else f"{len(distinct)} {name}s"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows as lines with commas between the cells, and each column of one width."""
    widths = [max(map(len, column)) + 1 for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        *cells, last = row
        padded = [f"{cell},".ljust(width) for cell, width in zip(cells, widths, strict=False)]
        lines.append(" ".join([*padded, last]))
    return lines
