# SPDX-License-Identifier: Apache-2.0
"""What tests of the runtime share: a cache of compiled code, pools of one and two CPUs, checks."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.inductor import CACHE, SETTINGS

from xruntime import KernelsUnavailableError
from xruntime.native import library_path
from xruntime.threads.cpu_pool import CPUPool

Needs = Callable[[object, str], None]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In the tests here torch may warn of what it imports itself."""
    for item in items:
        if item.nodeid.startswith("tests/runtime_ext/"):
            item.add_marker(pytest.mark.filterwarnings("ignore:.*torch.jit.*"), append=False)


@pytest.fixture(scope="session")
def inductor_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory, shared by all processes of a session: headers are compiled once in each."""
    base = tmp_path_factory.getbasetemp()
    # A worker of pytest-xdist has a directory inside the session's.
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    path = root / "inductor"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


@pytest.fixture(scope="module", autouse=True)
def cache_variables(
    inductor_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Set the variables of torch._inductor and of kept code in each module's tests and their children."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XRUNTIME_CACHE_DIR", str(tmp_path_factory.mktemp("optimized")))
        patch.setenv(CACHE, str(inductor_cache))
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(autouse=True)
def random_numbers() -> None:
    """Each test draws the same random numbers, whichever ran before it."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture(scope="session")
def native(needs: Needs) -> None:
    """torch and the native library are here."""
    needs(importlib.util.find_spec("torch"), "torch")
    try:
        library_path()
    except KernelsUnavailableError:
        needs(None, "libxkernels.so (g++ at hand when xlaunch was installed)")


@pytest.fixture(scope="session")
def compiler(native: None, needs: Needs, inductor_cache: Path) -> None:
    """torch can compile here. What compiles is imported, or each child that compiles would import it."""
    needs(shutil.which(os.environ.get("CXX", "g++")), "g++")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**SETTINGS, CACHE: str(inductor_cache)}.items():
            patch.setenv(name, value)
        importlib.import_module("torch._inductor.compile_fx")


@pytest.fixture(scope="session")
def torchao(native: None, needs: Needs) -> None:
    """torchao is here, and imported without its warnings."""
    from xruntime.quantization.torchao_package import import_torchao

    needs(importlib.util.find_spec("torchao"), "torchao (pip install '.[int8]')")
    import_torchao()


@pytest.fixture
def two(needs: Needs) -> CPUPool:
    """Two CPUs that this process may use."""
    allowed = sorted(os.sched_getaffinity(0))
    needs(len(allowed) >= 2, "two CPUs")
    return CPUPool(allowed[:2])


@pytest.fixture
def first(two: CPUPool) -> CPUPool:
    return CPUPool(two.core_ids[:1])


@pytest.fixture
def second(two: CPUPool) -> CPUPool:
    return CPUPool(two.core_ids[1:])


@pytest.fixture
def nothing_stays_changed(native: None) -> Iterator[None]:
    """The main thread's mask and count, and the count of new threads, are as before the test."""
    import torch
    from tests.runtime_ext.stream_threads import count_of_a_new_thread

    before = os.sched_getaffinity(0), torch.get_num_threads(), count_of_a_new_thread()
    yield
    after = os.sched_getaffinity(0), torch.get_num_threads(), count_of_a_new_thread()
    assert after == before


@pytest.fixture
def one_thread(native: None) -> Iterator[None]:
    """The calling thread has one OpenMP thread: on busy CPUs, threads spin for each other."""
    from xruntime.threads.team import team_of

    with team_of(1):
        yield
