# SPDX-License-Identifier: Apache-2.0
"""The model of a machine: packages, dies, caches, NUMA nodes, cores, GPUs, and limits of this process.

All numbers are the kernel's. A set of logical CPUs is an ascending tuple of CPU numbers.
`xlaunch.machine.sysfs` and `xlaunch.machine.limits` create the values, which are immutable.
"""

import enum
from typing import NamedTuple

CPUs = tuple[int, ...]
"""Logical CPU numbers, ascending, each once. **Ex.:** ``(0, 1, 8, 9)``."""


class Package(NamedTuple):
    """A physical package (socket)."""

    id: int | None
    """The kernel's ``physical_package_id``; None when it is absent or -1."""
    cpus: CPUs


class NumaNode(NamedTuple):
    """A NUMA node: memory, and the CPUs nearest to it."""

    id: int
    cpus: CPUs
    """Online CPUs of the node; empty for a node of memory only (HBM, CXL, persistent memory)."""
    memory_bytes: int | None
    """MemTotal of the node; None when unknown."""
    distances: tuple[int, ...] = ()
    """The kernel's distance to each node, in the order of `Topology.numa_nodes`; empty when unknown."""
    local_cpus: CPUs = ()
    """For a node without CPUs: the CPUs nearest to it."""


class CoreKind(NamedTuple):
    """Cores of one design, on a machine with several (hybrid x86, big.LITTLE)."""

    cpus: CPUs
    efficiency: int
    """Rank by performance, 0 the slowest; -1 if the kinds cannot be ranked."""
    attributes: tuple[tuple[str, str], ...] = ()
    """What distinguishes the kinds, for display. **Ex.:** ``(("FrequencyMaxMHz", "3900"),)``."""


class Topology(NamedTuple):
    """The hardware as the kernel shows it, whether or not this process may use it.

    Groups contain online CPUs only. Each list of groups is in the order of its lowest CPU.
    """

    architecture: str
    """Machine name of uname (``x86_64``, ``aarch64``), or ``unknown``."""
    online_cpus: CPUs
    offline_cpus: CPUs = ()
    packages: tuple[Package, ...] = ()
    """Covers every online CPU."""
    dies: tuple[CPUs, ...] = ()
    """Only if some package has several dies; then covers every online CPU."""
    clusters: tuple[CPUs, ...] = ()
    """Only when the kernel's clusters are neither the cores nor the packages."""
    numa_nodes: tuple[NumaNode, ...] = ()
    """In the order of their ids; empty when the kernel shows none."""
    l3_groups: tuple[CPUs, ...] = ()
    """CPUs that share one L3 cache; empty when the kernel lists no L3."""
    l2_groups: tuple[CPUs, ...] = ()
    """Only when some L2 cache is not exactly one core's."""
    cores: tuple[CPUs, ...] = ()
    """SMT siblings of each physical core; every CPU its own core when the siblings are not known."""
    cores_known: bool = False
    """False if the kernel does not show which CPUs share a core."""
    core_kinds: tuple[CoreKind, ...] = ()
    """Only when there is more than one kind; the slowest first."""
    isolated_cpus: CPUs = ()
    """The kernel's `isolated` list (isolcpus=)."""


SLURM_COUNT = "SLURM_CPUS_ON_NODE"
"""The variable with the number of CPUs that Slurm counts for a job on this host."""


class Limits(NamedTuple):
    """What this process may use of the machine."""

    allowed_cpus: CPUs
    """Online CPUs inside both the affinity mask and every enclosing cpuset. Never empty."""
    allowed_nodes: tuple[int, ...] = ()
    """Ids of the NUMA nodes whose memory may be used, among `Topology.numa_nodes`."""
    narrowed_by: tuple[str, ...] = ()
    """Why the allowed CPUs are fewer than the online ones; empty if all are allowed.

    **Ex.:** ``("cpuset 0-7 (cgroup v2 /sys/fs/cgroup/job)", "affinity mask 0-3")``."""
    cpu_quota: float | None = None
    """The tightest enclosing CPU quota, in CPUs; None without one."""
    cpu_quota_source: str | None = None
    """Its control group, or `SLURM_COUNT`."""
    memory_limit_bytes: int | None = None
    """The tightest enclosing cgroup memory limit; None without one."""
    memory_limit_source: str | None = None
    memory_total_bytes: int | None = None
    """MemTotal of the machine; None if unknown. The sum over nodes may be less: hot-plugged memory."""
    narrowed_via: tuple[str, ...] = ()
    """The same as `narrowed_by` without the names of groups, which may be private.

    **Ex.:** ``("cgroup v2 cpuset at /sys/fs/cgroup", "affinity mask")``."""


class Vendor(enum.Enum):
    """Who makes a GPU. The value is the vendor's name."""

    NVIDIA = "NVIDIA"
    AMD = "AMD"
    INTEL = "Intel"


class Gpu(NamedTuple):
    """A GPU; with the first two fields alone, a model of GPU."""

    vendor: Vendor
    model: str
    """PCI vendor and device. **Ex.:** ``10de:2335``, an H200. Empty when unknown."""
    address: str = ""
    """PCI address. **Ex.:** ``0000:18:00.0``. Empty when unknown."""
    numa_node: int | None = None
    """The node that it is next to; None when unknown, as in most virtual machines."""
    uuid: str = ""
    """The UUID that NVIDIA's driver gives it. **Ex.:** ``GPU-5c1f...``. Empty when unknown."""
    variable: str = ""
    """The variable by which a program sees chosen GPUs only. **Ex.:** ``CUDA_VISIBLE_DEVICES``."""
    name: str = ""
    """Its name in `variable`. **Ex.:** ``0``, ``GPU-5c1f...``."""

    @property
    def identity(self) -> str:
        """What tells it from other GPUs of this host."""
        return self.address or self.name


class Gpus(NamedTuple):
    """The GPUs of a machine, and those that instances may get."""

    found: tuple[Gpu, ...] = ()
    """Every GPU that a driver has: NVIDIA's, AMD's, then Intel's, each as its runtime numbers them."""
    usable: tuple[Gpu, ...] = ()
    """Those that this process may use, all of one vendor, in the order in which instances get them."""
    narrowed_by: str = ""
    """The inherited variable that chooses them. **Ex.:** ``CUDA_VISIBLE_DEVICES=1,0``."""
    problem: str = ""
    """Why none can be given to instances, where some are there."""


class Machine(NamedTuple):
    """A machine and what may be used of it: the input of planning."""

    root: str
    """The directory that contains `sys` and `proc`; ``/`` for this machine."""
    topology: Topology
    limits: Limits
    notes: tuple[str, ...] = ()
    """Missing or contradictory files, and what was assumed; one line each."""
    gpus: Gpus = Gpus()
    warnings: tuple[str, ...] = ()
    """Those of `notes` that every launch should print."""
