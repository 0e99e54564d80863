# SPDX-License-Identifier: Apache-2.0
"""Presets as text: the options of a launch, each with what it does."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from xlaunch.environment.program import named_files
from xlaunch.errors import UsageError
from xlaunch.files import OutputKind, check_output, write_output
from xlaunch.options.definitions import IN_FILES, VARIABLE, toml_value
from xlaunch.options.precedence import SUFFIX, options_in, shorten

OPTION = "--save-preset"
TITLE = "# Options for xlaunch."
"""How a preset begins that we wrote."""

WIDTH = 98
"""Columns of a comment."""


def save_preset(path: str, values: Mapping[str, Any]) -> None:
    """Write the options `values`, by `Option.key`, as a preset; for errors see `check_preset_path`."""
    force, program = bool(values.get("force")), values.get("program", ())
    write_preset(path, preset_text(values, use=path), force=force, program=program)


def write_preset(path: str, text: str, *, force: bool, program: Sequence[str]) -> None:
    """Write the text of a preset. Raises `UsageError`; for `force` and `program` see `check_preset_path`."""
    check_preset_path(path, force=force, program=program)
    write_output(path, text, option=OPTION)


def preset_text(values: Mapping[str, Any], *, use: str) -> str:
    """A preset that sets `values`, by `Option.key`; its first line advises ``--preset use``."""
    path = " ".join(use.split()).encode(errors="backslashreplace").decode()
    blocks = [comment(f"{TITLE[2:]} To use them: xlaunch --preset {path} PROGRAM")]
    for option in _TABLES_LAST:
        value = values.get(option.key)
        if value in (None, ()):
            continue
        if option.kind is VARIABLE:
            variables = dict(value).items()
            lines = [
                f"[{option.name}]",
                *(f"{_key(name)} = {_toml(text)}" for name, text in variables),
            ]
        else:
            lines = [
                f"{option.name} = {_toml(list(value) if option.multiple else toml_value(value))}"
            ]
        blocks.append([*comment(option.help), *lines])
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def comment(text: str) -> list[str]:
    """`text` as comment lines."""
    return [f"# {line}" for line in textwrap.wrap(text, WIDTH, break_long_words=False)]


def check_preset_path(path: str, *, force: bool, program: Sequence[str] = ()) -> None:
    """Raise `UsageError` unless a preset can be written to `path`, replacing at most one that we wrote.

    `force`: or any other file, but none that the words of the `program` name.
    """
    named_path = f"{OPTION} {path!r}"
    if not path.endswith(SUFFIX):
        raise UsageError(f"{named_path}: the name of a preset ends in {SUFFIX}")
    directory = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(directory) or not os.access(directory, os.W_OK):
        raise UsageError(f"{named_path}: {directory} is not a directory that can be written")
    if not os.path.lexists(path):
        return
    if not os.path.isfile(path):
        raise UsageError(f"{named_path} exists and is not a regular file")
    shown, title = shorten(path), TITLE.encode()
    # One that we wrote, or that sets an option of xlaunch and nothing else.
    preset = OutputKind(
        "a preset", lambda head: head.startswith(title) or bool(options_in(head, shown))
    )
    check_output(path, preset, option=OPTION, force=force, inputs=named_files(program))


_TABLES_LAST = sorted(IN_FILES, key=lambda option: option.kind is VARIABLE)
"""A section of a TOML file ends only where another one begins, so sections come last."""


def _toml(value: Any) -> str:
    """A value as TOML, which differs from JSON only in not allowing the character DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if bare else _toml(name)
