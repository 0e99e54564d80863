# SPDX-License-Identifier: Apache-2.0
"""A machine with an empty socket, a node without memory and one without CPUs, an isolated CPU, and
control groups of version 1 beside version 2."""

from __future__ import annotations

import pytest
from tests.launcher.guests.guest import Guest
from tests.launcher.guests.occupants import OCCUPANT, occupy

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]


def test_what_is_not_there_is_not_shown(odd: Guest) -> None:
    machine = odd.machine()
    assert machine["online_cpus"] == [0, 1, 2, 3, 4, 5]
    assert machine["offline_cpus"] == []  # the empty socket's are possible, not present
    assert [node["cpus"] for node in machine["numa_nodes"]] == [[0, 1], [2, 3], [4, 5], []]
    assert machine["numa_nodes"][1]["memory_bytes"] == 0
    assert "local_cpus" not in machine["numa_nodes"][3]
    assert "allowed_numa_nodes" not in machine


def test_isolated_cpu_is_shown_and_left_alone(odd: Guest) -> None:
    machine = odd.machine()
    assert machine["isolated_cpus"] == [5]
    assert machine["allowed_cpus"] == [0, 1, 2, 3, 4]
    launch = occupy(odd, "--instances", "max", "--ncores", "1")
    assert [launch.said[index]["mask"] for index in sorted(launch.said)] == list("01234")


def test_auto_sets_no_policy_where_the_node_has_no_memory(odd: Guest) -> None:
    launch = occupy(odd, "--mode", "throughput", occupant=("--mib", "4"))
    policies = [launch.said[index]["policy"] for index in range(3)]
    assert policies == [["preferred", [0]], ["default", []], ["preferred", [2]]]
    assert "1" not in launch.said[1]["pages"]


def test_bind_is_refused_where_the_node_has_no_memory(odd: Guest) -> None:
    outcome = odd.xlaunch("--numa-nodes", "1", "--mem-policy", "bind", "--", *OCCUPANT, check=False)
    assert outcome.code == 2
    assert "node 1, which has no memory that may be used; nodes with memory: 0,2" in outcome.stderr


def test_interleave_leaves_out_nodes_without_memory_or_cpus(odd: Guest) -> None:
    launch = occupy(odd, "--mem-policy", "interleave", occupant=("--mib", "4"))
    assert launch.said[0]["policy"] == ["interleave", [0, 2]]
    assert set(launch.said[0]["pages"]) == {"0", "2"}


@pytest.fixture(scope="module")
def version_1(odd: Guest) -> str:
    """The directory under which version 1's hierarchies are mounted, each by its controller's name."""
    for controller in ("cpuset", "cpu", "memory"):
        odd.make_directory(f"/tmp/{controller}/")
        odd.mount("cgroup", f"/tmp/{controller}", controller)
        odd.make_directory(f"/tmp/{controller}/job")
    return "/tmp"


def test_cpuset_of_version_1(odd: Guest, version_1: str) -> None:
    group = f"{version_1}/cpuset/job"
    odd.write(f"{group}/cpuset.mems", "0,2")
    odd.write(f"{group}/cpuset.cpus", "1-3")
    machine = odd.machine(group)
    assert machine["allowed_cpus"] == [1, 2, 3]
    assert machine["allowed_numa_nodes"] == [0, 2]
    launch = occupy(odd, "--instances", "max", "--ncores", "1", group=group)
    assert [launch.said[index]["mask"] for index in range(3)] == ["1", "2", "3"]


def test_quota_of_version_1(odd: Guest, version_1: str) -> None:
    group = f"{version_1}/cpu/job"
    odd.write(f"{group}/cpu.cfs_quota_us", "200000")
    machine, launch = odd.machine(group), occupy(odd, group=group)
    assert machine["cpu_quota"] == 2.0
    # A quota does not bind: the mask is the inherited one, with the CPUs of the empty socket.
    assert (launch.said[0]["mask"], launch.said[0]["threads"]) == ("0-4,6-7", "2")


def test_memory_limit_of_version_1(odd: Guest, version_1: str) -> None:
    group = f"{version_1}/memory/job"
    odd.write(f"{group}/memory.limit_in_bytes", "64M")
    drawn = odd.xlaunch("topology", group=group).stdout
    assert f"memory limit: 0.1 GiB (cgroup v1 {group})" in drawn
