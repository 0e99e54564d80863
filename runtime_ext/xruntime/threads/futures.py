# SPDX-License-Identifier: Apache-2.0
"""A concurrent.futures.Future that makes its lock only when it is needed.

The standard future makes a condition variable with a lock and two lists, and takes the lock five times
for a call that is submitted, run and awaited. The cache lines of these travel between two cores, which
takes a quarter of a Task's round trip. A call that is never cancelled, listed or given a callback does
not need them, because its caller waits by the worker's mailbox.

The base class changes state and waits only through `_condition`. The first access makes that condition,
under one lock for all futures, and from then on the base class's methods apply. Until then only the
worker changes the future, under the same lock, so that the state cannot change while another thread
holds the condition; concurrent.futures.wait() relies on this. A finished future does not change any
more and is read without a lock.
"""

from __future__ import annotations

import contextlib
import logging
import operator
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures._base import CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED, PENDING, RUNNING
from typing import TypeVar

T = TypeVar("T")

_log = logging.getLogger("xruntime")

_ENDED = (FINISHED, CANCELLED, CANCELLED_AND_NOTIFIED)

_state_lock = threading.RLock()
"""Held for a few instructions. Reentrant: a signal handler may need it while its thread holds it."""

_acquire, _release = _state_lock.acquire, _state_lock.release
"""For the worker, which no signal interrupts: `with` would make two objects each time."""


class _Condition(threading.Condition):
    """A condition that a raising signal handler cannot leave locked after its `with` block.

    The base class's two methods are written in Python, where a handler may run between taking the lock
    and entering the block, or before releasing it.
    """

    __enter__ = property(operator.attrgetter("_lock.__enter__"))
    __exit__ = property(operator.attrgetter("_lock.__exit__"))


class LightFuture(Future[T]):
    """A Future that makes its lock when it is first needed; otherwise like the base class.

    Only one thread may call `set_running_or_notify_cancel`, `set_result` and `set_exception`.
    """

    # The base class sets these for each object; most futures never change them.
    _state = PENDING
    _result: T | None = None
    _exception: BaseException | None = None
    _waiters: Sequence[object] = ()  # type: ignore[assignment]
    _done_callbacks: Sequence[Callable[[Future[T]], object]] = ()

    _own_condition: threading.Condition | None = None

    def __init__(self) -> None:
        """Set nothing: the class attributes hold the initial state."""

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        if self._own_condition is None:
            condition = _Condition()
            with _state_lock:
                if self._own_condition is None:
                    self._waiters, self._done_callbacks = [], []
                    self._own_condition = condition
        return self._own_condition

    def set_running_or_notify_cancel(self) -> bool:
        """For the worker: return whether to make the call. Raises RuntimeError the second time."""
        _acquire()
        if begins := self._own_condition is None and self._state == PENDING:
            self._state = RUNNING
        _release()
        return begins or super().set_running_or_notify_cancel()

    def set_result(self, result: T) -> None:
        """For the worker. Raises InvalidStateError if there is an outcome already."""
        _acquire()
        if ends := self._own_condition is None and self._state == RUNNING:
            self._result = result
            self._state = FINISHED
        _release()
        if not ends:
            super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        """For the worker. Raises InvalidStateError if there is an outcome already."""
        _acquire()
        if ends := self._own_condition is None and self._state == RUNNING:
            self._exception = exception
            self._state = FINISHED
        _release()
        if not ends:
            super().set_exception(exception)

    def _invoke_callbacks(self) -> None:
        # A copy: a waiter whose timeout ends removes its callback meanwhile.
        for callback in tuple(self._done_callbacks):
            try:
                callback(self)
            except BaseException as error:
                # A worker must survive SystemExit of a callback; the caller of cancel() may want to exit.
                if self._state != FINISHED and not isinstance(error, Exception):
                    raise
                _log.exception("the callback %r of %r failed", callback, self)

    def done(self) -> bool:
        """Whether it was cancelled or has an outcome."""
        return self._state in _ENDED

    def result(self, timeout: float | None = None) -> T:
        """See the base class."""
        if self._state == FINISHED and self._exception is None:
            result: T = self._result  # type: ignore[assignment]
            return result
        self._wait_for_outcome(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """See the base class."""
        if self._state == FINISHED:
            return self._exception
        self._wait_for_outcome(timeout)
        return super().exception(0)

    def _wait_for_outcome(self, timeout_s: float | None) -> None:
        """Wait until it was cancelled or has an outcome. Raises TimeoutError."""
        # Not the condition's wait(): it releases its lock where a signal handler may raise.
        gate = threading.Lock()
        gate.acquire()

        def open_gate(_: object) -> None:
            gate.release()

        with self._condition:
            if self.done():
                return
            # Before other callbacks, which may be slow.
            self._done_callbacks.insert(0, open_gate)  # type: ignore[attr-defined]
        wait_s = -1 if timeout_s is None else max(0.0, min(timeout_s, threading.TIMEOUT_MAX))
        try:
            gate.acquire(timeout=wait_s)
        finally:
            with self._condition, contextlib.suppress(ValueError):
                self._done_callbacks.remove(open_gate)  # type: ignore[attr-defined]
        if not self.done():
            raise TimeoutError


def _replace_lock() -> None:
    global _state_lock, _acquire, _release  # noqa: PLW0603 - a thread of the parent may hold the lock
    _state_lock = threading.RLock()
    _acquire, _release = _state_lock.acquire, _state_lock.release


os.register_at_fork(after_in_child=_replace_lock)
