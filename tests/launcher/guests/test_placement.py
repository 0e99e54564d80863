# SPDX-License-Identifier: Apache-2.0
"""Where instances run on a real kernel: what was planned, what is in force, what was observed."""

from __future__ import annotations

import pytest
from tests.launcher.guests.guest import Guest, accelerator
from tests.launcher.guests.occupants import OCCUPANT, occupy

from xlaunch.text import format_cpu_list

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

LOOKED_AT_S = "10" if accelerator() == "kvm" else "45"
"""Long enough for a second look at the threads, which waits until the first one has paid off."""


def test_topology_is_the_one_that_was_booted(server: Guest) -> None:
    machine = server.machine()
    dies = [list(range(4 * node, 4 * node + 4)) for node in range(4)]
    assert machine["online_cpus"] == list(range(16))
    assert [package["cpus"] for package in machine["packages"]] == [
        list(range(8)),
        list(range(8, 16)),
    ]
    assert machine["dies"] == machine["l3_groups"] == dies
    assert machine["cores"] == [[cpu, cpu + 1] for cpu in range(0, 16, 2)]
    assert [node["cpus"] for node in machine["numa_nodes"]] == [*dies, []]
    assert machine["numa_nodes"][4]["local_cpus"] == list(range(8, 16))
    assert "notes" not in machine
    assert "allowed_cpus" not in machine


@pytest.mark.parametrize(
    ("options", "masks"),
    [
        (["--mode", "throughput"], ["0,2", "4,6", "8,10", "12,14"]),
        (["--mode", "throughput", "--smt"], ["0-3", "4-7", "8-11", "12-15"]),
        (["--mode", "latency"], ["0,2,4,6", "8,10,12,14"]),
        (["--instances", "2", "--ncores", "1", "--place", "scatter"], ["0", "8"]),
        (["--instances", "2", "--ncores", "1", "--numa-nodes", "3", "--smt"], ["12-13", "14-15"]),
        (["--instances", "2", "--ncores", "3"], ["0,2,4", "8,10,12"]),
    ],
)
def test_masks_are_as_planned_and_threads_run_there(
    server: Guest, options: list[str], masks: list[str]
) -> None:
    planned = server.plan(*options)["instances"]
    assert [format_cpu_list(instance["cpus"]) for instance in planned] == masks
    launch = occupy(server, *options, occupant=("--everywhere",))
    for instance, mask in zip(planned, masks, strict=True):
        said, report = launch.said[instance["index"]], launch.report[instance["index"]]
        assert said["mask"] == mask
        assert said["threads"] == str(instance["thread_count"])
        assert said["ran_on"] == report["cpus_asked"] == instance["cpus"]
        assert set(report["cpus_observed"]) <= set(instance["cpus"])
        assert report["numa_nodes"] == instance["numa_nodes"]
        assert report["pid"] == said["pid"]


def test_report_has_every_cpu_that_a_thread_ran_on(server: Guest) -> None:
    occupant = ("--everywhere", "--stay", LOOKED_AT_S)
    launch = occupy(server, "--mode", "throughput", "--smt", occupant=occupant)
    for node in range(4):
        cpus = list(range(4 * node, 4 * node + 4))
        assert launch.said[node]["ran_on"] == launch.report[node]["cpus_observed"] == cpus


def test_a_program_that_leaves_its_place_is_reported(server: Guest) -> None:
    """The mask is no fence: a program may widen it. The report says where it really ran."""
    occupant = ("--on", "9", "--mib", "1", "--stay", LOOKED_AT_S)
    launch = occupy(server, "--instances", "1", "--ncores", "1", occupant=occupant)
    assert launch.report[0]["cpus_asked"] == [0]
    assert 9 in launch.report[0]["cpus_observed"]
    assert [text for text in launch.warnings if text.startswith("instance 0 also ran on CPU 9:")]


def test_one_instance_alone_replaces_the_launcher_and_is_in_its_place(server: Guest) -> None:
    outcome = server.xlaunch("--numa-nodes", "2", "--", *OCCUPANT)
    (said,) = outcome.json_lines()
    assert (said["mask"], said["policy"]) == ("8,10", ["preferred", [2]])
    assert outcome.stderr == ""


def test_instances_inherit_an_affinity_mask_of_the_launcher(server: Guest) -> None:
    code = (
        "import os, sys\n"
        "os.sched_setaffinity(0, {2, 3, 4, 8})\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'xlaunch', *sys.argv[1:]])"
    )
    machine = server.python("-c", code, "topology", "--json").json()
    assert machine["allowed_cpus"] == [2, 3, 4, 8]
    launch = server.python("-c", code, "--instances", "max", "--no-tag", "--", *OCCUPANT)
    assert sorted(said["mask"] for said in launch.json_lines()) == ["2", "4", "8"]
