# SPDX-License-Identifier: Apache-2.0
"""A command whose options may come from files, and which knows where each came from.

A value comes from the command line, else from XLAUNCH_OPT_*, else from the preset, the project's
file, the user's file, else it is the default. Files reach click as its map of defaults.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

from xlaunch.cli import say
from xlaunch.cli.options import (
    CONTRADICTIONS,
    PER_LAUNCH,
    OneCallOption,
    names_of,
)
from xlaunch.cli.parameters import Variable
from xlaunch.cli.presets.files import Layer, find_layers
from xlaunch.cli.presets.values import file_name_of, shown_value, typed_value
from xlaunch.errors import UsageError

COMMAND_LINE, VARIABLE, FILES = range(3)
"""Ranks of a value's origin; `FILES` is the rank of the strongest file, and others follow."""

_SOURCES = "xlaunch.sources"


class Source(NamedTuple):
    """Where an option's value came from."""

    rank: int
    """0 counts most."""
    origin: str
    """**Ex.:** ``"command line"``, ``"XLAUNCH_OPT_NCORES"``, ``"preset best.toml"``."""


class Sources(NamedTuple):
    """Where the values of one command line came from."""

    by_option: dict[str, Source]
    """Of each option that is not left at its default."""
    by_variable: dict[str, Source]
    """Of each variable that --env sets."""
    below: frozenset[str]
    """Options that some standing file sets, whether or not it prevails."""
    notes: tuple[str, ...]
    """What was dropped or not read, one line each."""


class LayeredCommand(click.Command):
    """A command that takes options from files too, by ``--preset`` and where they stand."""

    def make_parser(self, ctx: click.Context) -> Any:
        """The parser, with a ``--no-FLAG`` for each flag: what a file sets can be taken back."""
        parser = super().make_parser(ctx)
        taken = {word for option in self.get_params(ctx) for word in _words(option)}
        for option in file_options(self, ctx):
            opposite = _opposite(option)
            if opposite is not None and opposite not in taken:
                parser.add_option(
                    obj=option, opts=[opposite], dest=option.name, action="store_const", const=False
                )
        return parser

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line over the files. Raises what click raises, and `UsageError`."""
        options = self.get_params(ctx)
        given, _, _ = self.make_parser(ctx).parse_args(list(args))
        if any(option.is_eager and option.name in given for option in options):
            return super().parse_args(ctx, args)  # --help and --version work whatever files say
        early = {
            option.name: _early_value(option, ctx, given)
            for option in options
            if option.name in ("preset", "isolated")
        }
        found = find_layers(early["preset"], isolated=bool(early["isolated"]))
        notes = list(found.notes)
        maps = [_checked(self, ctx, layer, notes) for layer in found.strongest_first]
        origins = [layer.origin for layer in found.strongest_first]
        standing = [
            values
            for layer, values in zip(found.strongest_first, maps, strict=True)
            if layer.standing
        ]
        ctx.default_map = {
            name: value for values in reversed(maps) for name, value in values.items()
        }
        rest = super().parse_args(ctx, args)
        sources = Sources(
            by_option=dict(_sources(ctx, options, maps, origins)),
            by_variable={},
            below=frozenset([name for values in standing for name in values]),
            notes=(),
        )
        _merge_variables(ctx, options, maps, origins, sources)
        notes += _drop_contradicted(self, ctx, sources)
        ctx.meta[_SOURCES] = sources._replace(notes=tuple(notes))
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. An error that names options of a file says which file."""
        quiet, path = ctx.params.get("quiet"), ctx.params.get("save_preset")
        if not quiet:
            for note in sources_of(ctx).notes:
                say(f"note: {note}")
        if path is not None:
            from xlaunch.cli.presets.writing import save_preset

            save_preset(path, ctx)
            if not quiet:
                say(f"{path}: saved, for xlaunch --preset {path}")
        try:
            return super().invoke(ctx)
        except UsageError as error:
            hint = _culprits(ctx, str(error))
            if not hint:
                raise
            raise UsageError(f"{error} ({hint})") from None


def sources_of(ctx: click.Context) -> Sources:
    """Where the values of the command line came from."""
    found = ctx.meta.get(_SOURCES)
    return found if isinstance(found, Sources) else Sources({}, {}, frozenset(), ())


