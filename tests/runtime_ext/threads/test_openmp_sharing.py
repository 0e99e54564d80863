# SPDX-License-Identifier: Apache-2.0
"""Native code runs on torch's own OpenMP threads, whichever runtime torch runs on.

Each case is a process of its own, since a runtime is chosen once, at its start.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runtime_ext.conftest import Needs
from tests.runtime_ext.runtimes import intel_runtime, llvm_runtime
from tests.tiers import quick_first

from xruntime import KernelsUnavailableError
from xruntime.native import library_path

# Asks for teams of 3, 5 and 2 threads through torch, and tells what native code then saw.
PROBE = """
import json, os, re, sys, threading

def threads():
    return {int(name) for name in os.listdir("/proc/self/task")}

if sys.argv[1] == "library first":
    import xruntime
    xruntime.openmp_team()
import torch, xruntime

rounds = []
for count in (3, 5, 2):
    torch.set_num_threads(count)
    torch.ones(1 << 20).add_(1).sum().item()  # a parallel region of torch's: its team exists now
    before = threads()
    team = xruntime.openmp_team()
    rounds.append({
        "asked": count,
        "torch": torch.get_num_threads(),
        "size": team.size,
        "first_is_caller": team.members[0].thread_id == threading.get_native_id(),
        "distinct": len({member.thread_id for member in team.members}),
        "new_threads": len(threads() - before),
        "strangers": len({member.thread_id for member in team.members} - before),
    })
mapped = sorted(set(re.findall(r"/\\S*/lib(?:gomp|iomp5|omp)[-.]\\S*", open("/proc/self/maps").read())))
print(json.dumps({"rounds": rounds, "mapped": mapped}))
"""


def probe(order: str, preload: str | None = None) -> dict:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OMP_", "GOMP_", "KMP_", "MKL_")) and name != "LD_PRELOAD"
    }
    if preload:
        environment["LD_PRELOAD"] = preload
    done = subprocess.run(
        [sys.executable, "-c", PROBE, order],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_one_team(answer: dict) -> None:
    for seen in answer["rounds"]:
        assert seen["torch"] == seen["size"] == seen["distinct"] == seen["asked"]
        assert seen["first_is_caller"]
        # The threads are the ones that torch's region had started: none is new, none unknown.
        assert seen["new_threads"] == seen["strangers"] == 0


@pytest.fixture(autouse=True)
def ready(needs: Needs) -> None:
    needs(importlib.util.find_spec("torch"), "torch")
    try:
        library_path()
    except KernelsUnavailableError:
        needs(None, "libxkernels.so (g++ at hand when xlaunch was installed)")


@pytest.mark.parametrize("order", quick_first(["library first", "torch first"]))
def test_libgomp_is_mapped_once_and_shared(order: str) -> None:
    answer = probe(order)
    assert len(answer["mapped"]) == 1, answer["mapped"]
    assert Path(answer["mapped"][0]).name.startswith("libgomp")
    assert_one_team(answer)


@pytest.mark.long
@pytest.mark.parametrize("order", ["library first", "torch first"])
@pytest.mark.parametrize(
    ("find", "package"),
    [
        (intel_runtime, "libiomp5.so (PyPI's intel-openmp)"),
        (llvm_runtime, "libomp.so.5 (Debian's libomp5)"),
    ],
)
def test_team_is_shared_under_a_preloaded_runtime(
    order: str, find: Callable[[], str | None], package: str, needs: Needs
) -> None:
    runtime = find()
    needs(runtime, package)
    answer = probe(order, preload=runtime)
    name = Path(runtime).name.partition(".")[0]
    assert any(Path(path).name.startswith(name) for path in answer["mapped"])
    assert_one_team(answer)
