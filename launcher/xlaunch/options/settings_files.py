# SPDX-License-Identifier: Apache-2.0
"""Files that hold options: a preset, the project's pyproject.toml, the user's config.toml.

The TOML parser is imported only if there is such a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from xlaunch.errors import UsageError
from xlaunch.files import names_in, open_input
from xlaunch.options.definitions import BY_KEY, IN_FILES, INSIDE_INSTANCES, Option
from xlaunch.options.kinds import FLAG, MAX_INTEGER, NAME_OR_FILE, NUMBER_LIST, VARIABLE
from xlaunch.options.precedence import PRESET, PROJECT, Layer
from xlaunch.ownership import inspect_ownership
from xlaunch.text import INSTANCE_PREFIX, did_you_mean, passable

SUFFIX = ".toml"
PROJECT_FILE = "pyproject.toml"
REPOSITORY_MARKS = (".git", ".hg", ".jj")
"""A directory with one of these is the top of a repository."""

MAX_FILE_BYTES = 1 << 20
"""A longer file does not hold options."""


class FileLayers(NamedTuple):
    """The layers that the files make, the strongest first."""

    layers: tuple[Layer, ...]
    notes: tuple[str, ...]
    """What was not read, and why; one line each."""


def file_layers(
    preset: str | None, *, isolated: bool, environment: Mapping[str, str]
) -> FileLayers:
    """Read the preset, the project's file and the user's file; with `isolated` the preset alone.

    Inside an instance the project's and the user's file set only `INSIDE_INSTANCES`. Raises
    `UsageError` for a preset that is missing or that other users may write, and for a file that
    cannot be read or holds anything but options.
    """
    layers: list[Layer] = []
    notes: list[str] = []
    if preset is not None:
        layers.append(read_preset(preset, notes))
    if isolated:
        return FileLayers(tuple(layers), tuple(notes))
    nested = f"{INSTANCE_PREFIX}INDEX" in environment
    standing = [layer for layer in (_project_layer(notes), _user_layer(notes)) if layer is not None]
    layers += [_inside_instance(layer, notes) for layer in standing] if nested else standing
    return FileLayers(tuple(layers), tuple(notes))


def read_preset(
    name: str,
    notes: list[str] | None = None,
    *,
    named: bool = False,
    option: str = "--preset",
) -> Layer:
    """The options of a preset, found as `locate_preset` does; `notes` gets what the user should know.

    `named`: `name` is a path that the user typed, even without a slash; `option`: the option that
    names it, for messages. Raises `UsageError` unless it is a valid preset that no other user may
    write.
    """
    path = locate_preset(name, option)
    shown = shorten(path)
    data = _read(path)
    refusal, note = inspect_ownership(path, named=named or "/" in name)
    if refusal is not None:
        by_path = path if "/" in path else f"./{path}"
        raise UsageError(f"{option} {name}: {refusal}; to use it anyway write its path, {by_path}")
    if note is not None and notes is not None:
        notes.append(f"preset {shown}: {note}")
    return Layer(f"{PRESET}{shown}", options_in(data, shown))


def options_in(data: bytes, shown: str) -> dict[str, Any]:
    """The options that the content of a preset sets. Raises `UsageError`, which names the file `shown`."""
    return _values(_parse(data, shown), shown)


def locate_preset(name: str, option: str = "--preset") -> str:
    """The file of a preset: the file of that name, with .toml or without, else the user's preset.

    **Ex.:** ``best`` is ``best``, ``best.toml``, or ``~/.config/xlaunch/presets/best.toml``.
    Raises `UsageError` if there is none.
    """
    if not name:
        raise UsageError(f"{option}: the file's name is empty")
    if "\0" in name:
        raise UsageError(f"{option} {name!r} is not a file name")
    full = name if name.endswith(SUFFIX) else name + SUFFIX
    candidates = [name, full]
    store = user_directory("presets")
    if "/" not in name and store is not None:
        candidates.append(os.path.join(store, full))
    for candidate in candidates:
        try:
            os.lstat(candidate)
        except PermissionError as error:
            raise UsageError(f"{option} {candidate!r}: {error.strerror}") from None
        except OSError:
            continue
        if not os.path.isdir(candidate):
            return candidate
    if os.path.isdir(name):
        raise UsageError(f"{option} {name!r} is a directory; name a file in it")
    if "/" in name or store is None:
        raise UsageError(f"{option} {name!r}: there is no such file")
    stored = [entry.removesuffix(SUFFIX) for entry in names_in(store)]
    near = did_you_mean(name.removesuffix(SUFFIX), stored)
    raise UsageError(f"{option} {name!r} is neither here nor in {shorten(store)}{near}")


def user_directory(*names: str) -> str | None:
    """The path of a file in the user's configuration directory; None without a home directory."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):  # the specification says to ignore relative ones
        base = os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "xlaunch", *names) if os.path.isabs(base) else None


