# SPDX-License-Identifier: Apache-2.0
"""The files that hold options: where they are looked for, and what they say as plain TOML.

Nothing is imported for this, and next to nothing done, where there is no such file.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from xlaunch.environment.ownership import inspect_ownership
from xlaunch.errors import UsageError

SUFFIX = ".toml"
PROJECT_FILE = "pyproject.toml"
REPOSITORY_MARKS = (".git", ".hg", ".jj")
"""A folder with one of these is the top of a repository."""

LARGEST_FILE_BYTES = 1 << 20
"""A longer file holds something else than options."""


class Layer(NamedTuple):
    """What one file says."""

    origin: str
    """**Ex.:** ``"preset best.toml"``, ``"project pyproject.toml"``."""
    place: str
    """The file, and the table in it, as an error names them."""
    table: dict[str, Any]
    """As TOML has it."""
    standing: bool
    """It holds for every launch here or of this user; a preset is named for one launch."""


class Layers(NamedTuple):
    """All files that hold options for a launch."""

    strongest_first: tuple[Layer, ...]
    notes: tuple[str, ...]
    """What was found and not read, one line each."""


def find_layers(preset: str | None, *, isolated: bool, named: bool = False) -> Layers:
    """What the preset, the project's file and the user's file say; the preset counts most.

    `isolated`: the preset alone. `named`: `preset` is the path of a file, with a slash or without,
    so the user answers for it. Raises `UsageError` for a preset that is not there or that others
    may write, and for a file that cannot be read or is not TOML.
    """
    layers: list[Layer] = []
    notes: list[str] = []
    if preset is not None:
        path = locate_preset(preset)
        shown = shorten(path)
        data = _read(path)
        ownership = inspect_ownership(path, named=named or "/" in preset)
        if ownership.refusal is not None:
            raise UsageError(
                f"--preset {preset}: {ownership.refusal}; to take it nevertheless write its path, "
                f"{path if '/' in path else f'./{path}'}"
            )
        if ownership.note is not None:
            notes.append(f"preset {shown}: {ownership.note}")
        layers.append(Layer(f"preset {shown}", shown, _parse(data, shown), standing=False))
    if not isolated:
        layers += _project_layers(notes)
        layers += _user_layers(notes)
    return Layers(tuple(layers), tuple(notes))


def locate_preset(name: str) -> str:
    """The file of a preset: the file of that name, with .toml or without, else the user's preset.

    **Ex.:** ``best`` is ``best``, ``best.toml``, or ``~/.config/xlaunch/presets/best.toml``.
    Raises `UsageError` when there is none.
    """
    if not name:
        raise UsageError("--preset: the file's name is empty")
    if "\0" in name:
        raise UsageError(f"--preset {name!r} is not a file name")
    full = name if name.endswith(SUFFIX) else name + SUFFIX
    candidates = dict.fromkeys((name, full))
    store = user_folder("presets")
    if "/" not in name and store is not None:
        candidates[os.path.join(store, full)] = None
    for candidate in candidates:
        if os.path.lexists(candidate) and not os.path.isdir(candidate):
            return candidate
    if os.path.isdir(name):
        raise UsageError(f"--preset {name!r} is a folder; name a file in it")
    if "/" in name or store is None:
        raise UsageError(f"--preset {name!r}: there is no such file")
    raise UsageError(f"--preset {name!r} is neither here nor in {shorten(store)}{_nearest(name)}")


def user_folder(*names: str) -> str | None:
    """A folder or file of the user's settings for xlaunch; None for a user without a home."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):  # the specification has relative ones ignored
        base = os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "xlaunch", *names) if os.path.isabs(base) else None


def shorten(path: str) -> str:
    """A path as a reader likes it: from the current folder, or from ``~``, where it lies in them."""
    if not os.path.isabs(path):
        return path
    home = os.path.expanduser("~")
    for folder, mark in ((_current_folder(), ""), (home, "~/")):
        if folder is not None and folder != "/" and path.startswith(folder + "/"):
            return mark + path[len(folder) + 1 :]
    return path


def _project_layers(notes: list[str]) -> list[Layer]:
    """The table [tool.xlaunch] of the nearest pyproject.toml that has one, within the repository."""
    folder = _current_folder()
    while folder is not None:
        path = os.path.join(folder, PROJECT_FILE)
        # Most have no table of ours, and need no parser to tell.
        if os.path.isfile(path) and b"xlaunch" in (data := _read(path)) and _is_ours(path, notes):
            table = _tool_table(_parse(data, shorten(path)), path)
            if table is not None:
                shown = shorten(path)
                place = f"{shown}, [tool.xlaunch]"
                return [Layer(f"project {shown}", place, table, standing=True)]
        parent = os.path.dirname(folder)
        top = any(os.path.lexists(os.path.join(folder, mark)) for mark in REPOSITORY_MARKS)
        folder = None if top or parent == folder else parent
    return []


def _user_layers(notes: list[str]) -> list[Layer]:
    path = user_folder("config" + SUFFIX)
    if path is None or not os.path.lexists(path) or not _is_ours(path, notes):
        return []
    shown = shorten(path)
    return [Layer(f"user {shown}", shown, _parse(_read(path), shown), standing=True)]


def _is_ours(path: str, notes: list[str]) -> bool:
    """Whether nobody else could choose what runs here: in a shared directory above, say /tmp."""
    refusal, note = inspect_ownership(path)
    if refusal is not None:
        notes.append(
            f"{shorten(path)} is not read for options: {refusal}; "
            "copy what it says into a preset of your own"
        )
    elif note is not None:
        notes.append(f"{shorten(path)}: {note}")
    return refusal is None


def _tool_table(document: dict[str, Any], path: str) -> dict[str, Any] | None:
    tools = document.get("tool")
    table = tools.get("xlaunch") if isinstance(tools, dict) else None
    if table is not None and not isinstance(table, dict):
        raise UsageError(f"{shorten(path)}: tool.xlaunch must be a table: [tool.xlaunch]")
    return table


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            data = stream.read(LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{shorten(path)} cannot be read: {error.strerror}") from None
    if len(data) > LARGEST_FILE_BYTES:
        raise UsageError(f"{shorten(path)} holds more than 1 MiB: it is no file of options")
    return data


def _parse(data: bytes, shown: str) -> dict[str, Any]:
    import tomllib

    try:
        # With a last line that ends, an error in it has a number.
        return tomllib.loads(data.decode() + "\n")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UsageError(f"{shown}, line {line}: not UTF-8, so not TOML") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{shown} is not TOML: {error}") from None
    except (ValueError, RecursionError) as error:  # numbers or nesting beyond all use
        raise UsageError(f"{shown} cannot be read as TOML: {error}") from None


def _nearest(name: str) -> str:
    """The names of the user's presets that come near, as the end of a sentence."""
    import difflib

    store = user_folder("presets")
    assert store is not None
    try:
        names = [entry.removesuffix(SUFFIX) for entry in os.listdir(store)]
    except OSError:
        names = []
    near = difflib.get_close_matches(name.removesuffix(SUFFIX), names)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _current_folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it has been removed
        return None
