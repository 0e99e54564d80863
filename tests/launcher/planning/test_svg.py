# SPDX-License-Identifier: Apache-2.0
"""Pictures of machines: those of the documentation, and what holds for every captured machine."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from tests.captures import among_others, other_captures, own_captures, read_capture
from tests.golden import Golden
from tests.launcher.cli.commands import ask

from xlaunch.planning.planner import plan
from xlaunch.planning.request import LayoutRequest
from xlaunch.planning.svg import MAX_WIDTH, draw_svg

PICTURES = Path(__file__).parents[3] / "docs" / "pictures"
SVG = "{http://www.w3.org/2000/svg}"

OTHERS = ("peers", "recording")
"""Pictures of other commands."""
COMMANDS = {
    "plan": 'plan --svg --synthetic "package:2 node:1 core:28 pu:2" --instances 4',
    "eight-nodes": 'plan --svg --synthetic "package:2 node:4 l3:2 core:8 pu:2" --instances 8 --reserve-cores 8',
    "topology": 'topology --svg --synthetic "package:2 node:2 l3:2 core:4 pu:2"',
}
"""The pictures in docs/pictures, and the commands of xlaunch that print them."""


@pytest.mark.parametrize("name", COMMANDS)
def test_pictures_of_the_documentation_are_what_the_command_prints(name: str):
    assert (PICTURES / f"{name}.svg").read_bytes() == ask(*shlex.split(COMMANDS[name])).out
    assert {path.stem for path in PICTURES.glob("*.svg")} <= {*COMMANDS, *OTHERS}


def rectangles(root: ET.Element, *kinds: str) -> Iterator[tuple[int, int, int, int]]:
    for one in root.iter(f"{SVG}rect"):
        if one.get("class", "").split()[0] in kinds:
            x, y, width, height = (int(one.get(key, "0")) for key in ("x", "y", "width", "height"))
            yield x, y, x + width, y + height


def apart(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


def inside(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return other[0] <= one[0] and other[1] <= one[1] and one[2] <= other[2] and one[3] <= other[3]


@pytest.mark.parametrize("name", [*own_captures(), *among_others(other_captures())])
@pytest.mark.parametrize("planned", [False, True])
def test_every_machine_is_drawn_whole_and_without_overlap(name: str, planned: bool):
    machine = read_capture(name)
    made = plan(LayoutRequest(oversubscribe=True, instances=2), machine) if planned else None
    root = ET.fromstring(draw_svg(machine, made))
    width, height = int(root.get("width", "0")), int(root.get("height", "0"))
    assert width <= MAX_WIDTH
    cpus = sorted(int(t.text or "") for t in root.iter(f"{SVG}text") if t.get("class") == "cpu")
    assert cpus == sorted(machine.topology.online_cpus)
    boxes = list(rectangles(root, "box"))
    for one, other in combinations(boxes, 2):
        assert apart(one, other) or inside(one, other) or inside(other, one)
    assert all(inside(box, (0, 0, width, height)) for box in boxes)
    colours = {it.get("class") for it in root.iter(f"{SVG}rect") if it.get("class", "")[:1] == "i"}
    assert colours == ({f"i{it.index}" for it in made.instances} if made and made.bound else set())


def test_spare_and_refused_cores_are_told_apart():
    drawn = ask(*shlex.split(COMMANDS["eight-nodes"])).out.decode()
    assert drawn.count('class="spare"') == 8 + 1
    assert ">spare core<" in drawn
    assert "may not be used" not in drawn


def test_a_picture_goes_alone(golden: Golden):
    for words in (
        ("topology", "--svg", "--json"),
        ("plan", "--svg", "--json"),
        ("plan", "--svg", "--explain"),
    ):
        assert "--svg" in ask(*words).refused(2)
    golden(ask("plan", "--instances", "1", "--svg", "plan.svg").refused(2))
