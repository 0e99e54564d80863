# SPDX-License-Identifier: Apache-2.0
"""Every option of a launch, once: for the command line, variables, presets and configuration."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from xlaunch.errors import UsageError
from xlaunch.options import kinds
from xlaunch.options.kinds import OptionKind, one_of, spelt
from xlaunch.planning import request

COMMANDS = frozenset(
    ("cache", "completion", "doctor", "env", "libraries", "plan", "ps", "restart", "topology")
)
"""Each is the object `command` in the module of the same name in `xlaunch.cli`."""

RESERVED = COMMANDS | {"explain", "help", "report", "run", "version"}
"""A program with one of these names needs ``--`` before it, or a path."""


IPEXRUNS_WORDS = frozenset(("ipexrun", "cpu", "xpu"))
"""What stands before a program in the command lines of ipexrun."""

MAX_CACHE_SIZE = "XLAUNCH_CACHE_MAX_SIZE"
"""Maximum size of all compile caches, which launches enforce; 20 GiB if it is not set."""


class OptionGroup(enum.Enum):
    """The parts of ``--help``."""

    LAYOUT = "Layout"
    SHARING = "Shared hosts and ranks"
    MEMORY = "Memory"
    ENVIRONMENT = "Environment"
    SUPERVISION = "Supervision"
    OUTPUT = "Output"
    PRESETS = "Presets"


class Option(NamedTuple):
    """One option."""

    name: str
    """As it is typed and as files have it. **Ex.:** ``"log-dir"``."""
    kind: OptionKind
    group: OptionGroup
    help: str
    short: str = ""
    """**Ex.:** ``"-q"``."""
    multiple: bool = False
    """It may be given several times."""
    opposite: bool = False
    """A flag with a ``--no-`` form."""
    one_call: bool = False
    """Typed or set by a variable; no file holds it. **Ex.:** ``--dry-run``."""

    @property
    def key(self) -> str:
        """Its name in Python, which is its field in a part of `Request` if it has one (`FIELDS`)."""
        return self.name.replace("-", "_")


FIELDS = {
    "program": "words",
    **{name: f"{name}_s" for name in ("timeout", "grace", "wait")},
    **{name: f"{name}_s" for name in ("health_interval", "health_timeout", "health_start")},
}
"""Options, and the program, whose field in a part of `Request` has another name."""

_L, _H, _M, _E, _S, _O, _P = OptionGroup
_PRECISION = one_of(request.Optimize, metavar="DTYPE")
_POLICY = one_of(request.MemoryPolicy, metavar="POLICY")
_ALLOCATORS = (
    *("auto", "glibc", "glibc-tuned", "glibc-one-arena", "glibc-frugal"),
    *("jemalloc", "mimalloc", "tcmalloc"),
)
_OPENMP = ("auto", "gnu", "intel", "llvm", "none")

OPTIONS = (
    Option("instances", kinds.COUNT, _L, "Instances (default 1); max: all that fit.", "-n"),
    Option("ncores", kinds.COUNT, _L, "Cores each, or max (default: equal shares)."),
    Option("gpus-per-instance", kinds.WHOLE_NUMBER, _L, "GPUs of its own, with the cores next to them."),
    Option("mode", one_of(request.Mode), _L, "4 cores each, or one instance per node."),
    Option("cpus", kinds.NUMBER_LIST, _L, "Use only these logical CPUs: 0-3,8."),
    Option("numa-nodes", kinds.NUMBER_LIST, _L, "Use only the CPUs of these NUMA nodes."),
    Option("reserve-cores", kinds.WHOLE_NUMBER, _L, "Leave this many cores idle (default 0)."),
    Option("instance-index", kinds.NUMBER_LIST, _L, "Run only these instances of the layout."),
    Option("place", one_of(request.Place), _L, "Side by side (default), or far apart."),
    Option("smt", kinds.FLAG, _L, "Use all SMT siblings (default: one a core).", opposite=True),
    Option("ecores", one_of(request.ECores), _L, "Efficiency cores (default: exclude)."),
    Option("oversubscribe", kinds.FLAG, _L, "Let instances share cores."),
    Option("sysroot", kinds.CAPTURED, _L, "Plan for a captured machine.", one_call=True),
    Option("synthetic", kinds.TEXT, _L, 'Plan for a made-up machine: "core:8".', one_call=True),
    Option("exclusive", kinds.FLAG, _H, "Take only cores that no other launch has.", one_call=True),
    Option("wait", kinds.WAIT, _H, "Longest wait for free cores; implies --exclusive.", one_call=True),
    Option("rank-mode", one_of(request.RankMode, metavar="MODE"), _H, "Ranks: auto (default), off, torchrun, mpi, slurm."),
    Option("nproc-per-node", kinds.POSITIVE_NUMBER, _H, "Start N ranks here, by torchrun.", one_call=True),
    Option("nnodes", kinds.POSITIVE_NUMBER, _H, "Hosts of the job (default 1); alone: a rank for each NUMA node.", one_call=True),
    Option("node-rank", kinds.WHOLE_NUMBER, _H, "This host among them, from 0.", one_call=True),
    Option("rendezvous", kinds.TEXT, _H, "HOST:PORT of host 0, with --nnodes.", one_call=True),
    Option("mem-policy", _POLICY, _M, "NUMA memory: auto (default), preferred, bind, interleave, local, none."),
    Option("allocator", spelt(kinds.NAME_OR_FILE._replace(words=_ALLOCATORS), default="glibc"), _M, f"{', '.join(_ALLOCATORS)}, or a library (default auto)."),
    Option("thp", one_of(request.HugePages), _M, "Transparent huge pages (default auto)."),
    Option("module", kinds.FLAG, _E, "PROGRAM is a Python module.", "-m"),
    Option("python", kinds.FILE, _E, "Interpreter of scripts and modules (default: the active environment's)."),
    Option("no-python", kinds.FLAG, _E, "Execute PROGRAM itself even if it is a .py file."),
    Option("env", kinds.VARIABLE, _E, "Set an environment variable for every instance.", multiple=True),
    Option("unset", kinds.VARIABLE_NAME, _E, "Do not pass on this variable, nor set it.", multiple=True),
    Option("substitute", kinds.FLAG, _E, "Replace {index}, {cpus} and others in ARGS, as in --env."),
    Option("optimize", _PRECISION, _E, "Optimize models: auto, fp32, bf16 (default: no)."),
    Option("optimize-wait", kinds.FLAG, _E, "Compile before the first call, not aside."),
    Option("omp", spelt(kinds.NAME_OR_FILE._replace(words=_OPENMP), default="gnu"), _E, "OpenMP: auto (default), gnu, intel, llvm, none, or a library."),
    Option("cache-dir", kinds.NAMED_DIRECTORY, _E, "Directory for compile caches (default ~/.cache/xlaunch/compiled)."),
    Option("cache", one_of(request.Caches), _E, "Which caches (default auto); all: also JAX and PGO."),
    Option("no-cache", kinds.FLAG, _E, "Leave compile caches where they are."),
    Option("on-failure", one_of(request.OnFailure), _S, "Stop all (default), continue, restart."),
    Option("max-restarts", kinds.RESTARTS, _S, "Restarts per instance, 5/10m or 5/all; default 3 in 10 min."),
    Option("health", kinds.HEALTH, _S, "Probe each instance; restart those that fail."),
    Option("health-interval", kinds.POSITIVE_DURATION, _S, "Time between probes; default 10s."),
    Option("health-timeout", kinds.POSITIVE_DURATION, _S, "Of one probe; default 5s."),
    Option("health-failures", kinds.POSITIVE_NUMBER, _S, "Failed probes in a row to be ended; default 3."),
    Option("health-start", kinds.DURATION, _S, "For loading, while failures do not count; default 2m."),
    Option("timeout", kinds.POSITIVE_DURATION, _S, "Time limit: 90, 10m, 2h (default: none)."),
    Option("grace", kinds.DURATION, _S, "SIGTERM to SIGKILL; default 10s."),
    Option("supervise", kinds.FLAG, _S, "Keep a supervisor in any case."),
    Option("verify-device", kinds.FLAG, _S, "Report which GPUs worked."),
    Option("log-dir", kinds.DIRECTORY, _O, "Write each instance's output to files in DIR."),
    Option("tee", kinds.FLAG, _O, "With --log-dir: show the output as well."),
    Option("log-format", one_of(request.LogFormat), _O, "Lines as they are (default), or JSON."),
    Option("log-size", kinds.SIZE, _O, "With --log-dir: begin a new file at this size."),
    Option("tag", kinds.FLAG, _O, "Put the instance's number before each line (default: if there are several).", opposite=True),
    Option("pty", kinds.FLAG, _O, "Run instances on a pseudo-terminal, for progress bars."),
    Option("metric", kinds.METRIC, _O, "Report a number that instances print.", multiple=True),
    Option("prometheus-file", kinds.FILE, _O, "Write metrics of the run to FILE every 15 s."),
    Option("prometheus-port", kinds.POSITIVE_NUMBER, _O, "Serve them on this port of 127.0.0.1."),
    Option("report", kinds.FILE, _O, "Write a report of the run as JSON."),
    Option("force", kinds.FLAG, _O, "Let files that are written replace any other.", one_call=True),
    Option("dry-run", kinds.FLAG, _O, "Print the plan and run nothing.", one_call=True),
    Option("json", kinds.FLAG, _O, "Print the plan as JSON.", one_call=True),
    Option("explain", kinds.FLAG, _O, "Print the reason for each decision.", one_call=True),
    Option("verbose", kinds.FLAG, _O, "Print the plan before running it.", "-v"),
    Option("quiet", kinds.FLAG, _O, "Print no notes and no table at the end.", "-q"),
    Option("preset", kinds.FILE, _P, "Take options from a TOML file.", one_call=True),
    Option("save-preset", kinds.FILE, _P, "Write the options to FILE, for --preset.", one_call=True),
    Option("isolated", kinds.FLAG, _P, "Ignore [tool.xlaunch] and config.toml.", one_call=True),
)  # fmt: skip

OF_TORCHRUN = ("nproc-per-node", "nnodes", "node-rank", "rendezvous")
"""Options with which `xlaunch` composes the command of torchrun."""

OF_SHARING = tuple([option.name for option in OPTIONS if option.group is OptionGroup.SHARING])
"""Options about other launches on the host and about ranks."""

BY_KEY = {option.key: option for option in OPTIONS}

IN_FILES = tuple([option for option in OPTIONS if not option.one_call])
"""The options that presets and configuration may hold."""


def max_cache_bytes(environment: Mapping[str, str], default: int) -> int:
    """The size to which caches are pruned. Raises `UsageError`, which names the variable."""
    text = environment.get(MAX_CACHE_SIZE)
    try:
        return kinds.parse_size(text) if text else default
    except UsageError as error:
        raise UsageError(f"{MAX_CACHE_SIZE}: {error}") from None


INSIDE_INSTANCES = frozenset(
    [option.key for option in OPTIONS if option.group is _E] + ["allocator", "thp", "quiet", "verbose"]
)  # fmt: skip
"""Options that the project's and the user's files set inside an instance too. The others, such as
the layout, were applied by the outer launcher."""
