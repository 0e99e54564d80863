# SPDX-License-Identifier: Apache-2.0
"""pin: the calling thread and its team on a pool, and everything as before afterwards."""

from __future__ import annotations

import os
import threading

import pytest
import torch
from tests.runtime_ext.stream_threads import count_of_a_new_thread, in_a_thread, in_threads
from tests.runtime_ext.teams import Team, read_team

from xruntime import openmp_team
from xruntime.errors import CPUPoolError
from xruntime.threads.cpu_pool import CPUPool
from xruntime.threads.pinning import pin
from xruntime.threads.team import mkl_threads, resize_team, set_mkl_threads, team_of

pytestmark = pytest.mark.usefixtures("nothing_stays_changed")


def test_block_runs_on_the_pool_and_is_undone(two: CPUPool, second: CPUPool) -> None:
    before = read_team()
    with pin(second) as pool:
        assert pool is second
        assert read_team() == Team(1, [second.core_ids])
    with pin(two):
        assert read_team() == Team(2, [two.core_ids, two.core_ids])
    with pin(two, pin_workers=True):  # the host thread keeps the pool's mask
        assert read_team() == Team(2, [two.core_ids, [two.core_ids[1]]])
    assert read_team() == before


def test_workers_that_are_started_later_do_not_collapse_on_one_cpu(two: CPUPool) -> None:
    with pin(two, pin_workers=True):
        resize_team(1)
        read_team()
        # libgomp has ended the worker; the next ones inherit the host thread's mask.
        resize_team(4)
        masks = read_team().masks
    assert len(masks) == 4
    assert [mask for mask in masks[2:] if mask != two.core_ids] == []


def test_nested_pins_each_hold_for_their_block(
    first: CPUPool, second: CPUPool, two: CPUPool
) -> None:
    before = read_team()
    with pin(first):
        with pin(two, pin_workers=True):
            outer = read_team()
            with pin(second):
                assert read_team() == Team(1, [second.core_ids])
            # Each worker is on its own CPU again, not just somewhere in the pool.
            assert read_team() == outer == Team(2, [two.core_ids, [two.core_ids[1]]])
        assert read_team() == Team(1, [first.core_ids])
    assert read_team() == before


def test_same_object_inside_itself(second: CPUPool) -> None:
    pinned = pin(second)
    before = read_team()
    with pinned:
        with pinned:
            assert read_team() == Team(1, [second.core_ids])
        assert read_team() == Team(1, [second.core_ids])
    assert read_team() == before


def test_decorator_gives_the_same_result_and_name(second: CPUPool) -> None:
    model = torch.nn.Linear(64, 64)
    batch = torch.randn(32, 64)

    @pin(second)
    def run(batch: torch.Tensor) -> torch.Tensor:
        """Runs the model."""
        assert os.sched_getaffinity(0) == set(second.core_ids)
        return model(batch)

    assert run.__name__ == "run"
    assert run.__doc__ == "Runs the model."
    torch.testing.assert_close(run(batch), model(batch))


def test_one_decorator_used_by_many_threads_at_once(first: CPUPool, second: CPUPool) -> None:
    inside = threading.Barrier(8)
    teams: list[Team] = []
    changed: list[bool] = []
    pins = [pin(first), pin(second)]

    def work(index: int) -> None:
        pinned = pins[index % 2]
        before = os.sched_getaffinity(0), torch.get_num_threads()

        @pinned
        def run() -> None:
            inside.wait()
            teams.append(read_team())
            assert os.sched_getaffinity(0) == set(pinned.pool.core_ids)
            inside.wait()

        run()
        changed.append((os.sched_getaffinity(0), torch.get_num_threads()) != before)

    in_threads(work, range(8))
    expected = [Team(1, [first.core_ids])] * 4 + [Team(1, [second.core_ids])] * 4
    assert sorted(teams) == sorted(expected)
    assert changed == [False] * 8


@pytest.mark.machine
@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch without MKL")
@pytest.mark.parametrize("count", [0, 3])
def test_mkls_count_is_restored(two: CPUPool, count: int) -> None:
    former = set_mkl_threads(count)
    try:
        with pin(two):
            assert mkl_threads() == 2
        assert mkl_threads() == count
        with team_of(1):
            assert mkl_threads() == 1
        assert mkl_threads() == count
    finally:
        set_mkl_threads(former)


def test_pins_of_generators_side_by_side(first: CPUPool, second: CPUPool) -> None:
    def pinned(pool: CPUPool):
        with pin(pool):
            yield
            yield

    before = read_team()
    one, another = pinned(first), pinned(second)
    next(one)
    next(another)
    one.close()
    # The one that was entered last holds.
    assert read_team() == Team(1, [second.core_ids])
    another.close()
    assert read_team() == before


def test_a_pin_is_left_in_the_thread_that_entered_it(first: CPUPool) -> None:
    entered = pin(first)
    with entered, pytest.raises(RuntimeError, match="was entered in another thread"):
        in_a_thread(lambda: entered.__exit__(None, None, None))


def test_exception_passes_and_all_is_restored(second: CPUPool) -> None:
    before = read_team()
    with pytest.raises(ZeroDivisionError), pin(second):
        _ = 1 // 0
    assert read_team() == before


def test_counts_that_the_block_changes_are_restored(two: CPUPool) -> None:
    before, count = read_team(), count_of_a_new_thread()
    with pin(two):
        torch.set_num_threads(5)
        assert len(openmp_team().members) == 5
    assert read_team() == before
    # The block's own call leaks into new threads, as it does without a pin.
    in_a_thread(lambda: torch.set_num_threads(count))


def test_threads_that_the_block_starts_are_on_the_pool(second: CPUPool) -> None:
    with pin(second):
        assert in_a_thread(lambda: os.sched_getaffinity(0)) == set(second.core_ids)


def test_anything_but_a_pool_is_refused() -> None:
    with pytest.raises(CPUPoolError, match=r"\[0, 1\] is not a CPUPool; write CPUPool\(\[0, 1\]\)"):
        pin([0, 1])  # type: ignore[arg-type]
