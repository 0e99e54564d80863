# SPDX-License-Identifier: Apache-2.0
"""The kind of machine and the program that a study belongs to, and what is installed.

Machines of one kind have the same processor, caches, nodes and memory, and the same usable part of
them. CPU numbers, kernel, microcode and host name may differ. So a fleet of equal machines can share
a study, and results of other machines are never mixed in.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import shutil
from collections.abc import Mapping
from importlib import metadata
from typing import NamedTuple

from xlaunch.environment.program import Program
from xlaunch.machine.topology import CPUs, Machine, Topology
from xlaunch.machine.tree import Tree, parse_fields
from xlaunch.planning import Request
from xtune.space.plain_values import digest

_IDENTITY = (
    "vendor_id", "cpu family", "model", "model name", "stepping",  # x86, LoongArch
    "cpu implementer", "cpu architecture", "cpu variant", "cpu part", "cpu revision",  # Arm
    "mvendorid", "marchid", "mimpid", "uarch", "isa",  # RISC-V
    "cpu", "revision", "arch", "family", "type",  # POWER, SPARC, Itanium
)  # fmt: skip
"""Fields, in lower case, that identify the design of a core, not a single one."""

_S390_MACHINE = re.compile(r"\bmachine = (\d+)")

# Other words, for mitigations and bugs, change with the version of the kernel.
_VECTOR_FEATURES = {
    "flags": re.compile(
        r"(avx|amx|s?sse|fma|bmi|vaes|vpclmulqdq|gfni)\w*|f16c|sha_ni|hypervisor|lm"
    ),
    "Features": re.compile(r"(asimd|sve|sme|fp|neon|vfp)\w*|bf16|i8mm|half|lsx|lasx|crc32"),
    "features": re.compile(r"v[xm]\w*|sort|dflt"),
}


class Processor(NamedTuple):
    """The model of a machine's cores."""

    models: tuple[str, ...]
    """A line for each design of core, ascending. Empty if unknown.

    **Ex.:** ``"vendor_id=GenuineIntel, cpu family=6, model=207, model name=..., stepping=2"``."""
    features: tuple[str, ...] = ()
    """Vector instruction sets, and ``hypervisor`` in a virtual machine."""

    @property
    def has_fast_bf16(self) -> bool:
        """Whether oneDNN computes in bf16 faster than in fp32: AMX, or Arm's BF16 extension."""
        return "amx_bf16" in self.features or {"asimd", "bf16"} <= set(self.features)


def read_processor(root: str = "/") -> Processor:
    """Read the processor of the machine whose /proc is below `root`; empty if it has none."""
    text = Tree(root).read("/proc/cpuinfo") or ""
    models: set[str] = set()
    features: set[str] = set()
    common: dict[str, str] = {}
    for block in re.split(r"\n\s*\n", text):
        values = parse_fields(block)
        for name, known in _VECTOR_FEATURES.items():
            words = values.get(name, "").split()
            features |= {word for word in words if known.fullmatch(word)}
        machines = {m[1] for value in values.values() if (m := _S390_MACHINE.search(value))}
        lowered = {name.lower(): value for name, value in values.items()}
        identity = {name: lowered[name] for name in _IDENTITY if name in lowered}
        if machines:
            identity["machine"] = "/".join(sorted(machines))
        # s390 and some Arm kernels give the design once, outside the blocks of the CPUs.
        if "processor" not in values:
            common |= identity
        elif identity:
            models.add(", ".join([f"{name}={value}" for name, value in identity.items()]))
    if common:
        shared = ", ".join([f"{name}={value}" for name, value in common.items()])
        models = {f"{model}, {shared}" for model in models} or {shared}
    return Processor(tuple(sorted(models)), tuple(sorted(features)))


MEMORY_STEPS = 8
"""Memory sizes are rounded up to an eighth of a power of two: the kernel reports some percent less
than is installed, and a different amount on each machine."""

MAX_FILE_BYTES = 1 << 26
"""A larger program is identified by its path alone."""

SESSION_VARIABLES = re.compile(
    r"_|PATH|PWD|OLDPWD|HOME|USER|LOGNAME|MAIL|HOST|HOSTNAME|SHELL|SHLVL|PS\d|TMPDIR|TZ|LANG|LANGUAGE"
    r"|COLUMNS|LINES|COLORTERM|DISPLAY|WINDOWID|EDITOR|VISUAL|PAGER|STY|CI|INVOCATION_ID|JOURNAL_STREAM"
    r"|MANAGERPID|NOTIFY_SOCKET|XAUTHORITY|LESS.*|HIST.*|.*_SERVICE_(HOST|PORT).*|.*_PORT_\d+_(TCP|UDP).*"
    r"|(LC|TERM|XDG|SSH|GPG|DBUS|DESKTOP|GNOME|GTK|KDE|QT|WAYLAND|SESSION|VTE|TMUX|KITTY|VSCODE|LS|OMPI"
    r"|PMIX?|SUDO|SYSTEMD|GITHUB|RUNNER|GITLAB|JENKINS|BUILDKITE|SLURM|PBS|LSB|CONDA|VIRTUAL_ENV|PYTEST"
    r"|XLAUNCH|XTUNE)"
    r"(_.*)?"
)
"""Variables of a terminal, login, desktop, job or activated environment. They differ between sessions
and do not change how a program computes. PATH is here because programs are compared by path."""