def shorten(path: str) -> str:
    """A path relative to the current directory or to ``~``, if it lies there."""
    for directory, mark in ((_current_directory(), ""), (os.path.expanduser("~"), "~/")):
        if directory not in (None, "/") and path.startswith(f"{directory}/"):
            return mark + path[len(f"{directory}/") :]
    return path


def project_files(directory: str) -> Iterator[tuple[str, bytes]]:
    """Each pyproject.toml from `directory` to the top of its repository that mentions xlaunch, with its content."""
    while True:
        path = os.path.join(directory, PROJECT_FILE)
        # Most have no table of ours, which shows without a parser.
        if os.path.isfile(path) and b"xlaunch" in (data := _read(path)):
            yield path, data
        parent = os.path.dirname(directory)
        top = any(os.path.lexists(os.path.join(directory, mark)) for mark in REPOSITORY_MARKS)
        if top or parent == directory:
            return
        directory = parent


def parse_project(data: bytes, shown: str) -> dict[str, Any] | None:
    """The table [tool.xlaunch] in the content of a pyproject.toml; None if it has none."""
    tools = _parse(data, shown).get("tool")
    table = tools.get("xlaunch") if isinstance(tools, dict) else None
    if table is not None and not isinstance(table, dict):
        raise UsageError(f"{shown}: tool.xlaunch must be a table: [tool.xlaunch]")
    return table


def _project_layer(notes: list[str]) -> Layer | None:
    """The table [tool.xlaunch] of the nearest pyproject.toml that has one, within the repository."""
    directory = _current_directory()
    for path, data in project_files(directory) if directory is not None else ():
        shown = shorten(path)
        if _is_ours(path, notes) and (table := parse_project(data, shown)) is not None:
            # [tool.xlaunch.doctor] is read by the command `xlaunch doctor` alone.
            options = {name: value for name, value in table.items() if name != "doctor"}
            return Layer(f"{PROJECT}{shown}", _values(options, f"{shown}, [tool.xlaunch]"))
    return None


def _user_layer(notes: list[str]) -> Layer | None:
    path = user_directory("config" + SUFFIX)
    if path is None or not os.path.lexists(path) or not _is_ours(path, notes):
        return None
    shown = shorten(path)
    return Layer(f"user {shown}", _values(_parse(_read(path), shown), shown))


def _inside_instance(layer: Layer, notes: list[str]) -> Layer:
    ignored = [BY_KEY[key].name for key in layer.values if key not in INSIDE_INSTANCES]
    if ignored:
        notes.append(f"{layer.origin}: {', '.join(ignored)} ignored inside an instance")
    kept = {key: value for key, value in layer.values.items() if key in INSIDE_INSTANCES}
    return layer._replace(values=kept)


def _is_ours(path: str, notes: list[str]) -> bool:
    """Whether no other user can change the file, which could choose what runs here."""
    refusal, note = inspect_ownership(path)
    if refusal is not None:
        notes.append(f"{shorten(path)} is ignored: {refusal}; copy it into a preset of your own")
    elif note is not None:
        notes.append(f"{shorten(path)}: {note}")
    return refusal is None


