# SPDX-License-Identifier: Apache-2.0
"""What a user asks for, before anything is known of the machine."""

from __future__ import annotations

import enum
from typing import NamedTuple

from xlaunch.machine.topology import CPUs


class Max(enum.Enum):
    """As many, or as large, as fits."""

    MAX = "max"


MAX = Max.MAX


class Mode(enum.Enum):
    """A layout by its purpose."""

    LATENCY = "latency"
    """Four cores an instance, as many instances as fit.

    **Ex.:** 16 cores: instances on cores 0-3, 4-7, 8-11, 12-15."""
    THROUGHPUT = "throughput"
    """One instance for each NUMA node, on all of its allowed cores.

    **Ex.:** nodes of 43, 43 and 42 cores: three instances of 43, 43 and 42."""


class Place(enum.Enum):
    """Which cores to take when not all are needed. Neither ever adds a crossing."""

    COMPACT = "compact"
    """Side by side from the lowest CPU. **Ex.:** 2 x 4 on two 8-core packages: 0-3 and 4-7."""
    SCATTER = "scatter"
    """Far apart, so that caches and memory channels are shared by few.

    **Ex.:** 2 x 4 on two 8-core packages: 0-3 and 8-11."""


class ECores(enum.Enum):
    """What to do with efficiency cores on a machine that has two kinds."""

    INCLUDE = "include"
    EXCLUDE = "exclude"
    ONLY = "only"


class MemoryPolicy(enum.Enum):
    """Where an instance's pages go (the kernel's names, see set_mempolicy(2))."""

    AUTO = "auto"
    """`PREFERRED` when the instance lies within one of several NUMA nodes, else `NONE`."""
    PREFERRED = "preferred"
    """The instance's node while it has free memory, then others."""
    BIND = "bind"
    """The instance's nodes and nothing else; out of memory there is out of memory."""
    INTERLEAVE = "interleave"
    """Page by page over the instance's nodes."""
    LOCAL = "local"
    """The node of the CPU that first touches the page, whatever policy was inherited."""
    NONE = "none"
    """Leave the inherited policy as it is."""


class HugePages(enum.Enum):
    """Transparent huge pages under a program's memory."""

    AUTO = "auto"
    """The allocator asks for them where the system leaves that to programs."""
    ALWAYS = "always"
    """Allocator and torch ask for them wherever they can."""
    MADVISE = "madvise"
    """Only the program itself asks."""
    NEVER = "never"
    """None, for this program and all it starts (PR_SET_THP_DISABLE)."""


class OnFailure(enum.Enum):
    """What the first instance that fails means for the others."""

    STOP = "stop"
    """The others end too."""
    CONTINUE = "continue"
    """Nothing; the exit code tells."""
    RESTART = "restart"
    """It is started anew in its place; when it has failed too often, as `STOP`."""


class Request(NamedTuple):
    """Everything that can be asked of one launch. The defaults are the command line's."""

    program: tuple[str, ...] = ()
    """The program and its arguments, as given."""
    module: bool = False
    """The program is the name of a Python module (``-m``)."""
    no_python: bool = False
    """The program is an executable, whatever its name ends in."""

    instances: int | Max | None = None
    ncores: int | Max | None = None
    cpus: CPUs | None = None
    """Plan on these CPUs only."""
    numa_nodes: tuple[int, ...] | None = None
    """Plan on the CPUs of these NUMA nodes only."""
    reserve_cores: int = 0
    """Cores to leave free."""
    instance_index: tuple[int, ...] | None = None
    """Of the whole plan, run these instances only."""
    mode: Mode | None = None
    place: Place = Place.COMPACT
    smt: bool = False
    ecores: ECores | None = None
    """None: efficiency cores are left out where there are performance cores to use."""
    oversubscribe: bool = False
    """Let instances share cores when more are asked for than there are."""
    mem_policy: MemoryPolicy = MemoryPolicy.AUTO

    allocator: str = "auto"
    """An allocator profile, or the path of a library to preload."""
    omp: str = "auto"
    """An OpenMP profile, or the path of a runtime to preload."""
    thp: HugePages = HugePages.AUTO
    cache_dir: str | None = None
    """Where compile caches go; None: below XDG_CACHE_HOME."""
    no_cache: bool = False
    """Leave compile caches where their libraries put them."""
    env: tuple[tuple[str, str], ...] = ()
    """Variables for every instance, over everything else; ``{index}`` and the like are replaced."""
    substitute: bool = False
    """Replace ``{index}`` and the like in the program's arguments, as in `env`."""
    python: str | None = None
    """The Python interpreter for scripts and modules; None: the active environment's."""
    log_dir: str | None = None
    tag: bool | None = None
    """Put each instance's number before its lines; None: when there are several instances."""
    on_failure: OnFailure = OnFailure.STOP
    max_restarts: int | Max | None = None
    """Of each instance, with `OnFailure.RESTART`; None: 3."""
    timeout_s: float | None = None
    grace_s: float = 10.0
    """Between SIGTERM and SIGKILL."""
    supervise: bool = False
    """Keep a supervisor even where one instance could replace the launcher."""
    pty: bool = False
    """Instances write to pseudo-terminals."""
    metric: tuple[str, ...] = ()
    """Numbers in the instances' output to report on; see `xlaunch.measurement.metric_lines`."""
    report: str | None = None
    """Write the report of the run to this file as JSON."""
