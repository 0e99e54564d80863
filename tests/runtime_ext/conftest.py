# SPDX-License-Identifier: Apache-2.0
"""What tests of the runtime share: a cache of compiled code, pools of one and two CPUs, checks."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from xruntime import KernelsUnavailableError
from xruntime.native import library_path
from xruntime.threads.cpu_pool import CPUPool

Needs = Callable[[object, str], None]

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
BEFORE = os.environ.get(VARIABLE)


def pytest_collection_modifyitems() -> None:
    """Undo what importing the tests did: torch._inductor sets the variable when it is imported."""
    if BEFORE is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = BEFORE


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
def inductor_variable(inductor_cache: Path) -> Iterator[None]:
    """The variable names it in each module's tests and their children, and not after them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(inductor_cache))
        yield


@pytest.fixture(scope="session")
def native(needs: Needs) -> None:
    """torch and the native library are here."""
    needs(importlib.util.find_spec("torch"), "torch")
    try:
        library_path()
    except KernelsUnavailableError:
        needs(None, "libxkernels.so (g++ at hand when xlaunch was installed)")


@pytest.fixture(scope="session")
def compiler(native: None, needs: Needs) -> None:
    """torch can compile here."""
    needs(shutil.which(os.environ.get("CXX", "g++")), "g++")


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
