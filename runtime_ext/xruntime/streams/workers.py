# SPDX-License-Identifier: Apache-2.0
"""A set of streams: host threads on disjoint shares of a pool that all call the same module."""

from __future__ import annotations

import atexit
import functools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from xruntime.cpu_pool import CPUPool
from xruntime.errors import ClosedError
from xruntime.worker import Submission, TaskFuture, Worker, submission_of

QUEUE_LENGTH = 2
"""How many calls wait for each stream before `submit` makes its caller wait."""


class Streams:
    """One stream a pool of `pools`; each calls `module` with its own team, a thread a CPU.

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
        self._room.acquire()
        call = submission_of(self.module, args, kwargs)
        with self._changed:
            if self._closed:
                self._room.release()
                raise ClosedError("these streams are closed and take no more work")
            free = self._free.pop() if self._free else None
            if free is None:
                self._waiting.append(call)
        if free is not None:
            self._give(call, free)
        return call.future

    def close(self, *, wait: bool = True, cancel_pending: bool = False) -> None:
        """Take no more calls; with `wait`, return when those accepted are done.

        `cancel_pending` cancels those that have not begun. Closing again does nothing.
        """
        with self._changed:
            self._closed = True
            if cancel_pending:
                for call in self._waiting:
                    call.future.cancel()
            if wait:
                self._changed.wait_for(lambda: len(self._free) == len(self._workers))
        if wait:
            for worker in self._workers:
                worker.close(cancel_pending=cancel_pending)

    def _begin(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        """Held while what follows is changed; notified when the last stream becomes free."""
        self._room = threading.Semaphore(len(self) * self._queue_length)
        self._waiting: deque[Submission] = deque()
        # The stream that was free last comes first: its caches are warm.
        self._free = list(reversed(range(len(self._workers))))

    def _give(self, call: Submission, index: int) -> None:
        self._room.release()
        self._workers[index].put(call._replace(after=functools.partial(self._became_free, index)))

    def _became_free(self, index: int) -> None:
        # One call at a time, to the end of the worker's line: parts of batches wait there, too.
        with self._changed:
            call = self._waiting.popleft() if self._waiting else None
            if call is None:
                self._free.append(index)
                if len(self._free) == len(self._workers):
                    self._changed.notify_all()
        if call is not None:
            self._give(call, index)


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
