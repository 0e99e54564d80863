# SPDX-License-Identifier: Apache-2.0
"""Resolution of a configuration on a machine: its request, plan, environment, and a hash of them.

No program is started and no directory made; only a preload is tried once in a child process, as for
every launch. Configurations with equal hashes start in exactly the same way and are measured as one:
one instance on all cores is the same compact or scattered.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from xlaunch.environment import Environment, prepare_environment
from xlaunch.environment.program import Program, resolve_program
from xlaunch.environment.substitution import substitute
from xlaunch.environment.variables import MEMORY, OPTION_PREFIX, OURS, split_inherited
from xlaunch.errors import XLaunchError
from xlaunch.machine.files import is_live
from xlaunch.machine.topology import Machine
from xlaunch.planning import MemoryPolicy, Plan, Request, plan
from xlaunch.planning.plans import Instance
from xtune.space.identities import inherited_by_program
from xtune.space.launch_options import with_option, with_variable
from xtune.space.parameters import BARE, Configuration, Where
from xtune.space.spaces import Space
from xtune.space.user_parameters import fill

MEMORY_BITS = 3
"""Leading bits of an instance's memory share that the hash includes: a new kernel reports some MiB
more or less."""


class Resolved(NamedTuple):
    """A configuration that can be carried out."""

    configuration: Configuration
    """Complete: every parameter is named."""
    request: Request
    plan: Plan
    plan_hash: str
    """Equal where the program is started in the same way."""


class Resolver:
    """Resolves the configurations of a space on one machine, and caches the results."""

    def __init__(
        self, space: Space, request: Request, environment: Mapping[str, str], machine: Machine
    ) -> None:
        """`request`: the program, with ``{name}`` for parameters, and the user's other options.

        `environment`: what instances inherit, usually `os.environ`.
        """
        self.space = space
        self._request = request
        self._environment = dict(environment)
        outside = split_inherited(environment)
        if outside.memory_share_bytes is not None:
            rounded = _leading(outside.memory_share_bytes, MEMORY_BITS)
            self._environment[MEMORY] = str(rounded)
        self._users_own = outside.users_own
        self.inherited = inherited_by_program(self._users_own)
        """The inherited variables that may change how the program computes."""
        self._inherited = _digest(self.inherited)
        self.machine = machine
        self._policy_stays = _inherits_memory_policy(machine)
        self._known: dict[Configuration, Resolved | XLaunchError] = {}

    def request(self, configuration: Configuration) -> Request:
        """The request to xlaunch. `BARE`: the program alone, its parameters at their defaults.

        Raises `SpaceError` for a name or value that is not in the space.
        """
        if configuration == BARE:
            complete = self.space.complete({})
        else:
            complete = self.space.complete(configuration)
        by_place = {where: list[str]() for where in Where}
        for parameter in self.space.parameters:
            by_place[parameter.where].append(parameter.name)
        words = {name: complete[name] for name in by_place[Where.PROGRAM]}
        request = fill(self._request, words)
        if configuration == BARE:
            return request
        for name in by_place[Where.OPTION]:
            request = with_option(request, name, complete[name])
        for name in by_place[Where.VARIABLE]:
            request = with_variable(request, name, complete[name])
        return request

    def resolve(self, configuration: Configuration) -> Resolved:
        """The plan of a configuration.

        Raises what `xlaunch.plan` and `xlaunch.environment.prepare_environment` raise if it cannot be
        carried out, and `SpaceError` if it is not in the space.
        """
        complete = self.space.complete(configuration)
        known = self._known.get(complete)
        if known is None:
            known = self._known[complete] = self._resolve(complete)
        if isinstance(known, XLaunchError):
            raise known
        return known

    def plan_hash(self, configuration: Configuration) -> str | None:
        """The hash of all that affects the start of a configuration; None if it cannot start.

        It covers CPUs, memory policy, preloads, the program and its arguments, the variables that it
        inherits (see `inherited_by_program`) and those that are changed. `BARE` has one too. Raises
        `SpaceError` for a configuration that is not in the space.
        """
        if configuration != BARE:
            self.space.complete(configuration)
        try:
            if configuration == BARE:
                env = self.request(BARE).program.env
                program = _program(self._bare_program())
                return _digest({"bare": program, "env": env, "inherited": self._inherited})
            return self.resolve(configuration).plan_hash
        except XLaunchError:
            return None

    def refusal(self, configuration: Configuration) -> str | None:
        """Why a configuration cannot be carried out here, in one line; None if it can."""
        self.space.complete(configuration)
        try:
            self.resolve(configuration)
        except XLaunchError as error:
            return str(error)
        return None

    def environment(self, configuration: Configuration) -> Environment:
        """The environment of the instances. Raises what `resolve` raises."""
        found = self.resolve(configuration)
        return self._prepare(found.plan, found.request)

    def command(self, configuration: Configuration, *, isolated: bool = False) -> list[str]:
        """The equivalent xlaunch command line; for `BARE` the program as it is executed.

        isolated
            Make xlaunch ignore option files, which would change the result.

        Raises `SpaceError` for a configuration that is not in the space; for `BARE` what
        `resolve_program` raises.
        """
        from xtune.space.presets import command_of

        if configuration == BARE:
            words = self._bare_program().argv
            only = {"index": "0", "count": "1"}
            return [substitute(w, only) if self._request.program.substitute else w for w in words]
        return command_of(self.request(configuration), isolated=isolated)

    def preset(self, configuration: Configuration, *, use: str = "best.toml") -> str:
        """The text of a preset file named `use`, for ``xlaunch --preset best.toml PROGRAM``.

        It does not hold the program and its arguments: see `preset_command`. Raises `SpaceError` for a
        configuration that is not in the space, `UsageError` for a value that TOML cannot hold.
        """
        from xtune.space.presets import preset_of

        searched = [p.name for p in self.space.parameters if p.where is Where.OPTION]
        return preset_of(self.request(configuration), searched, use=use)

    def preset_command(self, configuration: Configuration, *, use: str = "best.toml") -> list[str]:
        """The command line that uses the preset, with the values filled into the program's arguments."""
        from xtune.space.presets import command_of

        return command_of(self.request(configuration), preset=use)

    def _resolve(self, complete: Configuration) -> Resolved | XLaunchError:
        try:
            request = self.request(complete)
            made = plan(request.layout, self.machine)
            share = made.memory_share_bytes
            rounded = None if share is None else _leading(share, MEMORY_BITS)
            prepared = self._prepare(made._replace(memory_share_bytes=rounded), request)
        except XLaunchError as error:
            return error
        return Resolved(complete, request, made, self._identify(made, prepared))

    def _prepare(self, made: Plan, request: Request) -> Environment:
        return prepare_environment(made, request.program, self._environment, run=request.run)

    def _identify(self, made: Plan, prepared: Environment) -> str:
        instances = [
            {
                "cpus": instance.cpus if made.bound else None,
                "memory": self._memory_of(made, instance),
                **_program(program),
                "environment": self._changes(variables, {s.name: s.value for s in settings}),
                "removed": sorted(
                    [
                        name
                        for name in self._users_own.keys() - variables.keys()
                        if not name.startswith(OPTION_PREFIX)
                    ]
                ),
            }
            for instance, program, variables, settings in zip(
                made.instances,
                prepared.programs,
                prepared.variables,
                prepared.settings,
                strict=True,
            )
        ]
        return _digest(
            {
                "instances": instances,
                "inherited": self._inherited,
                "count": made.count,
                "forbids_huge_pages": prepared.forbids_huge_pages,
            }
        )

    def _changes(self, variables: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
        """Variables that differ from the user's own, and those that were examined and kept."""
        changed = {n: v for n, v in variables.items() if self._users_own.get(n) != v}
        changed.pop(OURS, None)  # lists the others
        return {**settings, **changed}

    def _memory_of(self, made: Plan, instance: Instance) -> tuple[str, tuple[int, ...]]:
        policy, nodes = instance.memory, instance.memory_nodes
        if policy is MemoryPolicy.NONE:
            return policy.value, ()
        if made.layout.mem_policy is MemoryPolicy.AUTO and self._policy_stays:
            return "inherited", ()
        # Interleaving over a single node falls back to other nodes when it is full, as preferring
        # does (mm/mempolicy.c: only binding gives the allocator a mask).
        if policy is MemoryPolicy.INTERLEAVE and len(nodes) == 1:
            policy = MemoryPolicy.PREFERRED
        return policy.value, nodes

    def _bare_program(self) -> Program:
        return resolve_program(self.request(BARE).program, self._users_own)


def _program(program: Program) -> dict[str, Any]:
    return {"executable": program.executable, "argv": program.argv}


def _digest(values: Mapping[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _leading(size: int, bits: int) -> int:
    """`size` rounded to `bits` leading bits. **Ex.:** 15.5 GiB to three: 16 GiB."""
    step = 1 << max(0, size.bit_length() - bits)
    return (size + step // 2) // step * step


def _inherits_memory_policy(machine: Machine) -> bool:
    """Whether this process inherited a memory policy, which ``--mem-policy auto`` keeps."""
    if not is_live(machine.root) or len(machine.topology.numa_nodes) < 2:
        return False
    from xlaunch.supervision.syscalls import MPOL_DEFAULT, read_memory_policy

    try:
        return read_memory_policy().mode != MPOL_DEFAULT
    except OSError:
        return False
