# SPDX-License-Identifier: Apache-2.0
"""A concurrent.futures.Future whose lock is made when it is first asked for.

The standard one makes a condition variable with its lock and two lists, and takes the lock five times
in the life of a call that is submitted, done and waited for. Two threads on two cores hand all those
cache lines to and fro, which is a quarter of a Task's round trip. A call that nobody cancels, lists
or adds a callback to gets along without, because its waiter waits by the worker's mailbox.

The base class changes nothing, and waits for nothing, but by `_condition`. Whoever asks for that first
makes it, holding a lock of all futures, and from then on everything is as in the base class. Until
then only the worker changes the future, and does so under the same lock: so the future does not end
between two looks of somebody who holds its condition, as concurrent.futures.wait() relies on. What has
ended does not change, and is read without any lock.
"""

from __future__ import annotations

import contextlib
import logging
import operator
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures._base import (
    CANCELLED,
    CANCELLED_AND_NOTIFIED,
    FINISHED,
    PENDING,
    RUNNING,
)
from typing import TypeVar

T = TypeVar("T")

_log = logging.getLogger("xruntime")

_ENDED = (FINISHED, CANCELLED, CANCELLED_AND_NOTIFIED)

_making = threading.RLock()
"""Held for a few instructions each. A signal's handler may ask for a lock amidst another's making."""

_hold, _let_go = _making.acquire, _making.release
"""For the worker, whom no signal interrupts: `with` makes two objects each time."""


class _Condition(threading.Condition):
    """A condition whose lock is held exactly in its `with` block, though a signal's handler raises.

    The base class's two methods are written in Python, where a handler may run after the lock was taken
    and before the block is entered, or before it is released.
    """

    __enter__ = property(operator.attrgetter("_lock.__enter__"))
    __exit__ = property(operator.attrgetter("_lock.__exit__"))


class LightFuture(Future[T]):
    """A Future whose lock is made when it is first asked for; all else is as in the base class.

    One thread alone calls `set_running_or_notify_cancel`, `set_result` and `set_exception`.
    """

    # What the base class gives to each of them. Most get along with these.
    _state = PENDING
    _result: T | None = None
    _exception: BaseException | None = None
    _waiters: Sequence[object] = ()  # type: ignore[assignment]
    _done_callbacks: Sequence[Callable[[Future[T]], object]] = ()

    _made: threading.Condition | None = None

    def __init__(self) -> None:
        """Nothing is set: see above."""

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        if self._made is None:
            made = _Condition()
            with _making:
                if self._made is None:
                    self._waiters, self._done_callbacks = [], []
                    self._made = made
        return self._made

    def set_running_or_notify_cancel(self) -> bool:
        """For the worker: whether to make the call. Raises RuntimeError the second time."""
        _hold()
        if begins := self._made is None and self._state == PENDING:
            self._state = RUNNING
        _let_go()
        return begins or super().set_running_or_notify_cancel()

    def set_result(self, result: T) -> None:
        """For the worker. Raises InvalidStateError where there is an outcome already."""
        _hold()
        if ends := self._made is None and self._state == RUNNING:
            self._result = result
            self._state = FINISHED
        _let_go()
        if not ends:
            super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        """For the worker. Raises InvalidStateError where there is an outcome already."""
        _hold()
        if ends := self._made is None and self._state == RUNNING:
            self._exception = exception
            self._state = FINISHED
        _let_go()
        if not ends:
            super().set_exception(exception)

    def _invoke_callbacks(self) -> None:
        # Whoever waits in vain takes his off the list.
        for callback in tuple(self._done_callbacks):
            try:
                callback(self)
            except BaseException as error:
                # Of a worker only the callback ends; cancel() is called by who may want to exit.
                if self._state != FINISHED and not isinstance(error, Exception):
                    raise
                _log.exception("the callback %r of %r failed", callback, self)

    def done(self) -> bool:
        """Whether it was cancelled or has an outcome."""
        return self._state in _ENDED

    def result(self, timeout: float | None = None) -> T:
        """As the base class's."""
        if self._state == FINISHED and self._exception is None:
            found: T = self._result  # type: ignore[assignment]
            return found
        self._wait_for_outcome(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As the base class's."""
        if self._state == FINISHED:
            return self._exception
        self._wait_for_outcome(timeout)
        return super().exception(0)

    def _wait_for_outcome(self, timeout_s: float | None) -> None:
        """Wait until it was cancelled or has an outcome. Raises TimeoutError."""
        # A condition's wait() releases its lock where a signal's handler may raise.
        gate = threading.Lock()
        gate.acquire()

        def open_gate(_: object) -> None:
            gate.release()

        with self._condition:
            if self.done():
                return
            # Before callbacks, which may take their time.
            self._done_callbacks.insert(0, open_gate)  # type: ignore[attr-defined]
        try:
            gate.acquire(
                timeout=-1 if timeout_s is None else max(0.0, min(timeout_s, threading.TIMEOUT_MAX))
            )
        finally:
            with self._condition, contextlib.suppress(ValueError):
                self._done_callbacks.remove(open_gate)  # type: ignore[attr-defined]
        if not self.done():
            raise TimeoutError


def _forget_holder() -> None:
    global _making, _hold, _let_go  # noqa: PLW0603 - a thread that is not here may have held it
    _making = threading.RLock()
    _hold, _let_go = _making.acquire, _making.release


os.register_at_fork(after_in_child=_forget_holder)
