# SPDX-License-Identifier: Apache-2.0
"""A request as an xlaunch command line, and as the text of a preset file."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from xlaunch.options.definitions import IN_FILES, RESERVED, Option
from xlaunch.options.kinds import FLAG, VARIABLE
from xlaunch.options.layers import field_of, shown
from xlaunch.options.presets import preset_text
from xlaunch.planning import MAX, Request
from xtune.space.launch_options import LAYOUT, OPTION_KEYS, OPTIONS

NAMING = ("module", "no_python")
"""Options that say how to read the program's words; they belong to the command, not the preset."""


def command_of(request: Request, *, preset: str | None = None, isolated: bool = False) -> list[str]:
    """The xlaunch command that makes `request`, with its program.

    preset
        A file that holds the options; only the program and `NAMING` are added to it.
    isolated
        Make xlaunch ignore the option files of the project and the user.
    """
    if request.layout.instances == 1 and request.layout.ncores is MAX:
        request = request.replace(instances=None, ncores=None)  # the same in fewer words
    words = ["xlaunch"]
    words += ["--isolated"] if isolated else []
    words += ["--preset", preset] if preset is not None else []
    for option, value in _changed(request):
        if preset is None or option.key in NAMING:
            words += _words(option, value)
    program = list(request.program.words)
    ambiguous = program[:1] and (program[0] in RESERVED or program[0].startswith("-"))
    return [*words, *(["--"] if ambiguous else []), *program]


def preset_of(request: Request, searched: Collection[str], *, use: str) -> str:
    """The text of a preset with the options of `request`, for ``xlaunch --preset FILE PROGRAM``.

    searched
        Names of searched parameters: their options are written even at their defaults, so that no
        other option file changes what was measured.
    use
        The name of the file, for its first line.

    Raises `UsageError` for a value that TOML cannot hold.
    """
    values = {option.key: value for option, value in _changed(request)}
    for name in searched:
        if name == LAYOUT:
            fields: tuple[str, ...] = ("mode",) if request.layout.mode else ("instances", "ncores")
        else:
            fields = (OPTION_KEYS.get(name, name),) if name in OPTIONS else ()
        values |= {field: request.options()[field] for field in fields}
    return preset_text({k: v for k, v in values.items() if k not in NAMING}, use=use)


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
