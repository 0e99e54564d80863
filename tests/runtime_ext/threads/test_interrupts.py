# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C may come anywhere in a call of the main thread: what comes after it works as before."""

from __future__ import annotations

import dis
import itertools
import math
import signal
import sys
import textwrap
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from tests.runtime_ext.threads.test_process_life import run

from xruntime.streams import batching as batching_module
from xruntime.streams import stream_pool, task
from xruntime.streams.batching import Batching
from xruntime.streams.stream_pool import Streams
from xruntime.streams.task import Task
from xruntime.threads import futures, worker
from xruntime.threads.cpu_pool import CPUPool

pytestmark = pytest.mark.usefixtures("nothing_stays_changed")

PATIENCE_S = 60.0

MODULES = (batching_module, futures, stream_pool, task, worker)
SOURCES = tuple(module.__file__ for module in MODULES)
HANDLERS_RUN_AFTER = ("CALL", "RESUME", "JUMP_BACKWARD", "CALL_FUNCTION_EX", "CALL_KW")
"""Instructions of Python after which it runs handlers of signals that came."""


def interrupted_at(point: int, call: Callable[[], Any]) -> bool:
    """Whether `call` was interrupted at the place of that number, of those where it can be."""
    passed = itertools.count()
    before: dict[FrameType, int] = {}

    def step(frame: FrameType, event: str, argument: object) -> object:
        frame.f_trace_opcodes = frame.f_code.co_filename in SOURCES
        if event == "opcode":
            last = before.get(frame)
            before[frame] = frame.f_lasti
            if last is not None:
                name = dis.opname[frame.f_code.co_code[last]]
                if name in HANDLERS_RUN_AFTER and next(passed) == point:
                    raise KeyboardInterrupt
        return step

    former = sys.gettrace()
    sys.settrace(step)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(former)
    return False


def interrupt_soon(call: Callable[[], object]) -> None:
    """Let a signal's handler interrupt the call, which waits for something that does not come.

    On a busy machine the signal may come before the call begins.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def armed() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        call()

    former = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            armed()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


def closes(close: Callable[[], None]) -> bool:
    closer = threading.Thread(target=close, daemon=True)
    closer.start()
    closer.join(PATIENCE_S)
    return not closer.is_alive()


def test_task_that_was_interrupted_anywhere(second: CPUPool) -> None:
    task = Task(abs, second)
    # Python 3.12 traces no bytecodes of a process's first time.
    interrupted_at(-1, lambda: task(-1).result(PATIENCE_S))
    for point in itertools.count():
        if not interrupted_at(point, lambda: task(-1).result(PATIENCE_S)):
            break
        assert task(-point).result(PATIENCE_S) == point
    assert point > 10
    assert closes(task.close)


def test_streams_that_were_interrupted_anywhere(first: CPUPool, second: CPUPool) -> None:
    streams = Streams(abs, (first, second), queue_length=1)
    interrupted_at(-1, lambda: streams.submit(-1).result(PATIENCE_S))
    for point in itertools.count():
        if not interrupted_at(point, lambda: streams.submit(-1).result(PATIENCE_S)):
            break
        calls = [streams.submit(-point) for _ in range(5)]
        assert [call.result(PATIENCE_S) for call in calls] == [point] * 5
    assert point > 10
    assert closes(streams.close)


def test_streams_that_join_calls_and_were_interrupted_anywhere(
    first: CPUPool, second: CPUPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Joining calls of so small a function takes longer than making them.
    monkeypatch.setattr("xruntime.streams.batching.WORTHWHILE", math.inf)
    batching = Batching(torch.neg, 4, None, None)
    streams = Streams(torch.neg, (first, second), queue_length=1, batching=batching)
    row = torch.ones(1)
    interrupted_at(-1, lambda: streams.submit(row).result(PATIENCE_S))
    for point in itertools.count():
        if not interrupted_at(point, lambda: streams.submit(row).result(PATIENCE_S)):
            break
        calls = [streams.submit(row * number) for number in range(12)]
        assert [call.result(PATIENCE_S).item() for call in calls] == [-n for n in range(12)]
    assert point > 10
    assert batching.reasons == []
    assert closes(streams.close)


def test_submitter_that_was_interrupted_before_it_woke_a_stream(
    first: CPUPool, second: CPUPool
) -> None:
    """Its call is made all the same, at the latest when the streams are closed."""
    for point in itertools.count():
        made: list[int] = []
        streams = Streams(made.append, (first, second))
        interrupted = interrupted_at(point, lambda streams=streams: streams.submit(1))
        assert closes(streams.close)
        assert made in ([], [1])
        if not interrupted:
            break
    assert made == [1]


def test_submitter_that_is_interrupted_while_it_waits_for_room(second: CPUPool) -> None:
    gate, made = threading.Event(), []

    def call(number: int) -> None:
        gate.wait(PATIENCE_S)
        made.append(number)

    streams = Streams(call, (second,), queue_length=1)
    begun = [streams.submit(1), streams.submit(2)]
    # One runs and one waits, and the next finds no room.
    interrupt_soon(lambda: begun.extend(streams.submit(number) for number in itertools.count(3)))
    gate.set()
    for future in begun:
        future.result(PATIENCE_S)
    assert closes(streams.close)
    assert made == list(range(1, len(begun) + 1))


def test_call_whose_submitter_was_interrupted_holds_up_no_other(
    first: CPUPool, second: CPUPool
) -> None:
    """Nobody woke a stream for it, so the next submitter's stream begins it, and another one the next."""
    # Python 3.12 traces no bytecodes of a process's first time.
    interrupted_at(-1, Streams(abs, (first,)).close)
    for point in itertools.count():
        gate = threading.Event()
        streams = Streams(lambda wait: wait(), (first, second))
        interrupted = interrupted_at(
            point, lambda streams=streams, gate=gate: streams.submit(lambda: gate.wait(PATIENCE_S))
        )
        assert streams.submit(gate.set).result(PATIENCE_S / 2) is None
        assert closes(streams.close)
        if not interrupted:
            break
    assert point > 10


def test_parts_of_an_interrupted_batch_do_not_begin(second: CPUPool) -> None:
    gate, made = threading.Event(), []

    def call(number: int) -> None:
        made.append(number)
        gate.wait(PATIENCE_S)

    streams = Streams(call, (second,))
    running = streams.submit(0)
    interrupt_soon(lambda: streams.call_each([((1,), {})]))
    gate.set()
    running.result(PATIENCE_S)
    assert closes(streams.close)
    assert made == [0]


@pytest.mark.long
def test_a_thousand_real_signals() -> None:
    run(
        textwrap.dedent("""
        from xruntime.streams.stream_pool import Streams
        task = Task(abs, pool)
        streams = Streams(abs, (CPUPool(cpus[:1]), CPUPool(cpus[-1:])), queue_length=1)
        interrupts = 0
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        while interrupts < 1000:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0001 + 0.00001 * (interrupts % 37))
                while True:
                    assert task(-1).result(60) == 1
                    assert streams.submit(-2).result(60) == 2
                    streams.call_each([((-3,), {}), ((-4,), {})])
            except KeyboardInterrupt:
                interrupts += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert task(-5).result(60) == 5
            assert [streams.submit(-n).result(60) for n in range(4)] == [0, 1, 2, 3]
        signal.alarm(60)
        task.close()
        streams.close()
        """)
    )
