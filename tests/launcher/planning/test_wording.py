# SPDX-License-Identifier: Apache-2.0
"""One of a thing is not called several: every text of a plan, on machines that have one of each."""

from __future__ import annotations

import re

import pytest
from tests.launcher.planning.shapes import make_machine
from tests.launcher.planning.test_golden_plans import GOLDEN

from xlaunch.errors import UsageError
from xlaunch.machine.cpu_list import name_numbers
from xlaunch.machine.topology import CoreKind, Machine
from xlaunch.planning import MAX, ECores, LayoutRequest, MemoryPolicy, Mode, plan
from xlaunch.planning.rendering import render_plan

WRONG = re.compile(
    r"(?<![\d.])\b1 (?:cores|CPUs|nodes|NUMA nodes|instances|threads|packages)\b"
    r"|(?<![-a-z])\b(?:CPUs|nodes|packages|instances|siblings) \d+\b(?![-,]\d)"
    r"|\b(?:CPU|node|package|instance|sibling) \d+[-,]\d"
    r"|\b(?:[02-9]|\d\d+) (?:core|CPU|node|NUMA node|instance|thread|package)\b"
)
"""**Ex.:** ``1 cores``, ``CPUs 2``, ``CPU 2-3``, ``4 core``."""

ONE_EFFICIENCY_CORE = make_machine(
    packages=(3,),
    kinds=(
        CoreKind((2,), 0, (("FrequencyMaxMHz", "2500"),)),
        CoreKind((0, 1), 1, (("FrequencyMaxMHz", "5000"),)),
    ),
)


def text_of(request: LayoutRequest, machine: Machine) -> str:
    try:
        return render_plan(plan(request, machine), machine, explain=True)
    except UsageError as error:
        return f"error: {error}"


def test_names_of_numbers() -> None:
    assert name_numbers("CPU", (2,)) == "CPU 2"
    assert name_numbers("CPU", (3, 1, 2, 2)) == "CPUs 1-3"
    assert name_numbers("NUMA node", (4, 0)) == "NUMA nodes 0,4"
    assert name_numbers("node", ()) == "node -"


@pytest.mark.parametrize("wrong", ["1 cores", "CPUs 2 are", "CPU 2-3", "4 core need", "nodes 1:"])
def test_what_is_looked_for_is_found(wrong: str) -> None:
    assert WRONG.search(f"x {wrong} y")


def test_reviewed_plans() -> None:
    found = [
        f"{path.stem}: {line}"
        for path in sorted(GOLDEN.glob("*.txt"))
        for line in path.read_text().splitlines()
        if WRONG.search(line) and not line.startswith("$")
    ]
    assert found == []


