# SPDX-License-Identifier: Apache-2.0
"""Checks of memory, limits and the container, each where it fires and where it does not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.launcher.doctor.checks.made_up import machine, one, severity, shown

from xlaunch.doctor.checks.findings import Severity

GROUP = {"proc/self/cgroup": "0::/job", "sys/fs/cgroup/cgroup.controllers": "cpu memory"}
JOB = "sys/fs/cgroup/job"
GIB = 1 << 30


def nodes(count: int) -> dict[str, str]:
    return {f"sys/devices/system/node/node{n}/cpulist": f"{n}" for n in range(count)}


def test_numa_balancing(tmp_path: Path):
    on, off = ({"proc/sys/kernel/numa_balancing": value} for value in "10")
    assert severity("numa-balancing", machine(tmp_path / "on", on | nodes(2))) is Severity.ADVICE
    assert severity("numa-balancing", machine(tmp_path / "off", off | nodes(2))) is Severity.OK
    assert shown("numa-balancing", machine(tmp_path / "one", on | nodes(1))) == []


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("always madvise [never]", Severity.ADVICE),
        ("always [madvise] never", Severity.OK),
        ("[always] madvise never", Severity.OK),
    ],
)
def test_huge_pages(mode: str, expected: Severity, tmp_path: Path):
    files = {"sys/kernel/mm/transparent_hugepage/enabled": mode}
    assert severity("huge-pages", machine(tmp_path, files)) is expected


@pytest.mark.parametrize(
    ("free_kib", "expected"),
    [(8 << 20, Severity.OK), ((8 << 20) - 100, Severity.ADVICE), (7 << 20, Severity.SERIOUS)],
)
def test_swap_in_use(free_kib: int, expected: Severity, tmp_path: Path):
    text = f"MemTotal: {16 << 20} kB\nSwapTotal: {8 << 20} kB\nSwapFree: {free_kib} kB"
    assert severity("swap", machine(tmp_path, {"proc/meminfo": text})) is expected


def test_available_memory(tmp_path: Path):
    for available, expected in ((1000, Severity.OK), (50, Severity.WARNING)):
        text = f"MemTotal: 1000 kB\nMemAvailable: {available} kB"
        facts = machine(tmp_path / str(available), {"proc/meminfo": text})
        assert severity("available-memory", facts) is expected


def test_memory_limit_below_what_runs(tmp_path: Path):
    files = {**GROUP, "proc/meminfo": "MemTotal: 16777216 kB", f"{JOB}/memory.max": str(4 * GIB)}
    used = {f"{JOB}/memory.current": str(GIB * 39 // 10)}
    full = one("memory-limit", machine(tmp_path / "full", files | used))
    assert full.severity is Severity.SERIOUS
    assert full.advise == "docker update --memory 8192m --memory-swap 8192m CONTAINER"
    cached = used | {f"{JOB}/memory.stat": f"anon 5\ninactive_file {3 * GIB}"}
    assert severity("memory-limit", machine(tmp_path / "cached", files | cached)) is Severity.OK
    assert severity("memory-limit", machine(tmp_path / "unknown", files)) is Severity.OK
    small = machine(tmp_path / "small", files | {f"{JOB}/memory.max": str(GIB // 8)})
    assert severity("memory-limit", small) is Severity.SERIOUS
    assert shown("memory-limit", machine(tmp_path / "none", {})) == []


def test_quota_below_the_threads(tmp_path: Path):
    files = {**GROUP, f"{JOB}/cpu.max": "200000 100000"}
    stat = {f"{JOB}/cpu.stat": "usage_usec 5\nnr_periods 200\nnr_throttled 190"}
    serious = one("cpu-quota", machine(tmp_path / "default", files | stat))
    assert serious.severity is Severity.SERIOUS
    assert serious.found == "CPU quota 2, and torch sees 4 CPUs"
    assert "after 50% of it" in serious.why
    assert "here in 95% of the periods so far" in serious.why
    fewer = machine(tmp_path / "fewer", files, OMP_NUM_THREADS="2")
    assert severity("cpu-quota", fewer) is Severity.OK
    more = one("cpu-quota", machine(tmp_path / "more", files, OMP_NUM_THREADS="3,1"))
    assert more.found == "CPU quota 2, and OMP_NUM_THREADS is 3"
    assert one("cpu-quota", machine(tmp_path / "none", {})).found == "no CPU quota"


def test_open_files_and_locked_memory(tmp_path: Path):
    line = "{:<26}{:<21}{:<21}{}".format
    head = line("Limit", "Soft Limit", "Hard Limit", "Units")
    few = "\n".join(
        [
            head,
            line("Max locked memory", "65536", "65536", "bytes"),
            line("Max open files", "256", "4096", "files"),
        ]
    )
    files = {"proc/self/limits": few}
    low = machine(tmp_path / "low", files)
    assert one("open-files", low).advise == "ulimit -n 4096"
    assert severity("locked-memory", low) is Severity.OK
    adapter = machine(tmp_path / "rdma", files | {"sys/class/infiniband/mlx5_0/": ""})
    assert severity("locked-memory", adapter) is Severity.WARNING
    many = few.replace("256 ", "unlimited ").replace("65536", "unlimited")
    high = machine(
        tmp_path / "high", {"proc/self/limits": many, "sys/class/infiniband/mlx5_0/": ""}
    )
    assert severity("open-files", high) is Severity.OK
    assert severity("locked-memory", high) is Severity.OK


def refuse(*_: object) -> None:
    raise PermissionError(1, os.strerror(1))


def test_affinity_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    facts = machine(tmp_path, {})._replace(live=True)
    mask = os.sched_getaffinity(0)
    assert severity("affinity-calls", facts) is Severity.OK
    assert os.sched_getaffinity(0) == mask
    # A seccomp filter stays for the life of a process, so the refusal itself is made up.
    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    assert severity("affinity-calls", facts) is Severity.SERIOUS


def test_memory_policy_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("xlaunch.supervision.syscalls.read_memory_policy", refuse)
    for count, expected in ((1, Severity.OK), (2, Severity.WARNING)):
        facts = machine(tmp_path / str(count), nodes(count))._replace(live=True)
        assert severity("memory-policy-calls", facts) is expected


def test_first_process_that_does_not_wait(tmp_path: Path):
    zombie = {f"proc/{pid}/stat": f"{pid} (a) b) Z 1 {pid} {pid} 0" for pid in (7, 8, 9)}
    zombie["proc/10/stat"] = "10 (c) S 1 10 10 0"
    dead = one("first-process", machine(tmp_path / "dead", {"proc/1/comm": "serve", **zombie}))
    assert dead.severity is Severity.WARNING
    assert dead.found == "PID 1 (serve) does not wait for orphans: 3 zombies"
    python = machine(tmp_path / "python", {"proc/1/comm": "python3.12"})
    assert severity("first-process", python) is Severity.ADVICE
    init = machine(tmp_path / "init", {"proc/1/comm": "systemd", **zombie})
    assert severity("first-process", init) is Severity.OK
