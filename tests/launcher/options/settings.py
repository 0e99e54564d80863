# SPDX-License-Identifier: Apache-2.0
"""Files of options for the tests, and what a command line comes to with them."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st

from xlaunch.cli.launch import command
from xlaunch.options import definitions
from xlaunch.options.commands import CONTEXT, resolved_options
from xlaunch.options.definitions import IN_FILES, Option
from xlaunch.options.precedence import request_from
from xlaunch.planning.request import MAX, LayoutRequest, Request, RestartLimit


class Home(NamedTuple):
    """A project with a directory deep in it, which is the current one, and a user's settings."""

    here: Path
    project: Path
    user: Path
    presets: Path

    def write(self, level: str, text: str) -> None:
        """Let one level say `text`, a line of TOML. **Ex.:** ``home.write("user", "ncores = 2")``"""
        if level == "preset":
            (self.here / "best.toml").write_text(text)
        elif level == "project":
            self.project.write_text(f"[tool.xlaunch]\n{text}\n")
        else:
            self.user.write_text(text)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """An empty project and empty settings; nothing in the environment."""
    here = tmp_path / "work" / "project" / "deep" / "down"
    settings = tmp_path / "config" / "xlaunch"
    for directory in (here, here.parents[1] / ".git", settings / "presets"):
        directory.mkdir(parents=True)
    monkeypatch.chdir(here)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(settings.parent))
    for option in IN_FILES:
        monkeypatch.delenv(f"XLAUNCH_OPT_{option.key}".upper(), raising=False)
    monkeypatch.delenv("XLAUNCH_INSTANCE_INDEX", raising=False)
    return Home(
        here, here.parents[1] / "pyproject.toml", settings / "config.toml", settings / "presets"
    )


class Typed(NamedTuple):
    """What a command line comes to."""

    request: Request
    values: dict[str, Any]
    origins: dict[str, str]
    notes: tuple[str, ...]


def typed(*words: str) -> Typed:
    """What ``xlaunch WORDS...`` comes to, short of doing it."""
    ctx = command.make_context("xlaunch", list(words), obj=words, **CONTEXT)
    found = resolved_options(ctx.params)
    return Typed(request_from(found.values), *found)


def layout_of(options: str) -> LayoutRequest:
    """The layout that these options ask for. **Ex.:** ``--instances 2 --ncores 4``"""
    return typed("--isolated", *options.split(), "program").request.layout


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
NAMES = TEXTS.filter(lambda name: name and "=" not in name)


def values_of(option: Option) -> st.SearchStrategy[Any]:
    """Values that the option can have on a command line."""
    kind = option.kind
    if kind is definitions.FLAG:
        return st.booleans()
    if kind is definitions.VARIABLE:
        return st.dictionaries(NAMES, TEXTS, max_size=4).map(lambda table: tuple(table.items()))
    known: dict[definitions.OptionKind, st.SearchStrategy[Any]] = {
        definitions.COUNT: st.integers(1, 9999) | st.just(MAX),
        definitions.WHOLE_NUMBER: st.integers(0, 9999),
        definitions.NUMBER_LIST: st.sets(st.integers(0, 2000), min_size=1).map(
            lambda s: tuple(sorted(s))
        ),
        definitions.POSITIVE_NUMBER: st.integers(1, 9999),
        definitions.RESTARTS: st.just(MAX)
        | st.builds(RestartLimit, st.integers(1, 5), st.sampled_from([60.0, 90.5, 86400.0, inf])),
        definitions.SIZE: st.integers(1, 1 << 40),
        definitions.HEALTH: st.sampled_from(
            ["8000", "{9000+index}", "http://[::1]:80/a b", "exec:sh -c 'x \"y\"'"]
        ),
        definitions.DURATION: st.floats(0, 1e15),
        definitions.POSITIVE_DURATION: st.floats(1e-9, 1e15),
        definitions.METRIC: st.sampled_from(
            ["sentences/s", "latency:total", 'it\'s ([0-9.]+) "ms"', "µs"]
        ),
        definitions.NAMED_DIRECTORY: TEXTS.filter(bool),
        definitions.VARIABLE_NAME: NAMES,
    }
    if kind in known:
        value = known[kind]
    elif kind.parse is str or kind.metavar == definitions.NAME_OR_FILE.metavar:
        value = TEXTS
    else:
        words = type(kind.parse(kind.example))
        value = st.sampled_from(list(words))
    return st.lists(value, max_size=4).map(tuple) if option.multiple else value


ALL_VALUES = st.fixed_dictionaries(
    {}, optional={option.key: values_of(option) for option in IN_FILES}
)
"""What a command line can set, by option."""
