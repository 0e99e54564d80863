# SPDX-License-Identifier: Apache-2.0
"""Plans as text, JSON and lines of numactl; the plans of captured machines are in golden."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.golden import Golden
from tests.launcher.planning.shapes import make_machine

from xlaunch.machine.topology import CPUs
from xlaunch.planning import LayoutRequest, MemoryPolicy, Place, plan
from xlaunch.planning.drawing import draw_machine, numbers
from xlaunch.planning.rendering import COLUMNS, numactl_line, plan_to_dict, render_plan

TWO_NODES = make_machine(packages=(6, 6), nodes=(6, 6), l3=(6, 6))


def test_a_plan_as_text(golden: Golden) -> None:
    made = plan(LayoutRequest(instances=2, ncores=5, instance_index=(1,)), TWO_NODES)
    golden(render_plan(made, TWO_NODES))


def test_nodes_that_stay_empty_while_instances_share_one_are_named(golden: Golden) -> None:
    machine = make_machine(packages=(4, 4, 4), nodes=(4, 4, 4))
    compact = LayoutRequest(instances=2, ncores=2)
    golden(render_plan(plan(compact, machine), machine).splitlines())
    for other in (
        compact._replace(place=Place.SCATTER),
        LayoutRequest(instances=1, ncores=2),
        LayoutRequest(instances=2, ncores=4),
        LayoutRequest(instances=5, ncores=2),
    ):
        assert "scatter" not in render_plan(plan(other, machine), machine)


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        (MemoryPolicy.PREFERRED, "--preferred=1"),
        (MemoryPolicy.BIND, "--membind=1"),
        (MemoryPolicy.INTERLEAVE, "--interleave=1"),
        (MemoryPolicy.LOCAL, "--localalloc"),
        (MemoryPolicy.NONE, ""),
    ],
)
def test_numactl_lines(policy: MemoryPolicy, options: str) -> None:
    made = plan(LayoutRequest(numa_nodes=(1,), ncores=3, mem_policy=policy), TWO_NODES)
    assert numactl_line(made.instances[0], bound=True) == f"numactl -C 6-8 {options}".rstrip()


def test_several_preferred_nodes_need_another_option(golden: Golden) -> None:
    made = plan(LayoutRequest(mem_policy=MemoryPolicy.PREFERRED), TWO_NODES)
    golden(numactl_line(made.instances[0], bound=True))


def test_a_plan_as_json() -> None:
    made = plan(LayoutRequest(instances=2, ncores=5), TWO_NODES)
    read = json.loads(json.dumps(plan_to_dict(made)))
    assert read["schema_version"] == 1
    assert read["instance_count"] == 2
    assert read["idle_cpus"] == [5, 11]
    assert read["instances"][1] == {
        "index": 1,
        "cpus": [6, 7, 8, 9, 10],
        "core_count": 5,
        "thread_count": 5,
        "numa_nodes": [1],
        "packages_touched": 1,
        "numa_nodes_touched": 1,
        "l3_groups_touched": 1,
        "memory_policy": "preferred",
        "memory_numa_nodes": [1],
        "gpus": [],
    }
    assert {"subject", "value", "reason"} == set(read["decisions"][0])


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [((0, 1, 2), "0-2"), ((0, 2, 4, 6), "0-6:2"), ((0, 4), "0,4"), ((0, 1, 4), "0-1,4")],
)
def test_evenly_spaced_cpus_have_a_step(cpus: CPUs, expected: str) -> None:
    assert numbers(cpus) == expected


def test_siblings_that_may_not_be_used_are_in_brackets() -> None:
    machine = make_machine(packages=(2,), smt=2, allowed=(0, 1, 2))
    assert str(draw_machine(machine)).splitlines()[1] == "package 0: 1 core x2 0+2  1 core x2 1+(3)"


def test_planning_imports_nothing_slow() -> None:
    script = (
        "import sys; before = set(sys.modules); import xlaunch.planning; "
        "print(*{m.partition('.')[0] for m in set(sys.modules) - before})"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"dataclasses", "json", "click", "rich", "psutil", "inspect"} & set(loaded)


def test_a_narrow_terminal_gets_fewer_columns_and_then_blocks():
    made = plan(LayoutRequest(instances=2), TWO_NODES)
    for width, left_out in ((200, ()), (60, ("L3",)), (50, ("L3", "package"))):
        heading = render_plan(made, TWO_NODES, width=width).splitlines()[1]
        assert heading.split() == [name for name in COLUMNS if name not in left_out]
    assert "instance 1" in render_plan(made, TWO_NODES, width=20).splitlines()
