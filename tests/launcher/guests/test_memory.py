# SPDX-License-Identifier: Apache-2.0
"""Memory policies in force: what get_mempolicy(2) tells, and the nodes that pages really are on."""

from __future__ import annotations

import pytest
from tests.launcher.guests.guest import Guest
from tests.launcher.guests.initramfs import PYTHON
from tests.launcher.guests.occupants import OCCUPANT, occupy

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

MIB = 24
PAGES = MIB << 8
SMALL_NODE = 3
TOO_MUCH_MIB = 160
"""More than the small node has, less than the others."""


@pytest.mark.parametrize(("memory", "word"), [("preferred", "prefer"), ("bind", "bind")])
def test_pages_are_on_the_instances_own_node(server: Guest, memory: str, word: str) -> None:
    options = ("--mode", "throughput", "--mem-policy", memory)
    launch = occupy(server, *options, occupant=("--mib", str(MIB)))
    for node in range(4):
        said = launch.said[node]
        assert said["policy"] == [memory, [node]]
        assert said["pages"] == {str(node): PAGES}
        assert f" {word}:{node} " in said["line"]


def test_auto_prefers_the_node_of_an_instance_within_one(server: Guest) -> None:
    launch = occupy(server, "--mode", "throughput", occupant=("--mib", "1"))
    assert [launch.said[node]["policy"] for node in range(4)] == [
        ["preferred", [node]] for node in range(4)
    ]


def test_auto_sets_nothing_for_an_instance_across_nodes(server: Guest) -> None:
    occupant = ("--on", "6", "--mib", str(MIB))
    launch = occupy(server, "--mode", "latency", "--instance-index", "0", occupant=occupant)
    assert launch.said[0]["policy"] == ["default", []]
    assert launch.said[0]["pages"] == {"1": PAGES}


def test_interleave_spreads_pages_evenly_over_the_instances_nodes(server: Guest) -> None:
    options = ("--mode", "latency", "--mem-policy", "interleave")
    launch = occupy(server, *options, occupant=("--mib", str(MIB)))
    for index, nodes in enumerate(([0, 1], [2, 3])):
        said = launch.said[index]
        assert said["policy"] == ["interleave", nodes]
        assert sum(said["pages"].values()) == PAGES
        assert [int(node) for node in said["pages"]] == nodes
        assert max(said["pages"].values()) - min(said["pages"].values()) <= PAGES // 100


def test_interleave_over_everything_leaves_out_the_node_that_is_memory_only(server: Guest) -> None:
    launch = occupy(server, "--mem-policy", "interleave", occupant=("--mib", str(MIB)))
    assert launch.said[0]["policy"] == ["interleave", [0, 1, 2, 3]]
    assert set(launch.said[0]["pages"]) == {"0", "1", "2", "3"}


def test_local_takes_the_node_that_first_touches(server: Guest) -> None:
    occupant = ("--on", "10", "--mib", str(MIB))
    launch = occupy(server, "--mem-policy", "local", "--supervise", occupant=occupant)
    assert launch.said[0]["policy"] == ["local", []]
    assert launch.said[0]["pages"] == {"2": PAGES}


def test_bind_to_a_node_too_small_fails_there_and_nowhere_else(server: Guest) -> None:
    """The kernel kills what is bound to the node; whoever is bound to another goes on."""
    options = ("--mode", "throughput", "--mem-policy", "bind", "--on-failure", "continue")
    occupant = ("--mib", str(TOO_MUCH_MIB), "--stay", "5")
    launch = occupy(server, *options, occupant=occupant, check=False)
    assert launch.code == 137
    assert launch.report[SMALL_NODE]["signal"] == "SIGKILL"
    for node in (0, 1, 2):
        assert launch.report[node]["exit_code"] == 0
        assert launch.said[node]["pages"] == {str(node): TOO_MUCH_MIB << 8}


def test_preferred_on_a_node_too_small_takes_the_rest_elsewhere(server: Guest) -> None:
    options = ("--numa-nodes", str(SMALL_NODE), "--mem-policy", "preferred")
    launch = occupy(server, *options, occupant=("--mib", str(TOO_MUCH_MIB)))
    pages = launch.said[0]["pages"]
    assert sum(pages.values()) == TOO_MUCH_MIB << 8
    assert pages[str(SMALL_NODE)] > 64 << 8
    assert len(pages) > 1


def test_no_plan_is_made_on_a_node_that_is_memory_only(server: Guest) -> None:
    outcome = server.xlaunch("--numa-nodes", "4", "--", *OCCUPANT, check=False)
    assert outcome.code == 2
    assert "node 4 has memory but no CPUs; nodes to plan on: 0-3" in outcome.stderr


def test_auto_leaves_an_inherited_policy_and_says_so(server: Guest) -> None:
    under = (*OCCUPANT[1:], "--with", "bind", "1,2", PYTHON, "-m", "xlaunch")
    options = ("--mode", "throughput", "--no-tag", "--", *OCCUPANT, "--mib", "1")
    outcome = server.python(*under, *options)
    assert [said["policy"] for said in outcome.json_lines()] == [["bind", [1, 2]]] * 4
    assert outcome.stderr.count("keeping the inherited memory policy") == 1


def test_a_policy_that_was_asked_for_overrides_an_inherited_one(server: Guest) -> None:
    under = (*OCCUPANT[1:], "--with", "interleave", "1,2", PYTHON, "-m", "xlaunch")
    options = ("--mode", "throughput", "--mem-policy", "bind", "--no-tag", "--", *OCCUPANT)
    said = server.python(*under, *options, "--mib", "1").json_lines()
    assert sorted(one["policy"] for one in said) == [["bind", [node]] for node in range(4)]
