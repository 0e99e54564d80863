# SPDX-License-Identifier: Apache-2.0
"""Task: calls on a thread of its own, in order, each with what belongs to it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import gc
import os
import threading
import time
import weakref

import pytest
import torch
from tests.runtime_ext.conftest import Needs
from tests.runtime_ext.stream_threads import in_threads
from tests.runtime_ext.teams import Team, read_team

from xruntime.errors import AffinityRefusedError, ClosedError, CPUPoolError
from xruntime.streams.task import Task
from xruntime.threads.cpu_pool import CPUPool
from xruntime.threads.pinning import pin

pytestmark = pytest.mark.usefixtures("nothing_stays_changed")


class Gate:
    """A call that ends when the test lets it."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()

    def __call__(self) -> None:
        self.entered.set()
        assert self.open.wait(60)


@pytest.fixture
def network() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(288, 4),
    ]
    return torch.nn.Sequential(*layers).eval()


def test_module_or_function_runs_beside_and_gives_the_same_result(network, two: CPUPool) -> None:
    def scaled(model, batch, *, factor=1.0):
        return model(batch) * factor

    batch = torch.rand(2, 3, 8, 8)
    with Task(network, two) as task:
        assert repr(task) == f"<Task(Sequential) on CPUs {two}>"
        torch.testing.assert_close(task(batch).get(), network(batch))
        torch.testing.assert_close(task.run_sync(batch), network(batch))
        torch.testing.assert_close(task.submit(batch).result(), network(batch))
    with Task(scaled, two) as task:
        torch.testing.assert_close(task(network, batch, factor=3.0).get(), network(batch) * 3)


def test_submissions_in_flight_keep_their_own_arguments(second: CPUPool) -> None:
    gate = Gate()

    def work(number: int, wait: bool = False) -> int:
        if wait:
            gate()
        return number

    with Task(work, second) as task:
        held = task(0, wait=True)
        futures = [task(number) for number in range(1, 100)]
        gate.open.set()
        assert [future.get() for future in (held, *futures)] == list(range(100))


def test_many_submitters_at_once(second: CPUPool) -> None:
    seen: list[tuple[int, int]] = []
    with Task(lambda *what: seen.append(what), second) as task:

        def submit(who: int) -> None:
            for number in range(200):
                task(who, number).result()

        in_threads(submit, range(8))
    assert len(seen) == 1600
    for who in range(8):
        assert [number for submitter, number in seen if submitter == who] == list(range(200))


def test_team_is_the_pools(two: CPUPool, second: CPUPool) -> None:
    before = read_team()
    with Task(read_team, second) as one, Task(read_team, two) as both:
        assert one.run_sync() == Team(1, [second.core_ids])
        assert both.run_sync() == Team(2, [two.core_ids] * 2)
        assert one.run_sync() == Team(1, [second.core_ids])
    with Task(read_team, two, pin_workers=True) as pinned:
        assert pinned.run_sync() == Team(2, [two.core_ids, [two.core_ids[1]]])
    assert read_team() == before


def test_pin_inside_a_task(two: CPUPool, second: CPUPool) -> None:
    with Task(pin(second)(read_team), two) as inner, Task(read_team, two) as outer:
        assert inner.run_sync() == Team(1, [second.core_ids])
        assert outer.run_sync() == Team(2, [two.core_ids] * 2)


def modes() -> tuple[bool, bool, bool, torch.dtype | None]:
    autocast = torch.is_autocast_enabled("cpu")
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        autocast,
        torch.get_autocast_dtype("cpu") if autocast else None,
    )


def test_modes_travel_with_each_submission(second: CPUPool) -> None:
    with Task(modes, second) as task:
        for _ in range(2):
            assert task.run_sync() == (True, False, False, None)
            with torch.no_grad():
                assert task.run_sync() == (False, False, False, None)
            with torch.inference_mode():
                assert task.run_sync() == (False, True, False, None)
                with torch.inference_mode(mode=False):
                    assert task.run_sync() == (True, False, False, None)
            with torch.autocast("cpu", dtype=torch.float16):
                assert task.run_sync() == (True, False, True, torch.float16)
                with torch.no_grad():
                    assert task.run_sync() == (False, False, True, torch.float16)
                with torch.autocast("cpu", enabled=False):
                    assert task.run_sync() == (True, False, False, None)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                assert task.run_sync() == (True, False, True, torch.bfloat16)


def test_an_exception_that_outlives_its_task_changes_no_modes(second: CPUPool) -> None:
    """Its traceback holds the thread's last frames, with the modes that torch restores when they go."""
    with Task(lambda: {}[0], second) as task, torch.inference_mode():
        error = task().exception(60)
    assert isinstance(error, KeyError)
    with torch.no_grad():
        del error
        gc.collect()
        assert not torch.is_grad_enabled()