def file_options(command: click.Command, ctx: click.Context) -> list[click.Option]:
    """The options of a command that a file may hold, in the order of its help."""
    return [
        option
        for option in command.get_params(ctx)
        if isinstance(option, click.Option)
        and not isinstance(option, OneCallOption)
        and not option.is_eager
    ]


def parse_preset(path: str, ctx: click.Context) -> dict[str, Any]:
    """What the preset `path` says, by option. Raises `UsageError` unless it is a valid preset."""
    (layer,) = find_layers(path, isolated=True, named=True).strongest_first
    return _checked(ctx.command, ctx, layer, [])


def defaults_of(command: click.Command) -> dict[str, Any]:
    """The value of every option of a command when nothing sets it."""
    bare = click.Context(command)
    click.Command.parse_args(command, bare, [])
    return bare.params


def explain_options(ctx: click.Context) -> list[str]:
    """A line for each option that is not left at its default, with where it came from.

    **Ex.:** ``option instances 4: preset best.toml``
    """
    sources, lines = sources_of(ctx), []
    for option in file_options(ctx.command, ctx):
        name = option.name or ""
        if name not in sources.by_option:
            continue
        if isinstance(option.type, Variable):
            lines += [
                f"option env {variable}={value}: {sources.by_variable[variable].origin}"
                for variable, value in ctx.params[name]
            ]
            continue
        value = shown_value(option, ctx.params[name])
        lines.append(f"option {file_name_of(option)} {value}: {sources.by_option[name].origin}")
    return [line.encode(errors="backslashreplace").decode() for line in lines]


def _words(option: click.Parameter) -> list[str]:
    return [*option.opts, *option.secondary_opts]


def _opposite(option: click.Option) -> str | None:
    """**Ex.:** ``--no-smt`` for ``--smt``, ``--cache`` for ``--no-cache``; None if it has one."""
    if not option.is_flag or option.secondary_opts:
        return None
    name = file_name_of(option)
    return f"--{name.removeprefix('no-')}" if name.startswith("no-") else f"--no-{name}"


def _early_value(option: click.Parameter, ctx: click.Context, given: Mapping[str, Any]) -> Any:
    """An option's value before the files are read, which it decides on."""
    value, source = option.consume_value(ctx, given)
    if source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
        return option.type_cast_value(ctx, value)
    return None


def _checked(
    command: click.Command, ctx: click.Context, layer: Layer, notes: list[str]
) -> dict[str, Any]:
    """What a file says, by option, as the command line would hold it; checked as it would be.

    A file may hold options of a launch that this command has not. Within an instance, a standing
    file decides neither the layout nor where logs go: it has done so for the launcher outside.
    """
    ours = {option.name: option for option in file_options(command, ctx)}
    known: dict[str, click.Option] = {}
    for option in _launch_options(command, ctx):
        known[file_name_of(option).replace("-", "_")] = option
    nested = layer.standing and "XLAUNCH_INSTANCE_INDEX" in os.environ
    ignored = names_of(*PER_LAUNCH) if nested else frozenset()
    values: dict[str, Any] = {}
    left_out = []
    for key, value in layer.table.items():
        option_or_none = known.get(key.replace("-", "_"))
        if option_or_none is None:
            raise UsageError(f"{layer.place}: {_unknown(key, list(known.values()))}")
        name = option_or_none.name or ""
        if name in values:
            raise UsageError(f"{layer.place}: {key} is there twice, with a dash and an underscore")
        try:
            typed = typed_value(option_or_none, value, ctx)
        except UsageError as error:
            raise UsageError(f"{layer.place}: {key}: {error}") from None
        if name in ignored:
            left_out.append(key)
        elif name in ours:
            values[name] = typed
    if left_out:
        notes.append(
            f"{layer.origin}: {', '.join(left_out)} left out: this is inside an instance, "
            "whose launcher has read it"
        )
    return values


def _launch_options(command: click.Command, ctx: click.Context) -> list[click.Option]:
    """All options that a file may hold: those of `xlaunch` itself."""
    from xlaunch.cli.launch import launch

    return file_options(command if command is launch else launch, ctx)


def _unknown(key: str, known: list[click.Option]) -> str:
    import difflib

    names = [file_name_of(option) for option in known]
    if key.replace("_", "-") in _names_of_one_call():
        return f"{key} is for the command line; no file may hold it"
    near = difflib.get_close_matches(key.replace("_", "-"), names, n=1)
    hint = f"; did you mean {near[0]}?" if near else "; 'xlaunch --help' lists the options"
    return f"there is no option {key!r}{hint}"


