# SPDX-License-Identifier: Apache-2.0
"""A set of streams: host threads on disjoint shares of a pool that all call the same module."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from xruntime.errors import ClosedError
from xruntime.threads.cpu_pool import CPUPool
from xruntime.threads.worker import Submission, TaskFuture, Turn, Worker, submission_of

QUEUE_LENGTH = 2
"""How many calls wait for each stream before `submit` makes its caller wait."""


class Streams:
    """One stream a pool of `pools`; each calls `module` with its own team, a thread a CPU.

    A signal's handler, such as that of Ctrl-C, may raise anywhere in the main thread. So a submitter
    only adds its call to what waits and wakes a stream; all else that changes is changed by the streams.

    `call_each` gives every stream its own part of a batch. `submit` gives a whole call to whichever
    stream is free first; at most `queue_length` calls a stream wait, then the submitter does. Both may
    be used by many threads at once.
    """

    def __init__(
        self,
        module: Callable[..., Any],
        pools: Sequence[CPUPool],
        *,
        pin_workers: bool = False,
        queue_length: int = QUEUE_LENGTH,
    ) -> None:
        self.module = module
        self.pools = tuple(pools)
        self._queue_length = queue_length
        self._closed = False
        self._workers: list[Worker] = []
        try:
            for index, pool in enumerate(self.pools):
                self._workers.append(
                    Worker(
                        pool.core_ids, len(pool), name=f"stream {index}", pin_workers=pin_workers
                    )
                )
        except BaseException:
            for worker in self._workers:
                worker.close()
            raise
        self._begin()
        _live.add(self)

    def __len__(self) -> int:
        return len(self.pools)

    @property
    def room(self) -> int:
        """How many calls run or wait before `submit` makes its caller wait."""
        return len(self) * (1 + self._queue_length)

    def call_each(self, parts: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]) -> list[Any]:
        """Call the module with part i on stream i, at most one part a stream; the results in order.

        When a call fails the others are waited for, and then the first exception is raised, with a
        note that names its stream.
        """
        futures: list[TaskFuture[Any]] = []
        try:
            for worker, (args, kwargs) in zip(self._workers, parts, strict=False):
                futures.append(worker.submit(self.module, args, kwargs))
            # Waited for one by one: there is nothing to do before the last one has ended.
            errors = [(index, future.exception()) for index, future in enumerate(futures)]
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        for index, error in errors:
            if error is not None:
                error.add_note(f"(raised in stream {index} of {len(self)})")
                raise error
        return [future.result() for future in futures]

    def submit(self, /, *args: Any, **kwargs: Any) -> TaskFuture[Any]:
        """Call the module on the next free stream; waits while the queue is full.

        Raises ClosedError.
        """
        call = submission_of(self.module, args, kwargs)
        gate = None
        with self._lock:
            if self._closed:
                raise ClosedError("these streams are closed and take no more work")
            if len(self._waiting) >= len(self) * self._queue_length and not self._free:
                gate = threading.Lock()
                gate.acquire()
                self._outside.append((call, gate))
            else:
                self._waiting.append(call)
                self._wake(1)
        if gate is not None:
            # A stream releases it when there is room.
            try:
                gate.acquire()
            except BaseException:
                call.future.cancel()
                raise
        return call.future

    def close(self, *, wait: bool = True, cancel_pending: bool = False) -> None:
        """Take no more calls; with `wait`, return when those accepted are done.

        `cancel_pending` cancels those that have not begun. Closing again does nothing. A call that a
        stream makes does not wait: it would wait for itself.
        """
        with self._lock:
            self._closed = True
            waiting = [*self._waiting, *(call for call, _ in self._outside)]
        if cancel_pending:
            # Not with the lock, which a callback may need.
            for call in waiting:
                call.future.cancel()
        wait = wait and not any(worker.is_current for worker in self._workers)
        for index, worker in enumerate(self._workers):
            if self._waiting or self._outside:
                # A submitter may have been interrupted before it woke a stream.
                with contextlib.suppress(ClosedError):
                    worker.put(self._turn(index))
            worker.close(wait=False, cancel_pending=cancel_pending)
        if wait:
            for worker in self._workers:
                worker.close()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        """Held while what follows is read or changed."""
        self._waiting: deque[Submission] = deque()
        self._outside: deque[tuple[Submission, threading.Lock]] = deque()
        """Calls for which there is no room yet; the lock is released when there is."""
        # In the order in which they became free; the last comes first: its caches are warm.
        self._free = dict.fromkeys(reversed(range(len(self._workers))))

    def _turn(self, index: int) -> Turn:
        # Made each time: kept, it would keep these streams.
        return Turn(functools.partial(self._take_turn, index))

    def _wake(self, streams: int) -> None:
        """Have so many free streams look for calls. `_lock` is held."""
        for _ in range(min(streams, len(self._free))):
            index = next(reversed(self._free))
            # In this order: a stream that is woken twice finds nothing, one that is not is lost.
            self._workers[index].put(self._turn(index))
            self._free.pop(index, None)

    def _take_turn(self, index: int, make: Callable[[Submission], None]) -> None:
        """In a stream's thread: make the call that waits longest, then queue for another."""
        while (call := self._next_call(index)) is not None:
            make(call)
            del call
            # One call at a time, to the end of the worker's line: parts of batches wait there, too.
            if self._waiting:
                with contextlib.suppress(ClosedError):
                    self._workers[index].put(self._turn(index))
                    return

    def _next_call(self, index: int) -> Submission | None:
        with self._lock:
            if self._outside:
                admitted, gate = self._outside.popleft()
                self._waiting.append(admitted)
                gate.release()
            if not self._waiting:
                self._free[index] = None
                return None
            self._free.pop(index, None)
            call = self._waiting.popleft()
            if self._waiting and self._free:
                # A submitter was interrupted before it woke somebody.
                self._wake(1)
        return call


def answers(
    submit: Callable[[Any], TaskFuture[Any]], calls: Iterable[Any], ahead: int
) -> Iterator[Any]:
    """Submit each item of `calls`, read at most `ahead` further than answered; yield the results in order.

    An exception of a call is raised where its result would come. What was begun by then is let
    finish, the rest is cancelled; so it is when the caller wants no more.
    """
    futures: deque[TaskFuture[Any]] = deque()
    try:
        for item in calls:
            futures.append(submit(item))
            if len(futures) >= ahead:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()
    finally:
        for future in futures:
            future.cancel()


_live: weakref.WeakSet[Streams] = weakref.WeakSet()


@atexit.register
def _finish_all() -> None:
    # Before the workers' own end, for this module was imported later: calls still wait for them.
    for streams in tuple(_live):
        streams.close()


def _begin_again_in_child() -> None:
    for streams in tuple(_live):
        # What waited here waits in the parent, and a lock may have been held by a thread of it.
        streams._begin()  # noqa: SLF001


os.register_at_fork(after_in_child=_begin_again_in_child)
