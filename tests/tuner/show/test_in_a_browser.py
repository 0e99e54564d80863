# SPDX-License-Identifier: Apache-2.0
"""Pages in headless Chromium without a network: every mark can be seen, and nothing complains."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tiers import quick_first
from tests.tuner.show.browser import Browser, Tab
from tests.tuner.show.cases import CASES, case
from tests.tuner.show.pages import marks_of, read
from tests.tuner.show.test_escaping import hostile_findings

from xtune.show.page import render_page
from xtune.show.results import SearchResult

MARKS = """
[...document.querySelectorAll('.mark, .span, .step')]
    .filter((mark) => mark.checkVisibility())
    .map((mark) => {
        const box = mark.getBoundingClientRect(), style = getComputedStyle(mark);
        return [box.width * box.height, style.backgroundColor + style.borderTopColor];
    })
"""
"""The area and colours of each mark that is not folded away."""


def see(browser: Browser, path: Path, width: int, scheme: str = "light") -> Tab:
    """The page in a window, all checked that holds for every page."""
    tab = browser.open(path.as_uri(), width=width, scheme=scheme)
    marks = tab.evaluate(MARKS)
    launched = len(marks_of(read(path.read_text()).by_id("chart-history")))
    assert len(marks) > launched
    assert min(area for area, _ in marks) > 0
    assert (
        tab.evaluate("document.querySelectorAll('#chart-history .plot .mark').length") == launched
    )
    wide, room = tab.evaluate(
        "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert wide <= room == width
    outside = tab.evaluate(
        "[...document.querySelectorAll('.plot b span')].filter((tick) => {"
        " const box = tick.getBoundingClientRect();"
        " return box.left < 0 || box.right > document.documentElement.clientWidth; }).length"
    )
    assert outside == 0
    assert tab.complaints == []
    assert tab.requests == [path.as_uri()]
    return tab


def write(directory: Path, found: SearchResult) -> Path:
    path = directory / "page.html"
    path.write_text(render_page(found))
    return path


@pytest.mark.parametrize("width", quick_first([1000, 390]))
def test_a_gain(browser: Browser, tmp_path: Path, width: int) -> None:
    path = write(tmp_path, case("two goals").found)
    tab = see(browser, path, width)
    assert tab.evaluate("getComputedStyle(document.documentElement).backgroundColor") != (
        "rgb(0, 0, 0)"
    )


def test_a_hostile_study_runs_no_script_of_its_own(browser: Browser, tmp_path: Path) -> None:
    tab = see(browser, write(tmp_path, hostile_findings()), 1200)
    assert tab.evaluate("document.title.includes(\"document.title='taken'\")")
    assert tab.evaluate("document.images.length") == 0
    assert tab.evaluate("document.scripts.length") == 1
    assert tab.evaluate("document.querySelectorAll('section a').length") == 0


@pytest.mark.full
@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize(("width", "scheme"), [(1000, "light"), (390, "dark")])
def test_every_kind_of_study(
    browser: Browser, tmp_path: Path, name: str, width: int, scheme: str
) -> None:
    see(browser, write(tmp_path, case(name).found), width, scheme)


COLOURS = """
(() => {
    const tick = document.querySelector('#chart-history .up span');
    return [getComputedStyle(document.documentElement).backgroundColor, getComputedStyle(tick).color];
})()
"""


@pytest.mark.full
def test_light_and_dark_and_paper(browser: Browser, tmp_path: Path) -> None:
    path = write(tmp_path, case("gain").found)
    light = see(browser, path, 1000, "light").evaluate(COLOURS)
    tab = see(browser, path, 1000, "dark")
    dark = tab.evaluate(COLOURS)
    assert light[0] != dark[0]
    assert light[1] != dark[1]
    assert tab.pdf().startswith(b"%PDF-")
    assert tab.complaints == []


@pytest.mark.full
def test_a_click_selects_the_command(browser: Browser, tmp_path: Path) -> None:
    found = case("gain").found
    tab = see(browser, write(tmp_path, found), 1000)
    x, y = tab.evaluate(
        "(() => { const box = document.querySelector('#command').getBoundingClientRect();"
        " return [box.left + 20, box.top + 8]; })()"
    )
    for kind in ("mousePressed", "mouseReleased"):
        tab.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
    assert tab.evaluate("getSelection().toString()") == found.to_plain()["command"]
