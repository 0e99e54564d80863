# SPDX-License-Identifier: Apache-2.0
"""A host thread of its own, confined to a pool of CPUs, that does what it is handed, in order.

Life: started in __init__, which returns when the thread is confined or raises what went wrong;
ended by close(), by the last reference going away, or at the interpreter's exit. What was handed
over is done first. After fork() a child's first submission starts a thread anew.
"""

from __future__ import annotations

import atexit
import contextvars
import functools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Literal, NamedTuple, TypeVar

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
from xruntime.threads.modes import Autocast, ThreadModes, current_autocast
from xruntime.threads.team import confine_team, resize_team

T = TypeVar("T")


NATIVE_WAIT_US = 1000
"""How long a result is waited for without Python's own lock, which costs more to be woken by."""


class Submission(NamedTuple):
    """One call, with all that belongs to it; nothing of it is kept elsewhere."""

    future: TaskFuture[Any]
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    context: contextvars.Context
    grad: bool
    inference: bool
    autocast: Autocast | Literal[False]


class Turn(NamedTuple):
    """Lets a worker make calls that wait elsewhere."""

    take: Callable[[Callable[[Submission], None]], None]
    """Called in the worker's thread with a function that makes a call. It raises nothing."""


def submission_of(
    function: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Submission:
    """A call with a future of its own, the calling thread's modes and a copy of its context."""
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
            is_autocast_enabled("cpu") and current_autocast(),
        ),
    )


class TaskFuture(LightFuture[T]):
    """A concurrent.futures.Future whose result is waited for without the interpreter's lock."""

    line: _Line | None = None
    """Where its call is queued; None until it is."""

    ticket = 0

    def result(self, timeout: float | None = None) -> T:
        """The call's result, or its exception raised.

        Raises TimeoutError after `timeout` seconds, CancelledError, and LostInForkError in a forked
        child that inherited the future.
        """
        if not self.done():
            self._wait(timeout)
        return super().result(_left(timeout))

    get = result
    """The name that Intel's extension for PyTorch gave it."""

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The call's exception, or None. Raises as `result` does."""
        if not self.done():
            self._wait(timeout)
        return super().exception(_left(timeout))

    def _wait(self, timeout_s: float | None) -> None:
        """Wait a short while for the result."""
        line = self.line
        if line is None:
            return
        # Not to the end: it would not hear of cancel().
        wait_us = NATIVE_WAIT_US
        if timeout_s is not None:
            wait_us = min(wait_us, max(0, int(timeout_s * 1e6)))
        if line.mailbox.wait(self.ticket, wait_us) == 0:
            return
        if line.lost:
            raise LostInForkError(
                f"process {os.getpid()} waits for a result of its parent's worker: fork() does not"
                " copy threads. Submit again in this process"
            )
        if line.thread is threading.current_thread():
            raise RuntimeError(
                "a task waits for the result of a later task of its own worker, which would never"
                " come. Call the function directly, or use another Task"
            )


