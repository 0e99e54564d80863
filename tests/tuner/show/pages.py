# SPDX-License-Identifier: Apache-2.0
"""Studies to make pages of, and pages as a reader of HTML sees them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from html.parser import HTMLParser
from typing import Any

from benchmarks.tuner.recorded import MemoryStore
from tests.tuner.search.scripted import RATE, SPACE, ScriptedMeasurer, gain

from xlaunch.machine import read_machine
from xlaunch.planning import Request
from xtune.launches.launch import Launch, Objective, Outcome
from xtune.search.budget import Budget
from xtune.search.strategy import Strategy
from xtune.search.study import Subject
from xtune.show.page import render_page
from xtune.show.results import SearchResult
from xtune.space.identities import MachineIdentity, ProgramIdentity
from xtune.space.parameters import Configuration
from xtune.space.resolution import Resolver
from xtune.space.spaces import Space
from xtune.tuning import Search

SECTIONS = (
    "verdict", "warnings", "decision", "distributions", "history", "configurations", "importance",
    "failures", "machine", "plan", "space", "versions",
)  # fmt: skip

VOID = {"meta", "br", "link", "img", "input", "hr"}


def findings(
    launches: int = 40,
    *,
    space: Space = SPACE,
    objective: Objective = RATE,
    speed: Callable[[Configuration], float] = gain,
    noise: float = 0.01,
    outcomes: Callable[[Configuration], Outcome] = lambda _: Outcome.MEASURED,
    change: Callable[[Launch], Launch] = lambda launch: launch,
    second: Objective | None = None,
    program: tuple[str, ...] = (sys.executable, "-c", "pass", "{batch}"),
    study: str = "made up",
) -> SearchResult:
    """What a search of scripted launches found, as `xtune report` hands it to a page."""
    machine = read_machine()
    measurer = ScriptedMeasurer(
        speed, noise=noise, outcomes=outcomes, goal=objective.goal, change=change
    )
    strategy = Strategy(space, measurer.plan_hash, objective, host="here", seed=1)
    result = Search(
        space, strategy, measurer, MemoryStore(), objective, Budget(launches=launches)
    ).run()
    subject = Subject(
        MachineIdentity((("processor", "made up"), ("cores", "4, 1 thread each"))),
        ProgramIdentity("c0ffee", "/srv/train.py", "abc", program),
        space,
        objective,
    )
    return SearchResult(
        study,
        subject,
        Resolver(space, Request.of(*program), os.environ, machine),
        result.verdict,
        result.favourite,
        result.records,
        second=second,
        resolution=result.resolution,
        end_reason=result.end_reason,
        directory="/srv",
    )


class Element:
    """An element as a browser would have it."""

    def __init__(self, name: str, attributes: Mapping[str, str | None]) -> None:
        self.name = name
        self.attributes = dict(attributes)
        self.children: list[Element | str] = []

    @property
    def text(self) -> str:
        return "".join([child if isinstance(child, str) else child.text for child in self.children])

    @property
    def words(self) -> str:
        """The text with each run of white space as one space."""
        return " ".join(self.text.split())

    def all(self, name: str = "") -> Iterator[Element]:
        """All elements within, of that name."""
        for child in self.children:
            if isinstance(child, Element):
                if name in ("", child.name):
                    yield child
                yield from child.all(name)

    def by_id(self, wanted: str) -> Element:
        (found,) = [one for one in self.all() if one.attributes.get("id") == wanted]
        return found

    def value(self, wanted: str) -> Any:
        """What the <data> of that id says to programs."""
        told = self.by_id(wanted).attributes["value"]
        assert told is not None
        return json.loads(told)

    def rows(self) -> list[list[str]]:
        """The cells of all table rows within, as text."""
        return [
            [cell.words for cell in row.all("td")] for row in self.all("tr") if list(row.all("td"))
        ]


class Reader(HTMLParser):
    """Builds elements; each end has to be the end of the last one that began."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Element("", {})
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        made = Element(tag, dict(attrs))
        self._open[-1].children.append(made)
        if tag not in VOID:
            self._open.append(made)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open[-1].children.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop().name == tag

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)


def read(text: str) -> Element:
    """The page as elements; every one that began has to end."""
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert len(reader._open) == 1
    return reader.root


def read_page(found: SearchResult) -> Element:
    return read(render_page(found))


def marks_of(root: Element) -> list[tuple[set[str], str]]:
    """The classes and texts of the marks within, without those of legends."""
    return [
        ({*str(one.attributes["class"]).split()} - {"mark"}, str(one.attributes["title"]))
        for one in root.all("i")
        if "title" in one.attributes
    ]
