# SPDX-License-Identifier: Apache-2.0
"""A request: what the user wants, independent of the machine; and options that exclude each other."""

import enum
import math
from collections.abc import Mapping
from types import UnionType
from typing import Any, NamedTuple, Self, TypeVar, get_args, get_origin

from xlaunch.errors import UsageError
from xlaunch.machine.topology import CPUs
from xlaunch.text import check_passable


class Max(enum.Enum):
    """As many, or as large, as fit."""

    MAX = "max"


MAX = Max.MAX


class Mode(enum.Enum):
    """A layout by its purpose."""

    LATENCY = "latency"
    """Four cores per instance, as many instances as fit.

    **Ex.:** 16 cores: instances on cores 0-3, 4-7, 8-11, 12-15."""
    THROUGHPUT = "throughput"
    """One instance for each NUMA node, on all of its allowed cores.

    **Ex.:** nodes of 43, 43 and 42 cores: three instances of 43, 43 and 42."""


class Place(enum.Enum):
    """Which cores to use if not all are needed. Neither adds a crossing."""

    COMPACT = "compact"
    """Side by side from the lowest CPU. **Ex.:** 2 x 4 on two 8-core packages: 0-3 and 4-7."""
    SCATTER = "scatter"
    """Far apart, so that caches and memory channels are shared by few.

    **Ex.:** 2 x 4 on two 8-core packages: 0-3 and 8-11."""


class ECores(enum.Enum):
    """The use of efficiency cores on a machine that has other cores too."""

    INCLUDE = "include"
    EXCLUDE = "exclude"
    ONLY = "only"


class MemoryPolicy(enum.Enum):
    """NUMA memory policy of an instance; the kernel's names, see set_mempolicy(2)."""

    AUTO = "auto"
    """`PREFERRED` if the instance lies within one of several NUMA nodes, else `NONE`."""
    PREFERRED = "preferred"
    """The instance's node while it has free memory, then others."""
    BIND = "bind"
    """Only the instance's nodes; allocations fail if these are full."""
    INTERLEAVE = "interleave"
    """Pages alternate between the instance's nodes."""
    LOCAL = "local"
    """The node of the CPU that first touches a page, regardless of the inherited policy."""
    NONE = "none"
    """The inherited policy is not changed."""


class HugePages(enum.Enum):
    """The use of transparent huge pages."""

    AUTO = "auto"
    """The allocator requests them if the system's mode is madvise."""
    ALWAYS = "always"
    """Allocator and torch request them."""
    MADVISE = "madvise"
    """Only the program itself may request them."""
    NEVER = "never"
    """Disabled for the program and all its children (PR_SET_THP_DISABLE)."""


class Caches(enum.Enum):
    """Which compile caches are kept between runs."""

    AUTO = "auto"
    """Those that change nothing but the time that compiling takes."""
    ALL = "all"
    """Also those that change what programs do.

    **Ex.:** JAX's, which loads executables, and torch's profile of sizes that change (PGO).
    """


class Optimize(enum.Enum):
    """The precision that `xruntime.optimize` gives the program's models."""

    AUTO = "auto"
    """bf16 on a CPU with instructions for it (AVX512-BF16, AMX, Arm's BF16), else fp32."""
    FP32 = "fp32"
    BF16 = "bf16"


class RankMode(enum.Enum):
    """The launcher whose variables tell which rank a process is."""

    AUTO = "auto"
    """The first of the launchers below whose variables are set."""
    OFF = "off"
    """No launcher: every process plans for the whole host."""
    TORCHRUN = "torchrun"
    MPI = "mpi"
    """mpirun and mpiexec of any MPI, PALS, jsrun, Flux."""
    SLURM = "slurm"


class RankVariables(NamedTuple):
    launcher: RankMode
    local: str
    local_sizes: tuple[str, ...]
    """Any of them says how many ranks are on this host; none: the job's size over its hosts."""
    overall: str
    job_size: str = ""
    hosts: str = ""


