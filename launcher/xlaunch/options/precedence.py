# SPDX-License-Identifier: Apache-2.0
"""The layers that set options, and how `resolve`, a pure function, merges them into the options of a launch.

The layers, the strongest first: command line, variables (XLAUNCH_OPT_NCORES=4), the preset, the
project's ``[tool.xlaunch]``, the user's configuration. The defaults are those of `Request`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from xlaunch.environment.variables import OPTION_PREFIX, chooses_code
from xlaunch.errors import UsageError
from xlaunch.files import names_in, open_input
from xlaunch.options.definitions import (
    BY_KEY,
    FIELDS,
    FLAG,
    IN_FILES,
    INSIDE_INSTANCES,
    MAX_INTEGER,
    NAME_OR_FILE,
    NUMBER_LIST,
    VARIABLE,
    Option,
    toml_value,
)
from xlaunch.ownership import inspect_ownership
from xlaunch.planning.request import HostRequest, Request, find_contradiction
from xlaunch.text import INSTANCE_PREFIX, did_you_mean, passable

COMMAND_LINE = "command line"
PROJECT, PRESET = "project ", "preset "
OF_FILES = (PROJECT, PRESET)
"""How the origins of the layers begin that files make which may be another's work."""


class Layer(NamedTuple):
    """One place that sets options."""

    origin: str
    """**Ex.:** ``"command line"``, ``"preset best.toml"``."""
    values: Mapping[str, Any]
    """By `Option.key`."""


class ResolvedOptions(NamedTuple):
    values: dict[str, Any]
    """By `Option.key`; an option that no layer sets is missing."""
    origins: dict[str, str]
    """Where each value comes from; for variables of --env under ``"env NAME"``."""
    notes: tuple[str, ...]
    """The options that were dropped, one line each."""

    def explain(self) -> list[str]:
        """A line for each option that is set. **Ex.:** ``option ncores 4: preset best.toml``."""
        lines = []
        for option in IN_FILES:
            if option.key not in self.values:
                continue
            value = self.values[option.key]
            if option.kind is VARIABLE:
                lines += [f"env {n}={v}: {self.origins[f'env {n}']}" for n, v in value]
            else:
                lines.append(f"{option.name} {shown(option, value)}: {self.origins[option.key]}")
        return [f"option {line}".encode(errors="backslashreplace").decode() for line in lines]

    def chosen_by_files(self) -> str | None:
        """The interpreter, libraries and directories of code that a project's file or a preset chooses.

        Such a file may come with a cloned repository. None: none is chosen so. **Ex.:**
        ``"project pyproject.toml chooses python ./python, env LD_PRELOAD"``
        """
        names: dict[str, list[str]] = {}
        for key, origin in self.origins.items():
            if not origin.startswith(OF_FILES):
                continue
            value = self.values.get(key)
            if key in ("python", "cache_dir") or (
                key in ("allocator", "omp") and "/" in str(value)
            ):
                names.setdefault(origin, []).append(f"{_typed(key)} {value}")
            elif key.startswith("env ") and chooses_code(key.removeprefix("env ")):
                names.setdefault(origin, []).append(key)
        listed = [f"{origin} chooses {', '.join(chosen)}" for origin, chosen in names.items()]
        return "; ".join(listed) or None

    def note_of_files(self) -> str | None:
        """What `chosen_by_files` says, unless the user typed --quiet: a file's own quiet hides nothing."""
        quiet = self.values.get("quiet") and not self.origins["quiet"].startswith(OF_FILES)
        return None if quiet else self.chosen_by_files()

    def set_elsewhere(self) -> str:
        """The options that were not typed, as the end of an error message; empty if all were typed.

        **Ex.:** ``" (preset best.toml sets instances, mode)"``.
        """
        names: dict[str, list[str]] = {}
        for key, origin in self.origins.items():
            if origin != COMMAND_LINE:
                names.setdefault(origin, []).append(_typed(key))
        listed = [f"{origin} sets {', '.join(options)}" for origin, options in names.items()]
        return f" ({'; '.join(listed)})" if listed else ""


def _typed(key: str) -> str:
    """A key of `ResolvedOptions.origins` as it is typed. **Ex.:** ``log-dir``; ``env MY_NAME``."""
    return key if key.startswith("env ") else key.replace("_", "-")


