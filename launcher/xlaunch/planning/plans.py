# SPDX-License-Identifier: Apache-2.0
"""A plan: what will run where, and why."""

from typing import NamedTuple

from xlaunch.machine.topology import CPUs, Gpu
from xlaunch.planning.request import LayoutRequest, LogFormat, MemoryPolicy, OnFailure, RunRequest


class Decision(NamedTuple):
    """A decision of the planner, for `--explain`."""

    subject: str
    """**Ex.:** ``"layout"``, ``"instance 0 memory"``, ``"SMT"``."""
    value: str
    reason: str


class Instance(NamedTuple):
    """One process to start, with its CPUs and memory policy."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    cpus: CPUs
    """Its affinity mask; all allowed CPUs if the plan does not bind."""
    ncores: int
    """Its whole cores; if unbound, its share of the CPU quota in cores."""
    threads: int
    """Threads that its parallel regions should use."""
    nodes: tuple[int, ...]
    """NUMA nodes that its CPUs belong to."""
    packages_touched: int
    nodes_touched: int
    l3_touched: int
    """Number of packages, NUMA nodes and L3 groups that its CPUs belong to; 0: not known."""
    memory: MemoryPolicy
    """Never `AUTO`."""
    memory_nodes: tuple[int, ...]
    """The nodes that the policy names; empty for `LOCAL` and `NONE`."""
    gpus: tuple[Gpu, ...] = ()
    """The GPUs that it sees; empty if GPUs are not divided: then it sees all."""


class Plan(NamedTuple):
    """The place of every instance. Equal requests on equal machines give equal plans."""

    instances: tuple[Instance, ...]
    """The instances to run, by ascending index."""
    count: int  # type: ignore[assignment]  # hides tuple.count
    """Instances in the whole layout; `--instance-index` may select fewer to run."""
    bound: bool
    """False: masks are not changed, because of a CPU quota or a system without masks."""
    allowed_cpus: CPUs
    """The CPUs that instances may use."""
    idle_cpus: CPUs
    """The allowed CPUs of cores that no instance of the layout uses."""
    decisions: tuple[Decision, ...]
    warnings: tuple[str, ...]
    """One line each."""
    layout: LayoutRequest = LayoutRequest()
    """What was asked for."""
    cpu_quota: float | None = None
    """The CPU quota that the instances share; None without one."""
    memory_share_bytes: int | None = None
    """Each instance's equal share of the memory; None if unknown."""
    cores_known: bool = True
    """False: CPUs that count as cores may be SMT siblings, which the kernel does not show."""

    @property
    def used_cpus(self) -> CPUs:
        return tuple(sorted({cpu for instance in self.instances for cpu in instance.cpus}))

    def tagged(self, run: RunRequest) -> bool:
        """Whether each line of output is prefixed with its instance's number."""
        hidden = run.log_dir is not None and not run.tee
        if hidden or run.log_format is LogFormat.JSON:
            return False
        return self.count > 1 if run.tag is None else run.tag

    def relayed(self, run: RunRequest) -> bool:
        """Whether output passes through the supervisor, which keeps lines apart and reads along."""
        if run.log_dir is not None and not run.relays_logs:
            return False
        reads_along = run.pty or bool(run.metric) or run.verify_device or run.relays_logs
        return self.tagged(run) or len(self.instances) > 1 or reads_along

    def supervised(self, run: RunRequest) -> bool:
        """Whether a supervisor is needed; otherwise the one instance replaces the launcher."""
        return (
            self.relayed(run)
            or len(self.instances) != 1
            or run.supervise
            or run.log_dir is not None
            or run.timeout_s is not None
            or run.report is not None
            or run.failure_rule is OnFailure.RESTART
            or run.health is not None
            or run.exports_metrics
        )
