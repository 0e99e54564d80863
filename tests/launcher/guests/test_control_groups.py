# SPDX-License-Identifier: Apache-2.0
"""Control groups of a real kernel: what they grant is what is said, planned and kept to."""

from __future__ import annotations

from typing import Any

import pytest
from tests.launcher.guests.conftest import MakeGroup
from tests.launcher.guests.guest import GROUPS, Guest
from tests.launcher.guests.occupants import OCCUPANT, occupy

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

LIMITS = """
import json
from xlaunch.machine import read_machine
print(json.dumps(read_machine().limits._asdict()))
"""


def limits(guest: Guest, group: str) -> dict[str, Any]:
    """All that `xlaunch.machine` reads of the limits inside `group`."""
    return guest.python("-c", LIMITS, group=group).json()


def test_cpuset_narrows_the_machine_the_plan_and_the_masks(
    server: Guest, make_group: MakeGroup
) -> None:
    group = make_group("narrow", cpuset_cpus="2-5,8")
    machine = server.machine(group)
    assert machine["allowed_cpus"] == [2, 3, 4, 5, 8]
    assert machine["online_cpus"] == list(range(16))
    plan = server.plan("--instances", "max", "--ncores", "1", group=group)
    assert plan["allowed_cpus"] == [2, 3, 4, 5, 8]
    assert [instance["cpus"] for instance in plan["instances"]] == [[2], [4], [8]]
    launch = occupy(server, "--instances", "max", "--ncores", "1", group=group)
    assert [launch.said[index]["mask"] for index in range(3)] == ["2", "4", "8"]


def test_cpuset_of_an_outer_group_holds_in_an_inner_one(
    server: Guest, make_group: MakeGroup
) -> None:
    group = make_group("outer/inner")
    server.write(f"{GROUPS}/outer/cpuset.cpus", "4-7")
    found = limits(server, group)
    assert found["allowed_cpus"] == [4, 5, 6, 7]
    assert found["narrowed_by"] == [f"cpuset 4-7 (cgroup v2 {GROUPS}/outer)"]


def test_memory_nodes_of_a_cpuset_are_the_only_ones_named(
    server: Guest, make_group: MakeGroup
) -> None:
    group = make_group("mems", cpuset_mems="1-2")
    assert server.machine(group)["allowed_numa_nodes"] == [1, 2]
    launch = occupy(server, "--mem-policy", "interleave", occupant=("--mib", "4"), group=group)
    assert launch.said[0]["policy"] == ["interleave", [1, 2]]
    assert launch.said[0]["memory_nodes"] == "1-2"
    refused = server.xlaunch(
        *("--mode", "throughput", "--mem-policy", "bind", "--", *OCCUPANT), group=group, check=False
    )
    assert refused.code == 2
    assert "instance 0 runs on NUMA node 0, which has no memory that may be used" in refused.stderr


def test_quota_limits_threads_and_leaves_masks_as_they_are(
    server: Guest, make_group: MakeGroup
) -> None:
    group = make_group("quota", cpu_max="300000 100000")
    machine, plan = server.machine(group), server.plan(group=group)
    assert machine["cpu_quota"] == 3.0
    assert "allowed_cpus" not in machine
    assert (plan["bound"], plan["instances"][0]["thread_count"]) == (False, 3)
    launch = occupy(server, group=group)
    assert (launch.said[0]["mask"], launch.said[0]["threads"]) == ("0-15", "3")
    refused = server.xlaunch("plan", "--instances", "4", "--ncores", "1", group=group, check=False)
    assert refused.code == 2
    assert f"the CPU quota of 3 (cgroup v2 {GROUPS}/quota) is worth 3" in refused.stderr


def test_the_tightest_quota_on_the_way_up_counts(server: Guest, make_group: MakeGroup) -> None:
    group = make_group("tight/loose", cpu_max="800000 100000")
    server.write(f"{GROUPS}/tight/cpu.max", "150000 100000")
    found = limits(server, group)
    assert found["cpu_quota"] == 1.5
    assert found["cpu_quota_source"] == f"cgroup v2 {GROUPS}/tight"


@pytest.mark.parametrize(
    ("quota", "masks"), [("200000", ["8-15"] * 2), ("800000", ["8,10", "12,14"])]
)
def test_cpuset_is_divided_up_where_the_quota_grants_all_of_it(
    server: Guest, make_group: MakeGroup, quota: str, masks: list[str]
) -> None:
    group = make_group(f"both-{quota}", cpuset_cpus="8-15", cpu_max=f"{quota} 100000")
    plan = server.plan("--instances", "2", group=group)
    assert plan["bound"] == (quota == "800000")
    launch = occupy(server, "--instances", "2", group=group)
    assert [launch.said[index]["mask"] for index in (0, 1)] == masks


def test_memory_limit_is_read_from_whichever_group_sets_the_tightest(
    server: Guest, make_group: MakeGroup
) -> None:
    group = make_group("memory/inner", memory_max="200M")
    server.write(f"{GROUPS}/memory/memory.max", "100M")
    found = limits(server, group)
    assert found["memory_limit_bytes"] == 100 << 20
    assert found["memory_limit_source"] == f"cgroup v2 {GROUPS}/memory"
    assert "memory limit: 0.1 GiB" in server.xlaunch("topology", group=group).stdout


def test_the_one_that_breaks_a_memory_limit_is_reported(
    server: Guest, make_group: MakeGroup
) -> None:
    group = make_group("killed", memory_max="120M")
    options = ("--instances", "1", "--ncores", "1")
    launch = occupy(server, *options, occupant=("--mib", "200"), check=False, group=group)
    assert (launch.code, launch.report[0]["signal"]) == (137, "SIGKILL")
    assert launch.report[0]["peak_rss_bytes"] <= 120 << 20


def test_partition_takes_its_cpus_from_everybody_else(server: Guest, make_group: MakeGroup) -> None:
    group = make_group("partition", cpuset_cpus="12-15")
    server.write(f"{group}/cpuset.cpus.partition", "root")
    try:
        assert server.read(f"{group}/cpuset.cpus.partition") == "root\n"
        assert server.machine(group)["allowed_cpus"] == [12, 13, 14, 15]
        assert server.machine()["allowed_cpus"] == list(range(12))
        launch = occupy(server, "--mode", "throughput", group=group)
        assert launch.said[0]["mask"] == "12,14"
        assert len(server.plan("--mode", "throughput")["instances"]) == 3
    finally:
        server.write(f"{group}/cpuset.cpus.partition", "member")