RANK_VARIABLES = (
    RankVariables(RankMode.TORCHRUN, "LOCAL_RANK", ("LOCAL_WORLD_SIZE", "LOCAL_SIZE"), "RANK", "WORLD_SIZE"),
    RankVariables(RankMode.MPI, "OMPI_COMM_WORLD_LOCAL_RANK", ("OMPI_COMM_WORLD_LOCAL_SIZE",), "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    RankVariables(RankMode.MPI, "MPI_LOCALRANKID", ("MPI_LOCALNRANKS",), "PMI_RANK", "PMI_SIZE"),
    RankVariables(RankMode.MPI, "MV2_COMM_WORLD_LOCAL_RANK", ("MV2_COMM_WORLD_LOCAL_SIZE",), "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    RankVariables(RankMode.MPI, "PALS_LOCAL_RANKID", ("PALS_LOCAL_SIZE",), "PALS_RANKID"),
    RankVariables(RankMode.MPI, "JSM_NAMESPACE_LOCAL_RANK", ("JSM_NAMESPACE_LOCAL_SIZE",), "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    RankVariables(RankMode.MPI, "FLUX_TASK_LOCAL_ID", (), "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_JOB_NNODES"),
    RankVariables(RankMode.SLURM, "SLURM_LOCALID", ("SLURM_STEP_TASKS_PER_NODE",), "SLURM_PROCID"),
)  # fmt: skip
"""torchrun and what follows it (accelerate), and deepspeed with LOCAL_SIZE; Open MPI; Hydra (Intel
MPI, MPICH); MVAPICH2; PALS of HPE Cray; jsrun; Flux; srun, which lists the tasks of every node."""

LOCAL_RANK_VARIABLES = frozenset([row.local for row in RANK_VARIABLES])
"""Without any of them a process is no rank."""


class OnFailure(enum.Enum):
    """What to do after an instance fails."""

    STOP = "stop"
    """Stop the other instances."""
    CONTINUE = "continue"
    """Let the others run; the exit code reports the failure."""
    RESTART = "restart"
    """Restart it on the same CPUs; after `max_restarts`, as `STOP`."""


class RestartLimit(NamedTuple):
    """How often one instance may be restarted. **Ex.:** ``5/10m``, ``5/all``."""

    restarts: int
    window_s: float = 600.0
    """Within the last seconds; infinite: in its whole life."""

    def window(self) -> str:
        """**Ex.:** ``10m``, ``all``."""
        for unit, unit_s in (("d", 86400), ("h", 3600), ("m", 60)):
            if self.window_s % unit_s == 0:
                return f"{self.window_s / unit_s:g}{unit}"
        return "all" if self.window_s == math.inf else f"{self.window_s:g}s"

    def __str__(self) -> str:
        return f"{self.restarts}/{self.window()}"


FIRST_DELAY_S = 1.0
MAX_DELAY_S = 60.0
"""The delay of an instance's restart doubles from the first to this one."""


def largest_reachable(window_s: float) -> int | Max:
    """The largest number of restarts that an instance which fails at once can use up in a window.

    A larger one never stops it: its delays spread the restarts over more than the window.
    """
    if math.isinf(window_s):
        return MAX
    restarts, at_s, delay_s = 0, 0.0, FIRST_DELAY_S
    while at_s + delay_s <= window_s and delay_s < MAX_DELAY_S:
        restarts, at_s, delay_s = restarts + 1, at_s + delay_s, min(2 * delay_s, MAX_DELAY_S)
    return restarts + max(0, int((window_s - at_s) // MAX_DELAY_S))


def check_limit(limit: RestartLimit | int | Max | None) -> None:
    """Raise `UsageError` for a limit that an instance which fails at once never reaches."""
    if limit is None or limit is MAX:
        return
    limit = RestartLimit(limit) if isinstance(limit, int) else limit
    largest = largest_reachable(limit.window_s)
    if largest is not MAX and limit.restarts > largest:
        window = limit.window()
        instead = f"{largest}/{window}" if largest else "1/1s"
        raise UsageError(
            f"{limit}: an instance that fails at once is restarted after 1 s, 2 s, 4 s and so on up to a minute, so "
            f"{largest} times in {window}, and this limit would never stop it; "
            f"write {instead} or less, or {limit.restarts}/all for its whole life"
        )


class LogFormat(enum.Enum):
    """How output is written where the launcher writes it."""

    TEXT = "text"
    JSON = "json"
    """An object for each line: ``time``, ``instance``, ``stream`` and ``line``."""


class LayoutRequest(NamedTuple):
    """What planning reads: how many instances, of which size, and where."""

    instances: int | Max | None = None
    ncores: int | Max | None = None
    cpus: CPUs | None = None
    """Use only these CPUs."""
    numa_nodes: tuple[int, ...] | None = None
    """Use only the CPUs of these NUMA nodes."""
    reserve_cores: int = 0
    """Number of cores to leave idle."""
    instance_index: tuple[int, ...] | None = None
    """Run only these instances of the layout."""
    mode: Mode | None = None
    place: Place = Place.COMPACT
    smt: bool = False
    ecores: ECores | None = None
    """None: efficiency cores are excluded if there are performance cores."""
    oversubscribe: bool = False
    """Let instances share cores if there are too few."""
    mem_policy: MemoryPolicy = MemoryPolicy.AUTO
    gpus_per_instance: int | None = None
    """GPUs that each instance has alone, with the cores next to them; None: GPUs are not divided."""
    near_gpus: bool = False
    """Place instance i next to GPU i, which it chooses itself as a rank does; GPUs are not divided."""


class ProgramRequest(NamedTuple):
    """What is run, with which interpreter, libraries and variables."""

    words: tuple[str, ...] = ()
    """The program and its arguments, as given."""
    module: bool = False
    """The program is the name of a Python module (``-m``)."""
    no_python: bool = False
    """The program is an executable, even if its name ends in .py."""
    python: str | None = None
    """The Python interpreter for scripts and modules; None: the active environment's."""
    env: tuple[tuple[str, str], ...] = ()
    """Variables for every instance, which win over all others; ``{index}`` etc. are replaced."""
    unset: tuple[str, ...] = ()
    """Variables that instances do not have. Of LD_PRELOAD and PYTHONPATH, only the user's own entries."""
    substitute: bool = False
    """Replace ``{index}`` etc. in the program's arguments, as in `env`."""
    allocator: str = "auto"
    """An allocator profile, or the path of a library to preload."""
    omp: str = "auto"
    """An OpenMP profile, or the path of a runtime to preload."""
    thp: HugePages = HugePages.AUTO
    cache_dir: str | None = None
    """Directory for compile caches; None: below XDG_CACHE_HOME."""
    cache: Caches | None = None
    """None: `Caches.AUTO`."""
    no_cache: bool = False
    """Leave compile caches where their libraries put them."""
    optimize: Optimize | None = None
    """Apply `xruntime.optimize` to the models that the program calls."""
    optimize_wait: bool = False
    """With `optimize`: compile before a model's first call, instead of in the background."""


class RunRequest(NamedTuple):
    """How the run is supervised, and where output, metrics and the report go."""

    log_dir: str | None = None
    """Write each instance's output to files in this directory."""
    tee: bool = False
    """With `log_dir`: show the output as well."""
    tag: bool | None = None
    """Prefix each line with its instance's number; None: if there are several instances."""
    log_format: LogFormat = LogFormat.TEXT
    log_size: int | None = None
    """Bytes of a log file at most, about; then it is moved to ``.1``."""
    on_failure: OnFailure | None = None
    """None: `RESTART` with `health`, else `STOP`."""
    max_restarts: RestartLimit | int | Max | None = None
    """Maximum restarts of each failed instance with `OnFailure.RESTART`; a number: in ten minutes. None: 3."""
    timeout_s: float | None = None
    grace_s: float = 10.0
    """Time between SIGTERM and SIGKILL."""
    supervise: bool = False
    """Keep a supervisor even if one instance could replace the launcher."""
    verify_device: bool = False
    """Sample the GPUs, and report where the program worked."""
    pty: bool = False
    """Run instances on pseudo-terminals."""
    metric: tuple[str, ...] = ()
    """Numbers in the instances' output to report on; see `xlaunch.metrics.metric_lines`."""
    report: str | None = None
    """Write the report of the run to this file as JSON."""
    force: bool = False
    """Let `report` replace a file that is not a report."""
    health: str | None = None
    """How to ask an instance whether it works: a URL, a port, or ``exec:COMMAND``, with braces."""
    health_interval_s: float = 10.0
    """Time between two probes of an instance."""
    health_timeout_s: float = 5.0
    health_failures: int = 3
    """After as many failed probes in a row an instance is ended."""
    health_start_s: float = 120.0
    """Failures of an instance that never was well count only after this time."""

    prometheus_file: str | None = None
    """Write metrics to this file, in the text format of Prometheus, every 15 seconds."""
    prometheus_port: int | None = None
    """Serve the same on this port of 127.0.0.1."""

    @property
    def relays_logs(self) -> bool:
        """Whether the launcher writes log files itself, if there are any."""
        return self.tee or self.log_size is not None or self.log_format is LogFormat.JSON

    @property
    def exports_metrics(self) -> bool:
        """Whether an exporter runs beside the instances."""
        return self.prometheus_file is not None or self.prometheus_port is not None

    @property
    def failure_rule(self) -> OnFailure:
        """What to do after an instance fails."""
        return self.on_failure or (OnFailure.STOP if self.health is None else OnFailure.RESTART)


class HostRequest(NamedTuple):
    """Which machine to plan for, and how to share it with other launches."""

    sysroot: str | None = None
    """A captured machine: a directory or an archive. None: this machine."""
    synthetic: str | None = None
    """A made-up machine, by its levels. None: this machine."""
    rank_mode: RankMode = RankMode.AUTO
    exclusive: bool = False
    """Take no cores that another launch has."""
    wait_s: float | None = None
    """How long to wait for such cores, in seconds; implies `exclusive`."""

    @property
    def is_this_machine(self) -> bool:
        return self.sysroot is None and self.synthetic is None


class Request(NamedTuple):
    """The options of one launch, in the three parts that its steps read.

    **Ex.:** ``Request.of("infer.py", instances=2, timeout_s=60)``. The defaults are the command line's.
    """

    layout: LayoutRequest = LayoutRequest()
    program: ProgramRequest = ProgramRequest()
    run: RunRequest = RunRequest()

    @classmethod
    def of(cls, *words: str, **options: Any) -> Self:
        """The program and its arguments, and options by the names of their fields in any part."""
        return cls().replace(words=words, **options)

    def replace(self, **options: Any) -> Self:
        """The same request with other values of some options. Raises TypeError for an unknown name."""
        if unknown := options.keys() - self.options().keys():
            raise TypeError(f"a request has no option {', '.join(sorted(unknown))}")
        layout, program, run = [
            {name: options[name] for name in part._fields if name in options} for part in self
        ]
        return type(self)(
            self.layout._replace(**layout),
            self.program._replace(**program),
            self.run._replace(**run),
        )

    def options(self) -> dict[str, Any]:
        """The values of all parts, by the names of their fields."""
        return {name: value for part in self for name, value in part._asdict().items()}


Part = TypeVar("Part", LayoutRequest, ProgramRequest, RunRequest)


def checked(part: Part, kind: type[Part]) -> Part:
    """The part of a request; the value of an enumeration becomes its member, such as ``mode="latency"``.

    Raises `UsageError` for a value that its field does not take.
    """
    if not isinstance(part, kind):
        raise UsageError(f"{part!r}: must be a {kind.__name__}")
    members: dict[str, Any] = {}
    for name, annotation in kind.__annotations__.items():
        value = getattr(part, name)
        types = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
        if type(value) in types or any(_is_a(value, accepted) for accepted in types):
            if isinstance(value, str | tuple):
                check_passable(value)
            continue
        enums = [accepted for accepted in types if isinstance(accepted, enum.EnumMeta)]
        words: dict[Any, Any] = {}
        for accepted in enums:
            words |= accepted._value2member_map_
        if not isinstance(value, str) or value not in words:
            allowed = [_TAKES[accepted] for accepted in types if accepted in _TAKES] + [
                *map(str, words)
            ]
            raise UsageError(f"{kind.__name__}.{name} {value!r}: must be {' or '.join(allowed)}")
        members[name] = words[value]
    return part._replace(**members) if members else part


_TAKES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "True or False",
    tuple[int, ...]: "a tuple of whole numbers",
    tuple[str, ...]: "a tuple of text",
    tuple[tuple[str, str], ...]: "a tuple of pairs of text",
}


def _is_a(value: object, kind: Any) -> bool:
    """Whether a field takes the value; the lengths of tuples are not looked at."""
    if get_origin(kind) is tuple:
        element = get_args(kind)[0]
        # The type is compared first: lists of CPUs may name a million.
        return isinstance(value, tuple) and all(
            type(item) is element or _is_a(item, element) for item in value
        )
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


class Contradiction(NamedTuple):
    """Two options, by their names in Python, that cannot both be set."""

    option: str
    other: str
    reason: str = ""
    value: object = None
    """The value of both that is a contradiction; None: any two values are."""

    def __str__(self) -> str:
        option, other = (f"--{name.replace('_', '-')}" for name in (self.option, self.other))
        if self.value is not None:
            option, other = f"{option} max", f"{other} max"
        reason = f": {self.reason}" if self.reason else ""
        return f"{option} contradicts {other}{reason}; drop one"


CONTRADICTIONS = (
    Contradiction("mode", "instances", "a mode fixes the layout"),
    Contradiction("mode", "ncores", "a mode fixes the layout"),
    Contradiction("mode", "gpus_per_instance", "a mode fixes the layout"),
    Contradiction("instances", "ncores", "only one of them can be max", value=MAX),
    Contradiction("module", "no_python", "a module needs Python"),
    Contradiction("cache_dir", "no_cache"),
    Contradiction("cache", "no_cache"),
    Contradiction("pty", "log_dir", "a log file is not a terminal"),
    Contradiction("sysroot", "synthetic", "each names a machine"),
    Contradiction("quiet", "verbose"),
    Contradiction("quiet", "explain"),
)


def find_contradiction(values: Mapping[str, Any], option: str = "") -> Contradiction | None:
    """The first contradiction among `values`; with `option`, only one that it takes part in."""
    are_set = {
        name: value for name, value in values.items() if value is not None and value is not False
    }
    for rule in CONTRADICTIONS:
        if (
            option in ("", rule.option, rule.other)
            and {rule.option, rule.other} <= are_set.keys()
            and (rule.value is None or are_set[rule.option] == are_set[rule.other] == rule.value)
        ):
            return rule
    return None


def refuse_contradictions(values: Mapping[str, Any]) -> None:
    """Raise `UsageError` if two of the options contradict each other."""
    if contradiction := find_contradiction(values):
        raise UsageError(str(contradiction))
