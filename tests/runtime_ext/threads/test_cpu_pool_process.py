# SPDX-License-Identifier: Apache-2.0
"""Which CPUs a real process may use, whatever its threads and OpenMP runtimes did to their masks.

Each case is a process of its own, since a process finds out once.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from tests.runtime_ext.conftest import Needs
from tests.runtime_ext.runtimes import intel_runtime, llvm_runtime
from tests.tiers import quick_first

from xlaunch.environment.openmp import BINDING

BEGIN = """
import json, os, pickle, sys, threading

def tell(*answer):
    print(json.dumps(answer))

def in_thread(call):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(call()))
    thread.start()
    thread.join()
    return answers[0]

cpus = [int(cpu) for cpu in sys.argv[1:]]
first, second = cpus[0], cpus[-1]
"""


@pytest.fixture
def two(needs: Needs) -> tuple[int, int]:
    """The first two CPUs that the tests may use."""
    allowed = sorted(os.sched_getaffinity(0))
    needs(len(allowed) > 1, "two CPUs")
    return allowed[0], allowed[1]


def run(code: str, cpus: tuple[int, ...], **environment: str) -> Any:
    """What `code` tells, as a program that may use these CPUs."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OMP_", "GOMP_", "KMP_", "MKL_")) and name != "LD_PRELOAD"
    }
    # The mask is there before the interpreter starts: its libraries find no other.
    program = [sys.executable, "-c", BEGIN + code, *map(str, cpus)]
    confine = f"import os; os.sched_setaffinity(0, {cpus}); os.execv({program[0]!r}, {program!r})"
    done = subprocess.run(
        [sys.executable, "-c", confine],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


class TestCost:
    def test_importing_reads_no_machine_and_imports_no_torch(self, two: tuple[int, int]) -> None:
        code = """
opened = []
sys.addaudithook(lambda event, given: opened.append(str(given[0])) if event == "open" else None)
from xruntime.threads.cpu_pool import CPUPool
of_machine = [path for path in opened if path.startswith(("/sys", "/proc"))]
heavy = sorted({"torch", "numpy", "concurrent.futures", "xlaunch.planning"} & set(sys.modules))
before = len(opened)
CPUPool()
seen = any(path.startswith("/sys/devices/system/cpu") for path in opened[before:])
before = len(opened)
CPUPool()
tell(of_machine, heavy, seen, opened[before:], "torch" in sys.modules)
"""
        assert run(code, two) == [[], [], True, [], False]


class TestMasks:
    def test_the_mask_of_the_process_is_the_limit(self, two: tuple[int, int]) -> None:
        code = """
os.sched_setaffinity(0, {second})
from xruntime.threads.cpu_pool import CPUPool
try:
    CPUPool([first, second])
except ValueError as error:
    tell(CPUPool().core_ids, CPUPool([first, second], strict=False).core_ids, str(error))
"""
        first, second = two
        everything, lenient, error = run(code, two)
        assert everything == lenient == [second]
        assert f"CPU {first} is not allowed by" in error
        assert f"affinity mask {second}" in error
        assert f"allowed CPUs: {second}; " in error

    def test_what_is_confined_later_makes_the_same_pools(self, two: tuple[int, int]) -> None:
        code = """
from xruntime.threads.cpu_pool import CPUPool
before = CPUPool()
os.sched_setaffinity(0, {second})
tell(CPUPool() == before, CPUPool([first]).core_ids, CPUPool(os.sched_getaffinity(0)).core_ids)
"""
        assert run(code, two) == [True, [two[0]], [two[1]]]

    def test_a_fresh_reading_sees_what_was_confined_later(self, two: tuple[int, int]) -> None:
        code = """
import xlaunch
from xruntime.threads.cpu_pool import CPUPool
known = CPUPool(machine=xlaunch.read_machine())
os.sched_setaffinity(0, {second})
tell(known.core_ids, CPUPool(machine=xlaunch.read_machine()).core_ids, CPUPool().core_ids)
"""
        assert run(code, two) == [list(two), [two[1]], list(two)]

    def test_a_confined_thread_that_asks_first_gets_the_process(self, two: tuple[int, int]) -> None:
        code = """
from xruntime.threads.cpu_pool import CPUPool

def ask():
    os.sched_setaffinity(0, {second})
    everything = CPUPool()
    return everything.core_ids, everything.machine.limits.allowed_cpus, sorted(os.sched_getaffinity(0))

tell(*in_thread(ask), CPUPool().core_ids, sorted(os.sched_getaffinity(0)))
"""
        both = list(two)
        assert run(code, two) == [both, both, [two[1]], both, both]

    def test_a_free_thread_of_a_confined_process_gets_the_process(
        self, two: tuple[int, int]
    ) -> None:
        code = """
from xruntime.threads.cpu_pool import CPUPool
mask = os.sched_getaffinity(0)

def ask():
    os.sched_setaffinity(0, mask)
    return CPUPool().core_ids

os.sched_setaffinity(0, {first})
tell(in_thread(ask))
"""
        assert run(code, two) == [[two[0]]]

    def test_a_forked_process_may_use_what_the_forking_thread_might(
        self, two: tuple[int, int]
    ) -> None:
        code = """
from xruntime.threads.cpu_pool import CPUPool
CPUPool()
os.sched_setaffinity(0, {second})
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    os.write(writer, json.dumps(CPUPool().core_ids).encode())
    os._exit(0)
os.waitpid(child, 0)
tell(json.loads(os.read(reader, 100)), CPUPool().core_ids)
"""
        assert run(code, two) == [[two[1]], list(two)]

    def test_an_unpickled_pool_is_checked_against_its_new_process(
        self, two: tuple[int, int]
    ) -> None:
        code = """
from xruntime.threads.cpu_pool import CPUPool
pools = pickle.dumps(CPUPool([second, first])), pickle.dumps(CPUPool([second]))
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    os.sched_setaffinity(0, {second})
    try:
        pickle.loads(pools[0])
    except ValueError as error:
        os.write(writer, json.dumps([str(error), pickle.loads(pools[1]).core_ids]).encode())
    os._exit(0)
os.waitpid(child, 0)
tell(*json.loads(os.read(reader, 1000)), pickle.loads(pools[0]).core_ids, len(pools[0]))
"""
        error, same, own, size_bytes = run(code, two)
        assert f"CPU {two[0]} is not allowed by" in error
        assert (same, own) == ([two[1]], [two[1], two[0]])
        assert size_bytes < 200, "this machine does not travel with its pools"


RUNTIMES = {
    "torch's libgomp": lambda: "",
    "libiomp5.so (PyPI's intel-openmp)": intel_runtime,
    "libomp.so.5 (Debian's libomp5)": llvm_runtime,
}
"""What to preload for each; nothing for the one that torch brings."""

ASK = """
import torch
torch.ones(1 << 20).add_(1).sum().item()  # a parallel region: whatever binds threads has done so
mask = sorted(os.sched_getaffinity(0))
from xruntime.threads.cpu_pool import CPUPool
named = CPUPool([*cpus, 4095], strict=False)
tell(mask, CPUPool().core_ids, named.core_ids, sorted(os.sched_getaffinity(0)) == mask)
"""


class TestOpenMP:
    """Runtimes that bind their threads shrink the main thread to one CPU; the process keeps all."""

    @pytest.fixture(autouse=True)
    def torch(self, needs: Needs) -> None:
        needs(importlib.util.find_spec("torch"), "torch")

    @pytest.mark.parametrize(
        ("runtime", "variable", "value"),
        quick_first(
            pytest.param(*case)
            for case in [
                ("torch's libgomp", "OMP_PROC_BIND", "true"),
                # The list is taken as it is, beyond the mask of the process, too.
                ("torch's libgomp", "GOMP_CPU_AFFINITY", "{} {}"),
                ("libiomp5.so (PyPI's intel-openmp)", "KMP_AFFINITY", "granularity=fine,compact"),
                ("libomp.so.5 (Debian's libomp5)", "OMP_PROC_BIND", "true"),
            ]
        ),
    )
    def test_binding_does_not_make_the_process_smaller(
        self, runtime: str, variable: str, value: str, two: tuple[int, int], needs: Needs
    ) -> None:
        library = RUNTIMES[runtime]()
        needs(library is not None, runtime)
        assert variable in BINDING
        environment = {variable: value.format(*two), **({"LD_PRELOAD": library} if library else {})}
        assert run(ASK, two, **environment) == [[two[0]], list(two), list(two), True]

    @pytest.mark.long
    @pytest.mark.parametrize("threads", ["1", "2"])
    def test_a_mask_of_one_cpu_stays_one(self, threads: str, two: tuple[int, int]) -> None:
        alone = two[1:]
        answer = run(ASK, alone, OMP_PROC_BIND="true", OMP_NUM_THREADS=threads)
        assert answer == [list(alone), list(alone), list(alone), True]
