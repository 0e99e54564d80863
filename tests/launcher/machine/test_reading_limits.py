# SPDX-License-Identifier: Apache-2.0
"""Affinity masks and control groups of both versions, on trees of eight CPUs and two nodes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.launcher.machine.trees import CPU, NODE, write_files

from xlaunch.machine import read_machine
from xlaunch.machine.topology import Limits

ALL = tuple(range(8))
GROUPS = "sys/fs/cgroup"


def limits(root: Path, files: dict[str, str]) -> Limits:
    machine = {
        f"{CPU}/online": "0-7",
        **{f"{CPU}/cpu{cpu}/": "" for cpu in ALL},
        f"{NODE}/node0/cpulist": "0-3",
        f"{NODE}/node1/cpulist": "4-7",
    }
    return read_machine(write_files(root, machine | files)).limits


def v2(own: str, *files: str) -> dict[str, str]:
    """Version 2, and this process in the group `own`; `files` have a path below the mount and a text."""
    return {
        "proc/self/mountinfo": "26 23 0:23 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate",
        "proc/self/cgroup": f"0::{own}",
        **below(GROUPS, *files),
    }


def below(directory: str, *files: str) -> dict[str, str]:
    """**Ex.:** ``below("dev/cpuset", "batch/cpus 5")``"""
    found = (file.partition(" ") for file in files)
    return {f"{directory}/{path}": text for path, _, text in found}


def v1_mount(
    controller: str, mounted: str = "/", directory: str | None = None, options: str = ""
) -> str:
    directory = directory or f"/sys/fs/cgroup/{controller}"
    return f"30 25 0:26 {mounted} {directory} rw,relatime - cgroup cgroup rw,{controller}{options}"


CASES: dict[str, tuple[dict[str, str], dict[str, object]]] = {
    "nothing": ({}, Limits(ALL, (0, 1), (), None, None, None, None)._asdict()),
    "the affinity mask of a captured process": (
        {"proc/self/status": "Name:\tsh\nCpus_allowed:\tff\nCpus_allowed_list:\t2-3,9"},
        {"allowed_cpus": (2, 3), "narrowed_by": ("affinity mask 2-3,9",)},
    ),
    "the mask of old kernels":
        ({"proc/self/status": "Cpus_allowed:\t00000000,0000000c"}, {"allowed_cpus": (2, 3)}),
    "v2: an effective cpuset, a quota and memory": (
        v2(
            "/job",
            "job/cpuset.cpus.effective 4-7", "job/cpuset.mems.effective 1",
            "job/cpu.max 150000 100000", "job/memory.max 1073741824",
        ),
        Limits(
            allowed_cpus=(4, 5, 6, 7),
            allowed_nodes=(1,),
            narrowed_by=("cpuset 4-7 (cgroup v2 /sys/fs/cgroup/job)",),
            cpu_quota=1.5,
            cpu_quota_source="cgroup v2 /sys/fs/cgroup/job",
            memory_limit_bytes=1 << 30,
            memory_limit_source="cgroup v2 /sys/fs/cgroup/job",
            narrowed_via=("cgroup v2 cpuset at /sys/fs/cgroup",),
        )._asdict(),
    ),
    "v2: a level without the controller inherits": (
        # Threaded groups, and groups below which the controller is not enabled, have no such files.
        v2(
            "/a/b",
            "a/b/cgroup.type threaded", "a/cpuset.cpus.effective 0-1", "a/memory.max 5000",
        ),
        {"allowed_cpus": (0, 1), "memory_limit_bytes": 5000},
    ),
    "v2: the tightest of all levels": (
        v2(
            "/a/b/c",
            "a/b/c/cpu.max max 100000", "a/b/cpu.max 400000 50000", "a/cpu.max 300000 100000",
            "a/b/c/memory.max 3000", "a/b/memory.max 2000", "a/memory.max max",
        ),
        {
            "cpu_quota": 3.0,
            "cpu_quota_source": "cgroup v2 /sys/fs/cgroup/a",
            "memory_limit_bytes": 2000,
            "memory_limit_source": "cgroup v2 /sys/fs/cgroup/a/b",
        },
    ),
    **{
        f"v2: memory is taken back early from {high}": (
            v2("/job", "job/memory.max 5000", f"job/memory.high {high}"),
            {"memory_limit_bytes": expected},
        )
        for high, expected in (("3000", 3000), ("7000", 5000), ("max", 5000))
    },
    "v2: an empty effective set inherits": (
        v2("/a/b", "a/b/cpuset.cpus.effective ", "a/b/cpuset.cpus ", "a/cpuset.cpus.effective 2-5"),
        {"allowed_cpus": (2, 3, 4, 5)},
    ),
    "v2: without an effective file, the set that was asked for":
        (v2("/a", "a/cpuset.cpus 6-9"), {"allowed_cpus": (6, 7)}),
    "v2: what is in force rather than what was asked for":
        (v2("/a", "a/cpuset.cpus 0-7", "a/cpuset.cpus.effective 4-5"), {"allowed_cpus": (4, 5)}),
    "v2: a partition owns what its parent lost": (
        v2("/part", "cpuset.cpus.effective 0-3", "part/cpuset.cpus.partition root",
         "part/cpuset.cpus.effective 4-7"),
        {"allowed_cpus": (4, 5, 6, 7)},
    ),
    "v2: a set that all levels share is the outermost's": (
        v2("/a/b", "cpuset.cpus.effective 0-7", "a/cpuset.cpus.effective 0-1",
         "a/b/cpuset.cpus.effective 0-1"),
        {"narrowed_by": ("cpuset 0-1 (cgroup v2 /sys/fs/cgroup/a)",)},
    ),
    "v2: a container with a namespace of its own": (
        v2("/", "cpuset.cpus.effective 6-7", "cpu.max 50000 100000"),
        {"allowed_cpus": (6, 7), "cpu_quota": 0.5},
    ),
    **{
        f"v2: a path that leads nowhere, {path}, begins at the mount": (
            v2(path, "../other/cpuset.cpus.effective 5", "cpuset.cpus.effective 0"),
            {"allowed_cpus": (0,)},
        )
        for path in ("/../other", "/gone/deeper", "/docker/x")
    },
    "v2: a mount point with a space": (
        {"proc/self/mountinfo": "26 23 0:23 / /my\\040groups rw - cgroup2 cgroup2 rw",
         "proc/self/cgroup": "0::/a", "my groups/a/cpuset.cpus.effective": "1"},
        {"allowed_cpus": (1,)},
    ),
    "v2: the usual place without a mount table": (
        {"proc/self/cgroup": "0::/a"}
        | below(GROUPS, "cgroup.controllers cpuset cpu", "a/cpuset.cpus 1"),
        {"allowed_cpus": (1,)},
    ),
    "v2: cpuset and mask together": (
        v2("/a", "a/cpuset.cpus.effective 0-3") | {"proc/self/status": "Cpus_allowed_list:\t2-6"},
        {"allowed_cpus": (2, 3),
         "narrowed_by": ("cpuset 0-3 (cgroup v2 /sys/fs/cgroup/a)", "affinity mask 2-6")},
    ),
    "v2: limits that leave nothing are left out": (
        v2("/a", "a/cpuset.cpus.effective 64-71", "a/cpuset.mems.effective 9"),
        {"allowed_cpus": ALL, "allowed_nodes": (0, 1), "narrowed_by": ()},
    ),
    "v1: cpuset, quota and memory on the way up": (
        {
            "proc/self/mountinfo": "\n".join(map(v1_mount, ("cpuset", "cpu,cpuacct", "memory"))),
            "proc/self/cgroup": "3:memory:/d/x\n2:cpu,cpuacct:/d/x\n1:cpuset:/d/x",
        }
        | below(
            f"{GROUPS}/cpuset/d/x", "cpuset.cpus 1-9", "cpuset.effective_cpus 1-3", "cpuset.mems 0"
        )
        | below(f"{GROUPS}/cpu,cpuacct/d", "x/cpu.cfs_quota_us -1", "x/cpu.cfs_period_us 100000")
        | below(f"{GROUPS}/cpu,cpuacct/d", "cpu.cfs_quota_us 350000", "cpu.cfs_period_us 100000")
        | below(f"{GROUPS}/memory/d", "memory.limit_in_bytes 4096")
        | below(f"{GROUPS}/memory/d/x", "memory.limit_in_bytes 9223372036854771712"),
        {
            "allowed_cpus": (1, 2, 3),
            "allowed_nodes": (0,),
            "narrowed_by": ("cpuset 1-3 (cgroup v1 /sys/fs/cgroup/cpuset/d/x)",),
            "cpu_quota": 3.5,
            "memory_limit_bytes": 4096,
        },
    ),
    "v1: the usual place without a mount table": (
        {"proc/self/cgroup": "1:cpuset:/a"} | below(GROUPS, "cpuset/a/cpuset.cpus 2"),
        {"allowed_cpus": (2,)},
    ),
    **{
        f"v1: {number} is no limit": (
            {"proc/self/mountinfo": v1_mount("memory"), "proc/self/cgroup": "4:memory:/"}
            | below(GROUPS, f"memory/memory.limit_in_bytes {number}"),
            {"memory_limit_bytes": None},
        )
        for number in ("9223372036854771712", "9223372036854710272", "18446744073709551615")
    },
    "v1: files without a prefix": (
        {"proc/self/mountinfo": v1_mount("cpuset", directory="/dev/cpuset", options=",noprefix"),
         "proc/self/cpuset": "/batch"} | below("dev/cpuset/batch", "cpus 5", "mems 1"),
        {"allowed_cpus": (5,), "allowed_nodes": (1,)},
    ),
    "v1: cpusets before control groups": (
        {"proc/mounts": "none /dev/cpuset cpuset rw 0 0", "proc/self/cpuset": "/batch"}
        | below("dev/cpuset/batch", "cpus 0-1"),
        {"allowed_cpus": (0, 1), "narrowed_by": ("cpuset 0-1 (/dev/cpuset/batch)",)},
    ),
    "v1: a container that sees the host's path": (
        # The mount shows /docker/x only, and the path is still the host's.
        {
            "proc/self/mountinfo": v1_mount("cpuset", mounted="/docker/x"),
            "proc/self/cgroup": "1:cpuset:/docker/x/inner",
        }
        | below(f"{GROUPS}/cpuset", "inner/cpuset.cpus 3", "cpuset.cpus 2-3"),
        {"allowed_cpus": (3,)},
    ),
    "v2 below unified, beside v1": (
        {
            "proc/self/mountinfo": v1_mount("cpuset")
            + "\n41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
            "proc/self/cgroup": "1:cpuset:/one\n0::/two",
        }
        | below(GROUPS, "cpuset/one/cpuset.cpus 0-3")
        | below(f"{GROUPS}/unified/two", "cpu.max 200000 100000", "memory.max 777"),
        {"allowed_cpus": (0, 1, 2, 3), "cpu_quota": 2.0, "memory_limit_bytes": 777},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_limits(tmp_path: Path, case: str) -> None:
    files, expected = CASES[case]
    found = limits(tmp_path, files)
    assert {name: getattr(found, name) for name in expected} == expected


def test_affinity_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = min(os.sched_getaffinity(0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {cpu})
    assert read_machine().limits.allowed_cpus == (cpu,)


@pytest.mark.parametrize(
    ("count", "quota"), [("2", 2.0), ("4", None), ("8", None), ("0", None), ("x", None)]
)
def test_a_job_that_slurm_confines_to_no_cpus_has_time_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: str, quota: float | None
) -> None:
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", count)
    assert limits(tmp_path / "captured", {}).cpu_quota is None
    monkeypatch.setattr("xlaunch.machine.limits.is_live", lambda root: True)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    found = limits(tmp_path, {})
    assert found.cpu_quota == quota
    assert found.cpu_quota_source == ("SLURM_CPUS_ON_NODE" if quota else None)