_INTERPRETER = re.compile(r"(python|pypy)[\d.]*|(ba|da|z|k)?sh|perl|ruby|node|Rscript")


class MachineIdentity(NamedTuple):
    """A kind of machine, and the part of it that may be used."""

    facts: tuple[tuple[str, str], ...]
    """Names and values, for people to compare. **Ex.:** ``("cores", "64, 2 threads each")``."""

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits; equal for machines of one kind."""
        return digest(self.facts)[:16]

    def difference(self, other: MachineIdentity) -> str | None:
        """How `other` differs, in one line: ``memory: 64 GiB here, 128 GiB there``; None for the same kind."""
        ours, theirs = dict(self.facts), dict(other.facts)
        differing = [
            f"{name}: {ours.get(name, 'unknown')} here, {theirs.get(name, 'unknown')} there"
            for name in {**ours, **theirs}
            if ours.get(name) != theirs.get(name)
        ]
        return "; ".join(differing) or None


def identify_machine(machine: Machine, processor: Processor) -> MachineIdentity:
    """The kind of `machine`. Unknown facts do not distinguish machines."""
    topology, limits = machine.topology, machine.limits
    facts = {
        "architecture": topology.architecture,
        "processor": "; ".join(processor.models) or "unknown",
        "features": " ".join(processor.features) or "unknown",
        "cores": _cores(topology),
        "topology": digest(_shape(topology, topology.online_cpus))[:12],
        "memory": _size(limits.memory_total_bytes),
    }
    if limits.allowed_cpus != topology.online_cpus:
        count = len(limits.allowed_cpus)
        usable = digest(_shape(topology, limits.allowed_cpus))[:12]
        facts["usable CPUs"] = f"{count}, lying as {usable}"
    nodes = [node.id for node in topology.numa_nodes if node.memory_bytes != 0]
    if set(nodes) - set(limits.allowed_nodes):
        facts["usable NUMA nodes"] = str(len(set(nodes) & set(limits.allowed_nodes)))
    quota = limits.cpu_quota
    if quota is not None and quota < len(limits.allowed_cpus):
        facts["CPU quota"] = f"{quota:g}"
    bounds = (limits.memory_limit_bytes, limits.memory_total_bytes)
    if bounds[0] is not None and (bounds[1] is None or bounds[0] < bounds[1]):
        facts["memory limit"] = _size(bounds[0])
    return MachineIdentity(tuple(facts.items()))


class ProgramIdentity(NamedTuple):
    """The measured program: its command, path and content."""

    command: str
    """Digest of the words as written, ``{batch}`` included, and of the variables of --env."""
    place: str
    """The program's file with links resolved; for a module, the working directory."""
    content: str
    """Digest of that file; empty if there is none or it is very large."""
    words: tuple[str, ...]
    """The program and its arguments, for people."""

    def agrees(self, other: ProgramIdentity) -> bool:
        """Whether both are one program: the same command, and the same path or content.

        So an edited script stays the same program, and so does a copy on another machine.
        """
        same_file = self.place == other.place or (self.content == other.content != "")
        return self.command == other.command and same_file


def inherited_by_program(users_own: Mapping[str, str]) -> dict[str, str]:
    """The inherited variables that may change how a program computes: not those of `SESSION_VARIABLES`."""
    return {n: v for n, v in users_own.items() if not SESSION_VARIABLES.fullmatch(n)}


def identify_program(request: Request) -> ProgramIdentity:
    """The program of `request` as the user wrote it; a missing one is identified by its name alone."""
    program = request.program
    script = _file_of(program.words)
    place = os.getcwd() if program.module else os.path.realpath(script)
    command = digest([program.module, program.words, sorted(program.env)])[:16]
    content = "" if program.module else _content(script)
    return ProgramIdentity(command, place, content, program.words)


def measured_by(program: ProgramIdentity, generator: str) -> ProgramIdentity:
    """A service with the command of its load generator: another load is another program."""
    words = (*program.words, f"measured by: {generator}")
    return program._replace(command=digest([program.command, generator])[:16], words=words)