def test_modes_that_a_call_leaves_behind_do_not_reach_the_next(second: CPUPool) -> None:
    def leave() -> None:
        torch.set_grad_enabled(False)
        torch.set_autocast_enabled("cpu", True)

    with Task(lambda act: act(), second) as task:
        task.run_sync(leave)
        assert task.run_sync(modes) == (True, False, False, None)


def test_gradients_flow_through_a_task(second: CPUPool) -> None:
    layer = torch.nn.Linear(3, 1)
    with Task(layer, second) as task:
        task.run_sync(torch.ones(2, 3)).sum().backward()
    torch.testing.assert_close(layer.weight.grad, torch.full((1, 3), 2.0))


def test_context_variables_travel_and_stay_apart(second: CPUPool) -> None:
    request: contextvars.ContextVar[str] = contextvars.ContextVar("request", default="none")

    def read_and_change() -> str:
        value = request.get()
        request.set("changed by the task")
        return value

    with Task(read_and_change, second) as task:
        assert task.run_sync() == "none"
        request.set("a")
        assert task.run_sync() == "a"
        assert task.run_sync() == "a"
        assert request.get() == "a"


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3)])
def test_exception_comes_out_where_the_result_would(second: CPUPool, error: BaseException) -> None:
    def work(fails: bool) -> int:
        if fails:
            raise error
        return 7

    with Task(work, second) as task:
        future = task(True)
        for get in (future.result, future.get, lambda: task.run_sync(True)):
            with pytest.raises(type(error)):
                get()
        assert future.exception() is error
        with pytest.raises(TypeError):
            task.run_sync()
        assert task.run_sync(False) == 7


def test_a_timeout_is_waited_out_and_leaves_the_call_running(second: CPUPool) -> None:
    gate, waits = Gate(), 20
    with Task(gate, second) as task:
        future = task()
        assert gate.entered.wait(60)
        for timeout_s in (-1, 0, 0.0001, 0.001):
            for get in (future.result, future.exception) * waits:
                begun = time.monotonic()
                with pytest.raises(TimeoutError):
                    get(timeout=timeout_s)
                assert time.monotonic() - begun >= timeout_s
        gate.open.set()
        assert future.result(timeout=60) is None


def test_cancelling_what_has_not_begun(second: CPUPool) -> None:
    gate, ran = Gate(), []
    with Task(lambda act: act(), second) as task:
        running = task(gate)
        waiting = task(lambda: ran.append(1))
        assert gate.entered.wait(60)
        assert not running.cancel()
        assert waiting.cancel()
        with pytest.raises(concurrent.futures.CancelledError):
            waiting.result()
        gate.open.set()
        task.run_sync(lambda: None)
    assert ran == []


def test_cancel_wakes_who_waits_already(second: CPUPool) -> None:
    gate, outcome = Gate(), []
    with Task(lambda act: act(), second) as task:
        task(gate)
        waiting = task(lambda: None)

        def wait() -> None:
            try:
                waiting.result(timeout=60)
            except concurrent.futures.CancelledError as error:
                outcome.append(error)

        waiter = threading.Thread(target=wait)
        waiter.start()
        waiting.cancel()
        waiter.join(60)
        # The worker is held still: the news came from cancel().
        assert not gate.open.is_set()
        assert len(outcome) == 1
        gate.open.set()


def test_futures_work_with_the_standard_library(second: CPUPool) -> None:
    with Task(lambda x: x * x, second) as task:
        futures = [task(x) for x in range(10)]
        done, not_done = concurrent.futures.wait(futures, timeout=60)
        assert (len(done), len(not_done)) == (10, 0)
        assert {f.result() for f in concurrent.futures.as_completed(futures)} == {
            x * x for x in range(10)
        }
        called: list[int] = []
        future = task(7)
        future.add_done_callback(lambda f: called.append(f.result()))
        assert future.result() == 49
    assert called == [49]


def test_futures_can_be_awaited(second: CPUPool) -> None:
    async def main() -> list[int]:
        with Task(lambda x: x + 1, second) as task:
            return await asyncio.gather(*(asyncio.wrap_future(task(x)) for x in range(20)))

    assert asyncio.run(main()) == list(range(1, 21))


def test_closing_finishes_what_was_submitted(second: CPUPool) -> None:
    seen: list[int] = []
    task = Task(seen.append, second)
    futures = [task(number) for number in range(50)]
    task.close()
    assert seen == list(range(50))
    assert all(future.done() for future in futures)
    task.close()
    with pytest.raises(ClosedError, match="closed and takes no more work"):
        task(1)


