# SPDX-License-Identifier: Apache-2.0
"""Pages in headless Chromium without a network: every mark can be seen, and nothing complains."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.tiers import quick_first
from tests.tuner.conftest import Needs
from tests.tuner.show.browser import find_chromium, look
from tests.tuner.show.cases import CASES, case
from tests.tuner.show.pages import marks_of, read
from tests.tuner.show.test_escaping import hostile_findings

from xtune.show.page import render_page
from xtune.show.results import SearchResult

AREAS = """
[...document.querySelectorAll('.mark, .span, .step')]
    .filter((mark) => mark.checkVisibility())
    .map((mark) => mark.getBoundingClientRect())
    .map((box) => box.width * box.height)
"""
"""The area of each mark that is not folded away."""

OUTSIDE = """
[...document.querySelectorAll('.plot b span')]
    .map((tick) => tick.getBoundingClientRect())
    .filter((box) => box.left < 0 || box.right > document.documentElement.clientWidth).length
"""
WIDTHS = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"


@pytest.fixture(autouse=True)
def chromium(needs: Needs) -> None:
    needs(find_chromium(), "chromium (Debian's package)")
    needs(find_spec("jinja2"), "Jinja2 (the extra `report`)")


def see(
    directory: Path, found: SearchResult, *questions: str, width: int = 1000, dark: bool = False
) -> list[Any]:
    """What JavaScript says of a page in a window, all checked that holds for every page."""
    path = directory / "page.html"
    path.write_text(render_page(found))
    seen = look(path, AREAS, OUTSIDE, WIDTHS, *questions, width=width, dark=dark)
    areas, outside, (wide, room), *answers = seen.answers
    assert len(areas) > len(marks_of(read(path.read_text()).by_id("chart-history")))
    assert min(areas) > 0
    assert wide <= room == width
    assert outside == 0
    assert seen.complaints == []
    return answers


@pytest.mark.parametrize("width", quick_first([1000, 390]))
def test_a_gain(tmp_path: Path, width: int) -> None:
    see(tmp_path, case("two goals").found, width=width)


def test_a_hostile_study_runs_no_script_of_its_own(tmp_path: Path) -> None:
    title = "document.title.includes(\"document.title='taken'\")"
    counts = "['img', 'script', 'section a'].map((one) => document.querySelectorAll(one).length)"
    assert see(tmp_path, hostile_findings(), title, counts) == [True, [0, 1, 0]]


@pytest.mark.full
@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize(("width", "dark"), [(1000, False), (390, True)])
def test_every_kind_of_study(tmp_path: Path, name: str, width: int, dark: bool) -> None:
    see(tmp_path, case(name).found, width=width, dark=dark)


@pytest.mark.full
def test_light_and_dark_and_a_click_that_selects_the_command(tmp_path: Path) -> None:
    colours = [
        f"getComputedStyle(document.querySelector('{one}')).{name}"
        for one, name in (("html", "backgroundColor"), ("#chart-history .up span", "color"))
    ]
    selects = "getComputedStyle(document.querySelector('#command')).userSelect"
    light, dark = (
        see(tmp_path, case("gain").found, *colours, selects, dark=is_dark)
        for is_dark in (False, True)
    )
    assert light[2] == dark[2] == "all"
    assert light[0] != dark[0]
    assert light[1] != dark[1]
