# SPDX-License-Identifier: Apache-2.0
"""Every option of a launch, once: for the command line, variables, presets and configuration.

First the kinds of values, with how each is read from text; then the table of options.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from xlaunch.environment import allocators, openmp
from xlaunch.errors import UsageError
from xlaunch.machine.topology import CPUs
from xlaunch.planning import request
from xlaunch.planning.request import MAX, Max, RestartLimit, check_limit
from xlaunch.text import MAX_NUMBER, format_cpu_list, parse_cpu_list, read_digits

SECONDS_PER_UNIT = {
    **dict.fromkeys(("", "s", "sec"), 1.0),
    **dict.fromkeys(("m", "min"), 60.0),
    "ms": 0.001,
    "h": 3600.0,
    "d": 86400.0,
}
BYTES_PER_UNIT = {
    "": 1,
    "b": 1,
    **{f"{letter}{end}": 1024**n for n, letter in enumerate("kmgt", 1) for end in ("", "ib")},
    **{f"{letter}b": 1000**n for n, letter in enumerate("kmgt", 1)},
}
MAX_INTEGER = (1 << 63) - 1
"""The largest integer that every TOML parser reads."""


class OptionKind(NamedTuple):
    metavar: str
    """How help shows it; empty for flags."""
    parse: Callable[[str], Any]
    """The value that a text stands for. Raises `UsageError`, without the option's name."""
    example: Any = ""
    """A value as a file writes it."""
    words: tuple[str, ...] = ()
    """Values that a shell may complete."""


def parse_count(text: str) -> int | Max:
    """A whole number from 1, or ``max`` in any case."""
    if text.lower() == "max":
        return MAX
    number = _digits(text)
    if not number:
        raise UsageError(
            f"{text!r} is not a count; write a whole number from 1 to {MAX_NUMBER}, or max"
        )
    return number


def parse_restarts(text: str) -> RestartLimit | Max:
    """A number of restarts within a time: ``5/10m``; ``5`` within ten minutes; ``5/all``; ``max``."""
    if text.lower() == MAX.value:
        return MAX
    restarts, slash, window = text.partition("/")
    number = _digits(restarts)
    window_s = math.inf if window.lower() == "all" else _scaled(window, SECONDS_PER_UNIT)
    if not number or (slash and not window_s):
        raise UsageError(
            f"{text!r} is not a number of restarts; write 5/10m, 5 (within ten minutes), 5/all or max"
        )
    limit = RestartLimit(number, window_s) if slash and window_s else RestartLimit(number)
    check_limit(limit)
    return limit


def parse_health(text: str) -> str:
    """What a probe asks, with braces: a URL, a port, or ``exec:COMMAND``."""
    from xlaunch.supervision.probes import check_form

    check_form(text)
    return text


def parse_whole_number(text: str, least: int = 0) -> int:
    """A whole number from `least`."""
    number = _digits(text)
    if number is None or number < least:
        raise UsageError(f"{text!r} is not a whole number from {least} to {MAX_NUMBER}")
    return number


def parse_number_list(text: str) -> CPUs:
    """Numbers and ranges, at least one: ``0-3,8``."""
    numbers = parse_cpu_list(text, what="")
    if not numbers:
        raise UsageError(f"the list {text!r} is empty; write for example 0-3,8")
    return numbers


def parse_duration(text: str) -> float:
    """Seconds, or a number with a unit: ``90``, ``1.5s``, ``10m``, ``5min``, ``2h``."""
    seconds = _scaled(text, SECONDS_PER_UNIT)
    if seconds is None:
        raise UsageError(
            f"{text!r} is not a time; write seconds, or a number with ms, s, m, h or d"
        )
    return seconds


def parse_positive_duration(text: str) -> float:
    """As `parse_duration`, above 0."""
    seconds = parse_duration(text)
    if seconds == 0:
        raise UsageError(f"{text!r} is not a time above 0")
    return seconds


def parse_wait(text: str) -> float:
    """As `parse_duration`; infinite for ``max``."""
    return math.inf if text.lower() == MAX.value else parse_duration(text)


def parse_size(text: str) -> int:
    """Bytes, or a number with a unit: ``20GiB``, ``500MB``, ``1.5G``; a lone letter means 1024."""
    size_bytes = _scaled(text.lower(), BYTES_PER_UNIT)
    if size_bytes is None:
        raise UsageError(
            f"{text!r} is not a size; write bytes, or a number with KiB, MiB, GiB, TiB, KB, MB or GB"
        )
    return int(size_bytes)


