# SPDX-License-Identifier: Apache-2.0
"""`Streams`: host threads on shares of a pool that all call the same module."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from xruntime.errors import ClosedError
from xruntime.threads.cpu_pool import CPUPool
from xruntime.threads.worker import DrainRequest, Submission, TaskFuture, Worker, submission_of

if TYPE_CHECKING:
    from xruntime.streams.batching import Batching

QUEUE_LENGTH = 2
"""Number of calls, or batches of them, that wait for each stream before `submit` makes its caller wait."""


class Streams:
    """One stream for each pool of `pools`; each calls `module` with its own team, one thread for each CPU.

    A signal handler, such as that of Ctrl-C, may raise anywhere in the main thread. So a submitter only
    adds its call to the queue and wakes a stream; the streams make all other changes of state.

    `batching` lets calls that wait run as one; each stream then has room for `queue_length` batches.

    `call_each` gives every stream its own part of a batch. `submit` gives a call to the stream that is
    free first; if `queue_length` calls for each stream wait, the submitter waits too. Many threads may use
    both at once.
    """

    def __init__(
        self,
        module: Callable[..., Any],
        pools: Sequence[CPUPool],
        *,
        pin_workers: bool = False,
        queue_length: float = QUEUE_LENGTH,
        batching: Batching | None = None,
    ) -> None:
        self.module = module
        self.pools = tuple(pools)
        self._batching = batching
        self._max_batch = 1 if batching is None else batching.sizes[-1]
        self._max_waiting = len(self.pools) * queue_length * self._max_batch
        self._closed = False
        self._workers: list[Worker] = []
        try:
            for index, pool in enumerate(self.pools):
                worker = Worker(pool.core_ids, name=f"stream {index}", pin_workers=pin_workers)
                self._workers.append(worker)
        except BaseException:
            for worker in self._workers:
                worker.close()
            raise
        self._reset()
        _live.add(self)

    def __len__(self) -> int:
        return len(self.pools)

    @property
    def room(self) -> float:
        """Number of calls that run or wait before `submit` makes its caller wait."""
        return len(self) * self._max_batch + self._max_waiting

    def call_each(self, parts: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]) -> list[Any]:
        """Call the module with part i on stream i; return the results in order.

        If a call fails, the first exception is raised after all calls have ended, with a note that names
        its stream.
        """
        futures: list[TaskFuture[Any]] = []
        try:
            for worker, (args, kwargs) in zip(self._workers, parts, strict=False):
                futures.append(worker.submit(self.module, args, kwargs))
            # One by one: nothing can be done before the last one has ended.
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
        """Call the module on the next free stream; wait while the queue is full. Raises ClosedError."""
        call = submission_of(self.module, args, kwargs)
        if self._batching is not None:
            call = call._replace(group=self._batching.group_of(call))
        gate = None
        with self._lock:
            if self._closed:
                raise ClosedError("these streams are closed and take no more calls")
            if len(self._waiting) >= self._max_waiting and not self._free:
                gate = threading.Lock()
                gate.acquire()
                self._blocked.append((call, gate))
            else:
                self._waiting.append(call)
                self._wake(1)
        if gate is not None:
            # A stream releases the lock when there is room.
            try:
                gate.acquire()
            except BaseException:
                call.future.cancel()
                raise
        return call.future

    def close(self, *, wait: bool = True, cancel_pending: bool = False) -> None:
        """Refuse further calls; with `wait`, return when those accepted are done.

        `cancel_pending` cancels those that have not begun. Closing again does nothing. Within a stream's
        own call it does not wait, which would never end.
        """
        with self._lock:
            self._closed = True
            waiting = [*self._waiting, *(call for call, _ in self._blocked)]
        if cancel_pending:
            # Without the lock, which a callback may need.
            for call in waiting:
                call.future.cancel()
        wait = wait and not any(worker.is_current for worker in self._workers)
        for index, worker in enumerate(self._workers):
            if self._waiting or self._blocked:
                # A submitter may have been interrupted before it woke a stream.
                with contextlib.suppress(ClosedError):
                    worker.put(self._drain_request(index))
            worker.close(wait=False, cancel_pending=cancel_pending)
        if wait:
            for worker in self._workers:
                worker.close()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        """Held while the fields below are read or changed."""
        self._waiting: deque[Submission] = deque()
        self._blocked: deque[tuple[Submission, threading.Lock]] = deque()
        """Calls for which there is no room yet; the lock is released when there is."""
        # In the order in which they became free. The last one is used first: its caches are warm.
        self._free = dict.fromkeys(reversed(range(len(self._workers))))

    def _drain_request(self, index: int) -> DrainRequest:
        # Made each time: a stored one would keep these streams alive.
        return DrainRequest(functools.partial(self._take_calls, index))

    def _wake(self, streams: int) -> None:
        """Wake up to `streams` free streams. The caller holds `_lock`."""
        for _ in range(min(streams, len(self._free))):
            index = next(reversed(self._free))
            # In this order: waking a stream twice is harmless, but one that is never woken is lost.
            self._workers[index].put(self._drain_request(index))
            self._free.pop(index, None)

    def _take_calls(self, index: int, make: Callable[[Submission], None]) -> None:
        """In a stream's thread: make what has waited longest, then queue another drain request."""
        while (call := self._next_call(index)) is not None:
            make(call)
            del call
            # At the end of the worker's line, because parts of batches wait there too.
            if self._waiting:
                with contextlib.suppress(ClosedError):
                    self._workers[index].put(self._drain_request(index))
                    return

    def _next_call(self, index: int) -> Submission | None:
        with self._lock:
            self._admit(1)
            if not self._waiting:
                self._free[index] = None
                return None
            self._free.pop(index, None)
            if self._batching is None:
                call = self._waiting.popleft()
            else:
                calls = self._batching.take(self._waiting, len(self))
                self._admit(len(calls) - 1)
                call = calls[0] if len(calls) == 1 else self._batching.together(calls)
            if self._waiting and self._free:
                # A submitter was interrupted before it woke a stream.
                self._wake(1)
        return call

    def _admit(self, calls: int) -> None:
        """Let up to `calls` submitters go on that wait for room. The caller holds `_lock`."""
        for _ in range(min(calls, len(self._blocked))):
            admitted, gate = self._blocked.popleft()
            self._waiting.append(admitted)
            gate.release()


def ordered_results(
    submit: Callable[[Any], TaskFuture[Any]], calls: Iterable[Any], ahead: float
) -> Iterator[Any]:
    """Submit each item of `calls`, at most `ahead` before the results; yield the results in order.

    A call's exception is raised in place of its result. Then, or when the caller stops, calls that have
    begun finish and the others are cancelled.
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
    # Runs before the workers' exit handler, because this module was imported later.
    for streams in tuple(_live):
        streams.close()


def _reset_in_child() -> None:
    for streams in tuple(_live):
        # Queued calls belong to the parent, and one of its threads may hold the lock.
        streams._reset()  # noqa: SLF001


os.register_at_fork(after_in_child=_reset_in_child)
