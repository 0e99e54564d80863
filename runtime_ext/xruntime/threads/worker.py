# SPDX-License-Identifier: Apache-2.0
"""A host thread, confined to a pool of CPUs, that runs the calls it is given, in order.

The thread starts in __init__, which returns when the thread is confined or raises the error. It ends by
close(), when the last reference is dropped, or at the interpreter's exit, after the calls that were
accepted. After fork() a child's first submission starts a new thread.
"""

from __future__ import annotations

import atexit
import contextvars
import functools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from torch import (
    clear_autocast_cache,
    is_autocast_enabled,
    is_grad_enabled,
    is_inference_mode_enabled,
)

from xruntime.errors import ClosedError, LostInForkError
from xruntime.native import CLOSED, INTERRUPTED
from xruntime.threads.futures import LightFuture
from xruntime.threads.mailbox import Mailbox
from xruntime.threads.team import confine_team, resize_team
from xruntime.threads.torch_modes import Autocast, ThreadModes, current_autocast

T = TypeVar("T")


NATIVE_WAIT_US = 1000
"""Maximum native wait for a result; after it Python's own lock is used, which wakes more slowly."""


class Submission(NamedTuple):
    """One call, with its future, arguments, context and modes."""

    future: TaskFuture[Any]
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    context: contextvars.Context
    grad: bool
    inference: bool
    autocast: Autocast | None
    group: Hashable = None
    """Waiting calls of equal groups may run as one; None: this one runs alone."""


class DrainRequest(NamedTuple):
    """A request to make the calls that wait in another queue."""

    take: Callable[[Callable[[Submission], None]], None]
    """Called in the worker's thread with a function that makes a call. It must not raise."""


