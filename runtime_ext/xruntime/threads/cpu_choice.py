# SPDX-License-Identifier: Apache-2.0
"""Which CPUs a user names, and which of them may be used: what `CPUPool` is made from."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Set

from xlaunch.errors import UsageError
from xlaunch.machine.cpu_list import LARGEST_NUMBER, format_cpu_list, parse_cpu_list
from xlaunch.machine.topology import CPUs, Machine
from xruntime.errors import CPUPoolError

HOW_TO_NAME_CPUS = "give CPU numbers such as [0, 1] or range(8), or an expression such as '0-7,16'"


def whole_number(value: object) -> int | None:
    """`value` as an int; None for truth values, fractions, text and other things that are none."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]  # numpy's integers, for instance
    except TypeError:
        return None


def read_core_ids(given: object) -> tuple[int, ...]:
    """The CPU numbers that an expression or an iterable names, in their order; a set's ascending.

    Raises `CPUPoolError` for what names none, and for a number given twice.
    """
    if isinstance(given, str):
        try:
            numbers = parse_cpu_list(given, what="core_ids")
        except UsageError as error:
            raise CPUPoolError(str(error)) from None
    elif isinstance(given, Iterable) and not isinstance(given, bytes | bytearray):
        numbers = _read_numbers(given)
    else:
        raise CPUPoolError(f"core_ids: {given!r} is no list of CPUs; {HOW_TO_NAME_CPUS}")
    if not numbers:
        raise CPUPoolError("core_ids names no CPU; leave it out for all that may be used")
    return numbers


def _read_numbers(given: Iterable[object]) -> tuple[int, ...]:
    # Each is checked as it comes: an iterable may be endless.
    seen: dict[int, None] = {}
    for item in given:
        cpu = whole_number(item)
        if cpu is None:
            raise CPUPoolError(f"core_ids: {item!r} is no CPU number; {HOW_TO_NAME_CPUS}")
        if not 0 <= cpu < LARGEST_NUMBER:
            raise CPUPoolError(f"core_ids: there is no CPU {cpu}; {HOW_TO_NAME_CPUS}")
        if cpu in seen:
            raise CPUPoolError(f"core_ids: CPU {cpu} is named twice; name each once")
        seen[cpu] = None
    return tuple(sorted(seen)) if isinstance(given, Set) else tuple(seen)


def usable_cpus(asked: tuple[int, ...], machine: Machine, *, strict: bool) -> tuple[int, ...]:
    """Those that the process may use, in their order.

    Raises `CPUPoolError`, which names the others, if there are others or, not `strict`, if all are.
    """
    allowed = frozenset(machine.limits.allowed_cpus)
    inside = tuple([cpu for cpu in asked if cpu in allowed])
    if len(inside) == len(asked) or (inside and not strict):
        return inside
    remedy = "leave the others out, or pass strict=False" if inside else "name some of those"
    raise CPUPoolError(
        f"core_ids: {_why_not(sorted(set(asked) - allowed), machine)}; "
        f"CPUs that may be used: {format_cpu_list(allowed)}; {remedy}"
    )


def cpus_of_node(node_id: object, machine: Machine) -> CPUs:
    """The CPUs of a NUMA node that the process may use, ascending.

    A kernel without NUMA shows no nodes; its machine is node 0. Raises `CPUPoolError` if there are
    none, with the nodes that have some.
    """
    allowed = frozenset(machine.limits.allowed_cpus)
    cpus_of = {node.id: node.cpus for node in machine.topology.numa_nodes} or {0: tuple(allowed)}
    usable = [node for node, cpus in cpus_of.items() if not allowed.isdisjoint(cpus)]
    number = whole_number(node_id)
    if number in usable:
        return tuple(sorted(allowed.intersection(cpus_of[number])))
    if number is None:
        problem = f"{node_id!r} is no number of a node"
    elif number not in cpus_of:
        problem = f"node {number} does not exist or is offline"
    elif not cpus_of[number]:
        problem = f"node {number} has no CPU that is online"
    else:
        problem = (
            f"node {number} has CPUs {format_cpu_list(cpus_of[number])}, "
            f"none of which is allowed by {_narrowing(machine)}"
        )
    raise CPUPoolError(f"{problem}; nodes whose CPUs may be used: {format_cpu_list(usable)}")


def _why_not(cpus: list[int], machine: Machine) -> str:
    """What is wrong with each of the CPUs. **Ex.:** ``CPU 9 does not exist, CPUs 2-3 are offline``."""
    online = frozenset(machine.topology.online_cpus)
    offline = frozenset(machine.topology.offline_cpus) - online
    not_allowed = f"not allowed by {_narrowing(machine)}"
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


def _narrowing(machine: Machine) -> str:
    return " and ".join(machine.limits.narrowed_by) or "what the process may use"
