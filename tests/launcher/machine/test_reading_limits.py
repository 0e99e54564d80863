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
V2 = {"proc/self/mountinfo": "26 23 0:23 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate"}


def limits(root: Path, *parts: dict[str, str]) -> Limits:
    machine = {
        f"{CPU}/online": "0-7",
        **{f"{CPU}/cpu{cpu}/": "" for cpu in ALL},
        f"{NODE}/node0/cpulist": "0-3",
        f"{NODE}/node1/cpulist": "4-7",
    }
    return read_machine(
        write_files(root, {**machine, **{k: v for p in parts for k, v in p.items()}})
    ).limits


def v1_mount(
    controller: str, mounted: str = "/", directory: str | None = None, options: str = ""
) -> str:
    directory = directory or f"/sys/fs/cgroup/{controller}"
    return f"30 25 0:26 {mounted} {directory} rw,relatime - cgroup cgroup rw,{controller}{options}"


def test_nothing_limits(tmp_path: Path) -> None:
    assert limits(tmp_path) == Limits(
        allowed_cpus=ALL,
        allowed_nodes=(0, 1),
        narrowed_by=(),
        cpu_quota=None,
        cpu_quota_source=None,
        memory_limit_bytes=None,
        memory_limit_source=None,
    )


# The affinity mask


def test_affinity_of_a_captured_process(tmp_path: Path) -> None:
    found = limits(
        tmp_path, {"proc/self/status": "Name:\tsh\nCpus_allowed:\tff\nCpus_allowed_list:\t2-3,9"}
    )
    assert found.allowed_cpus == (2, 3)
    assert found.narrowed_by == ("affinity mask 2-3,9",)


def test_affinity_by_the_mask_of_old_kernels(tmp_path: Path) -> None:
    assert limits(
        tmp_path, {"proc/self/status": "Cpus_allowed:\t00000000,0000000c"}
    ).allowed_cpus == (2, 3)


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
    assert limits(tmp_path / "captured").cpu_quota is None
    monkeypatch.setattr("xlaunch.machine.limits.is_live", lambda root: True)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    found = limits(tmp_path)
    assert found.cpu_quota == quota
    assert found.cpu_quota_source == ("SLURM_CPUS_ON_NODE" if quota else None)


# Version 2


def test_v2_effective_cpuset_quota_and_memory(tmp_path: Path) -> None:
    found = limits(
        tmp_path,
        V2,
        {
            "proc/self/cgroup": "0::/job",
            "sys/fs/cgroup/job/cpuset.cpus.effective": "4-7",
            "sys/fs/cgroup/job/cpuset.mems.effective": "1",
            "sys/fs/cgroup/job/cpu.max": "150000 100000",
            "sys/fs/cgroup/job/memory.max": "1073741824",
        },
    )
    assert found == Limits(
        allowed_cpus=(4, 5, 6, 7),
        allowed_nodes=(1,),
        narrowed_by=("cpuset 4-7 (cgroup v2 /sys/fs/cgroup/job)",),
        cpu_quota=1.5,
        cpu_quota_source="cgroup v2 /sys/fs/cgroup/job",
        memory_limit_bytes=1 << 30,
        memory_limit_source="cgroup v2 /sys/fs/cgroup/job",
        narrowed_via=("cgroup v2 cpuset at /sys/fs/cgroup",),
    )


def test_v2_the_tightest_of_all_levels(tmp_path: Path) -> None:
    found = limits(
        tmp_path,
        V2,
        {
            "proc/self/cgroup": "0::/a/b/c",
            "sys/fs/cgroup/a/b/c/cpu.max": "max 100000",
            "sys/fs/cgroup/a/b/cpu.max": "400000 50000",
            "sys/fs/cgroup/a/cpu.max": "300000 100000",
            "sys/fs/cgroup/a/b/c/memory.max": "3000",
            "sys/fs/cgroup/a/b/memory.max": "2000",
            "sys/fs/cgroup/a/memory.max": "max",
        },
    )
    assert (found.cpu_quota, found.cpu_quota_source) == (3.0, "cgroup v2 /sys/fs/cgroup/a")
    assert (found.memory_limit_bytes, found.memory_limit_source) == (
        2000,
        "cgroup v2 /sys/fs/cgroup/a/b",
    )


