# SPDX-License-Identifier: Apache-2.0
"""Presets as text: the options of a command line, or all there are, each with what it does."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

import click

from xlaunch.cli.parameters import Count, Duration, NumberList, Variable, WholeNumber, Word
from xlaunch.cli.presets.command import (
    contradictions,
    defaults_of,
    file_options,
    parse_preset,
    sources_of,
)
from xlaunch.cli.presets.files import SUFFIX
from xlaunch.cli.presets.values import file_name_of, file_value, is_flag, typed_value
from xlaunch.errors import UsageError
from xlaunch.whole_files import write_output

WIDTH = 98
"""Columns of a comment."""

EXAMPLES: Mapping[type, Any] = {
    Count: 2,
    WholeNumber: 1,
    NumberList: "0-3",
    Duration: "10m",
}
"""What the line of an option without a default shows."""


def save_preset(path: str, ctx: click.Context) -> None:
    """Write the options of a command line that are not defaults; the file is whole or untouched.

    Also written: a default that replaced what a standing file says. Raises `UsageError` for options
    that contradict each other, and for a file that is something else than a preset.
    """
    for pair in contradictions(ctx):
        one, other = (name.replace("_", "-") for name in pair)
        raise UsageError(f"--save-preset: --{one} and --{other} contradict each other; drop one")
    _check_target(path, ctx, "--save-preset")
    defaults, sources = defaults_of(ctx.command), sources_of(ctx)
    wanted = {
        option.name: ctx.params[option.name]
        for option in file_options(ctx.command, ctx)
        if option.name
        and (
            ctx.params[option.name] != defaults[option.name]
            or (option.name in sources.below and option.name in sources.by_option)
        )
    }
    write_output(path, preset_text(ctx.command, wanted, use=path), option="--save-preset")


def preset_text(command: click.Command, values: Mapping[str, Any], *, use: str) -> str:
    """A preset that holds `values`, by option; `use` is the name that its first lines advise.

    Raises `UsageError` for a value that TOML cannot hold.
    """
    ctx = click.Context(command)
    head = f"Options for xlaunch. To use them: xlaunch --preset {_one_line(use)} PROGRAM"
    blocks = [comment(head)]
    for option in _tables_last(file_options(command, ctx)):
        if option.name not in values:
            continue
        value = values[option.name]
        written = file_value(option, value)
        if value is None or written == {}:
            continue
        if _read_back(option, written, ctx) != value:
            raise UsageError(f"--{file_name_of(option)} {value!r} cannot be kept in a file")
        blocks.append([*comment(option.help or ""), *assignment(option, written)])
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def options_text(command: click.Command) -> str:
    """Every option that a preset may hold, commented out, with its meaning and its default.

    The line of an option has no space after its ``#``: with the ``#`` taken away it is valid.
    """
    ctx, defaults, blocks = click.Context(command), defaults_of(command), []
    for option in _tables_last(file_options(command, ctx)):
        default = defaults[option.name or ""]
        lines = comment(option.help or "")
        if default is None or default == ():
            example = _example(option)
            lines += comment("Not set by default; for example:")
            lines += [f"#{line}" for line in assignment(option, example)]
        else:
            lines += [f"#{line}" for line in assignment(option, file_value(option, default))]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def comment(text: str) -> list[str]:
    """`text` as lines of comment."""
    return [f"# {line}" for line in textwrap.wrap(text, WIDTH, break_long_words=False)]


def assignment(option: click.Option, written: Any) -> list[str]:
    """The lines that give an option a value; a table is a section of its own, for the file's end."""
    name = file_name_of(option)
    if not isinstance(written, dict):
        return [f"{name} = {_toml(written)}"]
    return [f"[{name}]", *(f"{_key(key)} = {_toml(value)}" for key, value in written.items())]


def _check_target(path: str, ctx: click.Context, option: str) -> None:
    """Raise `UsageError` unless `path` is free, or a preset that may be replaced."""
    if not path.endswith(SUFFIX):
        raise UsageError(f"{option} {path!r}: the name of a preset ends in {SUFFIX}")
    if not os.path.lexists(path):
        return
    if not os.path.isfile(path):
        raise UsageError(f"{option} {path!r} is there and is not a regular file")
    try:
        parse_preset(path, ctx)
    except UsageError as error:
        raise UsageError(
            f"{option} {path!r} is there and is no preset ({error}); choose another name"
        ) from None


def _tables_last(options: Iterable[click.Option]) -> list[click.Option]:
    """What follows a section of a TOML file belongs to it."""
    return sorted(options, key=lambda option: isinstance(option.type, Variable))


def _read_back(option: click.Option, written: Any, ctx: click.Context) -> Any:
    try:
        return option.type_cast_value(ctx, typed_value(option, written, ctx))
    except UsageError:
        return None


def _example(option: click.Option) -> Any:
    if isinstance(option.type, Variable):
        return {"NAME": "value"}
    if is_flag(option):
        return True
    if isinstance(option.type, Word):
        return option.type.name.split("|")[0]
    example = EXAMPLES.get(type(option.type), (option.metavar or option.type.name).lower())
    return [example] if option.multiple else example


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return _quoted(str(value))


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if bare else _quoted(name)


def _quoted(text: str) -> str:
    """A TOML basic string."""
    short = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return '"' + "".join([short.get(char) or _escaped(char) for char in text]) + '"'


def _escaped(char: str) -> str:
    return char if ord(char) >= 32 and char != "\x7f" else f"\\u{ord(char):04X}"


def _one_line(text: str) -> str:
    return " ".join(text.split()).encode(errors="backslashreplace").decode()
