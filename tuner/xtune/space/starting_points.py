# SPDX-License-Identifier: Apache-2.0
"""A user's preset as a configuration of a space, to be tried first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from xlaunch.errors import UsageError
from xlaunch.machine.topology import Machine
from xlaunch.options.definitions import IN_FILES
from xlaunch.options.layers import field_of, request_from
from xlaunch.options.settings_files import read_preset
from xlaunch.planning import Request, plan
from xtune.errors import SpaceError
from xtune.space.launch_options import LAYOUT, UNSET, with_option
from xtune.space.parameters import Configuration, Parameter, Value, Where
from xtune.space.presets import NAMING
from xtune.space.resolution import Resolver

LAYOUT_FIELDS = ("instances", "ncores", "mode")


class StartingPoint(NamedTuple):
    """The part of a preset that a space contains."""

    configuration: Configuration
    left_out: tuple[str, ...]
    """The preset's other options. **Ex.:** ``reserve``, ``env TOKENIZERS_PARALLELISM``."""


def starting_point(
    path: str, request: Request, resolver: Resolver, machine: Machine
) -> StartingPoint:
    """The preset `path` as a configuration of the resolver's space, which was made for `request`.

    Raises `UsageError` for a file that is not a preset, or a layout that does not fit this machine,
    and `SpaceError` if the space has none of its options.
    """
    asked = _with_preset(request, path)
    values = {
        parameter.name: value
        for parameter in resolver.space.parameters
        if (value := _value(parameter, asked, machine)) is not None
    }
    try:
        configuration = resolver.space.complete(values)
        made = resolver.request(configuration)
    except SpaceError as error:
        raise SpaceError(f"{path} cannot be tried: {error}") from None
    left_out = tuple(_left_out(request, asked, made, has_layout=LAYOUT in values))
    if left_out and not resolver.space.changes(configuration):
        raise SpaceError(
            f"{path} cannot be tried: none of its options is searched ({', '.join(left_out)}); give"
            " them to xtune as options, which fixes them"
        )
    return StartingPoint(configuration, left_out)


def _with_preset(request: Request, path: str) -> Request:
    """`request` with the preset's options added; those of the request take precedence."""
    said = request_from(read_preset(path).values)
    default, given = Request().options(), request.options()
    fields = {
        name: value
        for name, value in said.options().items()
        if name not in (*NAMING, "words", "env") and given[name] == default[name]
    }
    env = {**dict(said.program.env), **dict(request.program.env)}
    return request.replace(**fields, env=tuple(env.items()))


def _value(parameter: Parameter, asked: Request, machine: Machine) -> Value | None:
    """The parameter's value that equals what is asked; None if there is none."""
    if parameter.where is Where.PROGRAM:
        return None
    if parameter.where is Where.VARIABLE:
        said = dict(asked.program.env).get(parameter.name, UNSET)
        return next((value for value in parameter.values if str(value) == said), None)
    if parameter.name == LAYOUT:
        wanted = plan(asked.layout, machine).instances
        return next((v for v in parameter.values if _planned(asked, v, machine) == wanted), None)
    # Try `intel+active` before `intel`: it also sets a variable.
    for value in sorted(parameter.values, key=lambda one: -len(str(one))):
        if _same(with_option(asked, parameter.name, value), asked):
            return value
    return None


def _planned(asked: Request, layout: Value, machine: Machine) -> object:
    try:
        return plan(with_option(asked, LAYOUT, layout).layout, machine).instances
    except UsageError:
        return None


def _same(one: Request, other: Request) -> bool:
    same_env = dict(one.program.env) == dict(other.program.env)
    return same_env and one.replace(env=()) == other.replace(env=())


def _left_out(
    request: Request, asked: Request, made: Request, *, has_layout: bool
) -> Iterator[str]:
    """The options that the preset adds to the request and the configuration does not have."""
    for option in IN_FILES:
        field = field_of(option)
        if field is None or (has_layout and field in LAYOUT_FIELDS):
            continue
        if field == "env":
            added = [pair for pair in asked.program.env if pair not in request.program.env]
            yield from (f"env {pair[0]}" for pair in added if pair not in made.program.env)
        elif asked.options()[field] != made.options()[field]:
            yield option.name