def test_closing_may_cancel_what_has_not_begun(second: CPUPool) -> None:
    gate = Gate()
    task = Task(lambda act: act(), second)
    running, waiting = task(gate), task(gate)
    assert gate.entered.wait(60)
    task.close(wait=False, cancel_pending=True)
    assert waiting.cancelled()
    gate.open.set()
    assert running.result(timeout=60) is None
    task.close()


def test_leaving_the_block_by_an_exception_cancels_what_waits(second: CPUPool) -> None:
    gate, futures = Gate(), []

    def fail(task: Task) -> None:
        futures.extend([task(gate), task(gate)])
        assert gate.entered.wait(60)
        threading.Timer(0.05, gate.open.set).start()
        raise KeyError("x")

    with pytest.raises(KeyError), Task(lambda act: act(), second) as task:
        fail(task)
    assert [future.cancelled() for future in futures] == [False, True]


def test_a_task_nobody_holds_ends_its_thread(second: CPUPool) -> None:
    names = {thread.name for thread in threading.enumerate()}
    task = Task(len, second)
    future = task([1, 2])
    worker = next(t for t in threading.enumerate() if t.name not in names)
    del task
    gc.collect()
    assert future.result() == 2
    worker.join(60)
    assert not worker.is_alive()


@pytest.mark.parametrize("fails", [False, True])
def test_arguments_and_results_are_not_kept(second: CPUPool, fails: bool) -> None:
    class Batch:
        pass

    def work(batch: Batch) -> Batch:
        return batch if not fails else None.missing

    batch = Batch()
    trace = weakref.ref(batch)
    with Task(work, second) as task:
        future = task(batch)
        error = future.exception()
        assert (error is not None) == fails
        del batch, future
        if error is not None:
            error.__traceback__ = None
        task.run_sync(Batch()) if not fails else task(Batch()).exception()
        gc.collect()
        assert trace() is None


def test_waiting_for_a_later_call_of_the_same_task_is_refused(second: CPUPool) -> None:
    def again(task: Task) -> int:
        return task(None).result() if task is not None else 0

    with (
        Task(again, second) as task,
        pytest.raises(RuntimeError, match="later call of the same worker, which would never start"),
    ):
        task.run_sync(task)


def test_tasks_may_wait_for_each_other(first: CPUPool, second: CPUPool) -> None:
    with (
        Task(lambda x: x + 1, first) as inner,
        Task(lambda x: inner.run_sync(x) * 2, second) as outer,
    ):
        assert outer.run_sync(3) == 8


def test_64_tasks_on_two_cpus(two: CPUPool) -> None:
    tasks = [Task(lambda x: x.sum().item(), two) for _ in range(64)]
    try:
        futures = [task(torch.full((1 << 16,), float(i))) for i, task in enumerate(tasks)]
        assert [future.result() for future in futures] == [float(i << 16) for i in range(64)]
    finally:
        for task in tasks:
            task.close()


def test_function_that_cannot_be_called_is_refused(second: CPUPool) -> None:
    with pytest.raises(TypeError, match="can be called, not int"):
        Task(3, second)  # type: ignore[arg-type]
    with pytest.raises(CPUPoolError, match=r"\[0\] is not a CPUPool"):
        Task(len, [0])  # type: ignore[arg-type]


def test_cpus_that_the_kernel_refuses(needs: Needs) -> None:
    from xruntime.threads.worker import Worker

    absent = max(os.sched_getaffinity(0)) + 1
    needs(absent < 1024, "a CPU number beyond those that are there")
    with pytest.raises(AffinityRefusedError, match=f"CPUs {absent}: not all of them are allowed"):
        Worker([absent], name="nowhere")
    assert "nowhere" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ValueError()])
def test_a_callback_that_fails_ends_neither_the_worker_nor_other_callbacks(
    second: CPUPool, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    gate, called = Gate(), []

    def fail(_: object) -> None:
        raise error

    with Task(lambda act: act(), second) as task:
        future = task(gate)
        future.add_done_callback(fail)
        future.add_done_callback(called.append)
        gate.open.set()
        assert task.run_sync(lambda: 7) == 7
    assert called == [future]
    assert "the callback" in caplog.text


def test_weights_that_change_between_calls_are_cast_again(second: CPUPool) -> None:
    layer = torch.nn.Linear(2, 1, bias=False)
    with Task(layer, second) as task, torch.autocast("cpu", dtype=torch.bfloat16):
        for value in (2.25, 0.0):
            with torch.no_grad():
                layer.weight.fill_(value / 2)
            assert task.run_sync(torch.ones(1, 2)).item() == value
