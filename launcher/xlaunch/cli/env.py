# SPDX-License-Identifier: Apache-2.0
"""`xlaunch env`: the environment of one instance, for a shell, a systemd unit, a container."""

from __future__ import annotations

import enum
import os
import re
import shlex
from typing import NamedTuple

import click

from xlaunch.cache.table import KEEP_NOTHING
from xlaunch.cache.table import VARIABLES as CACHE_VARIABLES
from xlaunch.children import PATH as PYTHON_PATH
from xlaunch.cli.plan import OF_A_RUN, say_untried
from xlaunch.console import say
from xlaunch.environment import optimization
from xlaunch.environment.allocators import AUTO, choose_profile
from xlaunch.environment.program import find_interpreter
from xlaunch.environment.variables import (
    PRELOAD,
    SET_VARIABLES,
    VariableSetting,
    split_inherited,
    without_names,
)
from xlaunch.errors import UsageError
from xlaunch.launching import Purpose, prepare
from xlaunch.machine.sysfs import glibc_version
from xlaunch.options.commands import OptionType, launch_command
from xlaunch.options.definitions import OF_SHARING, one_of
from xlaunch.options.precedence import ResolvedOptions, host_request_from, request_from
from xlaunch.planning.plans import Instance, Plan
from xlaunch.planning.request import MemoryPolicy, ProgramRequest
from xlaunch.shared_host import PreparedLaunch
from xlaunch.text import format_cpu_list

SCHEMA_VERSION = 1
"""Version of ``--format json``; raised when a key changes its meaning or is removed."""


class OutputFormat(enum.Enum):
    """The form in which the environment is printed."""

    SH = "sh"
    """**Ex.:** ``export OMP_NUM_THREADS=4``"""
    SYSTEMD = "systemd"
    """**Ex.:** ``Environment="OMP_NUM_THREADS=4"``, ``CPUAffinity=0-3``"""
    DOCKER = "docker"
    """**Ex.:** ``--env OMP_NUM_THREADS=4 --cpuset-cpus 0-3``"""
    JSON = "json"


class Surroundings(NamedTuple):
    """One instance, and what it is started with."""

    plan: Plan
    request: ProgramRequest
    instance: Instance
    settings: tuple[VariableSetting, ...]
    changed: dict[str, str]
    """Variables that differ from the user's own, which an outer launcher or ``eval`` did not set."""
    removed: tuple[str, ...]
    """Inherited variables that the instance does not get."""

    @property
    def alone(self) -> dict[str, str]:
        """The variables that it needs if nothing is inherited, the user's that matter included."""
        kept = {
            setting.name: setting.value for setting in self.settings if setting.value is not None
        }
        return kept | self.changed


@launch_command(
    program_required=False,
    without=(*OF_SHARING, "dry-run", "json", "explain", "verbose", "quiet"),
    hidden=OF_A_RUN,
    own=[
        click.option(
            "--format",
            type=OptionType(one_of(OutputFormat)),
            help="sh (default): export lines; systemd: lines for a unit; docker: flags; json.",
        )
    ],
)
def command(resolved: ResolvedOptions) -> None:
    """Print the variables that an instance would get.

    Variables that it would inherit anyway are left out. Nothing is run.

    \b
    eval "$(xlaunch env --ncores 4)"
    xlaunch env --ncores 4 --format systemd > worker.service.d/place.conf
    eval "docker run $(xlaunch env --ncores 4 --format docker) IMAGE"

    Without PROGRAM it is the environment of a Python program.
    --instance-index chooses one of several instances.
    """
    options = resolved.values
    request = request_from(options)
    if not request.program.words:
        interpreter, _ = find_interpreter(request.program.python, os.environ)
        request = request.replace(words=(interpreter,), module=False)
    chosen = options.get("format", OutputFormat.SH)
    if chosen is OutputFormat.DOCKER and request.program.allocator == AUTO:
        # Settings that need no library: what the image has is not known here.
        profile = choose_profile(AUTO, glibc=glibc_version())
        request = request.replace(allocator=profile.name)
    host = host_request_from(options)
    prepared = prepare(request, host, purpose=Purpose.ENVIRONMENT, untried=say_untried(resolved))
    plan = prepared.plan
    if len(plan.instances) != 1:
        indices = format_cpu_list([instance.index for instance in plan.instances])
        raise UsageError(
            f"each of {len(plan.instances)} instances has an environment of its own; choose one: "
            f"--instance-index {plan.instances[0].index} (of {indices})"
        )
    surroundings = _surroundings(prepared)
    writers = {"sh": _sh, "systemd": _systemd, "docker": _docker, "json": _json}
    # Written as bytes: a variable's value need not be valid text.
    click.echo(os.fsencode(writers[chosen.value](surroundings)))


