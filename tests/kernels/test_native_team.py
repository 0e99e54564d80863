# SPDX-License-Identifier: Apache-2.0
"""The size and the CPUs of OpenMP teams, under each runtime that torch may run on.

Each case is a process of its own, since a runtime is chosen once, at its start. See
programs/team.py for what the cases do; it names CPUs by their place among those allowed.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.kernels.conftest import Compile
from tests.runtime_ext.runtimes import intel_runtime

from xruntime import native

TEAM = Path(__file__).parent / "programs" / "team.py"
RUNTIMES = ("libgomp", "libiomp5", "libomp")
REFUSED_AS_INVALID = [native.REFUSED, errno.EINVAL]

Needs = Callable[[object, str], None]
Case = Callable[..., Any]


def path_of(runtime: str, needs: Needs) -> str:
    """What to preload, so that a process runs on that runtime without a torch in it."""
    if runtime == "libgomp":
        torch = importlib.util.find_spec("torch")
        needs(torch and torch.origin, "torch")
        path = Path(str(torch.origin)).parent / "lib" / "libgomp.so.1"
        needs(path.is_file(), f"{path}, which wheels of torch carry")
        return str(path)
    if runtime == "libiomp5":
        found = intel_runtime()
        needs(found, "libiomp5.so (PyPI's intel-openmp)")
        return str(found)
    library = ctypes.util.find_library("omp")
    needs(library, "libomp.so.5 (Debian's libomp5)")
    return str(library)


def environment(preload: str, **variables: str) -> dict[str, str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OMP_", "GOMP_", "KMP_", "MKL_"))
    }
    directories = [path for path in sys.path if path]
    return (
        inherited | {"LD_PRELOAD": preload, "PYTHONPATH": os.pathsep.join(directories)} | variables
    )


@pytest.fixture
def case(built_library: Path, needs: Needs) -> Case:
    """`case(runtime, name, *arguments, **variables)`: what that case of programs/team.py answers."""
    needs(len(os.sched_getaffinity(0)) >= 2, "two CPUs")

    def run(runtime: str, *words: str, **variables: str) -> Any:
        done = subprocess.run(
            [sys.executable, TEAM, *words],
            env=environment(path_of(runtime, needs), **variables),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return json.loads(done.stdout)

    return run


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_resize_acts_on_the_calling_thread_alone(case: Case, runtime: str) -> None:
    answer = case(runtime, "sizes", OMP_NUM_THREADS="2")
    assert answer["start"] == [2, 2]
    assert answer["other"] == [2, 5, 5]
    assert answer["main"] == [2, 3, 3]
    assert answer["new"] == [2, 2]
    assert answer["refused"] == [native.INVALID_ARGUMENT, native.INVALID_ARGUMENT, 3]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_thread_gets_the_mask_that_was_asked_for(case: Case, runtime: str) -> None:
    """Also where the runtime gives a thread that is new to it another mask."""
    assert case(runtime, "placing") == [
        ["confine", [0], 3, [[0], [0], [0]]],
        ["pin", [0], 3, [[0], [0], [0]]],
        ["confine", [1], 3, [[1], [1], [1]]],
        ["pin", [1], 3, [[1], [1], [1]]],
        ["confine", [0, 1], 3, [[0, 1], [0, 1], [0, 1]]],
        ["pin", [0, 1], 3, [[0, 1], [1], [0]]],
        ["confine", [1, 0], 3, [[0, 1], [0, 1], [0, 1]]],
        ["pin", [1, 0], 3, [[0, 1], [0], [1]]],
    ]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_confining_one_team_first_of_all_leaves_the_others_their_cpus(
    case: Case, runtime: str
) -> None:
    """The runtime reads the process's CPUs when it starts: that must be before."""
    allowed = list(range(len(os.sched_getaffinity(0))))
    assert case(runtime, "fresh") == {
        "first": [[0]] * len(allowed),
        "next": [allowed] * len(allowed),
    }


def test_workers_that_gnus_runtime_adds_inherit_the_set(case: Case) -> None:
    assert case("libgomp", "growing") == {
        "confined": [[1]] * 2,
        "grown": [[1]] * 4,
        "again": [[1]] * 4,
    }


