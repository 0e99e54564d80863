# SPDX-License-Identifier: Apache-2.0
"""A rank that trains over gloo ends normally: which programs get the hook for it, and what it does."""

from __future__ import annotations

import ast
import os
import sys
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import clean_environment, program, xlaunch
from tests.launcher.environment.made_up import environment, with_mkl

import xruntime
from xlaunch.environment import prepare_environment
from xlaunch.environment.optimization import HOOK
from xlaunch.environment.start_hook.startup import sitecustomize
from xlaunch.environment.threads import HOOK_DIRECTORY
from xlaunch.machine import read_machine
from xlaunch.planning import Request
from xlaunch.planning.planner import plan
from xlaunch.planning.request import Optimize

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")

RANK = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "RANK": "0"}


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The interpreter of an environment with torch."""
    with_mkl(environment(tmp_path / "venv", "torch-2.13.0", python="3.13.1"))
    return tmp_path / "venv" / "bin" / "python"


def python_path(request: Request, **inherited: str) -> str | None:
    """The PYTHONPATH that a program gets."""
    own = {n: value for n, value in clean_environment().items() if n != "PYTHONPATH"}
    made = plan(request.layout, read_machine())
    prepared = prepare_environment(made, request.program, {**own, **inherited})
    return prepared.variables[0].get("PYTHONPATH")


@pytest.mark.parametrize("variable", ["LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"])
def test_rank_gets_the_hook_before_its_own_path(python: Path, variable: str):
    request = Request.of(str(python), "train.py")
    rank = {variable: "1"}
    assert python_path(request, **rank) == HOOK_DIRECTORY
    assert python_path(request, **rank, PYTHONPATH="") == HOOK_DIRECTORY
    assert python_path(request, **rank, PYTHONPATH="/mine:") == f"{HOOK_DIRECTORY}:/mine:"
    given = request.replace(env=(("PYTHONPATH", "/given"),))
    assert python_path(given, **rank, PYTHONPATH="/mine") == f"{HOOK_DIRECTORY}:/given"
    assert python_path(request, PYTHONPATH="/mine") == "/mine"


@pytest.mark.parametrize("flags", ["-I", "-uE", "-W error -S"])
def test_interpreter_that_would_ignore_the_hook_gets_none(python: Path, flags: str):
    request = Request.of(str(python), *flags.split(), "train.py")
    assert python_path(request, **RANK) is None


@pytest.mark.parametrize(
    ("packages", "version"), [((), "3.13.1"), (("torch-2.13.0",), "3.14.0"), (("numpy-2.3",), "3.12.1")]
)  # fmt: skip
def test_environment_that_needs_no_hook_gets_none(
    tmp_path: Path, packages: tuple[str, ...], version: str
):
    with_mkl(environment(tmp_path / "venv", *packages, python=version))
    request = Request.of(str(tmp_path / "venv" / "bin" / "python"), "train.py")
    assert python_path(request, **RANK) is None


def test_program_that_is_not_python_gets_none():
    assert python_path(Request.of("true"), **RANK) is None
    assert python_path(Request.of("sh", "-c", "torchrun train.py")) is None


def test_torchrun_passes_the_hook_on(python: Path):
    torchrun = program(python.with_name("torchrun"), f"#!{python}\n")
    for words in ((str(torchrun),), (str(python), "-m", "torch.distributed.run")):
        assert python_path(Request.of(*words, "train.py")) == f"{HOOK_DIRECTORY}/"


SHOWN = "import os, sys; print([os.environ.get('PYTHONPATH'), sys.path[1:], 'sitecustomize' in sys.modules])"


def shown(value: str, directory: Path, **variables: str) -> list[list[object]]:
    """What a program with this PYTHONPATH sees, and one that it starts."""
    script = directory / "script.py"
    nested = f"import subprocess; subprocess.run([sys.executable, '-c', {SHOWN!r}])"
    script.write_text(f"{SHOWN}\nsys.stdout.flush()\n{nested}")
    env = clean_environment(PYTHONPATH=value, **variables)
    done = xlaunch("--rank-mode", "off", script, env=env)
    assert done.code == 0, done.err
    return [ast.literal_eval(line) for line in done.out.decode().splitlines()]


def test_rank_and_its_processes_see_the_users_path(tmp_path: Path):
    """Also a rank of a torchrun that was started with the hook."""
    mine = tmp_path / "mine"
    mine.mkdir()
    expected = shown(str(mine), tmp_path)
    assert expected[0][0] == str(mine)
    assert shown(str(mine), tmp_path, **RANK) == expected
    assert shown(f"{HOOK_DIRECTORY}/:{mine}", tmp_path, **RANK) == expected
    (first, path, _), _ = shown(f"{HOOK_DIRECTORY}/:{mine}", tmp_path)
    assert (first, path) == (f"{HOOK_DIRECTORY}/:{mine}", expected[0][1])


@pytest.mark.parametrize("options", [(), ("--optimize", "auto")])
def test_users_own_sitecustomize_is_imported_once(
    golden: Golden, tmp_path: Path, options: tuple[str, ...], needs
):
    needs(find_spec("torch"), "torch")
    own = tmp_path / "sitecustomize.py"
    own.write_text("import builtins; builtins.mine = getattr(builtins, 'mine', 0) + 1")
    code = "import os, sys; print(mine, os.environ['PYTHONPATH'], sys.modules['sitecustomize'].__file__)"
    env = clean_environment(PYTHONPATH=str(tmp_path), **RANK)
    done = xlaunch(*options, sys.executable, "-c", code, env=env)
    assert done.code == 0, done.err
    golden(done.out.decode())


def test_both_hooks_reach_a_rank(needs):
    needs(find_spec("torch"), "torch")
    request = Request.of(sys.executable, "-c", "0", optimize=Optimize.AUTO)
    hooks = [HOOK_DIRECTORY] if sys.version_info < (3, 14) else []
    hooks.append(os.path.join(os.path.dirname(xruntime.__file__), HOOK))
    assert python_path(request, **RANK, PYTHONPATH="/mine") == ":".join([*hooks, "/mine"])


@pytest.fixture
def gloo_thread(monkeypatch: pytest.MonkeyPatch):
    """Start a function in a thread that has the name of gloo's."""
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    monkeypatch.setattr(sitecustomize, "MAX_WAIT_S", float("inf"))
    threads = []

    def start(function: Callable[[], object]) -> None:
        named = threading.Event()

        def run() -> None:
            task = Path(sitecustomize.TASKS) / str(threading.get_native_id())
            (task / "comm").write_bytes(sitecustomize.THREAD)
            named.set()
            function()

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        named.wait()

    yield start
    for thread in threads:
        thread.join()