def submission_of(
    function: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Submission:
    """Make a submission with a new future, the calling thread's modes and a copy of its context."""
    # Calling the class itself would take twice as long.
    return tuple.__new__(
        Submission,
        (
            TaskFuture(),
            function,
            args,
            kwargs,
            contextvars.copy_context(),
            is_grad_enabled(),
            is_inference_mode_enabled(),
            current_autocast() if is_autocast_enabled("cpu") else None,
            None,
        ),
    )


class TaskFuture(LightFuture[T]):
    """A concurrent.futures.Future that waits for its result without the GIL."""

    line: _Line | None = None
    """The line in which its call is queued; None before that."""

    ticket = 0

    def result(self, timeout: float | None = None) -> T:
        """Return the call's result, or raise its exception.

        Raises TimeoutError after `timeout` seconds, CancelledError, and LostInForkError in a forked
        child that inherited the future.
        """
        if not self.done():
            self._wait(timeout)
        return super().result(_left(timeout))

    get = result
    """The name of `result` in Intel's extension for PyTorch."""

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the call's exception, or None. Raises as `result` does."""
        if not self.done():
            self._wait(timeout)
        return super().exception(_left(timeout))

    def _wait(self, timeout_s: float | None) -> None:
        """Wait natively, at most NATIVE_WAIT_US, for the result."""
        line = self.line
        if line is None:
            return
        # Not to the end: the native wait does not notice cancel().
        wait_us = NATIVE_WAIT_US
        if timeout_s is not None:
            wait_us = min(wait_us, max(0, int(timeout_s * 1e6)))
        if line.mailbox.wait(self.ticket, wait_us) == 0:
            return
        if line.lost:
            raise LostInForkError(
                f"process {os.getpid()} waits for a result of a worker in its parent: fork() does not"
                " copy threads. Submit the call again in this process"
            )
        if line.thread is threading.current_thread():
            raise RuntimeError(
                "a call waits for a later call of the same worker, which would never start. Call the"
                " function directly, or use another Task"
            )


def _left(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else max(0.0, timeout_s - NATIVE_WAIT_US / 1e6)


class _Line:
    """The queue and mailbox that the submitters and the thread of a worker share.

    The thread holds a reference to it and not to the Worker, which can therefore be dropped.
    """

    def __init__(self, name: str, cpus: tuple[int, ...], pin_workers: bool) -> None:
        self.mailbox = Mailbox()
        self.submissions: deque[Submission | DrainRequest] = deque()
        self.order = threading.Lock()
        """Held while a submission is queued, so that queue and tickets are in the same order."""
        self.lost = False
        """Whether this is a child of fork(), and the thread is in the parent."""
        self.started: Future[None] = Future()
        self.thread = threading.Thread(
            target=_serve, name=name, args=(self, cpus, pin_workers), daemon=True
        )


class Worker:
    """Runs calls one after another on its own thread, whose team has a thread for each of `cpus`.

    `cpus` are CPU numbers, all of them allowed. Raises AffinityRefusedError, SecondRuntimeError or
    KernelsUnavailableError if the thread cannot be set up.
    """

    def __init__(self, cpus: Sequence[int], *, name: str, pin_workers: bool = False) -> None:
        self.cpus = tuple(cpus)
        self.pin_workers = pin_workers
        self.name = name
        self._closed = False
        self._start()

    def submit(
        self, function: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> TaskFuture[T]:
        """Queue a call, with the calling thread's modes and context. Raises ClosedError."""
        call = submission_of(function, args, kwargs)
        self.put(call)
        return call.future

    def put(self, work: Submission | DrainRequest) -> None:
        """Queue a submission or a request. Raises ClosedError.

        If a signal handler raises in here, the work is either queued or not, never in between.
        """
        line = self._line
        if line.lost:
            line = self._restart(line)
        with line.order:
            # A handler may raise after `append`; `finally` then still posts the work.
            try:
                line.submissions.append(work)
            finally:
                ticket = line.mailbox.post()
            if ticket == CLOSED:
                line.submissions.pop()
        if ticket == CLOSED:
            raise ClosedError(f"{self.name} is closed and takes no more work")
        if isinstance(work, Submission):
            future = work.future
            # In this order: a waiting thread reads them in the other.
            future.ticket, future.line = ticket, line

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is this worker's."""
        return self._line.thread is threading.current_thread()

    def close(self, *, wait: bool = True, cancel_pending: bool = False) -> None:
        """Refuse further work; with `wait`, return when the accepted work is done.

        `cancel_pending` cancels work that has not begun. Closing again does nothing.
        """
        self._closed = True
        line = self._line
        if line.lost:
            return
        if cancel_pending:
            for work in tuple(line.submissions):
                if isinstance(work, Submission):
                    work.future.cancel()
        line.mailbox.close()
        if wait and not self.is_current:
            line.thread.join()

    def _start(self) -> None:
        line = _Line(self.name, self.cpus, self.pin_workers)
        # Before the thread starts: the exit handler must not miss it.
        _lines.add(line)
        try:
            line.thread.start()
            line.started.result()
        except BaseException:
            line.mailbox.close()
            raise
        self._line = line
        weakref.finalize(self, line.mailbox.close)

    def _restart(self, lost: _Line) -> _Line:
        with _restart_lock:
            if self._closed:
                raise ClosedError(f"{self.name} is closed and takes no more work")
            if self._line is lost:
                self._start()
            return self._line


def _serve(line: _Line, cpus: tuple[int, ...], pin_workers: bool) -> None:
    """Run in the thread: set it up, then work until the mailbox is closed."""
    try:
        resize_team(len(cpus))
        confine_team(cpus, pin_workers=pin_workers)
    except BaseException as error:  # noqa: BLE001 - __init__ raises it
        line.started.set_exception(error)
        return
    line.started.set_result(None)
    next_one, submissions, modes = line.mailbox.next, line.submissions, ThreadModes()
    done = 0
    while (posted := next_one(done)) != CLOSED:
        if posted != INTERRUPTED:
            work = submissions.popleft()
            if isinstance(work, DrainRequest):
                work.take(functools.partial(_do_in_turn, line, done + 1, modes))
            else:
                _do(modes, work)
            # No reference stays while the thread waits.
            del work
            done += 1
    modes.leave()
    # LLVM's and Intel's runtimes pass this team's threads with their masks to another host thread.
    confine_team(sorted(os.sched_getaffinity(os.getpid())))


def _do_in_turn(line: _Line, ticket: int, modes: ThreadModes, call: Submission) -> None:
    # Waiters for the call wait for the turn's ticket; the order is as in `put`.
    call.future.ticket, call.future.line = ticket, line
    _do(modes, call)


def _do(modes: ThreadModes, call: Submission) -> None:
    future, function, args, kwargs, context, grad, inference, autocast, _ = call
    if future.set_running_or_notify_cancel():
        try:
            modes.take(grad, inference, autocast)
            try:
                result = context.run(function, *args, **kwargs)
            finally:
                if autocast:
                    # As at the end of an autocast block: weights may change before the next call.
                    clear_autocast_cache()
        except BaseException as error:  # noqa: BLE001 - result() raises it
            future.set_exception(error)
        else:
            future.set_result(result)
    # A traceback refers to this frame, which would keep the exception and the arguments alive.
    del future, call, args, kwargs


_lines: weakref.WeakSet[_Line] = weakref.WeakSet()
_restart_lock = threading.Lock()


@atexit.register
def _finish_all() -> None:
    # The threads are daemons; otherwise the interpreter would wait for them before this call.
    lines = [line for line in _lines if not line.lost]
    for line in lines:
        line.mailbox.close()
    for line in lines:
        line.thread.join()


def _forget_threads() -> None:
    global _restart_lock  # noqa: PLW0603 - a thread of the parent may hold it
    _restart_lock = threading.Lock()
    for line in tuple(_lines):
        line.lost = True


os.register_at_fork(after_in_child=_forget_threads)