def _surroundings(prepared: PreparedLaunch) -> Surroundings:
    plan, environment = prepared.plan, prepared.environment
    assert environment is not None
    for warning in (*plan.warnings, *environment.warnings):
        say(f"warning: {warning}")
    if environment.forbids_huge_pages:
        say(_left_out("--thp never"))
    variables = environment.variables[0]
    users_own = split_inherited(prepared.inherited).users_own
    return Surroundings(
        plan=plan,
        request=prepared.request.program,
        instance=plan.instances[0],
        settings=environment.settings[0],
        changed={n: value for n, value in variables.items() if users_own.get(n) != value},
        removed=tuple([name for name in prepared.inherited if name not in variables]),
    )


def _sh(surroundings: Surroundings) -> str:
    """Lines for ``eval`` in any POSIX shell."""
    for name in surroundings.changed:
        _check_name(name, "a shell")
    policy = surroundings.plan.layout.mem_policy
    if policy not in (MemoryPolicy.AUTO, MemoryPolicy.NONE):
        say(_left_out(f"--mem-policy {policy.value}"))
    lines = [f"export {name}={shlex.quote(value)}" for name, value in surroundings.changed.items()]
    names = [name for name in surroundings.removed if _NAME.fullmatch(name)]
    return "\n".join([*lines, *(f"unset {name}" for name in names)])


def _systemd(surroundings: Surroundings) -> str:
    """Lines for the [Service] section of a unit."""
    lines = []
    for name, value in surroundings.alone.items():
        try:
            value.encode()
        except UnicodeEncodeError:
            problem = f"the value of {name} cannot be in a unit"
            raise UsageError(f"{problem}: systemd takes UTF-8 only") from None
        _check_name(name, "systemd")
        lines.append(f'Environment="{f"{name}={value}".translate(_SYSTEMD_ESCAPES)}"')
    instance = surroundings.instance
    if surroundings.plan.bound:
        lines.append(f"CPUAffinity={format_cpu_list(instance.cpus)}")
    policy = instance.memory
    if policy is MemoryPolicy.PREFERRED and len(instance.memory_nodes) > 1:
        # systemd does not have the kernel's MPOL_PREFERRED_MANY.
        say("warning: systemd prefers one NUMA node at most; memory policy left out")
    elif policy is not MemoryPolicy.NONE:
        lines.append(f"NUMAPolicy={policy.value}")
        if instance.memory_nodes:
            lines.append(f"NUMAMask={format_cpu_list(instance.memory_nodes)}")
    return "\n".join(lines)


def _docker(surroundings: Surroundings) -> str:
    """Flags of ``docker run`` and ``podman run``, in one line for ``eval``."""
    variables = surroundings.alone
    users_own = dict(surroundings.request.env)
    host_only = [
        name
        for name, value in variables.items()
        if name in HOST_PATHS and name not in users_own and value != KEEP_NOTHING
    ]
    if {PRELOAD, PYTHON_PATH} & {*host_only} or surroundings.request.cache_dir is not None:
        say(
            f"warning: {', '.join(host_only)} left out: a container does not have this machine's "
            "files; --env sets a path in the container"
        )
    words = []
    variables[SET_VARIABLES] = without_names(variables[SET_VARIABLES], host_only)
    for name, value in variables.items():
        if name not in host_only:
            words += ["--env", f"{name}={value}"]
    instance = surroundings.instance
    if surroundings.plan.bound:
        words += ["--cpuset-cpus", format_cpu_list(instance.cpus)]
    if instance.memory is MemoryPolicy.BIND:
        words += ["--cpuset-mems", format_cpu_list(instance.memory_nodes)]
    elif instance.memory is MemoryPolicy.INTERLEAVE:
        say("warning: docker has no flag for interleaved memory; policy left out")
    return shlex.join(words)


def _json(surroundings: Surroundings) -> str:
    import json

    instance = surroundings.instance
    facts = {
        "schema_version": SCHEMA_VERSION,
        "instance_index": instance.index,
        "instance_count": surroundings.plan.count,
        "bound": surroundings.plan.bound,
        "cpus": list(instance.cpus),
        "memory_policy": instance.memory.value,
        "memory_numa_nodes": list(instance.memory_nodes),
        "environment": surroundings.alone,
        "changed": list(surroundings.changed),
        "removed": list(surroundings.removed),
        "reasons": {setting.name: setting.reason for setting in surroundings.settings},
    }
    return json.dumps(facts, indent=1)


HOST_PATHS = frozenset((PRELOAD, PYTHON_PATH, optimization.VARIABLE, *CACHE_VARIABLES))
"""Variables that contain paths of this machine, or do nothing without such a path."""

_SYSTEMD_ESCAPES = {number: f"\\x{number:02x}" for number in (*range(32), 127)} | str.maketrans(
    {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "%": "%%"}
)
"""See systemd.syntax(7) on quoting, and systemd.unit(5) on specifiers, which begin with %."""

_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def _left_out(option: str) -> str:
    return f"warning: {option} is no variable: xlaunch sets it when it starts a program; left out"


def _check_name(name: str, whose: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{whose} cannot have a variable of the name {name!r}; "
            "--format json and docker can, or leave --env out"
        )
