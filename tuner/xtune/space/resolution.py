# SPDX-License-Identifier: Apache-2.0
"""Resolution of a configuration on a machine: its request, plan, environment, and a hash of them.

Also its command line and preset file, and a preset file as a configuration.

No program is started and no directory made; only a preload is tried once in a child process, as for
every launch. Configurations with equal hashes start in exactly the same way and are measured as one:
one instance on all cores is the same compact or scattered.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from xlaunch.environment import Environment, prepare_environment
from xlaunch.environment.program import Program, resolve_program
from xlaunch.environment.variables import (
    MEMORY,
    OPTION_PREFIX,
    SET_VARIABLES,
    split_inherited,
    substitute,
)
from xlaunch.errors import UsageError, XLaunchError
from xlaunch.machine.topology import Machine
from xlaunch.machine.tree import is_live
from xlaunch.options.definitions import FLAG, IN_FILES, RESERVED, VARIABLE, Option
from xlaunch.options.precedence import field_of, read_preset, request_from, shown
from xlaunch.options.presets import preset_text
from xlaunch.planning import MAX, MemoryPolicy, Plan, Request, plan
from xlaunch.planning.plans import Instance
from xtune.errors import SpaceError
from xtune.space.identities import inherited_by_program
from xtune.space.launch_options import (
    LAYOUT,
    OPTION_KEYS,
    OPTIONS,
    UNSET,
    with_option,
    with_variable,
)
from xtune.space.parameters import BARE, Configuration, Parameter, Target, Value
from xtune.space.plain_values import digest
from xtune.space.spaces import Space
from xtune.space.user_parameters import fill

MEMORY_BITS = 3
"""Leading bits of an instance's memory that the hash includes: kernels report some MiB more or less."""


