# SPDX-License-Identifier: Apache-2.0
"""Machines drawn as text, to the letter."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from tests.launcher.machine.trees import CPU, NODE, cpus, write_files

from xlaunch.machine import flat_machine, read_machine
from xlaunch.machine.synthetic import parse_levels, write_tree
from xlaunch.machine.topology import CoreKind, Machine
from xlaunch.planning.drawing import draw_machine
from xlaunch.planning.plans import Instance, Plan
from xlaunch.planning.request import MemoryPolicy


def made_up(directory: Path, text: str) -> Machine:
    write_tree(parse_levels(text), str(directory))
    return read_machine(str(directory))


def drawn(machine: Machine, plan: Plan | None = None) -> str:
    text = str(draw_machine(machine, plan))
    assert text.isascii()
    assert all(len(line) <= 80 for line in text.splitlines())
    return text


def golden(text: str) -> str:
    return textwrap.dedent(text).strip("\n")


def test_a_server_of_256_cpus(tmp_path: Path) -> None:
    assert drawn(made_up(tmp_path, "package:2 node:2 l3:4 core:8 pu:2")) == golden("""
        x86_64: 2 packages, 4 NUMA nodes, 16 L3 caches, 128 cores, 256 CPUs
        package 0
          node 0 128.0 GiB
            L3: 8 cores x2 0-7+128-135
            L3: 8 cores x2 8-15+136-143
            L3: 8 cores x2 16-23+144-151
            L3: 8 cores x2 24-31+152-159
          node 1 128.0 GiB
            L3: 8 cores x2 32-39+160-167
            L3: 8 cores x2 40-47+168-175
            L3: 8 cores x2 48-55+176-183
            L3: 8 cores x2 56-63+184-191
        package 1
          node 2 128.0 GiB
            L3: 8 cores x2 64-71+192-199
            L3: 8 cores x2 72-79+200-207
            L3: 8 cores x2 80-87+208-215
            L3: 8 cores x2 88-95+216-223
          node 3 128.0 GiB
            L3: 8 cores x2 96-103+224-231
            L3: 8 cores x2 104-111+232-239
            L3: 8 cores x2 112-119+240-247
            L3: 8 cores x2 120-127+248-255
    """)


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


def test_a_container_with_every_limit(tmp_path: Path) -> None:
    files = cpus(
        "0-11",
        core_cpus_list=[f"{cpu % 6},{cpu % 6 + 6}" for cpu in range(12)],
        package_cpus_list=["0-11"] * 12,
        physical_package_id=["0"] * 12,
    )
    files |= {
        f"{CPU}/cpu12/": "",
        f"{CPU}/isolated": "5,11",
        f"{NODE}/node0/cpulist": "0-11",
        f"{NODE}/node0/meminfo": "Node 0 MemTotal: 33554432 kB",
        f"{NODE}/node1/cpulist": "",
        f"{NODE}/node1/meminfo": "Node 1 MemTotal: 67108864 kB",
        f"{NODE}/node1/access0/initiators/node0/": "",
        "proc/self/mountinfo": "26 23 0:23 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
        "proc/self/cgroup": "0::/job",
        "proc/self/status": "Cpus_allowed_list:\t0-3,6-8",
        "sys/fs/cgroup/job/cpuset.cpus.effective": "0-9",
        "sys/fs/cgroup/job/cpuset.mems.effective": "0",
        "sys/fs/cgroup/job/cpu.max": "250000 100000",
        "sys/fs/cgroup/job/memory.max": "8589934592",
    }
    assert drawn(read_machine(write_files(tmp_path, files))) == golden("""
        unknown: 1 package, 2 NUMA nodes, 6 cores, 12 CPUs
        package 0, node 0 32.0 GiB: 3 cores x2 0-2+6-8  1 core x2 3+(9)
          2 cores x2 (4-5+10-11)
        node 1 64.0 GiB (memory not allowed): no CPUs, near 0-11
        offline: (12)
        isolated: 5,11 by isolcpus=
        allowed: 0-3,6-8
          others (in parentheses) by cpuset 0-9 (cgroup v2 /sys/fs/cgroup/job)
          others (in parentheses) by affinity mask 0-3,6-8
        CPU quota: 2.5 CPUs' worth of time (cgroup v2 /sys/fs/cgroup/job)
        memory limit: 8.0 GiB (cgroup v2 /sys/fs/cgroup/job)
    """)


def instance(index: int, *cpus: int) -> Instance:
    return Instance(
        index=index,
        cpus=cpus,
        ncores=len(cpus),
        threads=len(cpus),
        nodes=(0,),
        packages_touched=1,
        nodes_touched=1,
        l3_touched=1,
        memory=MemoryPolicy.NONE,
        memory_nodes=(),
    )


def plan_of(*instances: Instance, bound: bool = True) -> Plan:
    return Plan(
        instances=instances,
        count=len(instances),
        bound=bound,
        allowed_cpus=(),
        idle_cpus=(),
        decisions=(),
        warnings=(),
    )


def test_instances_of_a_plan_on_their_cores(tmp_path: Path) -> None:
    machine = made_up(tmp_path, "package:2 l3:1 core:4 pu:2")
    plan = plan_of(instance(0, 0, 1, 2), instance(1, 4, 5, 6), instance(2, 6, 7))
    assert drawn(machine, plan) == golden("""
        x86_64: 2 packages, 1 NUMA node, 2 L3 caches, 8 cores, 16 CPUs
        node 0 32.0 GiB
          package 0, L3: #0 3 cores x2 0-2+8-10  1 core x2 3+11
          package 1, L3: #1 2 cores x2 4-5+12-13  #1,2 1 core x2 6+14  #2 1 core x2 7+15
        plan: 3 instances, marked # on their cores
    """)


def test_instances_that_are_not_bound_have_no_place(tmp_path: Path) -> None:
    machine = made_up(tmp_path, "core:2")
    assert drawn(machine, plan_of(instance(0, 0, 1), bound=False)) == golden("""
        x86_64: 1 package, 1 NUMA node, 2 cores, 2 CPUs
        package 0, node 0 8.0 GiB: 2 cores 0-1
        plan: 1 instance, not bound to cores
    """)


def test_every_cpu_its_own_package_is_one_line() -> None:
    flat = flat_machine(8, "darwin")
    assert drawn(flat) == "unknown: 1 package, 8 cores, 8 CPUs\npackage: 8 cores 0-7"


def test_evenly_spaced_cpus_and_four_kinds(tmp_path: Path) -> None:
    machine = made_up(tmp_path, "core:8")
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


def test_colour_is_bright_for_what_is_allowed_and_dim_for_the_rest(tmp_path: Path) -> None:
    from rich.console import Console

    machine = made_up(tmp_path, "core:4")
    limited = machine._replace(limits=machine.limits._replace(allowed_cpus=(0, 1)))
    console = Console(force_terminal=True, color_system="standard", width=80)
    with console.capture() as captured:
        console.print(draw_machine(limited))
    assert "\x1b[1m2 cores 0-1\x1b[0m" in captured.get()
    assert "\x1b[2m2 cores (2-3)\x1b[0m" in captured.get()


@pytest.mark.parametrize("text", ["core:1", "package:8 node:1 l3:8 core:4 pu:2", "core:1 pu:8"])
def test_no_line_is_longer_than_80_columns(tmp_path: Path, text: str) -> None:
    machine = made_up(tmp_path, text)
    every_other = machine.topology.online_cpus[::2]
    drawn(machine)
    drawn(
        machine._replace(
            limits=machine.limits._replace(allowed_cpus=every_other, narrowed_by=("mask",))
        )
    )
