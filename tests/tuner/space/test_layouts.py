# SPDX-License-Identifier: Apache-2.0
"""The layouts worth trying: exact lists for machines by shape, and what holds for every machine."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.captures import each_capture, read_capture
from tests.golden import Golden
from tests.launcher.planning.shapes import GIB, make_machine
from tests.tiers import quick_first

from xlaunch.errors import UsageError
from xlaunch.machine.topology import Machine
from xlaunch.planning import MAX, Mode, Request, plan
from xtune.errors import SpaceError
from xtune.space.launch_options import ALL_CORES, BY_NODE, parse_layout, with_option
from xtune.space.machine_space import counts_of, find_layouts

ANY = Request()


def texts(machine: Machine, request: Request = ANY, *, one: bool = False) -> str:
    return " ".join(find_layouts(machine, request, one_instance=one))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ({"packages": (1,)}, "1xall"),
        ({"packages": (2,)}, "1xall 1x1 2x1"),
        ({"packages": (4,), "l3": (4,)}, "1xall 1x1 1x2 2x1 2x2 4x1"),
        ({"packages": (6,), "l3": (6,)}, "1xall 1x1 1x2 1x3 1x4 2x3 3x1 3x2 6x1"),
        ({"packages": (7,)}, "1xall 1x1 1x2 1x3 1x4 2x3 3x1 3x2 7x1"),
        (
            {"packages": (8,), "l3": (4, 4), "smt": 2},
            "1xall 1x1 1x2 1x4 2x2 2x4 4x1 4x2 8x1",
        ),
        (
            {"packages": (128,), "nodes": (43, 43, 42)},
            "1xall 1x1 1x2 1x4 1x8 1x16 1x21 1x32 1x42 1x84 2x32 3x21 3x32 3x42 4x16 4x32 6x16 6x21 "
            "8x8 8x16 15x8 16x4 16x8 30x4 32x2 32x4 63x2 64x1 64x2 128x1 node",
        ),
        (
            {"packages": (48, 48), "nodes": (48, 48), "l3": (8,) * 12},
            "1xall 1x1 1x2 1x4 1x8 1x16 1x24 1x32 1x48 2x24 2x32 2x48 3x16 3x32 4x24 6x8 6x16 12x4 "
            "12x8 24x2 24x4 48x1 48x2 96x1",
        ),
        (
            {"packages": (256, 256), "nodes": (128,) * 4, "l3": (16,) * 32, "smt": 2},
            "1xall 1x1 1x2 1x4 1x8 1x16 1x32 1x64 1x128 1x256 2x128 2x256 4x64 4x128 8x32 8x64 16x16 "
            "16x32 32x8 32x16 64x4 64x8 128x2 128x4 256x1 256x2 512x1",
        ),
        # A CPU quota is worth so many cores, wherever they are.
        ({"packages": (64,), "quota": 6.5}, "1xall 1x1 1x2 1x3 1x4 2x3 3x1 3x2 6x1"),
        # A mask that leaves 7 cores of one L3 cache, 8 of the next and 1 of the last.
        (
            {"packages": (24,), "l3": (8, 8, 8), "allowed": range(1, 17)},
            "1xall 1x1 1x2 1x4 1x7 1x14 2x4 2x7 3x4 4x2 4x4 7x2 8x1 8x2 16x1",
        ),
    ],
)  # fmt: skip
def test_layouts_follow_what_the_machine_is_made_of(shape: dict[str, Any], expected: str) -> None:
    assert texts(make_machine(**shape)) == expected


def test_a_single_instance_comes_in_every_size(golden: Golden) -> None:
    machine = make_machine(packages=(48, 48), nodes=(48, 48), l3=(8,) * 12)
    golden(texts(machine, one=True))


def test_what_the_user_keeps_back_is_not_shared_out(golden: Golden) -> None:
    machine = make_machine(packages=(8,), l3=(4, 4))
    golden(texts(machine, Request.of(reserve_cores=4)), texts(machine, Request.of(cpus=(2, 3))))
    layouts = find_layouts(machine, Request.of(reserve_cores=1), one_instance=False)
    (text, whole), *_ = layouts.items()
    assert (text, whole.count, whole.instances[0].ncores) == (ALL_CORES, 1, 7)


def test_instances_that_would_have_no_memory_are_left_out() -> None:
    machine = make_machine(packages=(64,), l3=(64,))
    poor = machine._replace(limits=machine.limits._replace(memory_limit_bytes=2 * GIB))
    most = max(plan.count for plan in find_layouts(poor, Request(), one_instance=False).values())
    assert most == 8


def test_what_cannot_be_planned_is_said_at_once() -> None:
    with pytest.raises(UsageError, match="--cpus 99: CPU 99 does not exist"):
        find_layouts(make_machine(packages=(2,)), Request.of(cpus=(99,)), one_instance=False)


@pytest.mark.parametrize("name", quick_first(each_capture(), 4))
def test_layouts_of_a_captured_machine_fit_and_differ(name: str) -> None:
    machine = read_capture(name)
    layouts = find_layouts(machine, Request(), one_instance=False)
    whole = plan(Request().layout, machine)
    assert next(iter(layouts)) == ALL_CORES
    instances, ncores = counts_of(layouts.values())
    places = []
    for at, layout in enumerate(layouts):
        made = plan(with_option(Request(), "layout", layout).layout, machine)
        assert made.count == instances.values[at]
        assert min(instance.ncores for instance in made.instances) == ncores.values[at]
        places.append(sorted((i.cpus, i.ncores, i.threads) for i in made.instances))
    assert (
        plan(with_option(Request(), "layout", ALL_CORES).layout, machine).instances
        == whole.instances
    )
    assert all(place not in places[:at] for at, place in enumerate(places))
    # Three for each size: sizes double, but for a few ends of domains.
    assert len(layouts) <= 3 * (math.log2(whole.instances[0].ncores) + 4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4x8", Request.of(instances=4, ncores=8)),
        (ALL_CORES, Request.of(instances=1, ncores=MAX)),
        (BY_NODE, Request.of(mode=Mode.THROUGHPUT)),
    ],
)
def test_a_layout_is_two_options(text: str, expected: Request) -> None:
    before = Request.of(instances=3, ncores=3)
    assert with_option(before, "layout", text) == expected
    assert with_option(Request.of(mode=Mode.LATENCY), "layout", text) == expected


@pytest.mark.parametrize(
    "text", ["", "4", "4x", "x8", "0x4", "4x0", "4x8x2", "-1x2", "\uff14x2", "4 x 8"]
)
def test_anything_else_is_no_layout(text: str) -> None:
    with pytest.raises(SpaceError, match="write INSTANCESxCORES such as 4x8, 1xall or node"):
        parse_layout(text)