class ResolvedConfiguration(NamedTuple):
    """A configuration that can be carried out."""

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
        self.original = request
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
        self._known: dict[Configuration, ResolvedConfiguration | XLaunchError] = {}

    def request(self, configuration: Configuration) -> Request:
        """The request to xlaunch; of `BARE` the program at its defaults. Raises `SpaceError`."""
        request = fill(self.original, self.own_values(configuration))
        if configuration == BARE:
            return request
        complete = self.space.complete(configuration)
        for where, change in ((Target.OPTION, with_option), (Target.VARIABLE, with_variable)):
            for parameter in self.space.parameters:
                if parameter.where is where:
                    request = change(request, parameter.name, complete[parameter.name])
        return request

    def own_values(self, configuration: Configuration) -> dict[str, Value]:
        """The values of the program's own parameters; `BARE`: their defaults."""
        complete = self.space.complete({} if configuration == BARE else configuration)
        own = [p.name for p in self.space.parameters if p.where is Target.PROGRAM]
        return {name: complete[name] for name in own}

    @functools.cached_property
    def _elsewhere(self) -> list[str]:
        """Parameters that are only in the commands that prepare and measure launches."""
        defaults = self.own_values(BARE)
        return [
            name
            for name, value in defaults.items()
            if fill(self.original, {name: value}) == self.original
        ]

    def resolve(self, configuration: Configuration) -> ResolvedConfiguration:
        """The plan of a configuration.

        Raises what `xlaunch.plan` and `xlaunch.environment.prepare_environment` raise if it cannot be
        carried out, and `SpaceError` if it is not in the space.
        """
        complete = self.space.complete(configuration)
        resolved = self._known.get(complete)
        if resolved is None:
            resolved = self._known[complete] = self._resolve(complete)
        if isinstance(resolved, XLaunchError):
            raise resolved
        return resolved

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
                program = _program(self.program)
                return _digest({"bare": program, "env": env, "inherited": self._inherited})
            return self.resolve(configuration).plan_hash
        except XLaunchError:
            return None

    def environment(self, configuration: Configuration) -> Environment:
        """The environment of the instances. Raises what `resolve` raises."""
        resolved = self.resolve(configuration)
        return self._prepare(resolved.plan, resolved.request)

    def command(self, configuration: Configuration, *, preset: str | None = None) -> list[str]:
        """The equivalent xlaunch command line; for `BARE` the program as it is executed.

        `preset`: a file that holds the options.

        Raises `SpaceError` for a configuration that is not in the space; for `BARE` what
        `resolve_program` raises.
        """
        if configuration == BARE:
            words = self.program.argv
            only = {"index": "0", "count": "1"}
            return [substitute(w, only) if self.original.program.substitute else w for w in words]
        return command_of(self.request(configuration), preset=preset)

    def preset(self, configuration: Configuration, *, use: str = "best.toml") -> str:
        """The text of a preset file named `use`, for ``xlaunch --preset best.toml PROGRAM``.

        It does not hold the program and its arguments: see `command`. The options of searched
        parameters are written even at their defaults, so that no other option file changes what was
        measured. Raises `SpaceError` for a configuration that is not in the space, `UsageError` for a
        value that TOML cannot hold.
        """
        request = self.request(configuration)
        values = {option.key: value for option, value in _changed(request)}
        for name in [p.name for p in self.space.parameters if p.where is Target.OPTION]:
            fields = [OPTION_KEYS.get(name, name)] if name in OPTIONS else []
            if name == LAYOUT:
                fields = ["mode"] if request.layout.mode else ["instances", "ncores"]
            values |= {field: request.options()[field] for field in fields}
        return preset_text({k: v for k, v in values.items() if k not in NAMING}, use=use)

    def _resolve(self, complete: Configuration) -> ResolvedConfiguration | XLaunchError:
        try:
            request = self.request(complete)
            launch_plan = plan(request.layout, self.machine)
            share = launch_plan.memory_share_bytes
            rounded = None if share is None else _leading(share, MEMORY_BITS)
            prepared = self._prepare(launch_plan._replace(memory_share_bytes=rounded), request)
        except XLaunchError as error:
            return error
        plan_hash = self._identify(launch_plan, prepared)
        if self._elsewhere:
            values = {name: complete[name] for name in self._elsewhere}
            plan_hash = _digest({"started": plan_hash, **values})
        return ResolvedConfiguration(request, launch_plan, plan_hash)

    def _prepare(self, launch_plan: Plan, request: Request) -> Environment:
        return prepare_environment(launch_plan, request.program, self._environment, run=request.run)

    def _identify(self, launch_plan: Plan, prepared: Environment) -> str:
        instances = [
            {
                "cpus": instance.cpus if launch_plan.bound else None,
                "memory": self._memory_of(launch_plan, instance),
                **_program(program),
                "environment": self._changes(
                    variables, {s.name: s.value for s in settings if s.value is not None}
                ),
                "removed": [
                    name
                    for name in sorted(self._users_own.keys() - variables.keys())
                    if not name.startswith(OPTION_PREFIX)
                ],
            }
            for instance, program, variables, settings in zip(
                *(launch_plan.instances, prepared.programs),
                *(prepared.variables, prepared.settings),
                strict=True,
            )
        ]
        return _digest(
            {
                "instances": instances,
                "inherited": self._inherited,
                "count": launch_plan.count,
                "forbids_huge_pages": prepared.forbids_huge_pages,
            }
        )

    def _changes(self, variables: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
        """Variables that differ from the user's own, and those that were examined and kept."""
        changed = {n: v for n, v in variables.items() if self._users_own.get(n) != v}
        changed.pop(SET_VARIABLES, None)  # lists the others
        return {**settings, **changed}

    def _memory_of(self, launch_plan: Plan, instance: Instance) -> tuple[str, tuple[int, ...]]:
        policy, nodes = instance.memory, instance.memory_nodes
        if policy is MemoryPolicy.NONE:
            return policy.value, ()
        if launch_plan.layout.mem_policy is MemoryPolicy.AUTO and self._policy_stays:
            return "inherited", ()
        # Interleaving over a single node falls back to other nodes when it is full, as preferring
        # does (mm/mempolicy.c: only binding gives the allocator a mask).
        if policy is MemoryPolicy.INTERLEAVE and len(nodes) == 1:
            policy = MemoryPolicy.PREFERRED
        return policy.value, nodes

    @functools.cached_property
    def program(self) -> Program:
        """The program as it runs without xlaunch. Raises what `resolve_program` raises."""
        return resolve_program(self.request(BARE).program, self._users_own)


def _program(program: Program) -> dict[str, Any]:
    return {"executable": program.executable, "argv": program.argv}


def _digest(values: Mapping[str, Any]) -> str:
    return digest(values)[:32]


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


NAMING = ("module", "no_python")
"""Options that say how to read the program's words; they belong to the command, not the preset."""


def command_of(request: Request, *, preset: str | None = None) -> list[str]:
    """The xlaunch command that makes `request`, with its program.

    `preset`: a file that holds the options; only the program and `NAMING` are added to it.
    """
    if request.layout.instances == 1 and request.layout.ncores is MAX:
        request = request.replace(instances=None, ncores=None)  # the same in fewer words
    words = ["xlaunch"]
    words += ["--preset", preset] if preset is not None else []
    for option, value in _changed(request):
        if preset is None or option.key in NAMING:
            words += _words(option, value)
    program = list(request.program.words)
    ambiguous = program[:1] and (program[0] in RESERVED or program[0].startswith("-"))
    return [*words, *(["--"] if ambiguous else []), *program]


def _changed(request: Request) -> Iterator[tuple[Option, Any]]:
    """The options that are not at their defaults, in the order of xlaunch's help."""
    values, defaults = request.options(), Request().options()
    for option in IN_FILES:
        field = field_of(option)
        if field is not None and values[field] != defaults[field]:
            yield option, values[field]


def _words(option: Option, value: Any) -> list[str]:
    name = f"--{option.name}"
    if option.kind is FLAG:
        return [name if value else f"--no-{option.name}"]
    if option.kind is VARIABLE:
        return [word for variable, content in value for word in (name, f"{variable}={content}")]
    if option.multiple:
        return [word for item in value for word in (name, str(item))]
    return [name, shown(option, value)]


LAYOUT_FIELDS = ("instances", "ncores", "mode")


def starting_point(path: str, resolver: Resolver) -> tuple[Configuration, tuple[str, ...]]:
    """The preset `path` as a configuration of the resolver's space, and its options that the space lacks.

    **Ex.:** ``reserve``, ``env TOKENIZERS_PARALLELISM``.

    Raises `UsageError` for a file that is not a preset, or a layout that does not fit this machine,
    and `SpaceError` if the space has none of its options.
    """
    asked = _with_preset(resolver.original, path)
    values = {
        parameter.name: value
        for parameter in resolver.space.parameters
        if (value := _value(parameter, asked, resolver.machine)) is not None
    }
    try:
        configuration = resolver.space.complete(values)
        resolved_request = resolver.request(configuration)
    except SpaceError as error:
        raise SpaceError(f"{path} cannot be tried: {error}") from None
    left_out = tuple(
        _left_out(resolver.original, asked, resolved_request, has_layout=LAYOUT in values)
    )
    if left_out and not resolver.space.changes(configuration):
        raise SpaceError(
            f"{path} cannot be tried: none of its options is searched ({', '.join(left_out)}); give"
            " them to xtune as options, which fixes them"
        )
    return configuration, left_out


def _with_preset(request: Request, path: str) -> Request:
    """`request` with the preset's options added; those of the request take precedence."""
    said = request_from(read_preset(path, option="--try").values)
    default, requested = Request().options(), request.options()
    fields = {
        name: value
        for name, value in said.options().items()
        if name not in (*NAMING, "words", "env") and requested[name] == default[name]
    }
    env = {**dict(said.program.env), **dict(request.program.env)}
    return request.replace(**fields, env=tuple(env.items()))


def _value(parameter: Parameter, asked: Request, machine: Machine) -> Value | None:
    """The parameter's value that equals what is asked; None if there is none."""
    if parameter.where is Target.PROGRAM:
        return None
    if parameter.where is Target.VARIABLE:
        said = dict(asked.program.env).get(parameter.name, UNSET)
        return next((value for value in parameter.values if str(value) == said), None)
    if parameter.name == LAYOUT:
        wanted = plan(asked.layout, machine).instances
        return next((v for v in parameter.values if _planned(asked, v, machine) == wanted), None)
    # Try `intel+active` before `intel`: it also sets a variable.
    for value in sorted(parameter.values, key=lambda value: -len(str(value))):
        changed = with_option(asked, parameter.name, value)
        same_env = dict(changed.program.env) == dict(asked.program.env)
        if same_env and changed.replace(env=()) == asked.replace(env=()):
            return value
    return None


def _planned(asked: Request, layout: Value, machine: Machine) -> object:
    try:
        return plan(with_option(asked, LAYOUT, layout).layout, machine).instances
    except UsageError:
        return None


def _left_out(
    request: Request, asked: Request, resolved: Request, *, has_layout: bool
) -> Iterator[str]:
    """The options that the preset adds to the request and the configuration does not have."""
    for option in IN_FILES:
        field = field_of(option)
        if field is None or (has_layout and field in LAYOUT_FIELDS):
            continue
        if field == "env":
            added = [pair for pair in asked.program.env if pair not in request.program.env]
            yield from (f"env {pair[0]}" for pair in added if pair not in resolved.program.env)
        elif asked.options()[field] != resolved.options()[field]:
            yield option.name
