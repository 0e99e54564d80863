# SPDX-License-Identifier: Apache-2.0
"""Files of options for the tests, and what a command line comes to with them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from hypothesis import strategies as st

from xlaunch.cli.launch import launch
from xlaunch.cli.options import CONTEXT, request_from
from xlaunch.cli.parameters import (
    CacheFolder,
    Count,
    Duration,
    MetricName,
    NumberList,
    Variable,
    WholeNumber,
    Word,
)
from xlaunch.cli.presets.command import Sources, file_options, sources_of
from xlaunch.planning.request import MAX, Request

FILE_OPTIONS = file_options(launch, click.Context(launch))


class Home(NamedTuple):
    """A project with a folder deep in it, which is the current one, and a user's settings."""

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
    for folder in (here, here.parents[1] / ".git", settings / "presets"):
        folder.mkdir(parents=True)
    monkeypatch.chdir(here)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(settings.parent))
    for option in FILE_OPTIONS:
        monkeypatch.delenv(f"XLAUNCH_OPT_{option.name}".upper(), raising=False)
    monkeypatch.delenv("XLAUNCH_INSTANCE_INDEX", raising=False)
    return Home(
        here, here.parents[1] / "pyproject.toml", settings / "config.toml", settings / "presets"
    )


class Typed(NamedTuple):
    """What a command line comes to."""

    request: Request
    params: dict[str, Any]
    sources: Sources


def typed(*words: str) -> Typed:
    """What ``xlaunch WORDS...`` comes to, short of doing it."""
    ctx = launch.make_context("xlaunch", list(words), obj=words, **CONTEXT)
    return Typed(request_from(ctx.params), ctx.params, sources_of(ctx))


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
NAMES = TEXTS.filter(lambda name: name and "=" not in name)


def values_of(option: click.Option) -> st.SearchStrategy[Any]:
    """Values that the option can have on a command line."""
    kind = option.type
    if option.is_flag:
        return st.booleans()
    if isinstance(kind, Variable):
        return st.dictionaries(NAMES, TEXTS, max_size=4).map(lambda table: tuple(table.items()))
    if isinstance(kind, Count):
        value = st.integers(1, 9999) | st.just(MAX)
    elif isinstance(kind, WholeNumber):
        value = st.integers(0, 9999)
    elif isinstance(kind, NumberList):
        value = st.sets(st.integers(0, 2000), min_size=1).map(lambda found: tuple(sorted(found)))
    elif isinstance(kind, Duration):
        value = st.floats(1e-9, 1e15)
    elif isinstance(kind, MetricName):
        value = st.sampled_from(["sentences/s", "latency:total", 'it\'s ([0-9.]+) "ms"', "µs"])
    elif isinstance(kind, CacheFolder):
        value = TEXTS.filter(bool)
    elif isinstance(kind, Word):
        value = st.sampled_from(list(kind._words))
    else:
        assert kind is click.STRING, f"say here which values {option.opts[-1]} has"
        value = TEXTS
    return st.lists(value, max_size=4).map(tuple) if option.multiple else value


ALL_VALUES = st.fixed_dictionaries(
    {}, optional={option.name: values_of(option) for option in FILE_OPTIONS}
)
"""What a command line can set, by option."""


def uncommented(text: str) -> dict[str, Any]:
    """The TOML of lines that begin with ``#`` and no space."""
    lines = [line[1:] for line in text.splitlines() if line.startswith("#") and line[1:2].strip()]
    return tomllib.loads("\n".join(lines))
