# SPDX-License-Identifier: Apache-2.0
"""`CPUPool`: the CPUs that a piece of work may use, as a value.

    left, right = CPUPool(node=0).split(2)

The allowed CPUs are those of the process: its affinity mask and its cpusets, read when the first pool is
made and kept from then on. The mask is the main thread's, so a confined worker thread, or code inside a
pin, makes the same pools as any other. If OpenMP shrank the main thread to one of its places
(OMP_PROC_BIND and the like), all the places count. A forked process reads its mask again.

``CPUPool(os.sched_getaffinity(0))`` is the mask of the calling thread instead, and
``CPUPool(machine=xlaunch.read_machine())`` reads everything again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, final

from xlaunch.machine.topology import CPUs, Machine
from xlaunch.text import counted, format_cpu_list
from xruntime.errors import CPUPoolError, KernelsUnavailableError
from xruntime.threads.cpu_choice import cpus_of_node, read_core_ids, usable_cpus, whole_number
from xruntime.threads.process_machine import process_machine


def _comparing(compare: Callable[[frozenset[int], frozenset[int]], bool]) -> Any:
    """Return a comparison of two pools as sets."""

    def compared(self: CPUPool, other: object) -> Any:
        if not isinstance(other, CPUPool):
            return NotImplemented
        return compare(frozenset(self), frozenset(other))

    return compared


def _combining(sign: str, combine: Callable[[CPUPool, CPUPool], list[int]]) -> Any:
    """Return an operator of two pools."""

    def combined(self: CPUPool, other: object) -> Any:
        if not isinstance(other, CPUPool):
            return NotImplemented
        return self._combined(sign, other, combine(self, other))

    return combined


def _without(pool: CPUPool, other: CPUPool) -> list[int]:
    return [cpu for cpu in pool if cpu not in other]


@final
class CPUPool:
    """A set of CPUs, at least one, that a piece of work may use. Immutable and hashable.

    **Ex.:** on 8 cores in two NUMA nodes, whose SMT siblings are 0 and 8, 1 and 9, and so on:

        CPUPool()                       # all that the process may use: 0-15
        CPUPool("0-2,8")                # as for taskset and numactl
        CPUPool([1, 0])                 # any iterable of CPU numbers
        CPUPool(node=1)                 # 4-7,12-15
        CPUPool(node=1, smt=False)      # one CPU for each core: 4-7

    Pools are compared as sets of CPUs, and ``| & - ^``, ``<=`` and the like work on these sets.
    `core_ids` and iteration keep the order in which the CPUs were given, for code that binds the first
    thread to the first CPU. Operators keep it too: first the left pool's CPUs, then what the right one adds.

    There are no empty pools: an operation that would make one raises `CPUPoolError`, a ValueError.
    """

    __slots__ = ("_core_ids", "_machine", "_members")
    _core_ids: tuple[int, ...]
    _machine: Machine
    _members: frozenset[int]

    def __new__(
        cls,
        core_ids: str | Iterable[int] | None = None,
        node_id: int | None = None,
        *,
        node: int | None = None,
        smt: bool = True,
        strict: bool = True,
        machine: Machine | None = None,
    ) -> CPUPool:
        """Make a pool of the CPUs in `core_ids`, of a NUMA node, or of all allowed CPUs.

        core_ids: CPU numbers, each once, or an expression such as ``"0-7,16"``. A set is taken
            in ascending order.
        node_id, node: two spellings for the number of a NUMA node, whose allowed CPUs are taken.
            Without NUMA in the kernel, the whole machine is node 0.
        smt: False takes the lowest CPU of each core and leaves its SMT siblings out.
        strict: False drops CPUs of `core_ids` that are not allowed, unless none is left.
        machine: another machine than the process's, or a new reading of that.

        Raises `CPUPoolError` if that is impossible, and on systems other than Linux.
        """
        asked = {"core_ids": core_ids, "node_id": node_id, "node": node}
        choices = [f"{name}={value!r}" for name, value in asked.items() if value is not None]
        if len(choices) > 1:
            raise CPUPoolError(f"{' and '.join(choices)} are given together; give one of them")
        if machine is not None and not isinstance(machine, Machine):
            raise CPUPoolError(
                f"machine: {machine!r} is not a Machine; pass what xlaunch.read_machine() returns"
            )
        if machine is None or machine.root == "/":
            # Also for another machine: the process's mask must be read before a pool confines a thread.
            this_machine = process_machine()
            machine = this_machine if machine is None else machine
        if core_ids is not None:
            chosen = usable_cpus(read_core_ids(core_ids), machine, strict=strict)
        elif choices:
            chosen = cpus_of_node(node_id if node is None else node, machine)
        else:
            chosen = machine.limits.allowed_cpus
        pool = cls._of(machine, chosen)
        if smt:
            return pool
        lowest = {core[0] for core in pool.cores}
        return cls._of(machine, [cpu for cpu in chosen if cpu in lowest])

    @classmethod
    def _of(cls, machine: Machine, core_ids: Iterable[int]) -> CPUPool:
        """Make a pool of CPUs that were checked before."""
        pool = object.__new__(cls)
        pool._core_ids = tuple(core_ids)
        pool._machine = machine
        pool._members = frozenset(pool._core_ids)
        return pool

    @property
    def core_ids(self) -> list[int]:
        """The CPU numbers in the order given, or ascending."""
        return list(self._core_ids)

    @property
    def cpus(self) -> CPUs:
        """The CPU numbers, ascending."""
        return tuple(sorted(self._core_ids))

    @property
    def cores(self) -> tuple[CPUs, ...]:
        """The pool's CPUs by physical core, in the order of the lowest. **Ex.:** ((0, 8), (1, 9))."""
        from xlaunch.planning.pool import whole_cores

        return whole_cores(self._machine.topology, self._core_ids)

    @property
    def core_count(self) -> int:
        """The number of physical cores with a CPU in the pool."""
        return len(self.cores)

    @property
    def machine(self) -> Machine:
        return self._machine

    @property
    def cpu_pool(self) -> CPUPool:
        """The pool itself, for `pool.cpu_pool.get_core_list()` as in Intel's extension."""
        return self

    def get_core_list(self) -> list[int]:
        """The same as `core_ids`."""
        return self.core_ids

    def __len__(self) -> int:
        return len(self._core_ids)

    def __iter__(self) -> Iterator[int]:
        return iter(self._core_ids)

    def __contains__(self, cpu: object) -> bool:
        return cpu in self._members

    def __str__(self) -> str:
        return format_cpu_list(self._core_ids)

    def __repr__(self) -> str:
        if self._core_ids == self.cpus:
            return f"CPUPool({format_cpu_list(self._core_ids)!r})"
        return f"CPUPool({self.core_ids})"

    def __hash__(self) -> int:
        return hash((CPUPool, self._members))

    def __eq__(self, other: object) -> bool:
        return self._members == other._members if isinstance(other, CPUPool) else NotImplemented

    __le__ = _comparing(operator.le)
    __lt__ = _comparing(operator.lt)
    __ge__ = _comparing(operator.ge)
    __gt__ = _comparing(operator.gt)
    __or__ = _combining("|", lambda pool, other: [*pool, *_without(other, pool)])
    __and__ = _combining("&", lambda pool, other: [cpu for cpu in pool if cpu in other])
    __sub__ = _combining("-", _without)
    __xor__ = _combining("^", lambda pool, other: [*_without(pool, other), *_without(other, pool)])

    def isdisjoint(self, other: CPUPool) -> bool:
        """Whether the two pools have no CPU in common."""
        return not any(cpu in self for cpu in checked_pool(other))

    def _combined(self, sign: str, other: CPUPool, core_ids: list[int]) -> CPUPool:
        if self._machine.root != other._machine.root:
            raise CPUPoolError(
                f"{self!r} {sign} {other!r}: the pools are of different machines, "
                f"{self._machine.root} and {other._machine.root}"
            )
        if not core_ids:
            raise CPUPoolError(
                f"{self!r} {sign} {other!r} leaves no CPU, and a pool has at least one; "
                "compare the pools first (isdisjoint, <=)"
            )
        if self._members.issuperset(core_ids) or self._machine is other._machine:
            return self._of(self._machine, core_ids)
        # The machine was read at different times and may have lost CPUs in between.
        return CPUPool(core_ids, machine=self._machine)

    def split(self, n: int, *, equal: bool = False) -> tuple[CPUPool, ...]:
        """Split into `n` disjoint pools of equally many cores; the first ones may have one more.

        equal: leave the remaining cores idle instead of giving the first parts one more.

        SMT siblings stay together. `xlaunch.planning.placement` places the parts in as few packages,
        then NUMA nodes, then L3 groups as it can; parts of one size are in the order of their place.
        Raises `CPUPoolError` for more parts than cores.

        **Ex.:** eight cores in L3 groups 0-3 and 4-7: ``split(3)`` gives three, three and two cores,
        ``split(3, equal=True)`` gives 0-1, 2-3 and 4-5.
        """
        cores = self.cores
        count = whole_number(n)
        if count is None or not 0 < count <= len(cores):
            fits = f"1 to {len(cores)} parts" if len(cores) > 1 else "1 part"
            raise CPUPoolError(
                f"split({n!r}): {self!r} has {counted(len(cores), 'core')}, enough for {fits}; "
                "a part has one core or more, with its SMT siblings"
            )
        if count == 1:
            return (self,)
        from xruntime.threads.core_shares import equal_shares, share_out

        divide = equal_shares if equal else share_out
        return tuple([self._part(part) for part in divide(self._machine.topology, cores, count)])

    def per_node(self) -> tuple[CPUPool, ...]:
        """Return a pool for each NUMA node with CPUs in this one, and a last one of other CPUs."""
        return self._divided([node.cpus for node in self._machine.topology.numa_nodes])

    def per_l3(self) -> tuple[CPUPool, ...]:
        """Return a pool for each L3 cache with CPUs in this one, and a last one of other CPUs."""
        return self._divided(self._machine.topology.l3_groups)

    def per_core(self) -> tuple[CPUPool, ...]:
        """Return a pool for each core, with its SMT siblings that are in this one."""
        return self._divided(self._machine.topology.cores)

    def _part(self, cpus: Iterable[int]) -> CPUPool:
        """The pool of these CPUs, in this pool's order."""
        members = frozenset(cpus)
        return self._of(self._machine, [cpu for cpu in self._core_ids if cpu in members])

    def _divided(self, groups: Iterable[CPUs]) -> tuple[CPUPool, ...]:
        ungrouped = set(self._members)
        parts: list[CPUPool] = []
        for group in groups:
            if inside := ungrouped.intersection(group):
                parts.append(self._part(inside))
                ungrouped -= inside
        if ungrouped:
            parts.append(self._part(ungrouped))
        return tuple(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the pool and its place in the machine as plain values for JSON.

        Groups hold the CPUs of this pool only; empty groups are left out.
        """
        from xlaunch.planning.pool import efficiency_cpus

        topology = self._machine.topology
        packages = [(package.id, self._inside(package.cpus)) for package in topology.packages]
        nodes = [(node.id, self._inside(node.cpus)) for node in topology.numa_nodes]
        l3_groups = [self._inside(group) for group in topology.l3_groups]
        return {
            "cpus": list(self.cpus),
            "core_ids": self.core_ids,
            "cores": [list(core) for core in self.cores],
            "packages": [{"id": id_, "cpus": cpus} for id_, cpus in packages if cpus],
            "numa_nodes": [{"id": id_, "cpus": cpus} for id_, cpus in nodes if cpus],
            "l3_groups": [cpus for cpus in l3_groups if cpus],
            "efficiency_cpus": sorted(self._members & efficiency_cpus(topology)),
        }

    def describe(self) -> str:
        """Describe the pool, in a few lines."""
        facts, limits = self.to_dict(), self._machine.limits
        lines = [
            f"{counted(len(self), 'CPU')}: {format_cpu_list(self._core_ids)}",
            f"{counted(self.core_count, 'core')}{self._describe_siblings()}",
            _describe_groups("package", facts["packages"]),
            _describe_groups("NUMA node", facts["numa_nodes"]),
            _describe_groups("L3 cache", [{"cpus": cpus} for cpus in facts["l3_groups"]]),
        ]
        if facts["efficiency_cpus"]:
            lines.append(f"efficiency cores: CPUs {format_cpu_list(facts['efficiency_cpus'])}")
        if limits.cpu_quota is not None and limits.cpu_quota < len(self):
            lines.append(
                f"CPU quota: the time of {limits.cpu_quota:g} CPUs ({limits.cpu_quota_source})"
            )
        return "\n".join(lines)

    def _inside(self, cpus: Iterable[int]) -> list[int]:
        return [cpu for cpu in cpus if cpu in self._members]

    def _describe_siblings(self) -> str:
        topology = self._machine.topology
        if not topology.cores_known:
            return " (SMT siblings are unknown: each CPU counts as a core)"
        cores = self.cores
        whole = set(topology.cores)
        complete = sum([core in whole for core in cores])
        if all(len(core) == 1 for core in whole if not self._members.isdisjoint(core)):
            return ""
        if complete == len(cores):
            return ", all SMT siblings of each"
        if all(len(core) == 1 for core in cores):
            return ", one SMT sibling of each"
        return f", all SMT siblings of {complete}"

    def __reduce__(self) -> tuple[Any, ...]:
        # The process that unpickles a pool of this machine has its own limits.
        machine = None if self._machine.root == "/" else self._machine
        return _restored, (self._core_ids, machine)

    def __copy__(self) -> CPUPool:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> CPUPool:
        return self


def _describe_groups(noun: str, groups: list[dict[str, Any]]) -> str:
    """**Ex.:** ``2 NUMA nodes: 0 (0-3,8-11); 1 (4-7,12-15)``."""
    if not groups:
        return f"{noun}s: none known"
    words = []
    for group in groups:
        name, cpus = group.get("id"), format_cpu_list(group["cpus"])
        words.append(cpus if name is None else f"{name} ({cpus})")
    return f"{counted(len(groups), noun)}: {'; '.join(words)}"


def get_core_list_of_node_id(node_id: int) -> list[int]:
    """Return one allowed CPU for each core of a NUMA node: `CPUPool(node=node_id, smt=False)`.

    Raises `CPUPoolError` if there is none.
    """
    return CPUPool(node=node_id, smt=False).core_ids


def get_default_num_streams(cpu_pool: CPUPool) -> int:
    """Return the number of cores of `cpu_pool`, or the CPU quota, rounded down, if that is less."""
    pool = checked_pool(cpu_pool)
    quota = pool.machine.limits.cpu_quota
    # One stream more than the quota would stop all of them in every period.
    return pool.core_count if quota is None else min(pool.core_count, max(1, int(quota)))


def is_runtime_ext_enabled() -> bool:
    """Whether the native library exists and can be loaded."""
    from xruntime.native import library

    try:
        library()
    except KernelsUnavailableError:
        return False
    return True


def _restored(core_ids: tuple[int, ...], machine: Machine | None) -> CPUPool:
    return CPUPool(core_ids, machine=machine)


def checked_pool(value: CPUPool) -> CPUPool:
    """`value`. Raises `CPUPoolError` for anything but a pool."""
    if not isinstance(value, CPUPool):
        raise CPUPoolError(f"{value!r} is not a CPUPool; write CPUPool({value!r}) if it names CPUs")
    return value