def test_end_waits_for_a_thread_that_works(gloo_thread):
    ended = threading.Event()

    def work() -> None:
        until = time.monotonic() + 0.2
        while time.monotonic() < until:
            pass
        ended.set()

    gloo_thread(work)
    sitecustomize.wait_for_gloo()
    assert ended.is_set()


def test_end_does_not_wait_for_a_thread_that_sleeps(gloo_thread):
    wake = threading.Event()
    gloo_thread(wake.wait)
    try:
        sitecustomize.wait_for_gloo()
    finally:
        wake.set()


UNFINISHED = """\
import os, sys
import torch
import torch.distributed as dist

rank, store = int(os.environ["RANK"]), dist.FileStore(f"{__file__}.store", 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
value, total = torch.ones(1, requires_grad=True), torch.ones(1)
if rank == 0:
    sys.setswitchinterval(1000)  # from here on the GIL is released by calls that wait, and by no others
    value.register_hook(lambda _: [dist.all_reduce(total, async_op=True)] and None)
    value.backward()
    store.set("begun", "yes")
    seen = total.numpy()
    while seen[0] == 1:
        pass
    # The result is here. The thread that brought it needs the GIL to drop the collective.
else:
    store.wait(["begun"])
    dist.all_reduce(total)
    print(f"total {total.item():.0f}")
"""


@pytest.mark.long
@pytest.mark.parametrize("words", [(), ("torchrun",)], ids=["placed", "torchrun"])
def test_rank_ends_normally_whose_last_collective_was_not_dropped(
    tmp_path: Path, words: tuple[str, ...], needs
):
    needs(find_spec("torch"), "torch")
    needs(len(os.sched_getaffinity(0)) >= 2, "two CPUs")
    script = tmp_path / "train.py"
    script.write_text(UNFINISHED)
    env = clean_environment(PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    done = xlaunch(*words, "--nproc-per-node", "2", script, env=env)
    assert done.code == 0, done.err
    assert done.out == b"total 2\n"
