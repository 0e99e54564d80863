# SPDX-License-Identifier: Apache-2.0
"""CPUs that are switched off: left out of the machine, of plans and of masks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from tests.launcher.guests.conftest import MakeGroup
from tests.launcher.guests.guest import Guest
from tests.launcher.guests.occupants import occupy

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]


@contextlib.contextmanager
def offline(guest: Guest, *cpus: int) -> Iterator[None]:
    """Within the block these CPUs are off."""
    files = [f"/sys/devices/system/cpu/cpu{cpu}/online" for cpu in cpus]
    for file in files:
        guest.write(file, "0")
    try:
        yield
    finally:
        for file in files:
            guest.write(file, "1")


def test_sibling_that_is_off_leaves_its_core_with_one_thread(server: Guest) -> None:
    with offline(server, 5):
        machine = server.machine()
        assert machine["offline_cpus"] == [5]
        assert machine["cores"][2] == [4]
        assert machine["numa_nodes"][1]["cpus"] == [4, 6, 7]
        launch = occupy(server, "--mode", "throughput", "--smt", occupant=("--everywhere",))
        assert launch.said[1]["mask"] == "4,6-7"
        assert launch.said[1]["ran_on"] == [4, 6, 7]


def test_first_sibling_that_is_off_gives_its_core_to_the_second(server: Guest) -> None:
    with offline(server, 4):
        launch = occupy(server, "--mode", "throughput", occupant=("--mib", "1"))
        assert launch.said[1]["mask"] == "5-6"
        assert launch.said[1]["policy"] == ["preferred", [1]]


def test_node_whose_cpus_are_all_off_is_left_out(server: Guest) -> None:
    with offline(server, 8, 9, 10, 11):
        machine = server.machine()
        assert [len(node["cpus"]) for node in machine["numa_nodes"]] == [4, 4, 0, 4, 0]
        launch = occupy(server, "--mode", "throughput", "--mem-policy", "bind")
        assert [launch.said[index]["mask"] for index in range(3)] == ["0,2", "4,6", "12,14"]
        refused = server.xlaunch("plan", "--cpus", "8-12", check=False)
        assert refused.code == 2
        assert "CPUs 8-11 are offline; allowed: 0-7,12-15" in refused.stderr


def test_cpu_that_is_off_is_left_out_of_a_cpuset(server: Guest, make_group: MakeGroup) -> None:
    group = make_group("hotplug", cpuset_cpus="0-3")
    with offline(server, 2):
        assert server.machine(group)["allowed_cpus"] == [0, 1, 3]
        launch = occupy(server, "--instances", "max", "--ncores", "1", group=group)
        assert [launch.said[index]["mask"] for index in (0, 1)] == ["0", "3"]


def test_what_was_switched_on_again_is_used_again(server: Guest) -> None:
    with offline(server, 15):
        pass
    assert server.machine()["online_cpus"] == list(range(16))