@pytest.mark.parametrize("runtime", ["libiomp5", "libomp"])
def test_workers_that_others_add_have_the_processs_mask_until_confined(
    case: Case, runtime: str
) -> None:
    allowed = list(range(len(os.sched_getaffinity(0))))
    assert case(runtime, "growing") == {
        "confined": [[1]] * 2,
        "grown": [[1], [1], allowed, allowed],
        "again": [[1]] * 4,
    }


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_host_threads_have_sets_of_their_own_at_once(case: Case, runtime: str) -> None:
    rounds = case(runtime, "together")
    assert len(rounds) == 5
    for seen in rounds:
        assert seen == {"[0]": [[0]] * 3, "[1]": [[1]] * 3, "[0, 1]": [[0, 1]] * 3}


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_team_that_shrinks_keeps_its_workers_from_others(case: Case, runtime: str) -> None:
    answer = case(runtime, "trading")
    assert answer["kept"] == 1
    assert not set(answer["first"]) & set(answer["second"])
    assert not set(answer["first again"]) & set(answer["second"])
    assert answer["masks again"] == [[0]] * 4


def test_without_that_teams_swap_workers_and_run_on_each_others_cpus(case: Case) -> None:
    """What the setting is for; the environment's own word wins, and is told."""
    answer = case("libomp", "trading", KMP_HOT_TEAMS_MODE="0")
    assert answer["kept"] == 0
    assert set(answer["first"]) & set(answer["second"])
    # The first team gets workers back from the second, or, where that still holds them, new ones.
    assert answer["masks again"][:2] == [[0]] * 2
    assert [0] not in answer["masks again"][2:]


def test_the_environment_may_ask_for_it_itself(case: Case) -> None:
    answer = case("libomp", "trading", KMP_HOT_TEAMS_MODE="1")
    assert answer["kept"] == 1
    assert answer["masks again"] == [[0]] * 4


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("regions", [0, 1])
def test_keeping_workers_is_asked_for_in_time_or_not_at_all(
    built_library: Path, needs: Needs, runtime: str, regions: int
) -> None:
    """Asked too late, LLVM's and Intel's runtimes would print a warning."""
    code = (
        f"import ctypes; kernels = ctypes.CDLL({str(built_library.resolve())!r})\n"
        f"for _ in range({regions}): kernels.xk_openmp_team(None, 0)\n"
        "print(kernels.xk_team_keep_workers(), kernels.xk_team_keep_workers())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(path_of(runtime, needs), OMP_NUM_THREADS="3"),
        capture_output=True,
        text=True,
        check=True,
    )
    in_time = regions == 0 or runtime == "libgomp"
    assert done.stdout == ("1 1\n" if in_time else "0 0\n")
    assert done.stderr == ""


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_team_put_back_before_its_end_leaves_its_set_to_nobody(case: Case, runtime: str) -> None:
    masks = case(runtime, "ending")
    assert masks[:2] == [[1], [1]]
    assert len(masks) == 6
    assert [0] not in masks


def test_a_host_thread_on_one_cpu_draws_new_workers_onto_it(case: Case) -> None:
    """The trap that xk_team_pin avoids: all of them share one CPU of the set."""
    answer = case("libgomp", "trap", "host thread")
    assert answer["after"] == [[0]] + [answer["before"][1]] + [[0]] * 2


def test_a_pinned_team_draws_new_workers_onto_the_whole_set(case: Case) -> None:
    answer = case("libgomp", "trap", "team")
    assert answer["before"] == [[0, 1], [1]]
    assert answer["after"] == [[0, 1], [1], [0, 1], [0, 1]]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_set_that_cannot_be_had_whole_changes_no_mask(case: Case, runtime: str) -> None:
    answer = case(runtime, "refusing")
    size, masks = answer.pop("before")
    assert (size, masks) == (3, [[0, 1], [1], [0]])
    assert len(answer) == 4
    for seen in answer.values():
        assert seen == [*REFUSED_AS_INVALID, masks]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_worker_that_is_refused_its_mask_changes_no_mask_of_the_team(
    case: Case, needs: Needs, compile_program: Compile, runtime: str
) -> None:
    refusal = compile_program("refusal", "-shared", "-fPIC")
    preload = f"{path_of(runtime, needs)} {refusal}"
    answer = case(runtime, "refused_worker", LD_PRELOAD=preload)
    size, masks = answer.pop("before")
    assert (size, masks) == (3, [[0, 1]] * 3)
    assert len(answer) == 2
    for seen in answer.values():
        assert seen == [*REFUSED_AS_INVALID, masks]


