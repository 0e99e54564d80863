# SPDX-License-Identifier: Apache-2.0
"""What sections are made of: tables, charts with their legends, code to copy, folded text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from xtune.page.charts import COLOURS, SYMBOLS, Chart, Mark
from xtune.page.findings import Contestant
from xtune.page.markup import Child, Markup, element, join
from xtune.screen.words import settings
from xtune.space.parameters import Configuration
from xtune.space.spaces import Space

_SHAPES = {
    "square": element("rect", x="3", y="3", width="10", height="10"),
    "diamond": element("path", d="M8 1.5 14.5 8 8 14.5 1.5 8Z"),
    "circle": element("circle", cx="8", cy="8", r="5.2"),
    "triangle-up": element("path", d="M8 2.2 14 13H2Z"),
    "triangle-down": element("path", d="M8 13.8 2 3H14Z"),
    "star": element("path", d="M8 1l1.8 4.6 4.9.3-3.8 3.1 1.3 4.8L8 11.1l-4.2 2.7 1.3-4.8L1.3 5.9l4.9-.3Z"),
    "cross": element("path", d="M6 2h4v4h4v4h-4v4H6v-4H2V6h4Z"),
    "x": element("path", d="M4.4 2 8 5.6 11.6 2 14 4.4 10.4 8 14 11.6 11.6 14 8 10.4 4.4 14 2 11.6 5.6 8 2 4.4Z"),
    "line-ns": element("path", d="M7.2 2h1.6v12H7.2Z"),
    "line": element("path", d="M0 7h16v2H0Z"),
    "dots": element("path", d="M0 7h3v2H0ZM6.5 7h3v2h-3ZM13 7h3v2h-3Z"),
}  # fmt: skip
"""Plotly's symbols in a box of 16, for legends that are text."""


LONG = 90
"""Characters from which on a fact takes the whole width."""


class Section(NamedTuple):
    """A part of the page."""

    name: str
    """In the page's address."""
    title: str
    body: Markup
    charts: tuple[Chart, ...] = ()
    lead: str = ""
    """A sentence on what it shows."""


def chart_frame(chart: Chart) -> Markup:
    """The place of a chart, which the page's script draws."""
    style = f"height:{chart.height}px"
    if chart.width:
        style += f";min-width:{chart.width}px"
    drawing = element(
        "div",
        id=f"chart-{chart.name}",
        klass="chart",
        style=style,
        role="img",
        aria_label=chart.label,
    )
    return element("div", drawing, klass="frame", tabindex="0" if chart.width else None)


def symbol(name: str, colour: str) -> Markup:
    """A legend's picture; `colour` as charts have it."""
    hollow = name.endswith("-open") and not name.startswith("line-ns")
    shape = _SHAPES[name.removesuffix("-open")]
    paint = f"{'stroke' if hollow else 'fill'}:var(--{colour[1:]})"
    kind = "symbol hollow" if hollow else "symbol"
    return element("svg", shape, klass=kind, viewBox="0 0 16 16", style=paint, aria_hidden="true")


def legend(entries: Iterable[tuple[str, str, Child]]) -> Markup:
    """Symbol, colour and words of each entry."""
    items = [
        element("li", symbol(name, colour), element("span", words))
        for name, colour, words in entries
    ]
    return element("ul", join(*items), klass="legend")


def marks_legend(marks: Iterable[Mark]) -> list[tuple[str, str, Child]]:
    return [(mark.symbol, mark.colour, mark.words) for mark in marks]


def people_legend(people: Sequence[Contestant], space: Space, *, with_bare: bool = True) -> Markup:
    """Who is who in the charts of contestants."""
    return legend(
        (
            SYMBOLS[place],
            COLOURS[place],
            join(element("b", person.name), ": ", changed(person.configuration, space))
            if place
            else join(element("b", person.name), ": the bare command"),
        )
        for place, person in enumerate(people)
        if place or with_bare
    )


def changed(configuration: Configuration, space: Space) -> Markup:
    """What a configuration sets, as small pieces that wrap between them."""
    pieces = [
        element("code", piece, klass="piece")
        for piece in settings(configuration, space).split(", ")
    ]
    return join(*pieces, between=" ")


def table(
    head: Sequence[Child],
    rows: Iterable[Sequence[Child]],
    *,
    numbers: Iterable[int] = (),
    caption: str = "",
    klass: str = "",
) -> Markup:
    """A table that scrolls within the page where it is too wide; `numbers`: columns of numbers."""
    right = frozenset(numbers)

    def kind(at: int) -> str | None:
        return "n" if at in right else None

    header = element(
        "tr", *[element("th", cell, scope="col", klass=kind(at)) for at, cell in enumerate(head)]
    )
    body = [
        element("tr", *[element("td", cell, klass=kind(at)) for at, cell in enumerate(row)])
        for row in rows
    ]
    made = element(
        "table",
        element("caption", caption) if caption else None,
        element("thead", header),
        element("tbody", join(*body)),
        klass=klass or None,
    )
    return element("div", made, klass="scroll", tabindex="0")


def facts(rows: Iterable[tuple[str, Child]], *, klass: str = "facts") -> Markup:
    """Names and values; long values have a line of their own."""
    pairs = [
        element(
            "div",
            element("dt", name),
            element("dd", value),
            klass="wide" if isinstance(value, str) and len(value) > LONG else None,
        )
        for name, value in rows
    ]
    return element("dl", join(*pairs), klass=klass)


def code(told: str, name: str = "", *, copied: bool = True) -> Markup:
    """Text as it is typed, with a button that copies it; `name`: of the block, in the page."""
    button = element("button", "Copy", type="button", klass="copy") if copied else None
    block = element("pre", element("code", told, id=name or None), tabindex="0")
    return element("div", block, button, klass="code")


def folded(summary: Child, *body: Child, opened: bool = False, is_long: bool = False) -> Markup:
    """Text that is shown when asked for; on paper always, unless it is long."""
    klass = "long" if is_long else None
    return element("details", element("summary", summary), *body, open=opened, klass=klass)


def paragraph(*children: Child, klass: str = "") -> Markup:
    return element("p", *children, klass=klass or None)


def data(value: object, told: str, name: str = "") -> Markup:
    """A value as it is, for programs, and as it is read."""
    return element("data", told, value="null" if value is None else repr(value), id=name or None)
