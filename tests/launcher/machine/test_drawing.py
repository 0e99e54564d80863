# SPDX-License-Identifier: Apache-2.0
"""Machines drawn as text, to the letter; captured ones are in planning/golden, with their plans."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.machine.trees import cpus, write_files

from xlaunch.machine import flat_machine, machine_of, read_machine
from xlaunch.machine.topology import CoreKind, Machine
from xlaunch.planning import LayoutRequest, Plan, plan
from xlaunch.planning.drawing import draw_machine


def made_up(text: str) -> Machine:
    with machine_of(None, text) as machine:
        return machine


def drawn(machine: Machine, made: Plan | None = None) -> str:
    text = str(draw_machine(machine, made))
    assert text.isascii()
    assert all(len(line) <= 80 for line in text.splitlines())
    return text


def golden(text: str) -> str:
    return textwrap.dedent(text).strip("\n")


def test_a_hybrid_laptop(tmp_path: Path) -> None:
    files = cpus(
        "0-5",
        core_cpus_list=["0-1", "0-1", "2-3", "2-3", "4", "5"],
        package_cpus_list=["0-5"] * 6,
        physical_package_id=["0"] * 6,
    )
    files |= {"sys/devices/cpu_core/cpus": "0-3", "sys/devices/cpu_atom/cpus": "4-5"}
    assert drawn(read_machine(write_files(tmp_path, files))) == golden("""
        unknown: 1 package, 4 cores, 6 CPUs
        E-cores: 4-5  (CoreType IntelAtom)
        P-cores: 0-3  (CoreType IntelCore)
        package 0: 2 P-cores x2 0-3  2 E-cores 4-5
    """)


def plan_of(machine: Machine, *cpus: tuple[int, ...]) -> Plan:
    """A plan of instances on these CPUs."""
    made = plan(LayoutRequest(), machine)
    instances = [made.instances[0]._replace(index=i, cpus=own) for i, own in enumerate(cpus)]
    return made._replace(instances=tuple(instances), count=len(instances))


def test_instances_of_a_plan_on_their_cores() -> None:
    machine = made_up("package:2 l3:1 core:4 pu:2")
    made = plan_of(machine, (0, 1, 2), (4, 5, 6), (6, 7))
    assert drawn(machine, made) == golden("""
        x86_64: 2 packages, 1 NUMA node, 2 L3 caches, 8 cores, 16 CPUs
        node 0 32.0 GiB
          package 0, L3: #0 3 cores x2 0-2+8-10  1 core x2 3+11
          package 1, L3: #1 2 cores x2 4-5+12-13  #1,2 1 core x2 6+14  #2 1 core x2 7+15
        plan: 3 instances, marked # on their cores
    """)


def test_instances_that_are_not_bound_have_no_place() -> None:
    machine = made_up("core:2")
    assert drawn(machine, plan_of(machine, (0, 1))._replace(bound=False)) == golden("""
        x86_64: 1 package, 1 NUMA node, 2 cores, 2 CPUs
        package 0, node 0 8.0 GiB: 2 cores 0-1
        plan: 1 instance, not bound to cores
    """)


def test_every_cpu_its_own_package_is_one_line(golden: Golden) -> None:
    flat = flat_machine(8, "darwin")
    golden(drawn(flat))


def test_evenly_spaced_cpus_and_four_kinds() -> None:
    machine = made_up("core:8")
    kinds = tuple(CoreKind((i, i + 4), -1) for i in range(4))
    topology = machine.topology._replace(core_kinds=kinds, cores=((0,), (4,), (1,), (2,), (3,)))
    assert "kind0-cores: 0,4" in drawn(machine._replace(topology=topology))


def test_cores_numbered_unevenly_are_several_runs(tmp_path: Path) -> None:
    files = cpus(
        "0-1,3-6,20",
        core_cpus_list={cpu: str(cpu) for cpu in (0, 1, 3, 4, 5, 6, 20)},
        package_cpus_list=dict.fromkeys((0, 1, 3, 4, 5, 6, 20), "0-20"),
    )
    assert drawn(read_machine(write_files(tmp_path, files))) == golden("""
        unknown: 1 package, 7 cores, 7 CPUs
        package: 2 cores 0-1  4 cores 3-6  1 core 20
    """)


def test_colour_is_bright_for_what_is_allowed_and_dim_for_the_rest(golden: Golden) -> None:
    from rich.console import Console

    machine = made_up("core:4")
    limited = machine._replace(limits=machine.limits._replace(allowed_cpus=(0, 1)))
    console = Console(force_terminal=True, color_system="standard", width=80)
    with console.capture() as captured:
        console.print(draw_machine(limited))
    golden(captured.get())


@pytest.mark.parametrize("text", ["core:1", "package:8 node:1 l3:8 core:4 pu:2", "core:1 pu:8"])
def test_no_line_is_longer_than_80_columns(text: str) -> None:
    machine = made_up(text)
    every_other = machine.topology.online_cpus[::2]
    limits = machine.limits._replace(allowed_cpus=every_other, narrowed_by=("mask",))
    drawn(machine)
    drawn(machine._replace(limits=limits))
