# SPDX-License-Identifier: Apache-2.0
"""Commands, values and standard error may hold anything: on the page it is text and nothing else."""

from __future__ import annotations

import json
import re
import sys
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tuner.show.pages import Element, findings, marks_of, read

from xtune.launches.launch import Goal, Launch, Objective, Outcome
from xtune.show.charts import printable
from xtune.show.page import page_environment, render_page
from xtune.show.results import SearchResult
from xtune.space.parameters import Configuration, Parameter, Target
from xtune.space.spaces import Space

EVIL = "</script><script>document.title='taken'</script><img src=x onerror=alert(1)>\"'&amp;"
ENVIRONMENT = page_environment()

HOSTILE = Space(
    [
        Parameter("mode", ("plain", EVIL, "<b>bold</b>"), "plain", Target.PROGRAM, reason=EVIL),
        Parameter("batch", (1, 2, 4, 8), 1, Target.PROGRAM, ordered=True, reason="<i>why</i>"),
        Parameter("</title>", (False, True), False, Target.PROGRAM),
    ]
)


def hostile(launch: Launch) -> Launch:
    if launch.outcome is Outcome.MEASURED:
        return launch
    return launch._replace(stderr_tail=f"{EVIL}\n\x00\x1b[31mred\udcff", notes=(EVIL,))


def fails(configuration: Configuration) -> Outcome:
    return Outcome.CRASHED if configuration.get("batch") == 8 else Outcome.MEASURED


@cache
def hostile_findings() -> SearchResult:
    return findings(
        48,
        space=HOSTILE,
        objective=Objective("<u>/s", Goal.MAXIMIZE),
        speed=lambda one: 0.3 if one.get("mode") == EVIL else 0.0,
        outcomes=fails,
        change=hostile,
        program=(sys.executable, "-c", EVIL, "{mode}", "{batch}", "{</title>}"),
        study=EVIL,
    )


@pytest.fixture(scope="module")
def text() -> str:
    return render_page(hostile_findings())


@pytest.fixture(scope="module")
def root(text: str) -> Element:
    return read(text)


def test_no_element_comes_from_a_value(root: Element) -> None:
    assert len(list(root.all("script"))) == 1
    assert [one.name for one in root.all() if one.name in ("img", "u")] == []
    (title,) = root.all("title")
    assert EVIL in title.text
    (headline,) = root.all("h1")
    assert headline.text == EVIL
    for one in root.all():
        assert not [name for name in one.attributes if name.startswith("on")]
        assert "style" not in one.attributes or EVIL not in str(one.attributes["style"])


def test_all_of_it_is_still_to_be_read(root: Element) -> None:
    failed = root.by_id("failures")
    assert [one.text for one in failed.all("pre")] == [f"{EVIL}\n\\x00\\x1b[31mred\\udcff"]
    assert EVIL in [one.text for one in failed.all("p")]
    assert EVIL in root.by_id("command").text.replace("'\"'\"'", "'")
    cells = [cell for row in root.by_id("space").rows() for cell in row]
    assert any("<b>bold</b>" in cell for cell in cells)
    assert "<i>why</i>" in cells
    assert EVIL in [row[3] for row in root.by_id("space").rows()]


def test_no_script_ends_within_its_data(text: str) -> None:
    scripts = re.findall(r"<script[^>]*>(.*?)</script", text, flags=re.DOTALL | re.IGNORECASE)
    (data,) = scripts
    assert "<" not in data
    plain = json.loads(data)
    assert plain["best"]["mode"] == EVIL


def test_charts_show_settings_as_text(root: Element) -> None:
    said = [text for _, text in marks_of(root.by_id("chart-history"))]
    assert any("mode=<b>bold</b>" in one for one in said)
    assert any("mode=</script><script>" in one for one in said)


def test_the_page_is_utf_8(text: str) -> None:
    assert text.encode().decode() == text
    assert "\x00" not in text


def test_the_policy_lets_nothing_in(root: Element) -> None:
    (policy,) = [
        str(one.attributes["content"])
        for one in root.all("meta")
        if one.attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none';")
    assert "script-src" not in policy


@given(st.text())
def test_any_text_is_text(told: str) -> None:
    template = '<p title="{{ told }}">{{ told }}</p><script>{{ {"told": told}|tojson }}</script>'
    made = ENVIRONMENT.from_string(template).render(told=told)
    assert made.encode()
    root = read(made)
    (found,) = root.all("p")
    assert found.text == found.attributes["title"] == printable(told)
    (script,) = root.all("script")
    assert not set("<>&") & set(script.text)
    assert json.loads(script.text) == {"told": told}
