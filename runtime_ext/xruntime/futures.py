# SPDX-License-Identifier: Apache-2.0
"""A concurrent.futures.Future that takes a lock only where somebody waits by it.

The standard one makes a condition variable with its lock, and takes it five times in the life of a call
that is submitted, done and waited for. Two threads on two cores hand those cache lines to and fro:
a fifth of a Task's round trip. Here a call that nobody cancels, lists or adds a callback to gets
along without, because its waiter waits by the worker's mailbox.

Why it needs none
-----------------
Two questions are each decided by one entry of a dictionary, which `setdefault` gives to whoever
comes first.

Begun or cancelled: worker and canceller put into one entry what they want.

Ended: the other entry holds a real lock from when somebody first asks for it, and then the worker sets
the outcome under it as the base class does. Or the worker was first and put NoLock there, which in
itself means that the future is finished; what is finished does not change, and needs no lock.
Nothing less would do: concurrent.futures.wait() looks at the state twice under the lock, and for ever
waits for one that was finished in between.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures._base import (
    CANCELLED,
    CANCELLED_AND_NOTIFIED,
    FINISHED,
    PENDING,
    RUNNING,
)
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from concurrent.futures._base import _Waiter

T = TypeVar("T")

_FATE = "fate"
"""Who was first: RUNNING or CANCELLED."""
_LOCK = "lock"
_ENDED = (FINISHED, CANCELLED, CANCELLED_AND_NOTIFIED)


class NoLock:
    """In place of the lock of a future that is finished."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        """There is nothing to release."""

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *raised: object) -> None:
        """There is nothing to release."""


_FINISHED_WITHOUT = NoLock()


class LightFuture(Future[T]):
    """A Future whose lock is made when it is first asked for; all else is as in the base class.

    One thread alone calls `set_running_or_notify_cancel`, `set_result` and `set_exception`.
    """

    def __init__(self) -> None:
        # All that the base class sets, but for `_condition` and `_state`, which are below.
        self._result = None
        self._exception = None
        self._waiters: list[_Waiter] = []
        self._done_callbacks: list[Callable[[Future[T]], object]] = []
        self._first: dict[str, object] = {}
        self._known_state = PENDING

    def __getattr__(self, name: str) -> Any:
        if name != "_condition":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self._first.get(_LOCK) or self._first.setdefault(_LOCK, threading.Condition())

    @property
    def _state(self) -> str:
        return FINISHED if self._first.get(_LOCK) is _FINISHED_WITHOUT else self._known_state

    @_state.setter
    def _state(self, state: str) -> None:
        self._known_state = state

    def cancel(self) -> bool:
        """Whether the call will not be made: not once it has begun."""
        if self._first.setdefault(_FATE, CANCELLED) == RUNNING:
            return False
        return super().cancel()

    def set_running_or_notify_cancel(self) -> bool:
        """For the worker: whether to make the call. Raises RuntimeError the second time."""
        if self._first.setdefault(_FATE, RUNNING) == CANCELLED or self._known_state != PENDING:
            return super().set_running_or_notify_cancel()
        self._known_state = RUNNING
        return True

    def set_result(self, result: T) -> None:
        """For the worker. Raises InvalidStateError where there is an outcome already."""
        if self._known_state == RUNNING and _LOCK not in self._first:
            self._result = result
            if self._first.setdefault(_LOCK, _FINISHED_WITHOUT) is _FINISHED_WITHOUT:
                return
        super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        """For the worker. Raises InvalidStateError where there is an outcome already."""
        if self._known_state == RUNNING and _LOCK not in self._first:
            self._exception = exception
            if self._first.setdefault(_LOCK, _FINISHED_WITHOUT) is _FINISHED_WITHOUT:
                return
        super().set_exception(exception)

    def done(self) -> bool:
        """Whether it was cancelled or has an outcome."""
        return self._first.get(_LOCK) is _FINISHED_WITHOUT or self._known_state in _ENDED

    def result(self, timeout: float | None = None) -> T:
        """As the base class's."""
        if self._first.get(_LOCK) is _FINISHED_WITHOUT and self._exception is None:
            found: T = self._result  # type: ignore[assignment]
            return found
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As the base class's."""
        if self._first.get(_LOCK) is _FINISHED_WITHOUT:
            return self._exception
        return super().exception(timeout)
