# SPDX-License-Identifier: Apache-2.0
"""Pools of one and two CPUs, read from this machine, and what every test here must leave as it was."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable, Iterator

import pytest

from xruntime import KernelsUnavailableError
from xruntime.cpu_pool import CPUPool
from xruntime.native import library_path

Needs = Callable[[object, str], None]


@pytest.fixture(autouse=True)
def ready(needs: Needs) -> None:
    needs(importlib.util.find_spec("torch"), "torch")
    try:
        library_path()
    except KernelsUnavailableError:
        needs(None, "libxkernels.so (g++ at hand when xlaunch was installed)")


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


@pytest.fixture(autouse=True)
def nothing_stays_changed(ready: None) -> Iterator[None]:
    """The main thread's mask and count, and what new threads begin with, are as before the test."""
    import torch

    before = os.sched_getaffinity(0), torch.get_num_threads(), count_of_a_new_thread()
    yield
    after = os.sched_getaffinity(0), torch.get_num_threads(), count_of_a_new_thread()
    assert after == before


def count_of_a_new_thread() -> int:
    """torch's number of threads in a thread that was started just now."""
    import torch

    counts: list[int] = []
    thread = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return counts[0]