def test_v2_memory_that_the_kernel_takes_back_early_is_a_limit_too(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/job"
    files = {"proc/self/cgroup": "0::/job", f"{group}/memory.max": "5000"}
    for high, expected in (("3000", 3000), ("7000", 5000), ("max", 5000)):
        found = limits(tmp_path / high, V2, files | {f"{group}/memory.high": high})
        assert found.memory_limit_bytes == expected


def test_v2_a_level_without_the_controller_inherits(tmp_path: Path) -> None:
    # Threaded groups, and groups below which the controller is not enabled, have no such files.
    found = limits(
        tmp_path,
        V2,
        {
            "proc/self/cgroup": "0::/a/b",
            "sys/fs/cgroup/a/b/cgroup.type": "threaded",
            "sys/fs/cgroup/a/cpuset.cpus.effective": "0-1",
            "sys/fs/cgroup/a/memory.max": "5000",
        },
    )
    assert found.allowed_cpus == (0, 1)
    assert found.memory_limit_bytes == 5000


def test_v2_an_empty_effective_set_inherits(tmp_path: Path) -> None:
    found = limits(
        tmp_path,
        V2,
        {
            "proc/self/cgroup": "0::/a/b",
            "sys/fs/cgroup/a/b/cpuset.cpus.effective": "",
            "sys/fs/cgroup/a/b/cpuset.cpus": "",
            "sys/fs/cgroup/a/cpuset.cpus.effective": "2-5",
        },
    )
    assert found.allowed_cpus == (2, 3, 4, 5)


def test_v2_without_an_effective_file_the_set_that_was_asked_for(tmp_path: Path) -> None:
    found = limits(
        tmp_path, V2, {"proc/self/cgroup": "0::/a", "sys/fs/cgroup/a/cpuset.cpus": "6-9"}
    )
    assert found.allowed_cpus == (6, 7)


def test_v2_what_is_in_force_rather_than_what_was_asked_for(tmp_path: Path) -> None:
    found = limits(
        tmp_path,
        V2,
        {
            "proc/self/cgroup": "0::/a",
            "sys/fs/cgroup/a/cpuset.cpus": "0-7",
            "sys/fs/cgroup/a/cpuset.cpus.effective": "4-5",
        },
    )
    assert found.allowed_cpus == (4, 5)


def test_v2_a_partition_owns_what_its_parent_lost(tmp_path: Path) -> None:
    found = limits(
        tmp_path,
        V2,
        {
            "proc/self/cgroup": "0::/part",
            "sys/fs/cgroup/cpuset.cpus.effective": "0-3",
            "sys/fs/cgroup/part/cpuset.cpus.partition": "root",
            "sys/fs/cgroup/part/cpuset.cpus.effective": "4-7",
        },
    )
    assert found.allowed_cpus == (4, 5, 6, 7)


def test_v2_a_set_that_all_levels_share_is_the_outermosts(tmp_path: Path) -> None:
    found = limits(
        tmp_path,
        V2,
        {
            "proc/self/cgroup": "0::/a/b",
            "sys/fs/cgroup/cpuset.cpus.effective": "0-7",
            "sys/fs/cgroup/a/cpuset.cpus.effective": "0-1",
            "sys/fs/cgroup/a/b/cpuset.cpus.effective": "0-1",
        },
    )
    assert found.narrowed_by == ("cpuset 0-1 (cgroup v2 /sys/fs/cgroup/a)",)


# Version 1


def test_v1_cpuset_quota_and_memory_on_the_way_up(tmp_path: Path) -> None:
    mounts = "\n".join(map(v1_mount, ("cpuset", "cpu,cpuacct", "memory")))
    found = limits(
        tmp_path,
        {
            "proc/self/mountinfo": mounts,
            "proc/self/cgroup": "3:memory:/d/x\n2:cpu,cpuacct:/d/x\n1:cpuset:/d/x",
            "sys/fs/cgroup/cpuset/d/x/cpuset.cpus": "1-9",
            "sys/fs/cgroup/cpuset/d/x/cpuset.effective_cpus": "1-3",
            "sys/fs/cgroup/cpuset/d/x/cpuset.mems": "0",
            "sys/fs/cgroup/cpu,cpuacct/d/x/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu,cpuacct/d/x/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/cpu,cpuacct/d/cpu.cfs_quota_us": "350000",
            "sys/fs/cgroup/cpu,cpuacct/d/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/d/x/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/memory/d/memory.limit_in_bytes": "4096",
        },
    )
    assert found.allowed_cpus == (1, 2, 3)
    assert found.allowed_nodes == (0,)
    assert found.narrowed_by == ("cpuset 1-3 (cgroup v1 /sys/fs/cgroup/cpuset/d/x)",)
    assert (found.cpu_quota, found.memory_limit_bytes) == (3.5, 4096)


def test_v1_largest_number_is_no_limit(tmp_path: Path) -> None:
    for number in ("9223372036854771712", "9223372036854710272", "18446744073709551615"):
        found = limits(
            tmp_path,
            {
                "proc/self/mountinfo": v1_mount("memory"),
                "proc/self/cgroup": "4:memory:/",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": number,
            },
        )
        assert found.memory_limit_bytes is None


def test_files_without_prefix(tmp_path: Path) -> None:
    found = limits(
        tmp_path,
        {
            "proc/self/mountinfo": v1_mount("cpuset", directory="/dev/cpuset", options=",noprefix"),
            "proc/self/cpuset": "/batch",
            "dev/cpuset/batch/cpus": "5",
            "dev/cpuset/batch/mems": "1",
        },
    )
    assert (found.allowed_cpus, found.allowed_nodes) == ((5,), (1,))


def test_cpusets_before_control_groups(tmp_path: Path) -> None:
    found = limits(
        tmp_path,
        {
            "proc/mounts": "none /dev/cpuset cpuset rw 0 0",
            "proc/self/cpuset": "/batch",
            "dev/cpuset/batch/cpus": "0-1",
        },
    )
    assert found.allowed_cpus == (0, 1)
    assert found.narrowed_by == ("cpuset 0-1 (/dev/cpuset/batch)",)


# Both, and containers


def test_hybrid_version_2_below_unified(tmp_path: Path) -> None:
    mounts = v1_mount("cpuset") + "\n41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"
    found = limits(
        tmp_path,
        {
            "proc/self/mountinfo": mounts,
            "proc/self/cgroup": "1:cpuset:/one\n0::/two",
            "sys/fs/cgroup/cpuset/one/cpuset.cpus": "0-3",
            "sys/fs/cgroup/unified/two/cpu.max": "200000 100000",
            "sys/fs/cgroup/unified/two/memory.max": "777",
        },
    )
    assert found.allowed_cpus == (0, 1, 2, 3)
    assert (found.cpu_quota, found.memory_limit_bytes) == (2.0, 777)


def test_container_that_sees_the_hosts_path(tmp_path: Path) -> None:
    # The mount shows /docker/x only, and the path is still the host's.
    found = limits(
        tmp_path,
        {
            "proc/self/mountinfo": v1_mount("cpuset", mounted="/docker/x"),
            "proc/self/cgroup": "1:cpuset:/docker/x/inner",
            "sys/fs/cgroup/cpuset/inner/cpuset.cpus": "3",
            "sys/fs/cgroup/cpuset/cpuset.cpus": "2-3",
        },
    )
    assert found.allowed_cpus == (3,)


def test_container_with_a_namespace_of_its_own(tmp_path: Path) -> None:
    found = limits(
        tmp_path,
        V2,
        {
            "proc/self/cgroup": "0::/",
            "sys/fs/cgroup/cpuset.cpus.effective": "6-7",
            "sys/fs/cgroup/cpu.max": "50000 100000",
        },
    )
    assert (found.allowed_cpus, found.cpu_quota) == ((6, 7), 0.5)


@pytest.mark.parametrize("path", ["/../other", "/gone/deeper", "/docker/x"])
def test_a_path_that_leads_nowhere_begins_at_the_mount(tmp_path: Path, path: str) -> None:
    found = limits(
        tmp_path,
        V2,
        {
            "proc/self/cgroup": f"0::{path}",
            "sys/fs/other/cpuset.cpus.effective": "5",
            "sys/fs/cgroup/cpuset.cpus.effective": "0",
        },
    )
    assert found.allowed_cpus == (0,)


def test_mount_points_with_spaces(tmp_path: Path) -> None:
    found = limits(
        tmp_path,
        {
            "proc/self/mountinfo": "26 23 0:23 / /my\\040groups rw - cgroup2 cgroup2 rw",
            "proc/self/cgroup": "0::/a",
            "my groups/a/cpuset.cpus.effective": "1",
        },
    )
    assert found.allowed_cpus == (1,)


def test_without_a_mount_table_the_usual_places(tmp_path: Path) -> None:
    v2 = {"proc/self/cgroup": "0::/a", "sys/fs/cgroup/cgroup.controllers": "cpuset cpu"}
    assert limits(tmp_path / "2", v2, {"sys/fs/cgroup/a/cpuset.cpus": "1"}).allowed_cpus == (1,)
    v1 = {"proc/self/cgroup": "1:cpuset:/a", "sys/fs/cgroup/cpuset/a/cpuset.cpus": "2"}
    assert limits(tmp_path / "1", v1).allowed_cpus == (2,)


def test_cpuset_and_mask_together(tmp_path: Path) -> None:
    found = limits(
        tmp_path,
        V2,
        {
            "proc/self/cgroup": "0::/a",
            "sys/fs/cgroup/a/cpuset.cpus.effective": "0-3",
            "proc/self/status": "Cpus_allowed_list:\t2-6",
        },
    )
    assert found.allowed_cpus == (2, 3)
    assert found.narrowed_by == ("cpuset 0-3 (cgroup v2 /sys/fs/cgroup/a)", "affinity mask 2-6")


def test_limits_that_leave_nothing_are_left_out(tmp_path: Path) -> None:
    found = limits(
        tmp_path,
        V2,
        {
            "proc/self/cgroup": "0::/a",
            "sys/fs/cgroup/a/cpuset.cpus.effective": "64-71",
            "sys/fs/cgroup/a/cpuset.mems.effective": "9",
        },
    )
    assert (found.allowed_cpus, found.allowed_nodes, found.narrowed_by) == (ALL, (0, 1), ())
