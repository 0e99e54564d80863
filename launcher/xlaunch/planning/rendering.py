# SPDX-License-Identifier: Apache-2.0
"""A plan for people and for programs: a table, and a plain dict for JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from xlaunch.machine.description import describe_gpu
from xlaunch.machine.topology import Machine
from xlaunch.planning.plans import Instance, Plan
from xlaunch.planning.request import MemoryPolicy, Place
from xlaunch.text import counted, fit, format_cpu_list, name_numbers

SCHEMA_VERSION = 1
"""Version of `plan_to_dict`; raised when a key changes its meaning or is removed."""

MAX_CELL = 28
"""Longer lists of nodes, packages or caches are shown as a number."""

COLUMNS = ("instance", "cores", "threads", "CPUs", "node", "package", "L3", "memory")
NUMBERS = ("instance", "cores", "threads")
"""The columns that are aligned to the right."""

OPTIONAL = ("L3", "package", "threads")
"""Columns that a narrow terminal does not show."""


def render_plan(
    plan: Plan, machine: Machine, *, explain: bool = False, width: int | None = None
) -> str:
    """The plan as text: a heading, a table with a row for each instance, notes. No newline at the end.

    The table is for a terminal of `width` columns; None: of any.
    `explain` adds the reasons, and the numactl command that would place each instance the same way.
    """
    rows = [_row(instance, bound=plan.bound, machine=machine) for instance in plan.instances]
    columns = list(COLUMNS)
    if plan.layout.gpus_per_instance is not None:
        columns.append("GPU")
        for row, instance in zip(rows, plan.instances, strict=True):
            row.append(",".join([gpu.name for gpu in instance.gpus]))
    lines = [
        _heading(plan),
        *fit([columns, *rows], right=NUMBERS, width=width, optional=() if explain else OPTIONAL),
    ]
    if plan.idle_cpus:
        lines.append(f"idle: {name_numbers('CPU', plan.idle_cpus)}{_scatter_hint(plan, machine)}")
    lines += [f"warning: {warning}" for warning in plan.warnings]
    if explain:
        lines += [f"{d.subject}: {d.value} - {d.reason}" for d in plan.decisions]
        commands = [(i.index, numactl_line(i, bound=plan.bound)) for i in plan.instances]
        lines += [f"as numactl, {index}: {line}" for index, line in commands if line]
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
                "gpus": [describe_gpu(gpu) for gpu in instance.gpus],
            }
            for instance in plan.instances
        ],
        "decisions": [decision._asdict() for decision in plan.decisions],
        "warnings": list(plan.warnings),
    }


def numactl_line(instance: Instance, *, bound: bool) -> str:
    """The numactl command that places a program as this instance is placed; empty if none is needed.

    **Ex.:** ``numactl -C 0-3 --preferred=0``.
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
    return " ".join(words) if len(words) > 1 else ""


def _heading(plan: Plan) -> str:
    total = counted(plan.count, "instance")
    if len(plan.instances) < plan.count:
        total = f"{len(plan.instances)} of {total}"
    if not plan.bound:
        return f"{total} not bound, on any of {name_numbers('CPU', plan.allowed_cpus)}"
    used = [cpu for instance in plan.instances for cpu in instance.cpus]
    return f"{total} on {name_numbers('CPU', used)}"


def _scatter_hint(plan: Plan, machine: Machine) -> str:
    """The NUMA nodes without an instance, where others have several, as the end of a line."""
    idle = set(plan.idle_cpus)
    planned = {n.id: set(n.cpus) & set(plan.allowed_cpus) for n in machine.topology.numa_nodes}
    empty = [node for node, cpus in planned.items() if cpus and cpus <= idle]
    used = {node for instance in plan.instances for node in instance.nodes}
    if not empty or plan.layout.place is Place.SCATTER or len(plan.instances) <= len(used):
        return ""
    return f"; all of {name_numbers('node', empty)}: --place scatter spreads the instances"


def _row(instance: Instance, *, bound: bool, machine: Machine) -> list[str]:
    """The cells of one instance, in the order of `COLUMNS`."""
    topology = machine.topology
    cpus = set(instance.cpus)
    packages = [
        index if package.id is None else package.id
        for index, package in enumerate(topology.packages)
        if not cpus.isdisjoint(package.cpus)
    ]
    caches = [i for i, group in enumerate(topology.l3_groups) if not cpus.isdisjoint(group)]
    return [
        str(instance.index),
        str(instance.ncores),
        str(instance.threads),
        format_cpu_list(instance.cpus) if bound else "any",
        _cell(instance.nodes),
        _cell(packages),
        _cell(caches),
        f"{instance.memory.value} {format_cpu_list(instance.memory_nodes)}".rstrip(),
    ]


def _cell(numbers: Iterable[int]) -> str:
    """**Ex.:** ``0-1``; how many there are if the list would be long, ``(128)``; ``-`` for none."""
    distinct = set(numbers)
    listed = format_cpu_list(distinct) or "-"
    return listed if len(listed) <= MAX_CELL else f"({len(distinct)})"
