# SPDX-License-Identifier: Apache-2.0
"""`xlaunch topology` as the command line calls it."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import ask, run
from tests.launcher.machine.trees import CPU, write_files

from xlaunch.machine import read_machine
from xlaunch.machine.description import describe_machine


def facts_of(*words: str) -> dict[str, Any]:
    """What ``xlaunch topology --json WORDS`` says."""
    told: dict[str, Any] = json.loads(ask("topology", "--json", *words).out)
    return told


def test_json_of_a_made_up_machine() -> None:
    assert (
        ask("topology", "--json", "--synthetic", "package:2 core:1").out
        == b"""\
{
 "arch": "x86_64",
 "online_cpus": [0, 1],
 "offline_cpus": [],
 "packages": [
  {"id": 0, "cpus": [0]},
  {"id": 1, "cpus": [1]}
 ],
 "numa_nodes": [
  {"id": 0, "cpus": [0, 1], "memory_bytes": 8589934592}
 ],
 "l3_groups": [],
 "cores": [[0], [1]]
}
"""
    )


def test_json_of_every_key_in_the_order_of_the_captures_readme(
    golden: Golden, tmp_path: Path
) -> None:
    files = {f"{CPU}/online": "0-3", f"{CPU}/isolated": "3", f"{CPU}/cpu4/": ""}
    for cpu in range(4):
        pair = "0-1" if cpu < 2 else "2-3"
        for name, text in (
            ("topology/core_cpus_list", str(cpu)),
            ("topology/package_cpus_list", "0-3"),
            ("topology/die_cpus_list", pair),
            ("topology/cluster_cpus_list", "0-2" if cpu < 3 else "3"),
            ("cache/index0/level", "2"),
            ("cache/index0/shared_cpu_list", pair),
            ("cpu_capacity", "1024" if cpu < 2 else "512"),
        ):
            files[f"{CPU}/cpu{cpu}/{name}"] = text
    files |= {
        "sys/devices/system/node/node0/cpulist": "0-3",
        "sys/devices/system/node/node1/cpulist": "",
        "proc/self/mountinfo": "26 23 0:23 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
        "proc/self/cgroup": "0::/",
        "sys/fs/cgroup/cpuset.cpus": "0-2",
        "sys/fs/cgroup/cpuset.mems": "0",
        "sys/fs/cgroup/cpu.max": "50000 100000",
    }
    facts = facts_of("--sysroot", write_files(tmp_path, files))
    assert list(facts) == [
        "arch", "online_cpus", "offline_cpus", "packages", "dies", "numa_nodes", "l3_groups",
        "l2_groups", "clusters", "cores", "core_kinds", "allowed_cpus", "allowed_numa_nodes",
        "allowed_via", "cpu_quota", "isolated_cpus",
    ]  # fmt: skip
    slow = {"cpus": [2, 3], "efficiency": 0, "attrs": {"LinuxCapacity": "512"}}
    assert facts["core_kinds"][0] == slow
    golden(facts["allowed_via"])


def test_cores_that_are_not_known_are_null(golden: Golden, tmp_path: Path) -> None:
    files = {f"{CPU}/online": "0", f"{CPU}/cpu0/": ""}
    facts = facts_of("--sysroot", write_files(tmp_path, files))
    assert facts["cores"] is None
    golden(facts["notes"])


def test_this_machine_is_drawn_plain_where_output_is_no_terminal() -> None:
    out = ask("topology").out.decode()
    assert f"{len(read_machine().topology.online_cpus)} CPU" in out
    assert out.isascii()
    assert "\x1b" not in out


def test_capture_and_read_back_through_the_command(tmp_path: Path) -> None:
    path = tmp_path / "this.tar.xz"
    told = f"{path}: this machine, for --sysroot {path}\n"
    assert ask("topology", "--capture", path) == (0, b"", told)
    expected = json.loads(json.dumps(describe_machine(read_machine())))
    assert facts_of("--sysroot", str(path)) == expected
    assert list(tmp_path.iterdir()) == [path]


def test_bad_input_is_one_line(golden: Golden) -> None:
    said = []
    for words in (
        ["--sysroot", "/proc/gone"], ["--sysroot", ""], ["--sysroot", "/proc"], ["--sysroot", "/etc/passwd"],
        ["--sysroot", "/", "--synthetic", "core:1"], ["--capture", "a.tar.xz", "--json"],
        ["--synthetic", "cpu:4"],
    ):  # fmt: skip
        said += [f"$ xlaunch topology {shlex.join(words)}", ask("topology", *words).refused()]
    golden(said)


def test_other_systems_are_flat_and_say_so(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    # Neither exists there.
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.delattr(os, "uname")
    machine = read_machine()
    assert machine.topology.online_cpus == machine.limits.allowed_cpus == (0, 1, 2)
    golden(machine.notes)


def test_reading_a_machine_imports_only_cheap_modules() -> None:
    program = (
        "import sys; before = set(sys.modules)\n"
        "from xlaunch.machine import read_machine; read_machine()\n"
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    loaded = run([sys.executable, "-S", "-c", program], env=environment).out.decode().split()
    dear = {"dataclasses", "inspect", "json", "pathlib", "rich", "tarfile", "click", "psutil"}
    assert dear.isdisjoint(loaded)
    assert "xlaunch" in loaded
