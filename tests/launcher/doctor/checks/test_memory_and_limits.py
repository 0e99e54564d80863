# SPDX-License-Identifier: Apache-2.0
"""Checks of memory, limits and the container, each where it fires and where it does not."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.golden import Golden
from tests.launcher.doctor.checks.made_up import machine, one, severity, told

from xlaunch.doctor.checks.findings import Severity

GROUP = {"proc/self/cgroup": "0::/job", "sys/fs/cgroup/cgroup.controllers": "cpu memory"}
JOB = "sys/fs/cgroup/job"
GIB = 1 << 30


OK, ADVICE, WARNING, SERIOUS = Severity.OK, Severity.ADVICE, Severity.WARNING, Severity.SERIOUS
Files = dict[str, str]


def nodes(count: int) -> Files:
    return {f"sys/devices/system/node/node{n}/cpulist": f"{n}" for n in range(count)}


def huge_pages(mode: str) -> Files:
    return {"sys/kernel/mm/transparent_hugepage/enabled": mode}


def memory(**kib: int) -> Files:
    return {"proc/meminfo": "\n".join([f"{name}: {value} kB" for name, value in kib.items()])}


def swap(free_kib: int, available_kib: int = 0) -> Files:
    sizes = {"MemTotal": 16 << 20, "SwapTotal": 8 << 20, "SwapFree": free_kib}
    return memory(**sizes, MemAvailable=available_kib)


def limit(
    size_bytes: int,
    used_bytes: int | None = None,
    cached_bytes: int = 0,
    available_kib: int = 8 << 20,
) -> Files:
    sizes = memory(MemTotal=16 << 20, MemAvailable=available_kib)
    files = {**GROUP, **sizes, f"{JOB}/memory.max": str(size_bytes)}
    if used_bytes is not None:
        files[f"{JOB}/memory.current"] = str(used_bytes)
    if cached_bytes:
        files[f"{JOB}/memory.stat"] = f"anon 5\ninactive_file {cached_bytes}"
    return files


LINE = "{:<26}{:<21}{:<21}{}\n".format
LOW = {
    "proc/self/limits": LINE("Limit", "Soft Limit", "Hard Limit", "Units")
    + LINE("Max locked memory", "65536", "65536", "bytes")
    + LINE("Max open files", "256", "4096", "files")
}
HIGH = {
    name: text.replace("256 ", "unlimited ").replace("65536", "unlimited")
    for name, text in LOW.items()
}
LOWEST = {name: text.replace("4096", "256 ") for name, text in LOW.items()}
HARDLY_MORE = {name: text.replace("4096", "512 ") for name, text in LOW.items()}
RESIZE = "\ndocker update --memory 8192m --memory-swap 8192m CONTAINER"


def test_checks(golden: Golden, tmp_path: Path):
    found = []
    for number, (check, files) in enumerate((
        ("huge-pages", huge_pages("always madvise [never]")),
        ("huge-pages", huge_pages("always [madvise] never")),
        ("huge-pages", huge_pages("[always] madvise never")), ("swap", swap(8 << 20)),
        ("swap", swap((8 << 20) - 100)), ("swap", swap(7 << 20)),
        ("available-memory", memory(MemTotal=1000, MemAvailable=1000)),
        ("available-memory", memory(MemTotal=1000, MemAvailable=50)),
        ("memory-limit", limit(4 * GIB, GIB * 39 // 10)),
        ("memory-limit", limit(4 * GIB, GIB * 39 // 10, 3 * GIB)), ("memory-limit", limit(4 * GIB)),
        ("memory-limit", limit(GIB // 8)), ("memory-limit", {}),
        ("memory-limit", limit(4 * GIB, GIB) | {f"{JOB}/memory.peak": str(GIB * 39 // 10)}),
        ("memory-limit", limit(4 * GIB, GIB) | {f"{JOB}/memory.peak": str(3 * GIB)}),
        ("memory-limit", limit(4 * GIB, GIB) | {f"{JOB}/memory.events": "oom 2\noom_kill 2"}),
        ("memory-limit", limit(4 * GIB, GIB) | {f"{JOB}/memory.events": "oom 2\noom_kill 0"}),
        ("cpu-quota", {}), ("open-files", LOW), ("open-files", LOWEST), ("open-files", HARDLY_MORE),
        ("open-files", HIGH), ("first-process", {"proc/1/comm": "python3.12"}),
    )):  # fmt: skip
        found += told(check, machine(tmp_path / str(number), files))
    golden(found)


def test_quota_below_the_threads(golden: Golden, tmp_path: Path):
    files = {**GROUP, f"{JOB}/cpu.max": "200000 100000"}
    stat = {f"{JOB}/cpu.stat": "usage_usec 5\nnr_periods 200\nnr_throttled 190"}
    serious = one("cpu-quota", machine(tmp_path / "default", files | stat))
    assert serious.severity is Severity.SERIOUS
    golden(serious.found, serious.why)
    fewer = machine(tmp_path / "fewer", files, OMP_NUM_THREADS="2")
    assert severity("cpu-quota", fewer) is Severity.OK
    more = one("cpu-quota", machine(tmp_path / "more", files, OMP_NUM_THREADS="3,1"))
    golden(more.found, more.advise)


LARGEST = "ps -eo pid,rss,args --sort=-rss | head"
SWAP_OFF = "sudo swapoff -a && sudo swapon -a"


@pytest.mark.parametrize(
    ("available_kib", "group", "fits"),
    [
        (3 << 20, {}, True),  # 1 GiB comes back, and a tenth of 16 GiB stays available
        ((27 << 20) // 10, {}, True),
        ((25 << 20) // 10, {}, False),
        (391 << 10, {}, False),
        (12 << 20, limit(4 * GIB, 2 * GIB), True),
        (12 << 20, limit(4 * GIB, 3 * GIB), False),
        (12 << 20, limit(4 * GIB), False),  # the use of the group is unknown
    ],
)
def test_swap_is_emptied_only_into_memory_that_is_available(
    available_kib: int, group: Files, fits: bool, tmp_path: Path
):
    finding = one("swap", machine(tmp_path, {**group, **swap(7 << 20, available_kib)}))
    assert finding.severity is Severity.SERIOUS
    assert finding.advise == (f"{LARGEST}\n{SWAP_OFF}" if fits else LARGEST)
    assert ("too little memory is available" in finding.why) is not fits


@pytest.mark.parametrize(
    ("files", "advise"),
    [
        (limit(GIB // 8, available_kib=8 << 20), "docker update --memory 2048m --memory-swap 2048m CONTAINER"),
        (limit(GIB // 8, available_kib=2 << 20), LARGEST),
        (limit(4 * GIB, 4 * GIB, available_kib=8 << 20), RESIZE.strip()),
        (limit(4 * GIB, 4 * GIB, available_kib=4 << 20), LARGEST),
    ],
)  # fmt: skip
def test_a_limit_is_raised_only_into_memory_that_is_available(
    files: Files, advise: str, tmp_path: Path
):
    assert one("memory-limit", machine(tmp_path, files)).advise == advise


@pytest.mark.parametrize(
    ("total_gib", "shared_mib", "advised"),
    [(64, 64, 8192), (4, 64, 2048), (4, None, 2048), (1, 64, 512), (1, 512, None), (64, 1024, None)],
)  # fmt: skip
def test_shared_memory_never_gets_more_than_half_of_the_memory(
    golden: Golden,
    total_gib: int,
    shared_mib: int | None,
    advised: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    def statvfs(path: str) -> SimpleNamespace:
        if shared_mib is None:
            raise FileNotFoundError(2, os.strerror(2))
        return SimpleNamespace(f_blocks=shared_mib << 8, f_bavail=0, f_frsize=4096)

    facts = machine(tmp_path, memory(MemTotal=total_gib << 20))._replace(live=True)
    monkeypatch.setattr(os, "statvfs", statvfs)  # a file system of any size needs root
    finding = one("shared-memory", facts)
    if advised is None:
        assert finding.severity is Severity.OK
        return
    golden(finding.advise)
    assert f"size={advised}m" in finding.advise
    assert ("remount" in finding.advise) is (shared_mib is not None)


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


def test_first_process_that_does_not_wait(golden: Golden, tmp_path: Path):
    zombie = {f"proc/{pid}/stat": f"{pid} (a) b) Z 1 {pid} {pid} 0" for pid in (7, 8, 9)}
    zombie["proc/10/stat"] = "10 (c) S 1 10 10 0"
    dead = one("first-process", machine(tmp_path / "dead", {"proc/1/comm": "serve", **zombie}))
    assert dead.severity is Severity.WARNING
    golden(dead.found)
    init = machine(tmp_path / "init", {"proc/1/comm": "systemd", **zombie})
    assert severity("first-process", init) is Severity.OK


@pytest.mark.parametrize("reaped", [0, 1, 3])
def test_zombies_that_are_reaped_meanwhile(
    reaped: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    zombies = {f"proc/{pid}/stat": f"{pid} (a) Z 1 {pid} {pid} 0" for pid in (7, 8, 9)}
    facts = machine(tmp_path, {"proc/1/comm": "serve", **zombies})._replace(live=True)

    def reap(_: float) -> None:
        for path in list(zombies)[:reaped]:
            (tmp_path / path).unlink()

    monkeypatch.setattr("time.sleep", reap)  # the moment between the two looks
    expected = Severity.OK if reaped else Severity.WARNING
    assert severity("first-process", facts) is expected
