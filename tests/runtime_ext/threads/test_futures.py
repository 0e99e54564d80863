# SPDX-License-Identifier: Apache-2.0
"""A future without a lock of its own keeps every promise of the standard one."""

from __future__ import annotations

import concurrent.futures
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError, as_completed, wait
from types import FrameType

import pytest

from xruntime.streams.task import Task
from xruntime.threads import futures, worker
from xruntime.threads.cpu_pool import CPUPool
from xruntime.threads.futures import LightFuture

pytestmark = pytest.mark.usefixtures("nothing_stays_changed")

PATIENCE_S = 60.0
STUCK_S = 0.004
"""After which a thread that was let in is taken to wait for the one that it interrupted."""
BLOCKED_S = 0.5
"""After which the one that is to be interrupted is taken to wait for the other."""

SOURCES = (futures.__file__, concurrent.futures._base.__file__)

Act = Callable[[LightFuture[int]], None]


def interleaved(one: Act, another: Act) -> Iterator[LightFuture[int]]:
    """Futures that saw both: each interrupted by the other, whole, at one of its bytecodes."""
    for first, second in ((one, another), (another, one)):
        # Python 3.12 traces no bytecodes of a process's first time.
        _interrupted_at(0, finish, LightFuture.done, LightFuture())
        for point in itertools.count():
            future = LightFuture[int]()
            interrupted = _interrupted_at(point, first, second, future)
            yield future
            if not interrupted:
                break
        assert point > 20


def _interrupted_at(point: int, first: Act, second: Act, future: LightFuture[int]) -> bool:
    """Whether `first` had so many bytecodes before it ended or waited for `second`."""
    let_in = threading.Event()

    def come() -> None:
        assert let_in.wait(PATIENCE_S)
        second(future)

    other = threading.Thread(target=come)
    other.start()
    passed = itertools.count()
    interrupted = False

    def step(frame: FrameType, event: str, argument: object) -> object:
        nonlocal interrupted
        frame.f_trace_opcodes = frame.f_code.co_filename in SOURCES
        if event == "opcode" and next(passed) == point and not let_in.is_set():
            interrupted = True
            let_in.set()
            other.join(STUCK_S)
        return step

    rescue = threading.Timer(BLOCKED_S, let_in.set)
    rescue.start()
    before = sys.gettrace()
    sys.settrace(step)
    try:
        first(future)
    finally:
        sys.settrace(before)
        rescue.cancel()
        let_in.set()
    other.join(PATIENCE_S)
    assert not other.is_alive()
    return interrupted


def finish(future: LightFuture[int]) -> None:
    if future.set_running_or_notify_cancel():
        future.set_result(7)


def test_it_has_all_that_the_standard_one_has() -> None:
    light, standard = LightFuture[int](), Future[int]()
    assert all(hasattr(light, name) for name in vars(standard))
    assert light._condition is light._condition
    with pytest.raises(AttributeError, match="'LightFuture' object has no attribute 'resutl'"):
        light.resutl  # noqa: B018


def test_a_call_that_is_only_waited_for_makes_no_condition(
    second: CPUPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow the machine is, the wait is the mailbox's.
    monkeypatch.setattr(worker, "NATIVE_WAIT_US", int(PATIENCE_S * 1e6))
    made: list[object] = []
    with Task(abs, second) as task, monkeypatch.context() as patch:
        patch.setattr(threading.Condition, "__init__", lambda *_: made.append(_))
        assert task(-3).result() == 3
        assert isinstance(task("three").exception(), TypeError)
        assert made == []


def test_all_who_ask_for_the_lock_get_the_same() -> None:
    found: list[threading.Condition] = []

    def ask(future: LightFuture[int]) -> None:
        found.append(future._condition)

    for future in interleaved(ask, ask):
        assert found == [future._condition] * 2
        found.clear()


@pytest.mark.long
def test_either_cancelled_or_done() -> None:
    answers: list[bool] = []
    seen = set()
    for future in interleaved(finish, lambda future: answers.append(future.cancel())):
        cancelled = answers.pop()
        assert cancelled == future.cancelled() == future.cancel()
        if cancelled:
            with pytest.raises(CancelledError):
                future.result(0)
        else:
            assert future.result(0) == 7
        seen.add(cancelled)
    assert seen == {False, True}


@pytest.mark.long
def test_every_callback_is_called_once() -> None:
    called: list[Future[int]] = []

    def listen(future: LightFuture[int]) -> None:
        future.add_done_callback(called.append)
        future.add_done_callback(called.append)

    for future in interleaved(finish, listen):
        assert called == [future, future]
        called.clear()


@pytest.mark.parametrize(
    ("way", "error"),
    [
        pytest.param("result", None, marks=pytest.mark.long),
        pytest.param("result", ValueError("seven"), marks=pytest.mark.long),
        pytest.param("as_completed", ValueError("seven"), marks=pytest.mark.long),
        pytest.param("wait", None, marks=pytest.mark.full),
        pytest.param("exception", None, marks=pytest.mark.full),
        pytest.param("exception", ValueError("seven"), marks=pytest.mark.full),
    ],
)
def test_whoever_waits_is_woken(error: ValueError | None, way: str) -> None:
    def end(future: LightFuture[int]) -> None:
        assert future.set_running_or_notify_cancel()
        if error is None:
            future.set_result(7)
        else:
            future.set_exception(error)

    def result_of(future: LightFuture[int]) -> object:
        try:
            return future.result(PATIENCE_S)
        except ValueError as raised:
            return raised

    ways: dict[str, Callable[[LightFuture[int]], object]] = {
        "wait": lambda future: wait([future], PATIENCE_S).done.pop(),
        "as_completed": lambda future: next(as_completed([future], PATIENCE_S)),
        "result": result_of,
        "exception": lambda future: future.exception(PATIENCE_S),
    }
    found: list[object] = []
    for future in interleaved(end, lambda future: found.append(ways[way](future))):
        wanted = {"wait": future, "as_completed": future, "result": error or 7, "exception": error}
        assert found == [wanted[way]]
        found.clear()


def test_without_a_timeout_a_result_is_awaited_as_long_as_it_takes() -> None:
    future = LightFuture[int]()
    assert future.set_running_or_notify_cancel()
    timer = threading.Timer(1.2, future.set_result, (7,))
    timer.start()
    assert future.result() == 7
    timer.join()


@pytest.mark.parametrize("has_lock", [False, True])
def test_an_outcome_is_set_once(has_lock: bool) -> None:
    future = LightFuture[int]()
    assert future.set_running_or_notify_cancel()
    if has_lock:
        assert future.running()
        with pytest.raises(RuntimeError):
            future.set_running_or_notify_cancel()
    future.set_result(7)
    for again in (future.set_result, lambda _: future.set_exception(ValueError())):
        with pytest.raises(InvalidStateError):
            again(8)
    assert future.result() == 7
    assert future.exception() is None
    assert not future.cancel()
    assert "returned int" in repr(future)


def test_one_that_was_cancelled_takes_no_outcome() -> None:
    future = LightFuture[int]()
    assert future.cancel()
    assert future.done()
    assert future.cancelled()
    assert not future.set_running_or_notify_cancel()
    with pytest.raises(InvalidStateError):
        future.set_result(7)
    with pytest.raises(CancelledError):
        future.exception()
