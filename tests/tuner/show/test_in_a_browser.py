# SPDX-License-Identifier: Apache-2.0
"""Pages in headless Chromium without a network: every chart is drawn and no script complains."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tiers import quick_first
from tests.tuner.conftest import Needs
from tests.tuner.show.browser import Browser, Tab
from tests.tuner.show.cases import CASES, case
from tests.tuner.show.pages import charts_of, read
from tests.tuner.show.test_escaping import hostile_findings

from xtune.show.page import render_page
from xtune.show.results import SearchResult

DRAWN = "document.documentElement.dataset.charts === 'drawn'"

MARKS = """
Object.fromEntries([...document.querySelectorAll('.chart')].map((chart) => [
    chart.id.slice(6),
    [...chart.querySelectorAll('svg.main-svg')].reduce(
        (sum, svg) => sum + svg.querySelectorAll('path, rect, text').length, 0),
]))
"""
"""Of each chart how many shapes and words its drawing holds."""


def see(browser: Browser, path: Path, width: int, scheme: str = "light") -> Tab:
    """The page in a window, all checked that holds for every page."""
    tab = browser.open(path.as_uri(), width=width, scheme=scheme)
    tab.wait_for(DRAWN)
    charts = charts_of(read(path.read_text()))
    marks = tab.evaluate(MARKS)
    assert marks.keys() == charts.keys()
    for name, count in marks.items():
        assert count > len(charts[name]["data"]), f"{name} is empty"
    boxes = tab.evaluate(
        "[...document.querySelectorAll('.chart svg.main-svg')].map((svg) => "
        "svg.getBoundingClientRect().width * svg.getBoundingClientRect().height)"
    )
    assert min(boxes) > 10_000
    wide, room = tab.evaluate(
        "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert wide <= room == width
    assert tab.complaints == []
    assert tab.requests == [path.as_uri()]
    return tab


def write(directory: Path, found: SearchResult, plotly: str) -> Path:
    path = directory / "page.html"
    path.write_text(render_page(found, plotly))
    return path


@pytest.mark.parametrize("width", quick_first([1200, 400]))
def test_a_gain(browser: Browser, tmp_path: Path, plotly: str, width: int) -> None:
    path = write(tmp_path, case("two goals").found, plotly)
    tab = see(browser, path, width)
    assert tab.evaluate("getComputedStyle(document.documentElement).backgroundColor") != (
        "rgb(0, 0, 0)"
    )


def test_a_hostile_study_runs_no_script_of_its_own(
    browser: Browser, tmp_path: Path, plotly: str
) -> None:
    tab = see(browser, write(tmp_path, hostile_findings(), plotly), 1200)
    assert tab.evaluate("document.title.includes(\"document.title='taken'\")")
    assert tab.evaluate("document.images.length") == 0
    assert tab.evaluate("document.scripts.length") == 4
    assert tab.evaluate("document.querySelectorAll('.chart a, .chart script').length") == 0


@pytest.mark.full
@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (400, "dark")])
def test_every_kind_of_study(
    browser: Browser, tmp_path: Path, plotly: str, name: str, width: int, scheme: str
) -> None:
    see(browser, write(tmp_path, case(name).found, plotly), width, scheme)


COLOURS = """
(() => {
    const style = getComputedStyle(document.documentElement);
    const line = document.querySelector('#chart-history .xtick text');
    return [style.backgroundColor, getComputedStyle(line).fill];
})()
"""


@pytest.mark.full
def test_light_and_dark_and_paper(
    browser: Browser, tmp_path: Path, plotly: str, needs: Needs
) -> None:
    path = write(tmp_path, case("gain").found, plotly)
    light = see(browser, path, 1200, "light").evaluate(COLOURS)
    tab = see(browser, path, 1200, "dark")
    dark = tab.evaluate(COLOURS)
    assert light[0] != dark[0]
    assert light[1] != dark[1]
    # A reader who changes to the dark at dusk has charts of the dark without loading it again.
    tab.evaluate("delete document.documentElement.dataset.charts")
    features = [{"name": "prefers-color-scheme", "value": "light"}]
    tab.send("Emulation.setEmulatedMedia", features=features)
    tab.wait_for(DRAWN)
    assert tab.evaluate(COLOURS) == light
    printed = tab.pdf()
    assert printed.startswith(b"%PDF-")
    assert tab.complaints == []


@pytest.mark.full
def test_copy_takes_the_command(browser: Browser, tmp_path: Path, plotly: str) -> None:
    found = case("gain").found
    tab = see(browser, write(tmp_path, found, plotly), 1200)
    tab.evaluate(
        "document.querySelector('#command').closest('.code').querySelector('.copy').click()"
    )
    tab.wait_for("['Copied', 'Selected'].includes(document.querySelector('.copy').textContent)")
    chosen = tab.evaluate(
        "document.querySelector('.copy').textContent === 'Copied' || getSelection().toString()"
    )
    assert chosen is True or chosen == found.to_plain()["command"]
