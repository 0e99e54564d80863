# SPDX-License-Identifier: Apache-2.0
"""`ipex.cpu.runtime` in this process."""

from __future__ import annotations

import os
import warnings

import pytest
import torch

import xruntime
import xruntime.compat.ipex as ipex
from xruntime.compat.ipex.cpu import runtime
from xruntime.errors import CPUPoolError, StreamCountError

pytestmark = [
    pytest.mark.usefixtures("native"),
    # Streams of eager modules.
    pytest.mark.filterwarnings("ignore::xruntime.errors.GILWarning"),
]


def test_pools_are_those_of_xruntime(two: xruntime.CPUPool) -> None:
    pool = runtime.CPUPool(two.core_ids)
    assert pool == two
    assert isinstance(pool, xruntime.CPUPool)
    assert isinstance(pool, runtime.CPUPool)
    assert not isinstance(two.core_ids, runtime.CPUPool)
    assert runtime.CPUPool(range(two.core_ids[0], two.core_ids[0] + 1)).core_ids == two.core_ids[:1]


def test_cpus_that_are_not_allowed_are_left_out_with_a_warning(two: xruntime.CPUPool) -> None:
    beyond = max(os.sched_getaffinity(0)) + 1000
    first, second = two.core_ids
    said = f"this process may not use CPUs {beyond}-{beyond + 1}; the pool has CPUs {two}"
    with pytest.warns(UserWarning, match=f"{said}$") as warned:
        pool = runtime.CPUPool([second, beyond, first, beyond + 1])
    assert pool.core_ids == [second, first]
    assert warned[0].filename == __file__
    with pytest.raises(CPUPoolError, match=f"CPU {beyond} does not exist"):
        runtime.CPUPool([beyond])


def test_node_id() -> None:
    assert runtime.CPUPool(node_id=0).core_ids == runtime.get_core_list_of_node_id(0)
    first = min(os.sched_getaffinity(0))
    with pytest.warns(UserWarning, match="node_id is ignored"):
        assert runtime.CPUPool([first], node_id=0).core_ids == [first]
    with pytest.raises(CPUPoolError, match="node 9999 does not exist"):
        runtime.CPUPool(node_id=9999)


def test_a_pool_without_arguments_has_all_cpus_that_the_process_may_use() -> None:
    assert set(runtime.CPUPool().core_ids) == os.sched_getaffinity(0)


@pytest.mark.parametrize("wrong", ["0-", [0, 0], [True], 3])
def test_what_is_not_a_list_of_cpus(wrong: object) -> None:
    with warnings.catch_warnings(), pytest.raises(CPUPoolError, match="core_ids"):
        runtime.CPUPool(wrong)  # type: ignore[arg-type]


@pytest.mark.usefixtures("nothing_stays_changed")
def test_pin_by_its_old_keyword(first: xruntime.CPUPool) -> None:
    with runtime.pin(cpu_pool=first):
        assert os.sched_getaffinity(0) == set(first.core_ids)
        assert torch.get_num_threads() == 1


def test_task_by_its_old_keywords(second: xruntime.CPUPool) -> None:
    with runtime.Task(module=torch.nn.Identity(), cpu_pool=second) as task:
        futures = [task(torch.tensor(number)) for number in range(3)]
        assert [int(future.get()) for future in futures] == [0, 1, 2]
        assert task.run_sync("text") == "text"


def test_auto_is_one_stream_for_each_core_and_stays_so(two: xruntime.CPUPool) -> None:
    model = torch.nn.Linear(3, 3).eval()
    with runtime.MultiStreamModule(model, num_streams="AUTO", cpu_pool=two) as streams:
        count = runtime.get_default_num_streams(two)
        for _ in range(8):
            assert streams.get_stream_number() == count
            streams(torch.rand(4, 3))
        assert "not decided" not in streams.describe()
    with pytest.raises(StreamCountError, match="num_streams=0"):
        runtime.MultiStreamModule(model, 0, two)


def test_runtime_is_enabled_without_a_preload() -> None:
    assert ipex.cpu.runtime.is_runtime_ext_enabled()