def _values(table: dict[str, Any], place: str) -> dict[str, Any]:
    """The options that a file's table sets, by `Option.key`. Errors name `place` and the key."""
    values: dict[str, Any] = {}
    for name, value in table.items():
        key = name.replace("-", "_")
        option = BY_KEY.get(key)
        if option is None:
            names = [option.name for option in IN_FILES]
            near = did_you_mean(name.replace("_", "-"), names, count=1)
            hint = near or "; 'xlaunch --help' lists the options"
            raise UsageError(f"{place}: there is no option {name!r}{hint}")
        if option.one_call:
            raise UsageError(f"{place}: {name} is for the command line; no file may hold it")
        if key in values:
            raise UsageError(f"{place}: {name} is there twice, with a dash and an underscore")
        try:
            values[key] = _value(option, value)
        except UsageError as error:
            raise UsageError(f"{place}: {name}: {error}") from None
    return values


def _value(option: Option, value: Any) -> Any:
    """A TOML value as the option's. **Ex.:** ``[0, "2-3"]`` of a CPU list is ``(0, 2, 3)``."""
    if option.kind is FLAG:
        if not isinstance(value, bool):
            raise UsageError(f"must be true or false, not {_kind_of(value)}")
        return value
    if option.kind is VARIABLE and isinstance(value, dict):
        return tuple([_variable(name, content) for name, content in value.items()])
    if option.kind is VARIABLE and not isinstance(value, list):
        raise UsageError(f'must be a table such as {{ NAME = "value" }}, not {_kind_of(value)}')
    if option.multiple:
        items = value if isinstance(value, list) else [value]
        return tuple([option.kind.parse(_text(option, item)) for item in items])
    if option.kind is NUMBER_LIST and isinstance(value, list):
        return option.kind.parse(",".join([_text(option, item) for item in value]))
    return option.kind.parse(_text(option, value))


def _variable(name: str, content: Any) -> tuple[str, str]:
    if not name or "=" in name:
        raise UsageError(f"{name!r} cannot be the name of a variable")
    if isinstance(content, bool) or not isinstance(content, str | int):
        raise UsageError(f"{name}: write the value in quotes, not as {_kind_of(content)}")
    return passable(name), passable(str(content))


def _text(option: Option, value: Any) -> str:
    """A TOML string or number as the command line would have it."""
    if isinstance(value, str):
        return passable(value)
    text_kinds = ("DIR", NAME_OR_FILE.metavar)
    takes_numbers = option.kind.parse is not str and option.kind.metavar not in text_kinds
    if takes_numbers and isinstance(value, int | float) and not isinstance(value, bool):
        if isinstance(value, int) and abs(value) > MAX_INTEGER:
            raise UsageError("the number is too large")
        return repr(value)
    expected = f"{option.kind.metavar}, as a number or in quotes" if takes_numbers else "in quotes"
    raise UsageError(f"must be {expected}, not {_kind_of(value)}")


def _kind_of(value: Any) -> str:
    """**Ex.:** ``a list``, ``true``."""
    if isinstance(value, bool):
        return str(value).lower()
    kinds = {int: "a number", float: "a number", str: "text", list: "a list", dict: "a table"}
    return kinds.get(type(value), "a date or a time")


def _read(path: str) -> bytes:
    try:
        with open_input(path) as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{shorten(path)} cannot be read: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise UsageError(f"{shorten(path)} is longer than 1 MiB, too long for a file of options")
    return data


def _parse(data: bytes, shown: str) -> dict[str, Any]:
    import tomllib

    try:
        # With an end of line after the last one, an error in it has a line number.
        return tomllib.loads(data.decode() + "\n")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UsageError(f"{shown}, line {line}: not UTF-8, so not TOML") from None
    except (ValueError, RecursionError) as error:  # also huge numbers and deep nesting
        raise UsageError(f"{shown} is not TOML: {error}") from None


def _current_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it has been removed
        return None
