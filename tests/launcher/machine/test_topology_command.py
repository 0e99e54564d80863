# SPDX-License-Identifier: Apache-2.0
"""`xlaunch topology` as the command line calls it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from tests.launcher.machine.trees import CPU, write_files

import xlaunch.machine
from xlaunch.cli.topology import command
from xlaunch.errors import UsageError
from xlaunch.machine import read_machine
from xlaunch.machine.description import describe_machine


def run(*args: str) -> None:
    command.main(args=list(args), prog_name="xlaunch topology", standalone_mode=False)


def test_json_of_a_made_up_machine(capsys: pytest.CaptureFixture[str]) -> None:
    run("--json", "--synthetic", "package:2 core:1")
    assert (
        capsys.readouterr().out
        == """\
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
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
    run("--json", "--sysroot", write_files(tmp_path, files))
    facts = json.loads(capsys.readouterr().out)
    assert list(facts) == [
        "arch", "online_cpus", "offline_cpus", "packages", "dies", "numa_nodes", "l3_groups",
        "l2_groups", "clusters", "cores", "core_kinds", "allowed_cpus", "allowed_numa_nodes",
        "allowed_via", "cpu_quota", "isolated_cpus",
    ]  # fmt: skip
    assert facts["core_kinds"][0] == {
        "cpus": [2, 3],
        "efficiency": 0,
        "attrs": {"LinuxCapacity": "512"},
    }
    assert facts["allowed_via"] == "cgroup v2 cpuset at /sys/fs/cgroup"


def test_cores_that_are_not_known_are_null(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("--json", "--sysroot", write_files(tmp_path, {f"{CPU}/online": "0", f"{CPU}/cpu0/": ""}))
    facts = json.loads(capsys.readouterr().out)
    assert facts["cores"] is None
    assert facts["notes"] == "the SMT siblings of any CPU are not known; each counts as a core"


def test_this_machine_is_drawn_plain_where_output_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run()
    assert f"{len(read_machine().topology.online_cpus)} CPU" in (out := capsys.readouterr().out)
    assert out.isascii()
    assert "\x1b" not in out


def test_capture_and_read_back_through_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "this.tar.xz")
    run("--capture", path)
    assert capsys.readouterr().out == ""
    run("--json", "--sysroot", path)
    captured = json.loads(capsys.readouterr().out)
    assert captured == json.loads(json.dumps(describe_machine(read_machine())))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["--sysroot", "/proc/gone"],
            "/proc/gone: no such file or directory; --sysroot takes a directory that holds",
        ),
        (
            ["--sysroot", ""],
            "'': no such file or directory; --sysroot takes a directory that holds",
        ),
        (["--sysroot", "/proc"], "/proc: holds no sys/devices/system/cpu; --sysroot takes"),
        (["--sysroot", "/etc/passwd"], "/etc/passwd: not a capture that can be unpacked"),
        (
            ["--sysroot", "/", "--synthetic", "core:1"],
            "--sysroot contradicts --synthetic: each names",
        ),
        (["--capture", "a.tar.xz", "--json"], "--capture writes this machine to a file"),
        (["--synthetic", "cpu:4"], "--synthetic 'cpu:4': there is no level 'cpu'"),
    ],
)
def test_bad_input_is_one_line(args: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        run(*args)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_unknown_options_are_clicks_own_errors() -> None:
    with pytest.raises(click.NoSuchOption):
        run("--jsn")


def test_other_systems_are_flat_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    # Neither exists there.
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.delattr(os, "uname")
    machine = xlaunch.machine.read_machine()
    assert machine.topology.online_cpus == machine.limits.allowed_cpus == (0, 1, 2)
    assert machine.notes == (
        "on darwin only the number of CPUs is known, and instances are not bound",
    )


def test_reading_a_machine_imports_only_cheap_modules() -> None:
    program = (
        "import sys; before = set(sys.modules)\n"
        "from xlaunch.machine import read_machine; read_machine()\n"
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    dear = {"dataclasses", "inspect", "json", "pathlib", "rich", "tarfile", "click", "psutil"}
    assert dear.isdisjoint(done.stdout.split())
    assert "xlaunch" in done.stdout.split()
