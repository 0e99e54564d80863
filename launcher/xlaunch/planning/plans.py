# SPDX-License-Identifier: Apache-2.0
"""What will run where, and why: the value between asking and running."""

from __future__ import annotations

from typing import NamedTuple

from xlaunch.machine.topology import CPUs
from xlaunch.planning.request import MemoryPolicy, OnFailure, Request


class Decision(NamedTuple):
    """One choice that was made, for `--explain`."""

    subject: str
    """**Ex.:** ``"layout"``, ``"instance 0 memory"``, ``"SMT"``."""
    value: str
    reason: str


class Instance(NamedTuple):
    """One process to start, and its place."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    cpus: CPUs
    """Its affinity mask; all allowed CPUs when the plan does not bind."""
    ncores: int
    """Whole cores it has (or, unbound, its share of the CPU quota in cores)."""
    threads: int
    """Threads that its parallel regions should use."""
    nodes: tuple[int, ...]
    """NUMA nodes that its CPUs belong to."""
    packages_touched: int
    nodes_touched: int
    l3_touched: int
    """Distinct packages, NUMA nodes and L3 groups under its CPUs; 1 is the least, 0: not known."""
    memory: MemoryPolicy
    """Never `AUTO`."""
    memory_nodes: tuple[int, ...]
    """The nodes that the policy names; empty for `LOCAL` and `NONE`."""


class Plan(NamedTuple):
    """Where every instance goes. Equal requests on equal machines give equal plans."""

    instances: tuple[Instance, ...]
    """Those to run; their indices are ascending."""
    count: int  # type: ignore[assignment]  # hides tuple.count
    """Instances in the whole layout; more than are run when `--instance-index` selects."""
    bound: bool
    """False: masks stay as they are (a CPU quota for fewer CPUs than are allowed, or no affinity)."""
    allowed_cpus: CPUs
    """The CPUs that were planned on."""
    idle_cpus: CPUs
    """Of those, the CPUs of cores that no instance of the layout uses."""
    decisions: tuple[Decision, ...]
    warnings: tuple[str, ...]
    """What the user should know before it runs, one line each."""
    request: Request = Request()
    """What was asked for."""
    cpu_quota: float | None = None
    """The CPU quota that the instances share; None without one."""
    memory_share_bytes: int | None = None
    """An equal part of the memory (limit or machine) for each instance; None when unknown."""

    @property
    def tagged(self) -> bool:
        """Each line of output comes with its instance's number."""
        if self.request.log_dir is not None:
            return False
        return self.count > 1 if self.request.tag is None else self.request.tag

    @property
    def relayed(self) -> bool:
        """Output passes through the supervisor: lines never mix, and it may read along."""
        if self.request.log_dir is not None:
            return False
        reads_along = self.request.pty or bool(self.request.metric)
        return self.tagged or len(self.instances) > 1 or reads_along

    @property
    def supervised(self) -> bool:
        """Something needs a supervisor; otherwise the one instance replaces the launcher."""
        request = self.request
        return (
            len(self.instances) != 1
            or self.tagged
            or request.supervise
            or request.log_dir is not None
            or request.timeout_s is not None
            or request.report is not None
            or bool(request.metric)
            or request.pty
            or request.on_failure is OnFailure.RESTART
        )