@pytest.mark.parametrize(
    ("request_", "machine", "expected"),
    [
        (
            LayoutRequest(ncores=2),
            make_machine(packages=(1,)),
            "error: 1 instance x 2 cores needs 2 cores and 1 is allowed: "
            "at most 1 instance of 1 core; or --oversubscribe",
        ),
        (
            LayoutRequest(instances=3, ncores=4),
            make_machine(packages=(2,)),
            "error: 3 instances x 4 cores need 12 cores and 2 are allowed: "
            "at most 2 instances of 1 core, or 1 of 2; or --oversubscribe",
        ),
        (
            LayoutRequest(),
            make_machine(packages=(1,), smt=2),
            "SMT: off - one thread for 1 core; second sibling 1 left out (--smt)",
        ),
        (
            LayoutRequest(),
            make_machine(packages=(2,), smt=2),
            "SMT: off - a thread for each of 2 cores; second siblings 2-3 left out (--smt)",
        ),
        (
            LayoutRequest(instances=MAX, ncores=1),
            make_machine(packages=(1,)),
            "layout: 1 instance x 1 core - as many as 1 core holds",
        ),
        (
            LayoutRequest(ncores=2),
            make_machine(packages=(3,)),
            "idle: 1 core - CPU 2: not needed by the layout",
        ),
        (
            LayoutRequest(),
            make_machine(packages=(2,), smt=1, quota=0.5),
            "CPU quota: 0.5 - time for 1 of 2 cores (cgroup v2 /job)",
        ),
        (
            LayoutRequest(),
            make_machine(packages=(1,), quota=0.5),
            "CPU quota: 0.5 - time for 1 of 1 core (cgroup v2 /job)",
        ),
        (
            LayoutRequest(mode=Mode.THROUGHPUT),
            make_machine(packages=(2,), nodes=(1, 1)),
            "layout: 2 instances x 1 core - throughput: one instance for each NUMA node",
        ),
        (
            LayoutRequest(mode=Mode.THROUGHPUT, reserve_cores=1),
            make_machine(packages=(3,), nodes=(1, 2)),
            "layout: 2 instances x 1 core - throughput: one instance for each NUMA node",
        ),
        (
            LayoutRequest(mode=Mode.THROUGHPUT, reserve_cores=1),
            make_machine(packages=(2,), nodes=(1, 1)),
            "warning: --reserve-cores 1 leaves no core in 1 NUMA node",
        ),
        (
            LayoutRequest(mode=Mode.THROUGHPUT),
            make_machine(packages=(3,), nodes=(1, 2)),
            "layout: 2 instances of 1, 2 cores - throughput: one instance for each NUMA node",
        ),
        (
            LayoutRequest(),
            make_machine(packages=(2,), isolated=(1,)),
            "warning: CPU 1 is isolated (isolcpus): the kernel does not spread threads over it; "
            "bind each thread to its CPU (OMP_PROC_BIND), or leave it out with --cpus",
        ),
        (
            LayoutRequest(numa_nodes=(1,)),
            make_machine(packages=(2,), nodes=(1, 1), allowed=(0,), narrowed_by=("cpuset 0",)),
            "error: --numa-nodes 1: node 1 has CPU 1, which is not allowed by cpuset 0; "
            "nodes to plan on: 0",
        ),
        (
            LayoutRequest(mem_policy=MemoryPolicy.BIND),
            make_machine(packages=(4,), nodes=(2, 2), memory_only_nodes=1, allowed_nodes=(2,)),
            "error: --mem-policy bind: instance 0 runs on NUMA nodes 0-1, which have no memory that may "
            "be used; nodes with memory: 2; choose another --mem-policy, or --numa-nodes",
        ),
        (
            LayoutRequest(),
            ONE_EFFICIENCY_CORE,
            "warning: 1 E-core is left out (CPU 2); use it too with --ecores include",
        ),
        (
            LayoutRequest(ecores=ECores.EXCLUDE),
            ONE_EFFICIENCY_CORE,
            "E-cores: exclude - CPU 2 left out as asked",
        ),
        (
            LayoutRequest(ecores=ECores.ONLY),
            ONE_EFFICIENCY_CORE,
            "E-cores: only - E-cores only, as asked; CPUs 0-1 left out",
        ),
        (
            LayoutRequest(cpus=(2,), ecores=ECores.ONLY),
            ONE_EFFICIENCY_CORE,
            "E-cores: only - E-cores only, as asked",
        ),
        (
            LayoutRequest(cpus=(2,), ecores=ECores.EXCLUDE),
            ONE_EFFICIENCY_CORE,
            "error: --ecores exclude: CPU 2 is an efficiency core; use --ecores include",
        ),
        (
            LayoutRequest(cpus=(1,), ecores=ECores.ONLY),
            ONE_EFFICIENCY_CORE,
            "error: --ecores only: there are no E-cores on CPU 1",
        ),
    ],
)
def test_a_line_of_a_plan(request_: LayoutRequest, machine: Machine, expected: str) -> None:
    lines = text_of(request_, machine).splitlines()
    assert expected in lines
    assert not [line for line in lines if WRONG.search(line)]