def resolve(layers: Iterable[Layer]) -> ResolvedOptions:
    """Merge layers, the strongest first.

    The first layer that sets an option wins; variables of --env are merged by name. An option that
    contradicts one of a stronger layer is dropped, with a note. Raises `UsageError` for two options
    of the same layer that contradict each other.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    notes: list[str] = []
    dropped: set[str] = set()
    for layer in layers:
        stronger = dict(values)
        for key, value in layer.values.items():
            origin = variable_of(key) if layer.origin == OPTION_PREFIX else layer.origin
            if key == "env":
                own = {name: content for name, content in value if f"env {name}" not in origins}
                values[key] = (*values.get(key, ()), *own.items())
                origins |= dict.fromkeys([f"env {name}" for name in own], origin)
            elif key not in values and key not in dropped:
                contradiction = find_contradiction({**stronger, key: value}, key)
                if contradiction is None:
                    values[key], origins[key] = value, origin
                    continue
                winner = (
                    contradiction.other if key == contradiction.option else contradiction.option
                )
                dropped.add(key)
                notes.append(
                    f"{_named(key, value)} ({origin}) is ignored: {_named(winner, values[winner])} "
                    f"({origins[winner]}) contradicts it"
                )
    resolved = ResolvedOptions(values, origins, tuple(notes))
    contradiction = find_contradiction(values)
    if contradiction is not None:
        raise UsageError(f"{contradiction}{resolved.set_elsewhere()}")
    return resolved


def variables_layer(environment: Mapping[str, str], typed: Collection[str] = ()) -> Layer:
    """The layer of XLAUNCH_OPT_* variables; those of `typed` options and empty ones are not read.

    --env takes words separated by spaces, --metric one name per line. Raises `UsageError` for a
    wrong value, and for the name of no option.
    """
    for name, text in environment.items():
        if text and name.startswith(OPTION_PREFIX) and name not in _BY_VARIABLE:
            typed_name = name.removeprefix(OPTION_PREFIX).upper()
            names = [key.upper() for key in BY_KEY]
            near = did_you_mean(typed_name, names, count=1, form=f"{OPTION_PREFIX}{{}}")
            hint = near or "; xlaunch --help lists the options"
            raise UsageError(f"{name}: there is no such option{hint}")
    values: dict[str, Any] = {}
    for name, option in _BY_VARIABLE.items():
        text = environment.get(name, "")
        if not text or (option.key in typed and option.kind is not VARIABLE):
            continue
        try:
            if option.multiple:
                words = text.split() if option.kind is VARIABLE else text.splitlines()
                values[option.key] = tuple([option.kind.parse(word) for word in words])
            else:
                values[option.key] = option.kind.parse(text)
        except UsageError as error:
            raise UsageError(f"{name}: {error}") from None
    return Layer(OPTION_PREFIX, values)


def request_from(values: Mapping[str, Any]) -> Request:
    """The request that options make; None stands for an option that is not set."""
    return Request().replace(**_fields_of(values, _DEFAULTS))


def host_request_from(values: Mapping[str, Any]) -> HostRequest:
    """The machine that options name, and how they share it; None stands for an option that is not set."""
    return HostRequest(**_fields_of(values, HostRequest._fields))


def _fields_of(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    fields = {FIELDS.get(key, key): value for key, value in values.items() if value is not None}
    return {name: value for name, value in fields.items() if name in names}


def field_of(option: Option) -> str | None:
    """The option's field in `Request`; None if it has none. **Ex.:** ``timeout_s``."""
    name = FIELDS.get(option.key, option.key)
    return name if name in _DEFAULTS else None


def shown(option: Option, value: Any) -> str:
    """A value for a reader. **Ex.:** ``4``, ``0-3,8``, ``latency``, ``true``."""
    if option.multiple:
        return " ".join(map(str, value))
    return str(value).lower() if option.kind is FLAG else str(toml_value(value))


def variable_of(name: str) -> str:
    """**Ex.:** ``"XLAUNCH_OPT_NCORES"`` for ``ncores``, ``"XLAUNCH_OPT_LOG_DIR"`` for ``log-dir``."""
    return f"{OPTION_PREFIX}{name.upper().replace('-', '_')}"


_DEFAULTS = Request().options()
_BY_VARIABLE = {f"{OPTION_PREFIX}{key.upper()}": option for key, option in BY_KEY.items()}


def _named(key: str, value: Any) -> str:
    """**Ex.:** ``mode latency``."""
    option = BY_KEY[key]
    return f"{option.name} {shown(option, value)}"


SUFFIX = ".toml"
PROJECT_FILE = "pyproject.toml"
REPOSITORY_MARKS = (".git", ".hg", ".jj")
"""A directory with one of these is the top of a repository."""

MAX_FILE_BYTES = 1 << 20
"""A longer file does not hold options."""


def file_layers(
    preset: str | None, *, isolated: bool, environment: Mapping[str, str], notes: list[str]
) -> list[Layer]:
    """Read the preset, the project's file and the user's file; with `isolated` the preset alone.

    Inside an instance the project's and the user's file set only `INSIDE_INSTANCES`. `notes` gets what was
    not read, and why. Raises `UsageError` for a preset that is missing or that other users may write, and
    for a file that cannot be read or holds anything but options.
    """
    layers = [] if preset is None else [read_preset(preset, notes)]
    for layer in () if isolated else (_project_layer(notes), _user_layer(notes)):
        if layer is None:
            continue
        values = layer.values
        if f"{INSTANCE_PREFIX}INDEX" in environment:
            values = {key: value for key, value in values.items() if key in INSIDE_INSTANCES}
            ignored = [BY_KEY[key].name for key in layer.values if key not in values]
            if ignored:
                notes.append(f"{layer.origin}: {', '.join(ignored)} ignored inside an instance")
        layers.append(layer._replace(values=values))
    return layers


def read_preset(name: str, notes: list[str] | None = None, *, option: str = "--preset") -> Layer:
    """The options of a preset, found as `locate_preset` does; `notes` gets what the user should know.

    `option`: the option that names it, for messages. Raises `UsageError` unless it is a valid preset that
    no other user may write.
    """
    path = locate_preset(name, option)
    shown = shorten(path)
    data = _read(path)
    refusal, note = inspect_ownership(path, named="/" in name)
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
    store = _user_directory("presets")
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


def _user_directory(*names: str) -> str | None:
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
        marks = [m for m in REPOSITORY_MARKS if os.path.lexists(os.path.join(directory, m))]
        if marks or parent == directory:
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
    path = _user_directory("config" + SUFFIX)
    if path is None or not os.path.lexists(path) or not _is_ours(path, notes):
        return None
    shown = shorten(path)
    return Layer(f"user {shown}", _values(_parse(_read(path), shown), shown))


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
