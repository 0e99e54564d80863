# SPDX-License-Identifier: Apache-2.0
"""The child process that compiles: its priority, what it says, and its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.golden import Golden
from tests.runtime_ext.stream_threads import in_a_thread
from tests.tiers import quick_first

from xruntime import operator_library
from xruntime.kept.calls import Pattern, flat_call
from xruntime.kept.library import NotCompiledError
from xruntime.kept.making import (
    KEPT_SPEED,
    ONLY_IDLE,
    CompileJob,
    CompilePriority,
    NoLibraryError,
    calls_by_torch,
    compile_in_child,
    compile_priority,
)
from xruntime.kept.model_libraries import CallKey, ModelCall, stored_format

pytestmark = pytest.mark.usefixtures("native")


@pytest.mark.parametrize(
    ("speedup", "chosen"),
    [(0.5, 19), (1.0, 19), (1.17, 19), (1.18, 10), (1.4, 10), (1.5, 5), (9, 5)],
)
def test_what_the_passes_save_decides_the_priority(speedup: float, chosen: int) -> None:
    assert compile_priority(speedup, threads=2, cpus=2) == CompilePriority(chosen)
    loss = 1 / (speedup * KEPT_SPEED[chosen])
    assert loss <= 1.05 or chosen == ONLY_IDLE


@pytest.mark.parametrize(
    ("speedup", "threads", "cpus", "leaves"),
    [
        (1.0, 16, 16, False),  # a sixteenth is more than the twentieth that may be lost
        (1.02, 16, 16, True),
        (1.0, 32, 32, True),
        (1.2, 4, 4, False),
        (1.3, 4, 4, True),
        (1.3, 4, 8, False),  # there are idle CPUs
        (0.5, 32, 32, False),
    ],
)
def test_many_threads_leave_a_core_rather_than_share_one(
    speedup: float, threads: int, cpus: int, leaves: bool
) -> None:
    assert compile_priority(speedup, threads, cpus) == CompilePriority(ONLY_IDLE, leaves)


def job(call: Callable[[list[torch.Tensor]], Any], *tensors: torch.Tensor) -> CompileJob:
    sizes = tuple([tuple(it.shape) for it in tensors])
    return CompileJob("Model", call, list(tensors), Pattern(sizes), 1)


def compiled(job: CompileJob, directory: Path) -> NotCompiledError | None:
    """Compile as `xruntime.optimization.optimized_code` does: in a thread of its own."""

    def run() -> NotCompiledError | None:
        try:
            compile_in_child(job, str(directory), 0)
        except NotCompiledError as error:
            return error
        return None

    return in_a_thread(run)


def test_the_compiler_is_no_child_of_the_program(tmp_path: Path) -> None:
    """A program that waits for any child would wait for the compiler."""

    def parent(_: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        raise NoLibraryError(f"{os.getppid()}")

    error = compiled(job(parent, torch.ones(3)), tmp_path)
    assert error is not None
    assert str(error).isdecimal()
    assert int(str(error)) != os.getpid()


def test_what_cannot_be_exported_is_refused_for_good(tmp_path: Path) -> None:
    def branch(tensors: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        (values,) = tensors
        return (values + 1 if values.sum() > 0 else values - 1,)

    error = compiled(job(branch, torch.ones(3)), tmp_path)
    assert error.final
    assert str(error).startswith("torch.export cannot export Model: ")


def test_functions_that_compiled_code_leaves_out_are_not_baked_in(
    golden: Golden, tmp_path: Path
) -> None:
    @torch.compiler.disable
    def outside(values: torch.Tensor) -> torch.Tensor:
        return values * 2

    error = compiled(job(lambda tensors: (outside(tensors[0]),), torch.ones(3)), tmp_path)
    assert error.final
    golden(str(error))


@pytest.mark.long
def test_operators_without_a_c_interface_are_refused_for_good(
    tmp_path: Path, compiler: None
) -> None:
    error = compiled(
        job(lambda tensors: (torch.linalg.matrix_exp(tensors[0]),), torch.eye(3)), tmp_path
    )
    assert error.final
    text = "Model calls operators that have no C interface: aten::linalg_matrix_exp"
    assert str(error) == text


def test_operators_of_xruntime_need_its_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = operator_library.LoadResult(None, "not built")
    monkeypatch.setattr(operator_library, "loaded", lambda: library)
    calls = [{"node": {"target": f"xruntime::{name}"}} for name in ("nms", "interaction")]
    (tmp_path / "model.wrapper.json").write_text(json.dumps({"nodes": calls}))
    problem = "operators that have no C interface: xruntime::interaction, xruntime::nms"
    remedy = "; libxoperators.so has it, and is not in use (not built)"
    assert calls_by_torch(str(tmp_path)) == problem + remedy
    without = stored_format()
    # Refusals are kept: one that was made without the library must not be found with it.
    library = operator_library.LoadResult(Path("libxoperators-3-00000000.so"), "")
    assert calls_by_torch(str(tmp_path)) == problem
    assert stored_format() != without


def test_errors_of_the_model_and_ends_of_the_process_are_not_for_good(tmp_path: Path) -> None:
    def fail(_: list[torch.Tensor]) -> Any:
        raise OSError("no room")

    def die(_: list[torch.Tensor]) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    error = compiled(job(fail, torch.ones(3)), tmp_path)
    assert not error.final
    assert "no room" in str(error)
    for entry in tmp_path.iterdir():
        entry.rmdir()
    error = compiled(job(die, torch.ones(3)), tmp_path)
    assert not error.final
    assert "ended early" in str(error)


PROGRAM = """
import os, pathlib, sys, threading, time
import torch
from xruntime.kept.calls import Pattern
from xruntime.kept.making import CompileJob, compile_in_child

