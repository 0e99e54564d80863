# SPDX-License-Identifier: Apache-2.0
"""A CPU quota of one and a half CPUs, in a control group of this machine's kernel."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.launcher.cli.commands import XLAUNCH, Done, allowed_cpus, run, two_cpus

pytestmark = [pytest.mark.full, pytest.mark.machine]

MOUNTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct")
"""Where version 2 is, or version 1's controller."""
ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
BUSY = """
import ctypes, os, subprocess, sys
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
threads = getenv(b"OMP_NUM_THREADS").decode()  # as libraries read it; os.environ has none
assert "OMP_NUM_THREADS" not in os.environ
print(sorted(os.sched_getaffinity(0)), threads, flush=True)
spin = "import time\\nend = time.monotonic() + 1\\nwhile time.monotonic() < end: pass"
for process in [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(int(threads))]:
    process.wait()
"""


@pytest.fixture
def group(needs: Callable[[object, str], None]) -> Iterator[Path]:
    """The directory of a group, which is removed after its last process has ended."""
    two_cpus(needs)
    mount = next((it for it in map(Path, MOUNTS) if (it / "cgroup.procs").exists()), None)
    needs(mount, "control groups")
    assert mount is not None
    group, problem = mount / f"xlaunch-tests-{os.getpid()}", ""
    try:
        group.mkdir()
    except OSError as error:
        needs(False, f"a control group that can be written: {error}")
    try:
        files = {"cpu.max": "150000 100000"}
        if version(group) == 1:
            files = {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "150000"}
        try:
            for name, text in files.items():
                (group / name).write_text(text)
        except OSError as error:
            problem = str(error)
        needs(not problem, f"a control group for CPU time: {problem}")
        yield group
    finally:
        group.rmdir()


def version(group: Path) -> int:
    return 1 if (group / "cpu.cfs_quota_us").exists() else 2


def inside(group: Path, *words: str) -> Done:
    return run(["sh", "-c", ENTER, str(group), *words])


def throttled(group: Path) -> int:
    """In how many periods the group's threads had to stop."""
    fields = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
    return int(fields["nr_throttled"])


def test_the_quota_is_read_and_grants_whole_threads(group: Path):
    machine = json.loads(inside(group, *XLAUNCH, "topology", "--json").out)
    assert machine["cpu_quota"] == 1.5
    plan = json.loads(inside(group, *XLAUNCH, "plan", "--json").out)
    assert (plan["bound"], [it["thread_count"] for it in plan["instances"]]) == (False, [1])
    explained = inside(group, *XLAUNCH, "plan", "--explain").out.decode()
    assert f"CPU quota: 1.5 - time for 1 of {len(allowed_cpus())} cores (cgroup v" in explained
    assert f"{group})" in explained
    refused = inside(group, *XLAUNCH, "--instances", "2", "--ncores", "1", "true").refused()
    assert f"the CPU quota of 1.5 (cgroup v{version(group)} {group}) is worth 1" in refused


def test_a_program_is_not_bound_and_never_stopped(group: Path):
    done = inside(group, *XLAUNCH, "--", sys.executable, "-c", BUSY)
    assert (done.code, done.err) == (0, "")
    assert done.out.decode() == f"{allowed_cpus()} 1\n"
    assert throttled(group) == 0


WORKERS = """
import joblib

def ask():
    import torch
    from sklearn.utils import _openmp_helpers
    from threadpoolctl import threadpool_info
    pools = {(it["internal_api"], it["num_threads"]) for it in threadpool_info()}
    return torch.get_num_threads(), sorted(pools)

if __name__ == "__main__":
    print(ask(), joblib.cpu_count())
    print(joblib.Parallel(n_jobs=-1)([joblib.delayed(ask)()] * 4))
"""


def test_workers_of_joblib_have_the_threads_that_they_have_without_xlaunch(
    group: Path, tmp_path: Path, needs: Callable[[object, str], None]
):
    needs(find_spec("sklearn") and find_spec("torch"), "scikit-learn and torch")
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    # Whole CPUs: of 1.5 joblib makes two workers, and xlaunch one thread.
    quota = {"cpu.max": "200000 100000"} if version(group) == 2 else {"cpu.cfs_quota_us": "200000"}
    for name, text in quota.items():
        (group / name).write_text(text)
    bare = inside(group, sys.executable, script).out.decode().splitlines()
    placed = inside(group, *XLAUNCH, script).out.decode().splitlines()
    assert placed[1] == bare[1]
    assert placed[0] == "(2, [('openblas', 2), ('openmp', 2)]) 2"
