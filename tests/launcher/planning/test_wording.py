# SPDX-License-Identifier: Apache-2.0
"""One of a thing is not called several: every text of a plan, on machines that have one of each."""

from __future__ import annotations

import re

import pytest
from tests.launcher.options.settings import layout_of
from tests.launcher.planning.shapes import make_machine
from tests.launcher.planning.test_golden_plans import GOLDEN

from xlaunch.errors import UsageError
from xlaunch.machine import flat_machine
from xlaunch.machine.topology import CoreKind, Machine
from xlaunch.planning import plan
from xlaunch.planning.rendering import render_plan
from xlaunch.text import name_numbers

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

WITH_QUOTA = make_machine(packages=(2,), quota=1.0)
IN_SLURM = WITH_QUOTA._replace(
    limits=WITH_QUOTA.limits._replace(cpu_quota_source="SLURM_CPUS_ON_NODE")
)


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


ONE, TWO, THREE = (make_machine(packages=(count,)) for count in (1, 2, 3))
NODES_OF_1, NODES_OF_1_AND_2 = (
    make_machine(packages=(sum(nodes),), nodes=nodes) for nodes in ((1, 1), (1, 2))
)
BY_NODE = "throughput: one instance for each NUMA node"
LINES = [
    (ONE, "--ncores 2", "error: 1 instance x 2 cores needs 2 cores and 1 is allowed: at most "
     "1 instance of 1 core; or --oversubscribe"),
    (TWO, "--instances 3 --ncores 4", "error: 3 instances x 4 cores need 12 cores and 2 are "
     "allowed: at most 2 instances of 1 core, or 1 of 2; or --oversubscribe"),
    (make_machine(packages=(1,), smt=2), "",
     "SMT: off - one thread for 1 core; second sibling 1 left out (--smt)"),
    (make_machine(packages=(2,), smt=2), "",
     "SMT: off - a thread for each of 2 cores; second siblings 2-3 left out (--smt)"),
    (ONE, "--instances max --ncores 1", "layout: 1 instance x 1 core - as many as 1 core holds"),
    (THREE, "--ncores 2", "idle: 1 core - CPU 2: not needed by the layout"),
    (make_machine(packages=(2,), quota=0.5), "",
     "CPU quota: 0.5 - time for 1 of 2 cores (cgroup v2 /job)"),
    (make_machine(packages=(1,), quota=0.5), "",
     "CPU quota: 0.5 - time for 1 of 1 core (cgroup v2 /job)"),
    (IN_SLURM, "",
     "binding: no - Slurm gives this job no CPUs of its own: other jobs would bind to the same ones"),
    (NODES_OF_1, "--mode throughput", f"layout: 2 instances x 1 core - {BY_NODE}"),
    (NODES_OF_1_AND_2, "--mode throughput --reserve-cores 1",
     f"layout: 2 instances x 1 core - {BY_NODE}"),
    (NODES_OF_1, "--mode throughput --reserve-cores 1",
     "warning: --reserve-cores 1 leaves no core in 1 NUMA node"),
    (NODES_OF_1_AND_2, "--mode throughput", f"layout: 2 instances of 1, 2 cores - {BY_NODE}"),
    (make_machine(packages=(2,), isolated=(1,)), "",
     "warning: CPU 1 is isolated (isolcpus): the kernel does not spread threads over it; bind "
     "each thread to its CPU (OMP_PROC_BIND), or leave it out with --cpus"),
    (make_machine(packages=(2,), nodes=(1, 1), allowed=(0,), narrowed_by=("cpuset 0",)),
     "--numa-nodes 1", "error: --numa-nodes 1: node 1 has CPU 1, which is not allowed by cpuset 0; "
     "nodes to plan on: 0"),
    (make_machine(packages=(4,), nodes=(2, 2), memory_only_nodes=1, allowed_nodes=(2,)),
     "--mem-policy bind", "error: --mem-policy bind: instance 0 runs on NUMA nodes 0-1, which have "
     "no memory that may be used; nodes with memory: 2; choose another --mem-policy, or --numa-nodes"),
    (ONE, "", "memory: none - no NUMA nodes to choose from: nothing to set"),
    (TWO._replace(topology=TWO.topology._replace(cores_known=False)), "",
     "cores: 2 - core siblings are not known: each CPU is a core"),
    (flat_machine(2, "darwin"), "",
     "binding: no - this system has no CPU masks: threads go anywhere"),
    (ONE_EFFICIENCY_CORE, "",
     "warning: 1 E-core is left out (CPU 2); use it too with --ecores include"),
    (ONE_EFFICIENCY_CORE, "--ecores exclude", "E-cores: exclude - CPU 2 left out as asked"),
    (ONE_EFFICIENCY_CORE, "--ecores only",
     "E-cores: only - E-cores only, as asked; CPUs 0-1 left out"),
    (ONE_EFFICIENCY_CORE, "--cpus 2 --ecores only", "E-cores: only - E-cores only, as asked"),
    (ONE_EFFICIENCY_CORE, "--cpus 2 --ecores exclude",
     "error: --ecores exclude: CPU 2 is an efficiency core; use --ecores include"),
    (ONE_EFFICIENCY_CORE, "--cpus 1 --ecores only",
     "error: --ecores only: there are no E-cores on CPU 1"),
]  # fmt: skip


@pytest.mark.parametrize(("machine", "options", "expected"), LINES)
def test_a_line_of_a_plan(machine: Machine, options: str, expected: str) -> None:
    try:
        text = render_plan(plan(layout_of(options), machine), machine, explain=True)
    except UsageError as error:
        text = f"error: {error}"
    lines = text.splitlines()
    assert expected in lines
    assert not [line for line in lines if WRONG.search(line)]