def call(tensors):
    name = str(os.getpid())
    pathlib.Path(sys.argv[1], "told").write_text(name)
    pathlib.Path(sys.argv[1], "told").rename(pathlib.Path(sys.argv[1], "child"))
    os.system("sleep 600")

job = CompileJob("Model", call, [torch.ones(2)], Pattern(((2,),)), 1)
target = lambda: compile_in_child(job, sys.argv[1], 0)
threading.Thread(target=target, daemon=True).start()
while not os.path.exists(os.path.join(sys.argv[1], "child")):
    time.sleep(0.01)
if sys.argv[2] == "ends":
    sys.exit(0)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("how", quick_first(["killed", "ends"]))
def test_the_child_ends_with_the_program(tmp_path: Path, how: str) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, tmp_path, how], stdout=subprocess.PIPE, text=True
    )
    if how == "killed":
        assert program.stdout.readline() == "ready\n"
        program.kill()
    program.wait(120)
    # Neither the child nor what it started keeps the output open.
    assert program.stdout.read() == ""
    program.stdout.close()
    group = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 30
    while _is_there(group):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    states = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group:
            states.append(fields[0])
    return any(state != "Z" for state in states)


class Counting(torch.nn.Module):
    """Returns a number beside its output."""

    def forward(self, values: torch.Tensor) -> tuple[torch.Tensor, int]:
        return values * 2, values.shape[0]


class Summing(torch.nn.Module):
    def forward(self, values: torch.Tensor) -> tuple[torch.Tensor, float]:
        return values * 2, values.sum().item()


@pytest.mark.parametrize(("model", "rows"), [(Counting(), None), (Summing(), 3)])
def test_numbers_that_depend_on_a_call_are_not_kept(
    golden: Golden, tmp_path: Path, model: torch.nn.Module, rows: int | None
) -> None:
    values = torch.ones(3, 4)
    given = flat_call((values,), {})
    key = CallKey(given.form, 1, None, torch.float32)
    call = ModelCall(type(model).forward, model, key, given.leaves)
    error = compiled(job(call, values)._replace(pattern=Pattern(((rows, 4),))), tmp_path)
    assert error.final
    golden(str(error))