def _left(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else max(0.0, timeout_s - NATIVE_WAIT_US / 1e6)


class _Line:
    """What the submitters and the thread of a worker share. The thread holds it, not the Worker."""

    def __init__(self, cpus: tuple[int, ...], threads: int, pin_workers: bool) -> None:
        self.cpus = cpus
        self.threads = threads
        self.pin_workers = pin_workers
        self.mailbox = Mailbox()
        self.submissions: deque[Submission | Turn] = deque()
        self.order = threading.Lock()
        """Held while a submission is queued, so that queue and tickets agree."""
        self.lost = False
        """This is a child of fork(), and the thread is the parent's."""
        self.started: Future[None] = Future()
        self.thread = threading.Thread(target=_serve, args=(self,), daemon=True)


class Worker:
    """Runs calls one after another on its own thread, whose team has `threads` threads on `cpus`.

    `cpus` are CPU numbers, all of them allowed; `threads` is at least 1. Raises AffinityRefusedError,
    SecondRuntimeError or KernelsUnavailableError when the thread cannot be set up.
    """

    def __init__(
        self, cpus: Sequence[int], threads: int, *, name: str, pin_workers: bool = False
    ) -> None:
        self.cpus = tuple(cpus)
        self.threads = threads
        self.pin_workers = pin_workers
        self.name = name
        self._closed = False
        self._begin()

    def submit(
        self, function: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> TaskFuture[T]:
        """Hand over a call, with the calling thread's modes and context. Raises ClosedError."""
        call = submission_of(function, args, kwargs)
        self.put(call)
        return call.future

    def put(self, work: Submission | Turn) -> None:
        """Hand over a call that was made before, or a turn. Raises ClosedError.

        A signal's handler may raise in here at any point: the work is handed over then, or is not.
        """
        line = self._line
        if line.lost:
            line = self._begin_again(line)
        with line.order:
            # Handlers run after a call, so nothing comes between the two, nor loses the lock.
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
            # In this order, for a thread that waits reads them in the other.
            future.ticket, future.line = ticket, line

    @property
    def pending(self) -> int:
        """How many submissions no thread has begun."""
        return len(self._line.submissions)

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is this worker's."""
        return self._line.thread is threading.current_thread()

    def close(self, *, wait: bool = True, cancel_pending: bool = False) -> None:
        """Take no more work; with `wait`, return when what was handed over is done.

        `cancel_pending` cancels what has not begun. Closing again does nothing.
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

    def _begin(self) -> None:
        line = _Line(self.cpus, self.threads, self.pin_workers)
        line.thread.name = self.name
        # Before the thread, which looks for itself there when it ends.
        _lines.add(line)
        try:
            line.thread.start()
            line.started.result()
        except BaseException:
            line.mailbox.close()
            raise
        self._line = line
        weakref.finalize(self, line.mailbox.close)

    def _begin_again(self, lost: _Line) -> _Line:
        with _beginning:
            if self._closed:
                raise ClosedError(f"{self.name} is closed and takes no more work")
            if self._line is lost:
                self._begin()
            return self._line


def _serve(line: _Line) -> None:
    """The thread: set itself up, then do what comes until the mailbox is closed."""
    try:
        resize_team(line.threads)
        confine_team(line.cpus, pin_workers=line.pin_workers)
    except BaseException as error:  # noqa: BLE001 - it is raised where the worker was wanted
        line.started.set_exception(error)
        return
    line.started.set_result(None)
    next_one, submissions, modes = line.mailbox.next, line.submissions, ThreadModes()
    done = 0
    while (posted := next_one(done)) != CLOSED:
        if posted != INTERRUPTED:
            work = submissions.popleft()
            if isinstance(work, Turn):
                work.take(functools.partial(_do_in_turn, line, done + 1, modes))
            else:
                _do(modes, work)
            # Nothing of it is kept while the next is waited for.
            del work
            done += 1
    # LLVM's and Intel's runtimes give this team's threads, masks and all, to another host thread.
    confine_team(sorted(os.sched_getaffinity(os.getpid())))


def _do_in_turn(line: _Line, ticket: int, modes: ThreadModes, call: Submission) -> None:
    # Whoever waits for the call waits for the turn, in the same order as in `put`.
    call.future.ticket, call.future.line = ticket, line
    _do(modes, call)


def _do(modes: ThreadModes, call: Submission) -> None:
    future, function, args, kwargs, context, grad, inference, autocast = call
    if future.set_running_or_notify_cancel():
        try:
            modes.take(grad, inference, autocast)
            try:
                result = context.run(function, *args, **kwargs)
            finally:
                if autocast:
                    # As at the end of an autocast block: weights may be other ones at the next call.
                    clear_autocast_cache()
        except BaseException as error:  # noqa: BLE001 - it belongs to who waits for the result
            future.set_exception(error)
        else:
            future.set_result(result)
    # An exception's traceback holds this frame, which would hold it and the arguments.
    del future, call, args, kwargs


_lines: weakref.WeakSet[_Line] = weakref.WeakSet()
_beginning = threading.Lock()


@atexit.register
def _finish_all() -> None:
    # Daemon threads, for otherwise the interpreter would wait for them before it calls this.
    lines = [line for line in _lines if not line.lost]
    for line in lines:
        line.mailbox.close()
    for line in lines:
        line.thread.join()


def _forget_threads() -> None:
    global _beginning  # noqa: PLW0603 - it may have been held by a thread that is not here
    _beginning = threading.Lock()
    for line in tuple(_lines):
        line.lost = True


os.register_at_fork(after_in_child=_forget_threads)
