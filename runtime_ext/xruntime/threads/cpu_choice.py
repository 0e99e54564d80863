# SPDX-License-Identifier: Apache-2.0
"""Checks of the CPUs and NUMA nodes that a user names for a `CPUPool`."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Set

from xlaunch.errors import UsageError
from xlaunch.machine.topology import CPUs, Machine
from xlaunch.text import MAX_NUMBER, format_cpu_list, parse_cpu_list
from xruntime.errors import CPUPoolError

HOW_TO_NAME_CPUS = "give CPU numbers such as [0, 1] or range(8), or an expression such as '0-7,16'"


def whole_number(value: object) -> int | None:
    """Return `value` as an int; None for booleans, fractions, text and other types."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]  # numpy's integers, for instance
    except TypeError:
        return None


def read_core_ids(given: object) -> tuple[int, ...]:
    """Return the CPU numbers of an expression or iterable, in their order; a set's ascending.

    Raises `CPUPoolError` for anything else, for no CPU, and for a number given twice.
    """
    if isinstance(given, str):
        try:
            numbers = parse_cpu_list(given, what="core_ids")
        except UsageError as error:
            raise CPUPoolError(str(error)) from None
    elif isinstance(given, Iterable) and not isinstance(given, bytes | bytearray):
        numbers = _read_numbers(given)
    else:
        raise CPUPoolError(f"core_ids: {given!r} is not a list of CPUs; {HOW_TO_NAME_CPUS}")
    if not numbers:
        raise CPUPoolError("core_ids names no CPU; leave it out for all allowed CPUs")
    return numbers


def _read_numbers(given: Iterable[object]) -> tuple[int, ...]:
    # Each is checked at once: an iterable may be endless.
    seen: dict[int, None] = {}
    for item in given:
        cpu = whole_number(item)
        if cpu is None:
            raise CPUPoolError(f"core_ids: {item!r} is not a CPU number; {HOW_TO_NAME_CPUS}")
        if not 0 <= cpu < MAX_NUMBER:
            raise CPUPoolError(f"core_ids: there is no CPU {cpu}; {HOW_TO_NAME_CPUS}")
        if cpu in seen:
            raise CPUPoolError(f"core_ids: CPU {cpu} is named twice; name each once")
        seen[cpu] = None
    return tuple(sorted(seen)) if isinstance(given, Set) else tuple(seen)


def usable_cpus(asked: tuple[int, ...], machine: Machine, *, strict: bool) -> tuple[int, ...]:
    """Return the usable CPUs. Raises `CPUPoolError` if some are not, or without `strict` if all are not."""
    allowed = frozenset(machine.limits.allowed_cpus)
    inside = tuple([cpu for cpu in asked if cpu in allowed])
    if len(inside) == len(asked) or (inside and not strict):
        return inside
    remedy = "leave the others out, or pass strict=False" if inside else "name some of these"
    raise CPUPoolError(
        f"core_ids: {_refusals(sorted(set(asked) - allowed), machine)}; "
        f"allowed CPUs: {format_cpu_list(allowed)}; {remedy}"
    )


def cpus_of_node(node_id: object, machine: Machine) -> CPUs:
    """Return the CPUs of a NUMA node that the process may use, ascending.

    Without NUMA in the kernel, the whole machine is node 0. Raises `CPUPoolError` if there are none.
    """
    allowed = frozenset(machine.limits.allowed_cpus)
    cpus_of = {node.id: node.cpus for node in machine.topology.numa_nodes} or {0: tuple(allowed)}
    usable = [node for node, cpus in cpus_of.items() if not allowed.isdisjoint(cpus)]
    number = whole_number(node_id)
    if number in usable:
        return tuple(sorted(allowed.intersection(cpus_of[number])))
    if number is None:
        problem = f"{node_id!r} is not the number of a node"
    elif number not in cpus_of:
        problem = f"node {number} does not exist or is offline"
    elif not cpus_of[number]:
        problem = f"node {number} has no online CPU"
    else:
        problem = (
            f"node {number} has CPUs {format_cpu_list(cpus_of[number])}, "
            f"none of which is allowed by {_limit_sources(machine)}"
        )
    raise CPUPoolError(f"{problem}; nodes with allowed CPUs: {format_cpu_list(usable)}")


def _refusals(cpus: list[int], machine: Machine) -> str:
    """The reason why each CPU cannot be used. **Ex.:** ``CPU 9 does not exist, CPUs 2-3 are offline``."""
    online = frozenset(machine.topology.online_cpus)
    offline = frozenset(machine.topology.offline_cpus) - online
    not_allowed = f"not allowed by {_limit_sources(machine)}"
    reasons = (
        ([c for c in cpus if c not in online | offline], "does not exist", "do not exist"),
        ([c for c in cpus if c in offline], "is offline", "are offline"),
        ([c for c in cpus if c in online], f"is {not_allowed}", f"are {not_allowed}"),
    )
    return ", ".join(
        f"CPU {wrong[0]} {one}" if len(wrong) == 1 else f"CPUs {format_cpu_list(wrong)} {several}"
        for wrong, one, several in reasons
        if wrong
    )


def _limit_sources(machine: Machine) -> str:
    return " and ".join(machine.limits.narrowed_by) or "the process's limits"