@pytest.mark.long
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_torch_follows_once_it_has_met_the_thread(case: Case, needs: Needs, runtime: str) -> None:
    needs(importlib.util.find_spec("torch"), "torch")
    answer = case(runtime, "with_torch", OMP_NUM_THREADS="2")
    default = answer["default"]
    assert answer["before"] == [5, 5]
    # The meeting overwrites what came before it: torch asks MKL for a default, and MKL answers with
    # the thread's own count, but with no more than the machine has cores.
    assert answer["late"] in ([default, default], [5, 5])
    assert answer["main"] == answer["new"] == [default, default]


@pytest.mark.long
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_streams_of_torchs_layers_stay_where_they_are(
    case: Case, needs: Needs, runtime: str
) -> None:
    """oneDNN and MKL run on two threads here and there, and the team is whole again after them."""
    needs(importlib.util.find_spec("torch"), "torch")
    assert case(runtime, "streams") == {"0": [[0]] * 4, "1": [[1]] * 4}


# Arguments, in this process: none of these runs a region.


@pytest.fixture
def kernels(built_library: Path) -> ctypes.CDLL:
    return native.library()


@pytest.mark.parametrize("name", ["xk_team_confine", "xk_team_pin"])
@pytest.mark.parametrize("cpus", [[], [-1], [0, 0], [0, 1, 0], [16_384], [2**31 - 1]], ids=str)
def test_what_is_no_set_of_cpus_is_refused(
    kernels: ctypes.CDLL, name: str, cpus: list[int]
) -> None:
    before = os.sched_getaffinity(0)
    array = (ctypes.c_int32 * len(cpus))(*cpus)
    assert getattr(kernels, name)(array, len(cpus)) == native.INVALID_ARGUMENT
    assert getattr(kernels, name)(None, 1) == native.INVALID_ARGUMENT
    assert os.sched_getaffinity(0) == before


def test_the_mask_of_a_thread_is_read_by_its_number(kernels: ctypes.CDLL) -> None:
    cpus = (ctypes.c_int32 * 1024)()
    allowed = sorted(os.sched_getaffinity(0))
    for thread_id in (0, threading.get_native_id()):
        assert kernels.xk_thread_cpus(thread_id, cpus, 1024) == len(allowed)
        assert cpus[: len(allowed)] == allowed


def test_a_mask_is_counted_whole_and_written_as_far_as_there_is_room(
    kernels: ctypes.CDLL,
) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    cpus = (ctypes.c_int32 * 2)(-7, -7)
    assert kernels.xk_thread_cpus(0, cpus, 1) == len(allowed)
    assert list(cpus) == [allowed[0], -7]
    assert kernels.xk_thread_cpus(0, None, 0) == len(allowed)


def test_the_mask_of_a_thread_elsewhere_is_refused(kernels: ctypes.CDLL) -> None:
    """A process that is no part of this one, and a thread that has ended."""
    ended = threading.Thread(target=lambda: None)
    ended.start()
    ended.join()
    ended_id = ended.native_id
    assert ended_id
    while os.path.exists(f"/proc/self/task/{ended_id}"):  # join() does not wait for the kernel
        time.sleep(0.001)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        for thread_id in (other.pid, ended_id):
            ctypes.set_errno(0)
            assert kernels.xk_thread_cpus(thread_id, None, 0) == native.REFUSED
            assert ctypes.get_errno() == errno.ESRCH
        other.kill()


@pytest.mark.parametrize(("thread_id", "capacity"), [(-1, 0), (0, -1), (0, 1)])
def test_reading_a_mask_refuses_what_makes_no_sense(
    kernels: ctypes.CDLL, thread_id: int, capacity: int
) -> None:
    assert kernels.xk_thread_cpus(thread_id, None, capacity) == native.INVALID_ARGUMENT