def _file_of(words: tuple[str, ...]) -> str:
    """The file that defines what runs: the script after an interpreter, else the program."""
    name, *arguments = words or ("",)
    if _INTERPRETER.fullmatch(os.path.basename(name)):
        for word in arguments:
            if not word.startswith("-") and os.path.isfile(word):
                return word
    if "/" in name or os.path.isfile(name):
        return name
    return shutil.which(name) or name


def _content(path: str) -> str:
    if not os.path.isfile(path):  # a pipe can be read only once, by the program
        return ""
    try:
        with open(path, "rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError):
        return ""
    return "" if len(data) > MAX_FILE_BYTES else hashlib.sha256(data).hexdigest()[:16]


def _cores(topology: Topology) -> str:
    """**Ex.:** ``64 in 2 packages and 4 nodes, up to 2 threads each``."""
    packages, nodes = len(topology.packages), len(topology.numa_nodes)
    threads = max(map(len, topology.cores), default=1)
    where = f"{packages} package{'s' * (packages != 1)} and {nodes} node{'s' * (nodes != 1)}"
    return f"{len(topology.cores)} in {where}, up to {threads} thread{'s' * (threads != 1)} each"


def _shape(topology: Topology, cpus: CPUs) -> list[list[object]]:
    """How the cores of `cpus` are arranged in the machine's domains, without CPU numbers.

    For each core, by lowest CPU: the number of its siblings among `cpus`, the rank of its kind, and
    its domains, numbered in order of appearance. Then the NUMA nodes.
    """
    members = set(cpus)
    levels = [
        {cpu: at for at, group in enumerate(groups) for cpu in group}
        for groups in (
            tuple([package.cpus for package in topology.packages]),
            topology.dies,
            tuple([node.cpus for node in topology.numa_nodes]),
            topology.l3_groups,
            topology.l2_groups,
            topology.clusters,
        )
    ]
    kinds = {cpu: kind.efficiency for kind in topology.core_kinds for cpu in kind.cpus}
    seen: list[dict[int, int]] = [{} for _ in levels]
    shape: list[list[object]] = []
    for core in topology.cores:
        present = [cpu for cpu in core if cpu in members]
        if not present:
            continue
        domains = [
            -1 if core[0] not in level else numbers.setdefault(level[core[0]], len(numbers))
            for level, numbers in zip(levels, seen, strict=True)
        ]
        shape.append([len(present), kinds.get(core[0], 0), *domains])
    if members == set(topology.online_cpus):
        shape += [[bool(n.cpus), *n.distances] for n in topology.numa_nodes]
        shape.append([topology.cores_known])
    return shape


def _size(size: int | None) -> str:
    """A size of memory, rounded up to an eighth of the power of two below it."""
    if size is None:
        return "unknown"
    step = max(1, (1 << (size.bit_length() - 1)) // MEMORY_STEPS)
    return f"{-(-size // step) * step / 2**30:g} GiB"


TUNER_PACKAGES = ("optuna", "numpy")
PROGRAM_PACKAGES = (
    "torch", "torchvision", "transformers", "numpy", "scipy", "scikit-learn", "tensorflow", "jax", "onnxruntime",
    "openvino", "intel-openmp", "mkl",
)  # fmt: skip
"""Packages whose versions may affect a program's speed; listed if the program has them."""

TUNER, PROGRAM, SYSTEM = "tuner", "program", "system"

INTERPRETER = "interpreter"
"""The one entry that is not a version: the path of the program's Python."""

Installed = Mapping[str, Mapping[str, str]]
"""Versions by name, of the tuner, the program's environment and the system."""


def installed(program: Program | None) -> Installed:
    """The versions now; None: those of the program are not known."""
    import xtune

    own = {"xtune": xtune.__version__, "Python": platform.python_version()}
    for name in TUNER_PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            own[name] = metadata.version(name)
    system = {"kernel": f"{platform.system()} {platform.release()}"}
    with contextlib.suppress(OSError):
        release = platform.freedesktop_os_release()
        system["distribution"] = release.get("PRETTY_NAME", release.get("NAME", "unknown"))
    if library := " ".join(platform.libc_ver()).strip():
        system["C library"] = library
    theirs: dict[str, str] = {}
    if program is not None and program.interpreter is not None:
        if program.installed.python is not None:
            theirs["Python"] = ".".join(map(str, program.installed.python))
        theirs[INTERPRETER] = program.interpreter
        packages = program.installed.packages or {}
        theirs |= {name: packages[name] for name in PROGRAM_PACKAGES if name in packages}
    return {TUNER: own, PROGRAM: theirs, SYSTEM: system}