def parse_variable(text: str) -> tuple[str, str]:
    """An environment variable: ``NAME=VALUE``."""
    name, equals, content = text.partition("=")
    if not equals or not name:
        raise UsageError(f"{text!r} is not NAME=VALUE")
    return name, content


def parse_variable_name(text: str) -> str:
    """The name of an environment variable."""
    if not text or "=" in text or "\0" in text:
        raise UsageError(f"{text!r} is not the name of a variable")
    return text


def parse_flag(text: str) -> bool:
    """The value of a flag's variable, in any case."""
    if text.lower() in ("1", "true", "yes", "on", "t", "y"):
        return True
    if text.lower() in ("0", "false", "no", "off", "f", "n"):
        return False
    raise UsageError(f"{text!r} is not true or false")


def parse_directory(text: str) -> str:
    """A directory's name. An empty one is not taken for the default."""
    if not text:
        raise UsageError("the directory's name is empty; leave the option out for the default")
    return text


def parse_metric(text: str) -> str:
    """A metric: a name as it is printed, or a regular expression with a group."""
    from xlaunch.metrics.metric_lines import parse_metric as check

    check(text)
    return text


COUNT = OptionKind("N|max", parse_count, 2)
RESTARTS = OptionKind("N[/TIME]|max", parse_restarts, "5/10m", ("max",))
HEALTH = OptionKind("URL|PORT|exec:COMMAND", parse_health, "{9000+index}")
WHOLE_NUMBER = OptionKind("N", parse_whole_number, 1)
POSITIVE_NUMBER = OptionKind("N", partial(parse_whole_number, least=1), 2)
NUMBER_LIST = OptionKind("LIST", parse_number_list, "0-3")
DURATION = OptionKind("TIME", parse_duration, "10s")
WAIT = OptionKind("TIME|max", parse_wait, "10m")
POSITIVE_DURATION = OptionKind("TIME", parse_positive_duration, "10m")
SIZE = OptionKind("SIZE", parse_size, "20GiB")
VARIABLE = OptionKind("NAME=VALUE", parse_variable)
VARIABLE_NAME = OptionKind("NAME", parse_variable_name, "OMP_NUM_THREADS")
METRIC = OptionKind("NAME|REGEX", parse_metric, "sentences/s")
FLAG = OptionKind("", parse_flag, True)
FILE = OptionKind("FILE", str, "file")
DIRECTORY = OptionKind("DIR", str, "directory")
CAPTURED = OptionKind("DIR|FILE", str, "directory")
NAMED_DIRECTORY = OptionKind("DIR", parse_directory, "directory")
NAME_OR_FILE = OptionKind("NAME|FILE", str, "auto")
TEXT = OptionKind("TEXT", str)


def one_of(words: type[enum.Enum], metavar: str = "") -> OptionKind:
    """One of an enumeration's values, in any case."""
    allowed = [member.value for member in words]

    def parse(text: str) -> Any:
        try:
            return words(text.lower())
        except ValueError:
            raise UsageError(f"{text!r} is not one of {', '.join(allowed)}") from None

    return OptionKind(metavar or "|".join(allowed), parse, allowed[0], tuple(allowed))


def spelt(kind: OptionKind, **former: str) -> OptionKind:
    """The same kind, which also takes words of other launchers: ``default`` for ``glibc``."""

    def parse(text: str) -> Any:
        return kind.parse(former.get(text, text))

    return kind._replace(parse=parse)


def toml_value(value: Any) -> Any:
    """One value as TOML has it: the inverse of `OptionKind.parse`, but for numbers that stay numbers."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, float):
        return int(value) if value.is_integer() and value < MAX_INTEGER else value
    if isinstance(value, RestartLimit):
        return str(value)
    if isinstance(value, tuple):
        return format_cpu_list(value)
    return value


def _scaled(text: str, units: Mapping[str, float]) -> float | None:
    """A number times its unit; None for anything else, and for what is negative or not finite."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz").rstrip()
    unit = text[len(number) :].lstrip()
    # float() would take 1_0, and the digits of other scripts.
    if unit not in units or "_" in number or not text.isascii():
        return None
    try:
        value = float(number) * units[unit]
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _digits(text: str) -> int | None:
    """The number that `text` writes in plain digits; None for anything else or a larger one."""
    if not (text.isascii() and text.isdigit()):
        return None
    number = read_digits(text)
    return number if number <= MAX_NUMBER else None


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
_ALLOCATORS = (allocators.AUTO, *allocators.PROFILES)
_OPENMP = tuple(openmp.PROFILES)

