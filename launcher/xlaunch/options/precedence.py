# SPDX-License-Identifier: Apache-2.0
"""Merges the layers that set options into the options of a launch, by one pure function, `resolve`.

The layers, the strongest first: command line, variables (XLAUNCH_OPT_NCORES=4), the preset, the
project's ``[tool.xlaunch]``, the user's configuration. The defaults are those of `Request`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from xlaunch.environment.variables import OPTION_PREFIX, chooses_code
from xlaunch.errors import UsageError
from xlaunch.options.definitions import BY_KEY, FIELDS, IN_FILES, OPTIONS, Option
from xlaunch.options.kinds import FLAG, VARIABLE, plain
from xlaunch.planning.request import HostRequest, Request, find_contradiction
from xlaunch.text import did_you_mean

COMMAND_LINE = "command line"
VARIABLES = OPTION_PREFIX


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
    """The options of a launch."""

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
            origin = variable_of(key) if layer.origin == VARIABLES else layer.origin
            if key == "env":
                own = {name: content for name, content in value if f"env {name}" not in origins}
                values[key] = (*values.get(key, ()), *own.items())
                origins |= dict.fromkeys([f"env {name}" for name in own], origin)
            elif key not in values and key not in dropped:
                contradiction = find_contradiction({**stronger, key: value}, key)
                if contradiction is None:
                    values[key], origins[key] = value, origin
                    continue
                winner = contradiction.other if key == contradiction.one else contradiction.one
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
        if text and name.startswith(VARIABLES) and name not in _BY_VARIABLE:
            typed_name, names = name.removeprefix(VARIABLES).upper(), map(str.upper, BY_KEY)
            near = did_you_mean(typed_name, [*names], count=1, form=f"{VARIABLES}{{}}")
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
    return Layer(VARIABLES, values)


def request_from(values: Mapping[str, Any]) -> Request:
    """The request that options make; None stands for an option that is not set."""
    fields = {FIELDS.get(key, key): value for key, value in values.items() if value is not None}
    return Request().replace(**{name: fields[name] for name in _DEFAULTS if name in fields})


def host_request_from(values: Mapping[str, Any]) -> HostRequest:
    """The machine that options name, and how they share it; None stands for an option that is not set."""
    fields = {FIELDS.get(key, key): value for key, value in values.items() if value is not None}
    return HostRequest(**{name: fields[name] for name in HostRequest._fields if name in fields})


def field_of(option: Option) -> str | None:
    """The option's field in `Request`; None if it has none. **Ex.:** ``timeout_s``."""
    name = FIELDS.get(option.key, option.key)
    return name if name in _DEFAULTS else None


def shown(option: Option, value: Any) -> str:
    """A value for a reader. **Ex.:** ``4``, ``0-3,8``, ``latency``, ``true``."""
    if option.multiple:
        return " ".join(map(str, value))
    return str(value).lower() if option.kind is FLAG else str(plain(value))


def variable_of(name: str) -> str:
    """**Ex.:** ``"XLAUNCH_OPT_NCORES"`` for ``ncores``, ``"XLAUNCH_OPT_LOG_DIR"`` for ``log-dir``."""
    return f"{VARIABLES}{name.upper().replace('-', '_')}"


_DEFAULTS = Request().options()
_BY_VARIABLE = {variable_of(option.name): option for option in OPTIONS}


def _named(key: str, value: Any) -> str:
    """**Ex.:** ``mode latency``."""
    option = BY_KEY[key]
    return f"{option.name} {shown(option, value)}"