def _names_of_one_call() -> frozenset[str]:
    """The options of `xlaunch` that no file may hold."""
    from xlaunch.cli.launch import launch

    options = [option for option in launch.params if isinstance(option, click.Option)]
    return frozenset(
        [file_name_of(o) for o in options if isinstance(o, OneCallOption) or o.is_eager]
    )


def _sources(
    ctx: click.Context,
    options: list[click.Parameter],
    maps: list[dict[str, Any]],
    origins: list[str],
) -> Iterator[tuple[str, Source]]:
    for option in options:
        name = option.name or ""
        source = ctx.get_parameter_source(name)
        if source is ParameterSource.COMMANDLINE:
            yield name, Source(COMMAND_LINE, "command line")
        elif source is ParameterSource.ENVIRONMENT:
            yield name, Source(VARIABLE, f"{ctx.auto_envvar_prefix}_{name.upper()}")
        elif source is ParameterSource.DEFAULT_MAP:
            index = next(index for index, values in enumerate(maps) if name in values)
            yield name, Source(FILES + index, origins[index])


def _merge_variables(
    ctx: click.Context,
    options: list[click.Parameter],
    maps: list[dict[str, Any]],
    origins: list[str],
    sources: Sources,
) -> None:
    """Variables come from every level: a stronger one replaces those of the same name only."""
    for option in options:
        name = option.name or ""
        if not isinstance(option.type, Variable) or name not in sources.by_option:
            continue
        merged: dict[str, str] = {}
        for index in reversed(range(len(maps))):
            for variable, value in option.type_cast_value(ctx, maps[index].get(name)):
                merged[variable] = value
                sources.by_variable[variable] = Source(FILES + index, origins[index])
        if sources.by_option[name].rank < FILES:
            for variable, value in ctx.params[name]:
                merged[variable] = value
                sources.by_variable[variable] = sources.by_option[name]
        ctx.params[name] = tuple(merged.items())


def _drop_contradicted(
    command: click.Command, ctx: click.Context, sources: Sources
) -> Iterator[str]:
    """Set back what contradicts a value of higher rank, and say so.

    **Ex.:** a preset has ``mode = "latency"`` and the command line ``--instances 2``: no mode.
    """
    options = {option.name: option for option in command.get_params(ctx) if option.name}
    by_option, kept = sources.by_option, list[str]()

    def shown(name: str) -> str:
        value = shown_value(options[name], ctx.params[name])
        return f"{file_name_of(options[name])} {value} ({by_option[name].origin})"

    for name in sorted(by_option, key=lambda name: by_option[name].rank):
        stronger = [other for other in kept if by_option[other].rank < by_option[name].rank]
        winner = next((other for other in stronger if _contradict(ctx, name, other)), None)
        if winner is None:
            kept.append(name)
            continue
        yield f"{shown(name)} gives way to {shown(winner)}"
        del by_option[name]
        ctx.params[name] = defaults_of(command)[name]
        ctx.set_parameter_source(name, ParameterSource.DEFAULT)


def _contradict(ctx: click.Context, one: str, other: str) -> bool:
    pair = (one, other) if (one, other) in CONTRADICTIONS else (other, one)
    rule = CONTRADICTIONS.get(pair)
    return rule is not None and rule(ctx.params[pair[0]], ctx.params[pair[1]])


def contradictions(ctx: click.Context) -> Iterator[tuple[str, str]]:
    """Pairs of options that are set and cannot be had together: both came from the same place."""
    for one, other in CONTRADICTIONS:
        if {one, other} <= ctx.params.keys() and _contradict(ctx, one, other):
            yield one, other


def _culprits(ctx: click.Context, message: str) -> str:
    """Which options that `message` names came from elsewhere than the command line."""
    import re

    found = []
    for option in file_options(ctx.command, ctx):
        source = sources_of(ctx).by_option.get(option.name or "")
        if source is None or source.rank == COMMAND_LINE:
            continue
        if any(re.search(rf"{re.escape(word)}(?![\w-])", message) for word in option.opts):
            value = shown_value(option, ctx.params[option.name or ""])
            found.append(f"{file_name_of(option)} {value}: {source.origin}")
    return "; ".join(found)
