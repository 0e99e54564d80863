# SPDX-License-Identifier: Apache-2.0
"""`xtune report --html`, of a real search of a tiny program: the file, and every way to get it wrong."""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import NamedTuple

import pytest
from tests.tuner.cli.commands import XTUNE, Desk, Done
from tests.tuner.conftest import Needs
from tests.tuner.show.pages import SECTIONS, Element, read

SOMETIMES = """\
import sys, time
speed = int(sys.argv[1])
if speed == 3:
    sys.exit("</script> a speed of <3> & more is not built in")
for turn in range(12):
    time.sleep(0.002)
    print(f"{speed * 100 + turn % 3} items/s", flush=True)
"""


class Searched(NamedTuple):
    """A study with a gain, and a configuration that fails."""

    desk: Desk
    done: Done


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory, needs: Needs) -> Searched:
    needs(importlib.util.find_spec("jinja2"), "Jinja2 (the extra `report`)")
    desk = Desk(tmp_path_factory.mktemp("searched"))
    desk.write("sometimes.py", SOMETIMES)
    done = desk.search("sometimes.py", "--study", "speeds", n="1,2,3,4", budget="40")
    return Searched(desk, done)


def page_of(desk: Desk, name: str = "page.html") -> Element:
    return read((desk.directory / name).read_text())


@pytest.mark.long
def test_a_setting_that_fails_is_told_and_never_best(searched: Searched) -> None:
    assert "n=3: crashed" in searched.done.err
    assert "a speed of <3> & more is not built in" in searched.done.err
    assert "  best: n=4\n" in searched.done.out


@pytest.mark.long
def test_the_page_of_a_real_search(searched: Searched) -> None:
    desk = searched.desk
    done = desk.xtune(
        "report", "speeds", "--json", "--html", "page.html", "--save-preset", "best.toml"
    )
    assert done.code == 0, done.err
    assert "xtune: page: " in done.err
    root = page_of(desk)
    found = done.found
    assert found["verdict"] == "gain"
    assert json.loads(root.by_id("verdict-json").text) == found
    assert root.value("gain") == found["gain"]
    assert [root.value("low"), root.value("high")] == found["interval"]
    assert root.by_id("command").text == found["command"]
    assert "--preset" in found["command"]
    assert root.by_id("preset").text == (desk.directory / "best.toml").read_text()
    assert {str(one.attributes["id"]) for one in root.all("section")} == set(SECTIONS)
    exported = desk.xtune("export", "speeds").found["launches"]
    values = [json.loads(str(one.attributes["value"])) for one in root.by_id("history").all("data")]
    assert values == [launch.get("value") for launch in exported]
    failed = root.by_id("failures")
    assert "crashed" in failed.words
    (said,) = [one.text for one in failed.all("pre")]
    assert "</script> a speed of <3> & more is not built in" in said
    assert list(desk.directory.glob(".page*")) == []


@pytest.mark.long
def test_a_page_is_replaced_and_nothing_else_is(searched: Searched) -> None:
    desk = searched.desk
    page = desk.directory / "page.html"
    page.write_text("a page of the user's")
    plain = desk.xtune("report", "speeds")
    refused = desk.xtune("report", "--html", "page.html", "speeds")
    assert (refused.code, page.read_text()) == (2, "a page of the user's")
    assert "exists and is not a page that xtune wrote" in refused.message
    done = desk.xtune("report", "--html", "page.html", "--force", "speeds")
    assert done.code == 0, done.err
    before = page.stat().st_ino
    assert desk.xtune("report", "--html", "page.html", "speeds").code == 0, "one of xtune's now"
    assert done.out == plain.out
    assert page.stat().st_ino != before
    assert page_of(desk).by_id("headline").words.startswith("Gain: ")

    # A file system that takes no more: the page that is there stays whole.
    kept = page.read_bytes()
    limit = 'ulimit -f 16; exec "$0" "$@"'
    limited = desk.run("/bin/bash", "-c", limit, *XTUNE, "report", "--html", "page.html")
    assert limited.code == 2
    assert "--html" in limited.message
    assert "cannot be written: File too large" in limited.message
    assert page.read_bytes() == kept
    assert list(desk.directory.glob(".page*")) == []


def test_without_jinja2_it_says_what_to_install(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    done = desk.xtune("report", "--html", "page.html")
    assert done.code == 2
    assert done.message.endswith(": pip install Jinja2")
    assert not (desk.directory / "page.html").exists()
