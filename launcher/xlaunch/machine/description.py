# SPDX-License-Identifier: Apache-2.0
"""A machine as JSON, in the form that tests use for captured machines."""

from __future__ import annotations

import json

from xlaunch.machine.topology import CPUs, Gpu, Machine, NumaNode

ALWAYS = frozenset(
    ("arch", "online_cpus", "offline_cpus", "packages", "numa_nodes", "l3_groups", "cores")
)
"""The keys that are present even if their values are empty."""


def describe_machine(machine: Machine) -> dict[str, object]:
    """The machine as plain values, without redundant keys.

    ``dies``, ``l2_groups``, ``clusters`` and ``core_kinds`` are present if they differ from packages
    and cores; ``allowed_cpus``, ``allowed_numa_nodes`` and ``cpu_quota`` if this process is limited.
    """
    topology, limits = machine.topology, machine.limits
    usable = {gpu.address: gpu.name for gpu in machine.gpus.usable}
    facts: dict[str, object] = {
        "arch": topology.architecture,
        "online_cpus": topology.online_cpus,
        "offline_cpus": topology.offline_cpus,
        "packages": [{"id": package.id, "cpus": package.cpus} for package in topology.packages],
        "dies": topology.dies,
        "numa_nodes": [_describe_node(node) for node in topology.numa_nodes],
        "l3_groups": topology.l3_groups,
        "l2_groups": topology.l2_groups,
        "clusters": topology.clusters,
        "cores": topology.cores if topology.cores_known else None,
        "core_kinds": [
            {"cpus": kind.cpus, "efficiency": kind.efficiency, "attrs": dict(kind.attributes)}
            for kind in topology.core_kinds
        ],
        "allowed_cpus": limits.allowed_cpus if limits.allowed_cpus != topology.online_cpus else (),
        "allowed_numa_nodes": _narrowed_nodes(machine),
        "allowed_via": ", ".join(limits.narrowed_via),
        "cpu_quota": limits.cpu_quota,
        "isolated_cpus": topology.isolated_cpus,
        "gpus": [
            describe_gpu(gpu._replace(name=usable.get(gpu.address, "")))
            for gpu in machine.gpus.found
        ],
        "notes": "; ".join(machine.notes),
    }
    return {key: value for key, value in facts.items() if value or key in ALWAYS}


def describe_gpu(gpu: Gpu) -> dict[str, object]:
    """A GPU as plain values; None for what is unknown, and for the name of one that may not be used."""
    return {
        "name": gpu.name or None,
        "vendor": gpu.vendor.value,
        "model": gpu.model or None,
        "pci_address": gpu.address or None,
        "numa_node": gpu.numa_node,
    }


def format_json(facts: dict[str, object]) -> str:
    """JSON with a line for each key, and for each object in a list."""
    lines = []
    for key, value in facts.items():
        if isinstance(value, list) and value:
            text = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
        else:
            text = json.dumps(value)
        lines.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}"


def _describe_node(node: NumaNode) -> dict[str, object]:
    facts: dict[str, object] = {"id": node.id, "cpus": node.cpus, "memory_bytes": node.memory_bytes}
    if node.local_cpus:
        facts["local_cpus"] = node.local_cpus
    return facts


def _narrowed_nodes(machine: Machine) -> CPUs:
    """The allowed nodes, if one with memory is not among them; those without memory never are."""
    allowed = machine.limits.allowed_nodes
    withheld = (node for node in machine.topology.numa_nodes if node.id not in allowed)
    return allowed if any(node.memory_bytes != 0 for node in withheld) else ()
