# SPDX-License-Identifier: Apache-2.0
"""Machines made up from text, read back by the reader of all machines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.golden import Golden

from xlaunch.errors import UsageError
from xlaunch.machine import machine_of
from xlaunch.machine.synthetic import Level, parse_levels
from xlaunch.machine.topology import NumaNode, Package, Topology

GIB = 1 << 30


def made_up(text: str) -> Topology:
    with machine_of(None, text) as machine:
        assert machine.notes == ()
        assert machine.limits.allowed_cpus == machine.topology.online_cpus
        return machine.topology


def test_every_level() -> None:
    assert made_up("package:2 die:2 node:1 l3:1 core:2 pu:2") == Topology(
        architecture="x86_64",
        online_cpus=tuple(range(16)),
        offline_cpus=(),
        packages=(Package(0, (0, 1, 2, 3, 8, 9, 10, 11)), Package(1, (4, 5, 6, 7, 12, 13, 14, 15))),
        dies=((0, 1, 8, 9), (2, 3, 10, 11), (4, 5, 12, 13), (6, 7, 14, 15)),
        clusters=(),
        numa_nodes=(
            NumaNode(0, (0, 1, 8, 9), 8 * GIB, (10, 12, 32, 32)),
            NumaNode(1, (2, 3, 10, 11), 8 * GIB, (12, 10, 32, 32)),
            NumaNode(2, (4, 5, 12, 13), 8 * GIB, (32, 32, 10, 12)),
            NumaNode(3, (6, 7, 14, 15), 8 * GIB, (32, 32, 12, 10)),
        ),
        l3_groups=((0, 1, 8, 9), (2, 3, 10, 11), (4, 5, 12, 13), (6, 7, 14, 15)),
        l2_groups=(),
        cores=((0, 8), (1, 9), (2, 10), (3, 11), (4, 12), (5, 13), (6, 14), (7, 15)),
        cores_known=True,
        core_kinds=(),
        isolated_cpus=(),
    )


def test_one_package_of_plain_cores() -> None:
    topology = made_up("core:4")
    assert topology.packages == (Package(0, (0, 1, 2, 3)),)
    assert topology.cores == ((0,), (1,), (2,), (3,))
    assert topology.l3_groups == ()
    assert topology.numa_nodes == (NumaNode(0, (0, 1, 2, 3), 16 * GIB, (10,)),)


def test_levels_within_others() -> None:
    topology = made_up("node:2 package:2 core:1 pu:2")
    assert [node.cpus for node in topology.numa_nodes] == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert [package.cpus for package in topology.packages] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    topology = made_up("package:1 node:2 l3:2 core:2")
    assert topology.l3_groups == ((0, 1), (2, 3), (4, 5), (6, 7))


def test_a_thousand_cpus() -> None:
    topology = made_up("package:2 node:4 l3:8 core:8 pu:2")
    assert len(topology.online_cpus) == 1024
    assert [len(package.cpus) for package in topology.packages] == [512, 512]
    assert [len(node.cpus) for node in topology.numa_nodes] == [128] * 8
    assert topology.l3_groups == tuple(
        (*range(low, low + 8), *range(512 + low, 512 + low + 8)) for low in range(0, 512, 8)
    )
    assert topology.cores == tuple((core, core + 512) for core in range(512))


def test_cores_and_siblings_are_one_each_where_they_are_not_named() -> None:
    assert parse_levels("Package:2") == (Level("package", 2), Level("core", 1), Level("pu", 1))
    assert parse_levels("package:2 pu:4")[1:] == (Level("core", 1), Level("pu", 4))


@pytest.mark.parametrize(
    "text",
    [
        "socket:2 core:4", "package:2 core:0", "package core:4", "core:-1", "core:four", "core:2 core:2", "",
        "core:4 node:2", "die:2 package:2", "pu:2 core:4", "package:99 core:99",
    ],
)  # fmt: skip
def test_bad_text_says_what_is_wrong_and_which_levels_there_are(golden: Golden, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_levels(text)
    golden(str(caught.value))


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_leaves_no_files_behind(name: str, tmp_path: Path) -> None:
    script = f"""
import signal
from xlaunch.machine import machine_of
signal.signal(signal.SIGINT, signal.SIG_DFL)
with machine_of(None, "core:2"):
    signal.raise_signal(signal.{name})
"""
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run((sys.executable, "-c", script), env=environment, check=False)
    assert done.returncode == -signal.Signals[name]
    assert list(tmp_path.iterdir()) == []