OPTIONS = (
    Option("instances", COUNT, _L, "Instances (default 1); max: all that fit.", "-n"),
    Option("ncores", COUNT, _L, "Cores each, or max (default: equal shares)."),
    Option("gpus-per-instance", WHOLE_NUMBER, _L, "GPUs for each instance, with the cores next to them."),
    Option("mode", one_of(request.Mode), _L, "4 cores each, or one instance per node."),
    Option("cpus", NUMBER_LIST, _L, "Use only these logical CPUs: 0-3,8."),
    Option("numa-nodes", NUMBER_LIST, _L, "Use only the CPUs of these NUMA nodes."),
    Option("reserve-cores", WHOLE_NUMBER, _L, "Leave this many cores idle (default 0)."),
    Option("instance-index", NUMBER_LIST, _L, "Run only these instances of the layout."),
    Option("place", one_of(request.Place), _L, "Side by side (default), or far apart."),
    Option("smt", FLAG, _L, "Use all SMT siblings (default: one a core).", opposite=True),
    Option("ecores", one_of(request.ECores), _L, "Efficiency cores (default: exclude)."),
    Option("oversubscribe", FLAG, _L, "Let instances share cores."),
    Option("sysroot", CAPTURED, _L, "Plan for a captured machine.", one_call=True),
    Option("synthetic", TEXT, _L, 'Plan for a made-up machine: "core:8".', one_call=True),
    Option("exclusive", FLAG, _H, "Take only cores that no other launch has.", one_call=True),
    Option("wait", WAIT, _H, "Longest wait for free cores; implies --exclusive.", one_call=True),
    Option("rank-mode", one_of(request.RankMode, metavar="MODE"), _H, "Ranks: auto (default), off, torchrun, mpi, slurm."),
    Option("nproc-per-node", POSITIVE_NUMBER, _H, "Start N ranks here, by torchrun.", one_call=True),
    Option("nnodes", POSITIVE_NUMBER, _H, "Hosts of the job (default 1); alone: a rank for each NUMA node.", one_call=True),
    Option("node-rank", WHOLE_NUMBER, _H, "Number of this host, from 0; with --nnodes.", one_call=True),
    Option("rendezvous", TEXT, _H, "HOST:PORT of host 0, with --nnodes.", one_call=True),
    Option("mem-policy", _POLICY, _M, "NUMA memory: auto (default), preferred, bind, interleave, local, none."),
    Option("allocator", spelt(NAME_OR_FILE._replace(words=_ALLOCATORS), default="glibc"), _M, f"{', '.join(_ALLOCATORS)}, or a library (default auto)."),
    Option("thp", one_of(request.HugePages), _M, "Transparent huge pages (default auto)."),
    Option("module", FLAG, _E, "PROGRAM is a Python module.", "-m"),
    Option("python", FILE, _E, "Interpreter of scripts and modules (default: the active environment's)."),
    Option("no-python", FLAG, _E, "Execute PROGRAM itself even if it is a .py file."),
    Option("env", VARIABLE, _E, "Set an environment variable for every instance.", multiple=True),
    Option("unset", VARIABLE_NAME, _E, "Do not pass on this variable, nor set it.", multiple=True),
    Option("substitute", FLAG, _E, "Replace {index}, {cpus} and others in ARGS, as in --env."),
    Option("optimize", _PRECISION, _E, "Optimize models: auto, fp32, bf16 (default: no)."),
    Option("optimize-wait", FLAG, _E, "Compile before the first call, not in the background."),
    Option("omp", spelt(NAME_OR_FILE._replace(words=_OPENMP), default="gnu"), _E, "OpenMP: auto (default), gnu, intel, llvm, none, or a library."),
    Option("cache-dir", NAMED_DIRECTORY, _E, "Directory for compile caches (default ~/.cache/xlaunch/compiled)."),
    Option("cache", one_of(request.Caches), _E, "Which caches (default auto); all: also JAX and PGO."),
    Option("no-cache", FLAG, _E, "Leave compile caches where they are."),
    Option("on-failure", one_of(request.OnFailure), _S, "Stop all (default), continue, restart."),
    Option("max-restarts", RESTARTS, _S, "Restarts per instance, 5/10m or 5/all; default 3 in 10 min."),
    Option("health", HEALTH, _S, "Probe each instance; restart those that fail."),
    Option("health-interval", POSITIVE_DURATION, _S, "Time between probes; default 10s."),
    Option("health-timeout", POSITIVE_DURATION, _S, "Time limit of a probe; default 5s."),
    Option("health-failures", POSITIVE_NUMBER, _S, "Failed probes in a row that end an instance; default 3."),
    Option("health-start", DURATION, _S, "Loading time, in which failures do not count; default 2m."),
    Option("timeout", POSITIVE_DURATION, _S, "Time limit: 90, 10m, 2h (default: none)."),
    Option("grace", DURATION, _S, "SIGTERM to SIGKILL; default 10s."),
    Option("supervise", FLAG, _S, "Supervise a single instance, too."),
    Option("verify-device", FLAG, _S, "Report which GPUs worked."),
    Option("log-dir", DIRECTORY, _O, "Write each instance's output to files in DIR."),
    Option("tee", FLAG, _O, "With --log-dir: show the output as well."),
    Option("log-format", one_of(request.LogFormat), _O, "Lines as they are (default), or JSON."),
    Option("log-size", SIZE, _O, "With --log-dir: begin a new file at this size."),
    Option("tag", FLAG, _O, "Put the instance's number before each line (default: if there are several).", opposite=True),
    Option("pty", FLAG, _O, "Run instances on a pseudo-terminal, for progress bars."),
    Option("metric", METRIC, _O, "Report a number that instances print.", multiple=True),
    Option("prometheus-file", FILE, _O, "Write metrics of the run to FILE every 15 s."),
    Option("prometheus-port", POSITIVE_NUMBER, _O, "Serve metrics of the run on this port of 127.0.0.1."),
    Option("report", FILE, _O, "Write a report of the run as JSON."),
    Option("force", FLAG, _O, "Let files that xlaunch writes replace any other.", one_call=True),
    Option("dry-run", FLAG, _O, "Print the plan and run nothing.", one_call=True),
    Option("json", FLAG, _O, "Print the plan as JSON.", one_call=True),
    Option("explain", FLAG, _O, "Print the reason for each decision.", one_call=True),
    Option("verbose", FLAG, _O, "Print the plan before running it.", "-v"),
    Option("quiet", FLAG, _O, "Print no notes and no table at the end.", "-q"),
    Option("preset", FILE, _P, "Take options from a TOML file.", one_call=True),
    Option("save-preset", FILE, _P, "Write the options to FILE, for --preset.", one_call=True),
    Option("isolated", FLAG, _P, "Ignore [tool.xlaunch] and config.toml.", one_call=True),
)  # fmt: skip

OF_TORCHRUN = ("nproc-per-node", "nnodes", "node-rank", "rendezvous")
"""Options with which `xlaunch` composes the command of torchrun."""

OF_SHARING = tuple([option.name for option in OPTIONS if option.group is OptionGroup.SHARING])
"""Options about other launches on the host and about ranks."""

BY_KEY = {option.name.replace("-", "_"): option for option in OPTIONS}
"""By `Option.key`."""

IN_FILES = tuple([option for option in OPTIONS if not option.one_call])
"""The options that presets and configuration may hold."""


def max_cache_bytes(environment: Mapping[str, str], default: int) -> int:
    """The size to which caches are pruned. Raises `UsageError`, which names the variable."""
    text = environment.get(MAX_CACHE_SIZE)
    try:
        return parse_size(text) if text else default
    except UsageError as error:
        raise UsageError(f"{MAX_CACHE_SIZE}: {error}") from None


INSIDE_INSTANCES = frozenset(
    [key for key, option in BY_KEY.items() if option.group is _E] + ["allocator", "thp", "quiet", "verbose"]
)  # fmt: skip
"""Options that the project's and the user's files set inside an instance too. The others, such as
the layout, were applied by the outer launcher."""
